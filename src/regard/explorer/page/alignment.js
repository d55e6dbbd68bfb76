// Which source words a translation attends to: two lines of words with curves, and a matrix of words.

import * as api from "./api.js";
import { announce, choice, el, levelChips } from "./dom.js";
import { inside, reading, weight } from "./format.js";
import { Lines } from "./lines.js";
import { Matrix } from "./matrix.js";
import { set, state } from "./state.js";
import { entries, merge } from "./words.js";

export function alignmentView(run) {
  const maps = run.maps.map((map, index) => ({ ...map, index })).filter((map) => map.kind === "cross");
  let map = maps.find((m) => String(m.index) === state.map) ?? maps.at(-1);
  let selected = state.row === "" ? -1 : Number(state.row), data = null, rows = [], columns = [];

  const sub = el("p", { class: "reading dim" });
  const lines = new Lines({ rowName: "translation", columnName: "source", onhover: (row) => choose(row, -1), onselect: pin });
  const matrix = new Matrix({ label: "Attention of target words (rows) to source words (columns)", onmove: choose, onselect: pin });
  const body = el("div", { class: "flow" }, lines.node, matrix.node);
  const controls = el("div", { class: "controls" });

  function pin(row) {
    selected = selected === row ? -1 : row;
    set({ row: selected < 0 ? "" : selected });
    choose(row, matrix.column);
  }

  function choose(row, column) {
    if (row < 0 || !data) return;
    matrix.move(row, column, false);
    lines.choose(row);
    const values = data.subarray(row * columns.length, (row + 1) * columns.length);
    const [name, text] = reading(rows[row].text, values, columns.map((c) => c.text));
    const exact = column < 0 ? "" : ` — ${inside(columns[column].text)}: ${weight(values[column])}`;
    sub.replaceChildren(el("b", { dir: "auto" }, name), ` attends to ${text}${exact}`);
    announce(column < 0 ? `${name} attends to ${text}` : `${inside(name)}, ${inside(columns[column].text)}: ${weight(values[column])}`);
  }

  function showControls() {
    const heads = [["mean", "mean of heads"], ...Array.from({ length: map.heads }, (_, h) => [String(h), `head ${h + 1}`])];
    controls.replaceChildren(
      choice("layer", maps.map((m) => [String(m.index), String(m.layer + 1)]), map.index, (value) => {
        map = maps.find((m) => String(m.index) === value);
        set({ map: value });
        load();
      }),
      ...(map.heads > 1 ? [choice("head", heads, state.head, (value) => { set({ head: value }); load(); }, true)] : []),
      levelChips(state.level, level),
    );
  }

  function level(value) {
    selected = -1;
    set({ level: value, row: "" });
    load();
  }

  async function load() {
    const which = state.head !== "mean" && Number(state.head) < map.heads ? state.head : "mean";
    showControls();
    const weights = await api.head(run, map.index, which);
    rows = entries(run.sides.target, state.level);
    columns = entries(run.sides.source, state.level);
    data = merge(weights, map.columns, rows, columns);
    body.classList.toggle("stacked", columns.length > 16);
    lines.show(data, rows, columns);
    matrix.show(data, rows, columns);
    choose(selected >= 0 && selected < rows.length ? selected : Math.min(matrix.row < 0 ? 0 : matrix.row, rows.length - 1), -1);
  }

  load().catch((error) => { sub.textContent = error.message; });
  const legend = el("p", { class: "legend dim" }, "0", el("i"), "1",
    state.level === "words" ? "  summed over the tokens of a source word, mean over those of a target word" : "");
  return el("section", { class: "card" },
    el("header", {}, el("h2", {}, "Which source words the translation attends to"), controls),
    sub, body, legend);
}
