// Every layer and head as a thumbnail; one of them large, with its stages.

import * as api from "./api.js";
import { announce, bold, chip, choice, el, levelChips, refill, rove } from "./dom.js";
import { exportMenu } from "./export.js";
import { inside, KINDS, largest, mapName, weight } from "./format.js";
import { Lines } from "./lines.js";
import { alpha, Matrix } from "./matrix.js";
import { newest } from "./newest.js";
import { indexOf, mapIndex, rowOf, set, state } from "./state.js";
import { axes, merge, readRow } from "./words.js";

const AXES = {
  encoder: ["query", "key"],
  decoder: ["generates", "has read"],
  cross: ["target", "source"],
  pooling: ["query", "token"],
};
const STAGES = { energy: "energy", biased: "+ bias", masked: "+ mask", "": "weights" };
const UNITS = { entropy: "bits", distance: "tokens" };
const MEANING =
  "Hide heads by entropy (0 bits: all weight on one token) or distance (mean number of tokens between a word and what it attends to).";

/** The colours of 256 values on the background of `node`: blue, green, red, 0. */
function palette(node) {
  const style = getComputedStyle(node),
    hot = style.getPropertyValue("--hot").trim().split(" ").map(Number);
  const ground = style.backgroundColor.match(/\d+/gu).map(Number);
  const mixed = (value, i) => Math.round(ground[i] + (hot[i] - ground[i]) * alpha(value / 255));
  return Uint8Array.from({ length: 1024 }, (_, i) => (i % 4 === 3 ? 0 : mixed(i >> 2, 2 - (i % 4))));
}

/** A thumbnail as a bitmap file with a palette: 144 images are drawn faster than 144 canvases. */
function thumbnail(bytes, rows, columns, colours) {
  const start = 54 + colours.length,
    stride = (columns + 3) & ~3,
    file = new Uint8Array(start + rows * stride),
    header = new DataView(file.buffer);
  header.setUint16(0, 0x424d);
  for (const [at, value] of [
    [2, file.length],
    [10, start],
    [14, 40],
    [18, columns],
    [22, -rows],
    [26, 1 | (8 << 16)],
  ])
    header.setInt32(at, value, true);
  file.set(colours, 54);
  for (let row = 0; row < rows; row++)
    file.set(bytes.subarray(row * columns, (row + 1) * columns), start + row * stride);
  return el("img", { alt: "", src: `data:image/bmp;base64,${btoa(String.fromCharCode(...file))}` });
}

/** The entropy and distance of a head, once they are there. */
const statistics = (map, h) =>
  Object.entries(UNITS)
    .filter(([name]) => map[name])
    .map(([name, unit]) => `${name} ${map[name][h].toFixed(name === "entropy" ? 2 : 1)} ${unit}`)
    .join(" · ");

const tooltip = (map, h) => [mapName(map, h), statistics(map, h)].filter(Boolean).join("\n");

/** A limit on a figure of heads, in the address as "max:1.5" or "min:1.5". */
function limit(name, run, onchange, fail) {
  const [side, value] = state[name].split(":");
  const shown = el("output.num");
  const range = el("input", {
    type: "range",
    min: 0,
    step: 0.1,
    "aria-label": `Limit of ${name}`,
    hidden: true,
  });
  const show = (to) => {
    range.hidden = !to;
    shown.textContent = to ? `${range.value} ${UNITS[name]}` : "";
  };
  const choose = newest(async (fresh, to) => {
    if (to && !range.max) {
      await fresh(api.headStatistics(run));
      const most = Math.max(0.1, ...run.maps.flatMap((map) => map[name] ?? []));
      range.max = (Math.ceil(most * 10) / 10).toFixed(1); // hides no head
      range.value = value ?? (most / 2).toFixed(1);
    }
    set({ [name]: to ? `${to}:${range.value}` : "" });
    show(to);
    onchange();
  }, fail);
  const select = choice(
    name,
    [
      ["", "any"],
      ["max", "at most"],
      ["min", "at least"],
    ],
    side,
    choose,
  );
  range.addEventListener("input", () => choose(select.querySelector("select").value));
  if (side) choose(side);
  return el("div.controls", select, range, shown);
}

function passes(map, h) {
  return Object.keys(UNITS).every((name) => {
    const [side, value] = state[name].split(":"),
      x = map[name]?.[h];
    return !value || x === undefined || (side === "max" ? x <= Number(value) : x >= Number(value));
  });
}

/** How different the heads of a layer are: a number, and a matrix of all pairs. */
function differences(run, fail) {
  const text = el("p.dim"),
    title = el("h2", "How different the heads are");
  const pairs = new Matrix({
    label: "Divergence of each pair of heads",
    largest: 26,
    onmove: (a, b) => {
      if (a < 0 || b < 0) return;
      sub.textContent = `heads ${a + 1} and ${b + 1}: ${pairs.weights[a * pairs.rows.length + b].toFixed(3)} bits`;
      announce(sub.textContent);
    },
  });
  const sub = el("p.dim"),
    node = el("section.card", el("header", title, text), sub, pairs.node);
  node.hidden = true;
  return {
    node,
    show: newest(async (fresh, index) => {
      node.hidden = run.maps[index].heads < 2;
      if (node.hidden) return;
      const { divergence, effectiveRank, pairs: values } = await fresh(api.diversity(run, index)),
        names = values.map((_, h) => ({ text: String(h + 1) }));
      text.textContent = `In this layer two heads differ by ${divergence.toFixed(2)} bits on average (0: equal, 1: no key shared); effective rank ${effectiveRank.toFixed(1)} of ${values.length}.`;
      pairs.show(Float32Array.from(values.flat()), names, names);
    }, fail),
  };
}

export function headsView(run, model, actions) {
  const kinds = Object.keys(KINDS).filter((kind) => run.maps.some((map) => map.kind === kind));
  const first = run.maps.findIndex((map) => map.kind === (kinds.includes("cross") ? "cross" : kinds.at(-1)));
  let index = mapIndex(run, first);
  let head = indexOf("head", run.maps[index].heads, 0);
  let bytes = null,
    colours = null,
    data = null,
    shownStage = "",
    rows = [],
    columns = [],
    lines = null,
    strongest = -1; // head of a clicked cell

  const overview = el("div.painted"),
    filter = el("div.chips"),
    controls = el("div.controls"),
    count = el("p.dim");
  const title = el("h2", { id: "head-title" }),
    sub = el("p.reading"),
    detail = el("p.dim"),
    legend = el("p.legend.dim");
  const space = el("div"),
    stages = el("div.chips", { role: "group", "aria-label": "Stage of attention" });
  const matrix = new Matrix({
    label: "Attention weights, queries in rows, keys in columns",
    onmove: choose,
    onselect: pin,
    numbers: true,
  });
  const across = el("p.dim", { id: "across" });
  const different = differences(run, fail),
    trust = actions.trustLine(run);
  const menu = exportMenu(() => ({ run, map: index, head, level: state.level }));
  rove(overview, "button");

  function fail(error) {
    sub.textContent = error.message;
  }

  function showOverview() {
    if (!bytes) return;
    colours = palette(overview.closest(".card"));
    refill(
      filter,
      ...(kinds.length > 1
        ? ["all", ...kinds].map((kind) =>
            chip(KINDS[kind] ?? "all", state.kind === kind, () => {
              set({ kind });
              showOverview();
            }),
          )
        : []),
    );
    const shown = kinds.filter((kind) => !kinds.includes(state.kind) || kind === state.kind);
    const layers = shown.map((kind) => [
      kind,
      run.maps.map((map, i) => (map.kind === kind ? layer(map, i) : null)).filter(Boolean),
    ]);
    overview.replaceChildren(
      ...layers
        .filter(([, list]) => list.length)
        .map(([kind, list]) => el("div.kind", el("h3", KINDS[kind]), headNumbers(kind), list)),
    );
    const all = run.maps.reduce((sum, map) => sum + map.heads, 0),
      seen = overview.querySelectorAll(".thumb").length;
    count.textContent = seen === all ? "" : `${seen} of ${all} heads`;
    mark();
  }

  /** A line of the overview: a head keeps its column where others are hidden. */
  function line(name, heads, cells) {
    const grid = el("div", cells);
    grid.style.setProperty("--heads", heads);
    return el("div.layer", el("span", name), grid);
  }

  function headNumbers(kind) {
    const most = Math.max(...run.maps.filter((map) => map.kind === kind).map((map) => map.heads));
    const node = line(
      "head",
      most,
      Array.from({ length: most }, (_, h) => el("span", String(h + 1))),
    );
    node.setAttribute("aria-hidden", "true"); // each thumbnail has its name
    return node;
  }

  function layer(map, i) {
    const buttons = bytes[i]
      .map((cells, h) =>
        passes(map, h)
          ? el(
              "button",
              {
                class: "thumb",
                "aria-pressed": "false",
                "aria-label": mapName(map, h),
                title: tooltip(map, h),
                "data-map": i,
                "data-head": h,
                onclick: () => {
                  const sameRows = map.rowSide === run.maps[index].rowSide;
                  index = i;
                  head = h;
                  set({ map: i, head: h, ...(sameRows ? {} : { row: "" }) });
                  load();
                },
              },
              thumbnail(cells, ...map.thumbnail, colours),
            )
          : null,
      )
      .filter(Boolean);
    for (const button of buttons) button.style.gridColumn = Number(button.dataset.head) + 1;
    return buttons.length ? line(`layer ${map.layer + 1}`, map.heads, buttons) : null;
  }

  function mark() {
    for (const button of overview.querySelectorAll(".thumb")) {
      const here = Number(button.dataset.map) === index,
        h = Number(button.dataset.head);
      button.setAttribute("aria-pressed", String(here && h === head));
      button.classList.toggle("most", here && h === strongest);
    }
  }

  function pin(row, column) {
    if (!shownStage || state.level === "tokens") set({ row }); // a stage has rows of tokens
    choose(row, column);
    if (column >= 0 && !shownStage) compareHeads(row, column);
  }

  /** The weight of one cell in every head of the layer. */
  const compareHeads = newest(async (fresh, row, column) => {
    const { heads: count, columns: width } = run.maps[index],
      from = rows[row],
      to = columns[column],
      picture = data;
    const all = await fresh(Promise.all(from.tokens.map((t) => api.row(run, index, t))));
    if (data !== picture) return; // the cell is of a picture that has gone
    const share = (h) =>
      all.reduce((sum, values) => to.tokens.reduce((s, t) => s + values[h * width + t], sum), 0) / all.length;
    const shares = Array.from({ length: count }, (_, h) => share(h)),
      order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]);
    const note = (h) => [h === order[0] ? "most" : "", h === head ? "shown" : ""].filter(Boolean).join(", ");
    across.textContent = `${inside(from.text)} → ${inside(to.text)}, ${mapName(run.maps[index])}: ${order.map((h) => `head ${h + 1} ${weight(shares[h])}${note(h) && ` (${note(h)})`}`).join(" · ")}`;
    strongest = order[0];
    mark();
    announce(across.textContent);
  }, fail);

  function choose(row, column) {
    if (row < 0 || row >= rows.length || !data) return;
    matrix.move(row, column, false);
    if (shownStage) {
      const values = data.subarray(row * columns.length, (row + 1) * columns.length);
      const shown = (x) => (x === -Infinity ? "masked" : x.toFixed(3).replace("-", "−"));
      const order = [...values.keys()]
        .filter((i) => values[i] !== -Infinity)
        .sort((a, b) => values[b] - values[a])
        .slice(0, 4);
      const text =
        column < 0
          ? order.map((i) => `${inside(columns[i].text)} ${shown(values[i])}`).join(" · ")
          : `${inside(columns[column].text)}: ${shown(values[column])}`;
      sub.replaceChildren(bold(rows[row].text), ` — ${column < 0 ? "largest " : ""}${text}`);
      return announce(sub.textContent);
    }
    lines.choose(row);
    readRow(sub, data, rows, columns, row, column);
  }

  const staged = model.can?.includes("stages"),
    stageOf = () => (staged ? state.stage : "");
  function showStages() {
    refill(
      stages,
      ...(staged
        ? Object.entries(STAGES).map(([name, text]) =>
            chip(text, state.stage === name, () => {
              set({ stage: name });
              load();
            }),
          )
        : []),
    );
  }

  const load = newest(async (fresh) => {
    const map = run.maps[index],
      stage = stageOf(),
      level = stage ? "tokens" : state.level;
    refill(
      controls,
      ...(stage
        ? []
        : [
            levelChips(level, (value) => {
              set({ level: value });
              load();
            }),
          ]),
      ...(model.can?.includes("export") ? [menu] : []),
    );
    showStages();
    title.textContent = mapName(map, head);
    title.title = `in Python: weights of ${map.name}, head ${head}`;
    detail.textContent = statistics(map, head);
    const weights = await fresh(api.head(run, index, head, stage));
    shownStage = stage;
    [rows, columns] = axes(run, map, level);
    data = stage ? weights : merge(weights, map.columns, rows, columns);
    const [rowName, columnName] = AXES[map.kind];
    if (!stage) {
      lines = new Lines({
        rowName,
        columnName,
        onhover: (row) => choose(row, -1),
        onselect: (row) => pin(row, -1),
      });
      space.replaceChildren(lines.node);
      lines.show(data, rows, columns);
    } else space.replaceChildren();
    const most = stage ? largest(weights) : 1;
    strongest = -1;
    mark();
    across.textContent =
      stage || map.heads < 2 ? "" : "Click a cell to see its weight in every head of this layer.";
    matrix.show(data, rows, columns, { signed: stage !== "", limit: most });
    legend.replaceChildren(
      ...(stage
        ? [
            `−${most.toFixed(1)}`,
            el("i.signed"),
            `${most.toFixed(1)}`,
            stage === "masked" ? "· dots are masked" : "",
          ]
        : ["0", el("i"), "1"]),
    );
    const given = stage && state.level !== "tokens" ? -1 : rowOf(run, map.rowSide),
      first = given < 0 ? rows.findIndex((entry) => !entry.special) : given;
    choose(Math.min(Math.max(0, matrix.row < 0 ? first : matrix.row), rows.length - 1), -1);
    trust.update(map, head);
    await fresh(api.headStatistics(run));
    showStatistics();
    if (model.can?.includes("diversity")) await different.show(index);
  }, fail);

  /** Write entropy and distance where they belong; they come after the first picture. */
  function showStatistics() {
    for (const button of overview.querySelectorAll(".thumb"))
      button.title = tooltip(run.maps[button.dataset.map], Number(button.dataset.head));
    detail.textContent = statistics(run.maps[index], head);
  }

  const start = newest(async (fresh) => {
    const thumbnails = api.thumbnails(run);
    api.head(run, index, head, stageOf()).catch(() => {}); // it is on its way while thumbnails are drawn
    bytes = await fresh(thumbnails);
    showOverview();
    await load();
  }, fail);

  overview.addEventListener("repaint", showOverview);
  start();
  return el(
    "div.split",
    el(
      "div",
      el(
        "section.card",
        el(
          "header",
          el("h2", "All heads"),
          el(
            "p.dim",
            "Click one to enlarge it. Each is scaled to its own largest weight, so compare numbers, not shades.",
          ),
        ),
        filter,
        el(
          "div.limits",
          limit("entropy", run, showOverview, fail),
          limit("distance", run, showOverview, fail),
          count,
          el("p.dim", MEANING),
        ),
        overview,
      ),
    ),
    el(
      "div",
      el(
        "section.card",
        el("header", title, detail),
        el("div.controls.spread", stages, controls),
        across,
        sub,
        space,
        matrix.node,
        legend,
        trust.node,
      ),
      different.node,
    ),
  );
}
