// Change attention and run the text again: both outputs and their probabilities side by side.

import * as api from "./api.js";
import { answer } from "./difference.js";
import { announce, bold, choice, el, errorLine, legend, meter, num, refill } from "./dom.js";
import { draggable, kendall, reweighted } from "./drag.js";
import { inside, mapName, percent, probability, ranked, weight as written } from "./format.js";
import { Matrix } from "./matrix.js";
import { newest, shown as shownView } from "./newest.js";
import { mapIndex, set, stored } from "./state.js";
import { axes, entries, readRow } from "./words.js";

const CHANGES = { uniform: "make uniform", zero: "set to zero", pin: "pin to one token" };

function bars(probabilities) {
  return el(
    "div.bars",
    ranked(probabilities)
      .slice(0, 6)
      .flatMap(([label, p]) => [el("span", label), meter(p), num(percent(p))]),
  );
}

function outcome(name, output, other) {
  return el(
    "section",
    el("h3.dim", name),
    answer(output, other),
    "probabilities" in output ? bars(output.probabilities) : null,
  );
}

/** Which output is likelier, and why the search missed it. */
export function searched({ text, comparison: compared }, before, beam) {
  if (text === undefined || !compared) return null;
  const [how, why] =
    beam === 1
      ? ["greedy search", "it takes the likeliest token of each step and never goes back"]
      : [
          `beam search with ${beam} hypotheses`,
          `it keeps ${beam} beginnings at each step and ranks them by log p per token`,
        ];
  const { original, changed } = compared,
    missed = [original.edited > changed.edited, changed.plain > original.plain];
  const likelier =
    missed[0] && missed[1]
      ? "Each output is likelier in the other column"
      : `The ${missed[0] ? "original" : "changed"} output is likelier in both columns`;
  return el(
    "p",
    { id: "searched" },
    missed.includes(true)
      ? `${likelier}; ${how} missed it: ${why}.`
      : `Both outputs are from ${how}${text === before.text ? "" : "; each is the likelier one in its own column"}.`,
  );
}

function comparison(output) {
  if ("cosine" in output) return el("p", "cosine of the two vectors ", num(output.cosine.toFixed(4)));
  if (!output.comparison) return null;
  const { original, changed } = output.comparison;
  const same = original.plain === changed.plain && original.edited === changed.edited;
  const cell = (logP, other) => el("td.num", logP > other ? el("b", probability(logP)) : probability(logP));
  return el(
    "table",
    el(
      "thead",
      el(
        "tr",
        el("th", "probability of"),
        el("th", { scope: "col" }, "attention as it is"),
        el("th", { scope: "col" }, "attention changed"),
      ),
    ),
    el(
      "tbody",
      el(
        "tr",
        el("th", { scope: "row" }, same ? "the output" : "the original output"),
        cell(original.plain, changed.plain),
        cell(original.edited, changed.edited),
      ),
      same
        ? null
        : el(
            "tr",
            el("th", { scope: "row" }, "the changed output"),
            cell(changed.plain, original.plain),
            cell(changed.edited, original.edited),
          ),
    ),
  );
}

/** The changed map before and after: of the changed head, or the mean of all heads. */
function pictures(runs, before, { map: name, head = "mean" }) {
  return runs.map((run) => {
    const index = run.maps.findIndex((map) => map.name === name),
      map = run.maps[index];
    if (!map) return el("p.dim", "This attention did not run.");
    const [rows, columns] = axes(run, map, "tokens"); // of words, uniform weights would not look uniform
    const sub = el("p.reading.dim", "Point at a row to read it."),
      title = run === before ? "Attention as it is" : "Attention changed",
      key = legend();
    const matrix = new Matrix({
      label: title,
      largest: 34,
      onmove: (row) => readRow(sub, matrix.weights, rows, columns, row, -1, 3),
    });
    api
      .head(run, index, head)
      .then((weights) => {
        matrix.show(weights, rows, columns);
        if (weights[0] && weights.every((w) => Math.abs(w - weights[0]) < 1e-3 * weights[0]))
          key.append(el("span", `each weight 1/${Math.round(1 / weights[0])} = ${written(weights[0])}`));
      })
      .catch((error) => {
        sub.textContent = error.message;
      });
    return el("section", el("h3", title), el("p.dim", mapName(map, head)), sub, matrix.node, key);
  });
}

export function view(run) {
  const cross = run.maps.findLastIndex((map) => map.kind === "cross");
  const draft = {
    map: mapIndex(run, Math.max(cross, 0)),
    head: "all",
    row: "all",
    change: "uniform",
    key: 0,
  };
  const tokens = (side) => entries(run.sides[side], "tokens"),
    here = shownView();
  let changes = restored();
  const form = el("div.controls"),
    list = el("ul.list"),
    result = el("div.result");
  const [error, fail] = errorLine(),
    space = el("div");
  const matrix = new Matrix({
    label: "Attention weights; drag a cell up or down, or press Shift and an arrow, to change its weight",
    onmove: read,
  });
  draggable(matrix, drag);
  const maps = el("div.triple", { id: "maps" }),
    shown = el("h3");
  const body = el("div.flow.whatif", space, el("div", list, error, result, maps));
  const counted = new Map(); // leave-one-out scores by row
  let edited = null, // the map and head of the matrix
    busy = false,
    again = false;

  /** The changes of the address to maps that this run has; the server checks the rest. */
  function restored() {
    const all = stored("changes");
    return (Array.isArray(all) ? all : [])
      .filter((request) => run.maps.some(({ name }) => name === request?.map))
      .map((request) => ({ text: described(request), request }));
  }

  function described({ map: mapped, head = null, row = null, change, key }) {
    const map = run.maps.find((m) => m.name === mapped);
    return [
      mapName(map, head),
      head === null && map.heads > 1 ? "all heads" : null,
      row === null ? (map.rowsEditable ? "all rows" : null) : `row ${tokens(map.rowSide)[row]?.text}`,
      change === "weights"
        ? "dragged"
        : change === "pin"
          ? `pinned to ${tokens(map.columnSide)[key]?.text}`
          : change,
    ]
      .filter(Boolean)
      .join(", ");
  }

  function showForm() {
    const map = run.maps[draft.map];
    const rows = tokens(map.rowSide).slice(0, map.rows),
      columns = tokens(map.columnSide);
    const place = (entry, i) => [i, `${i + 1} ${entry.text}`];
    const update = (key) => (value) => {
      draft[key] = value;
      if (key === "map") Object.assign(draft, { map: Number(value), head: "all", row: "all", key: 0 });
      showForm();
    };
    refill(
      form,
      choice(
        "attention",
        run.maps.map((m, i) => [i, mapName(m)]),
        draft.map,
        update("map"),
      ),
      ...(map.heads > 1
        ? [
            choice(
              "head",
              [["all", "all"], ...Array.from({ length: map.heads }, (_, h) => [h, String(h + 1)])],
              draft.head,
              update("head"),
            ),
          ]
        : []),
      ...(map.rowsEditable
        ? [choice("row", [["all", "all"], ...rows.map(place)], draft.row, update("row"))]
        : []),
      choice("change", Object.entries(CHANGES), draft.change, update("change"), true),
      ...(draft.change === "pin" ? [choice("to", columns.map(place), draft.key, update("key"))] : []),
      el("button.primary", { onclick: add }, "Change and run again"),
    );
    space.hidden = !map.rowsEditable;
    body.classList.toggle("stacked", space.hidden || columns.length > 24);
    if (map.rowsEditable) showMatrix(map, rows, columns);
  }

  /** The weights of the chosen map and head, with the rows that were dragged. */
  const showMatrix = newest(async (fresh, map, rows, columns) => {
    const head = numbered(draft.head),
      which = head === "all" ? "mean" : head;
    const weights = (await fresh(api.head(run, draft.map, which))).slice();
    for (const { request } of changes) {
      if (request.change === "weights" && request.map === map.name && (request.head ?? "all") === head)
        weights.set(request.weights, request.row * map.columns);
    }
    shown.textContent = `Edit here: ${mapName(map, which)}`;
    edited = { map, head };
    matrix.show(weights, rows, columns);
  }, fail);

  /** Announce the weight of a cell. */
  function read(row, column) {
    if (row < 0 || column < 0) return;
    const { rows, columns, weights } = matrix,
      value = weights[row * columns.length + column];
    announce(`${inside(rows[row].text)} → ${inside(columns[column].text)}: ${written(value)}`);
  }

  function drag(row, column, weight) {
    const { map, head } = edited,
      start = row * map.columns;
    const count = map.kind === "decoder" ? row + 1 : map.columns; // a decoder sees no later tokens
    if (column >= count) return;
    const weights = reweighted(
      [...matrix.weights.subarray(start, start + map.columns)],
      column,
      weight,
      count,
    );
    matrix.weights.set(weights, start);
    matrix.show(matrix.weights, matrix.rows, matrix.columns);
    read(row, column);
    const same = ({ request: r }) =>
      r.change === "weights" && r.map === map.name && (r.head ?? "all") === head && r.row === row;
    const text = [
      mapName(map, head === "all" ? null : head),
      `row ${matrix.rows[row].text}`,
      `${matrix.columns[column].text} ${weight.toFixed(2)}`,
    ];
    const change = {
      text: text.join(", "),
      request: { map: map.name, change: "weights", row, weights, ...(head === "all" ? {} : { head }) },
    };
    const at = changes.findIndex(same);
    if (at < 0) changes.push(change);
    else changes[at] = change;
    decode();
  }

  /** How far weights, as they are and as dragged, agree with what each source token counts for. */
  async function figure({ map: mapName, head = "mean", row, weights }) {
    const index = run.maps.findIndex((m) => m.name === mapName),
      map = run.maps[index];
    if (map.kind !== "cross" || run.task !== "translate") return null;
    if (!counted.has(row)) counted.set(row, await api.leaveOneOut(run, row));
    if (!counted.get(row)) return null;
    const { scores, keys } = counted.get(row),
      before = await api.head(run, index, head);
    const tau = (values) =>
      kendall(
        keys.map((key) => values[key]),
        scores,
      )?.toFixed(2) ?? "not defined";
    const number = (values) => num(tau(values)),
      word = (side, i) => bold(tokens(side)[i].text);
    return el(
      "p.dim",
      { id: "leave-one-out" },
      "Leave-one-out: the prediction of ",
      word("target", row),
      " changes most without ",
      word("source", keys[scores.indexOf(Math.max(...scores))]),
      ". Agreement (Kendall’s τ) of the weights with all such changes: ",
      number(before.subarray(row * map.columns)),
      " as they are, ",
      number(weights),
      " changed.",
    );
  }

  function add() {
    const map = run.maps[draft.map],
      row = draft.row === "all" ? null : Number(draft.row);
    const request = {
      map: map.name,
      change: draft.change,
      ...(draft.head === "all" ? {} : { head: Number(draft.head) }),
      ...(row === null ? {} : { row }),
      ...(draft.change === "pin" ? { key: Number(draft.key) } : {}),
    };
    changes.push({ text: described(request), request, untried: true });
    decode();
  }

  /** Whether the map of a change is the one to edit. */
  const sameAsEdited = ({ map, head = "all" }) =>
    !space.hidden && run.maps[draft.map].name === map && numbered(draft.head) === head;

  function showList() {
    set({ changes: changes.length ? JSON.stringify(changes.map(({ request }) => request)) : "" });
    refill(
      list,
      ...changes.map((change) =>
        el(
          "li",
          el("span", { dir: "auto" }, change.text),
          el(
            "button",
            {
              "aria-label": `Remove ${change.text}`,
              onclick: () => {
                changes = changes.filter((other) => other !== change);
                decode();
                showForm();
              },
            },
            "×",
          ),
        ),
      ),
    );
  }

  /** Run again with all changes; those made while a run is under way wait for the next. */
  async function decode() {
    showList();
    again = true;
    if (busy) return;
    busy = true;
    while (again && here()) {
      again = false;
      await decodeOnce();
    }
    busy = false;
  }

  async function decodeOnce() {
    error.hidden = true;
    if (!changes.length) {
      result.replaceChildren();
      maps.replaceChildren();
      return;
    }
    const sent = [...changes],
      { request } = sent.at(-1);
    result.setAttribute("aria-busy", "true");
    try {
      const after = await api.runAgainst(run, { ...run.request, changes: sent.map((one) => one.request) });
      if (!here()) return;
      for (const change of sent) change.untried = false;
      const below = request.change === "weights" ? el("div") : null;
      const same = JSON.stringify(simple(after.output)) === JSON.stringify(simple(run.output));
      const left = outcome("attention as it is", run.output, after.output),
        right = outcome("attention changed", after.output, run.output);
      result.replaceChildren(
        el("div.pair", left, right),
        el(
          "p.dim.verdict",
          same ? "The output stays the same." : "The output changes; underlined words differ.",
        ),
        ...[
          searched(after.output, run.output, run.request.beam ?? 1),
          comparison(after.output),
          below,
        ].filter(Boolean),
      );
      maps.replaceChildren(
        ...(request.change === "weights"
          ? []
          : pictures(sameAsEdited(request) ? [after] : [run, after], run, request)),
      );
      if (request.change === "weights")
        figure(request).then((note) => below.replaceChildren(...[note].filter(Boolean)), fail);
      announce(
        same
          ? "The output stays the same."
          : `The output changes to ${after.output.text ?? after.output.label ?? ""}`,
      );
    } catch (problem) {
      if (!here()) return;
      changes = changes.filter((change) => !change.untried || !sent.includes(change));
      showList();
      fail(problem);
    }
    result.removeAttribute("aria-busy");
  }

  space.append(
    shown,
    el(
      "p.dim",
      "Attention as it is. Drag a cell up or down to change its weight: the others of its row keep their proportions.",
    ),
    matrix.node,
  );
  showForm();
  if (changes.length) decode();
  return el(
    "section.card",
    el(
      "header",
      el("h2", "What if the model attended elsewhere?"),
      el("p.dim", "Change attention weights, and the model runs again with them."),
    ),
    form,
    body,
  );
}

const numbered = (head) => (head === "all" ? head : Number(head));

const simple = ({ text, label, tags, vector }) => ({ text, label, tags, vector });
