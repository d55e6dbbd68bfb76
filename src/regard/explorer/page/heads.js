// Every layer and head as a thumbnail; one of them large, with its exact weights.

import * as api from "./api.js";
import { announce, chip, el, levelChips, rove } from "./dom.js";
import { inside, reading, weight } from "./format.js";
import { Lines } from "./lines.js";
import { alpha, Matrix } from "./matrix.js";
import { set, state } from "./state.js";
import { entries, merge } from "./words.js";

const KINDS = { encoder: "Encoder self-attention", decoder: "Decoder self-attention", cross: "Cross-attention", pooling: "Attention pooling" };
const AXES = {
  encoder: ["query", "key"], decoder: ["generates", "has read"], cross: ["target", "source"], pooling: ["query", "token"],
};

function thumbnail(bytes, rows, columns) {
  const canvas = el("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const hot = getComputedStyle(document.documentElement).getPropertyValue("--hot").trim().split(" ").map(Number);
  bytes.forEach((value, i) => image.data.set([...hot, Math.round(255 * alpha(value / 255))], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}

export function headsView(run) {
  const kinds = Object.keys(KINDS).filter((kind) => run.maps.some((map) => map.kind === kind));
  const first = run.maps.findIndex((map) => map.kind === (kinds.includes("cross") ? "cross" : kinds.at(-1)));
  let index = state.map !== "" && Number(state.map) < run.maps.length ? Number(state.map) : first;
  let head = state.head !== "mean" && Number(state.head) < run.maps[index].heads ? Number(state.head) : 0;
  let bytes = null, data = null, rows = [], columns = [], lines = null;

  const overview = el("div", {}), filter = el("div", { class: "chips" }), controls = el("div", { class: "controls" });
  const title = el("h2", {}), sub = el("p", { class: "reading dim" }), detail = el("p", { class: "dim" });
  const space = el("div", {});
  const matrix = new Matrix({ label: "Attention weights, queries in rows, keys in columns", onmove: choose, onselect: choose });
  rove(overview, "button");

  function showOverview() {
    filter.replaceChildren(...(kinds.length > 1 ? ["all", ...kinds].map((kind) =>
      chip(kind, state.kind === kind, () => { set({ kind }); showOverview(); })) : []));
    const shown = kinds.filter((kind) => !kinds.includes(state.kind) || kind === state.kind);
    overview.replaceChildren(...shown.map((kind) => el("div", { class: "kind" }, el("h3", {}, KINDS[kind]),
      run.maps.map((map, i) => (map.kind === kind ? layer(map, i) : null)))));
  }

  function layer(map, i) {
    return el("div", { class: "layer" }, el("span", { title: `layer ${map.layer + 1}` }, String(map.layer + 1)),
      el("div", {}, bytes[i].map((cells, h) => el("button", {
        class: "thumb", type: "button", "aria-pressed": String(i === index && h === head),
        "aria-label": `${map.kind} layer ${map.layer + 1} head ${h + 1}`, title: `entropy ${map.entropy[h].toFixed(2)} bits`,
        "data-map": i, "data-head": h,
        onclick: () => { index = i; head = h; set({ map: i, head: h }); mark(); load(); },
      }, thumbnail(cells, ...map.thumbnail)))));
  }

  function mark() {
    for (const button of overview.querySelectorAll(".thumb")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.map) === index && Number(button.dataset.head) === head));
    }
  }

  function choose(row, column) {
    if (row < 0 || row >= rows.length || !data) return;
    matrix.move(row, column, false);
    lines.choose(row);
    const values = data.subarray(row * columns.length, (row + 1) * columns.length);
    const [name, text] = reading(rows[row].text, values, columns.map((c) => c.text));
    const exact = column < 0 ? "" : ` — ${inside(columns[column].text)}: ${weight(values[column])}`;
    sub.replaceChildren(el("b", { dir: "auto" }, name), ` attends to ${text}${exact}`);
    announce(column < 0 ? `${name} attends to ${text}` : `${inside(name)}, ${inside(columns[column].text)}: ${weight(values[column])}`);
  }

  async function load() {
    const map = run.maps[index], level = state.level;
    controls.replaceChildren(levelChips(level, (value) => { set({ level: value }); load(); }));
    title.textContent = `${KINDS[map.kind]}, layer ${map.layer + 1}, head ${head + 1}`;
    detail.textContent = `entropy ${map.entropy[head].toFixed(2)} bits on average`;
    const weights = await api.head(run, index, head);
    rows = entries(run.sides[map.rowSide], level).filter((entry) => entry.tokens.every((t) => t < map.rows));
    columns = entries(run.sides[map.columnSide], level);
    data = merge(weights, map.columns, rows, columns);
    const [rowName, columnName] = AXES[map.kind];
    lines = new Lines({ rowName, columnName, onhover: (row) => choose(row, -1), onselect: (row) => choose(row, -1) });
    space.replaceChildren(lines.node);
    lines.show(data, rows, columns);
    matrix.show(data, rows, columns);
    choose(Math.min(Math.max(0, matrix.row), rows.length - 1), -1);
  }

  api.thumbnails(run).then((all) => { bytes = all; showOverview(); return load(); })
    .catch((error) => { sub.textContent = error.message; });
  return el("div", { class: "split" },
    el("section", { class: "card" }, el("header", {}, el("h2", {}, "All heads"),
      el("p", { class: "dim" }, "Layers downwards; each head scaled to its largest weight.")), filter, overview),
    el("section", { class: "card" }, el("header", {}, title, detail, controls), sub, space, matrix.node,
      el("p", { class: "legend dim" }, "0", el("i"), "1")));
}
