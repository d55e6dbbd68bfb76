// Attention in a notebook: choose a layer and a head, hover over the matrix or the words to read numbers.

import { announce, choice, el } from "./dom.js";
import { inside, reading, weight } from "./format.js";
import { Lines } from "./lines.js";
import { Matrix } from "./matrix.js";

/** The weights of a head, or of the mean of all (−1): rows × columns. */
function weightsOf(layer, head) {
  const size = layer.rows.length * layer.columns.length;
  layer.data ??= new Float32Array(Uint8Array.from(atob(layer.weights), (c) => c.charCodeAt(0)).buffer);
  if (head >= 0) return layer.data.subarray(head * size, (head + 1) * size);
  const mean = new Float32Array(size);
  for (let i = 0; i < size; i++) {
    let sum = 0;
    for (let h = 0; h < layer.heads; h++) sum += layer.data[h * size + i];
    mean[i] = sum / layer.heads;
  }
  return mean;
}

/** Show a view; `given` has title, layers, and the layer and head that are chosen first. */
export function show(given) {
  const chosen = { layer: given.layer, head: given.head, row: 0, column: -1 };
  const entries = (texts) =>
    texts.map((text, i) => ({ text, tokens: [i], special: ["start", "end", "padding"].includes(text) }));
  const controls = el("div.controls"),
    sub = el("p.reading.dim"),
    space = el("div");
  const matrix = new Matrix({ label: "Attention weights", onmove: choose, onselect: choose });
  const body = el("div.flow", space, matrix.node);
  let lines = null,
    data = null,
    rows = [],
    columns = [];

  function choose(row, column) {
    if (row < 0 || row >= rows.length) return;
    Object.assign(chosen, { row, column });
    matrix.move(row, column, false);
    lines.choose(row);
    const values = data.subarray(row * columns.length, (row + 1) * columns.length);
    const [name, text] = reading(
      rows[row].text,
      values,
      columns.map((c) => c.text),
    );
    const exact = column < 0 ? "" : ` — ${inside(columns[column].text)}: ${weight(values[column])}`;
    sub.replaceChildren(el("b", { dir: "auto" }, name), ` attends to ${text}${exact}`);
    announce(sub.textContent);
    report();
  }

  /** Report the choice to the notebook. */
  function report() {
    if (parent !== window) parent.postMessage({ regard: { view: given.view, ...chosen } }, "*");
  }

  function load() {
    const layer = given.layers[chosen.layer];
    if (chosen.head >= layer.heads) chosen.head = -1;
    const heads = [
      ["-1", "mean of heads"],
      ...Array.from({ length: layer.heads }, (_, h) => [String(h), `head ${h}`]),
    ];
    controls.replaceChildren(
      ...(given.layers.length > 1
        ? [
            choice(
              "attention",
              given.layers.map((l, i) => [String(i), l.title]),
              chosen.layer,
              (value) => {
                chosen.layer = Number(value);
                load();
              },
              true,
            ),
          ]
        : [el("span.dim", layer.title)]),
      ...(layer.heads > 1
        ? [
            choice(
              "head",
              heads,
              chosen.head,
              (value) => {
                chosen.head = Number(value);
                load();
              },
              true,
            ),
          ]
        : []),
    );
    data = weightsOf(layer, chosen.head);
    rows = entries(layer.rows);
    columns = entries(layer.columns);
    lines = new Lines({
      rowName: layer.axes[0],
      columnName: layer.axes[1],
      onhover: (row) => choose(row, -1),
      onselect: (row) => choose(row, -1),
    });
    space.replaceChildren(lines.node);
    body.classList.toggle("stacked", columns.length > 16);
    lines.show(data, rows, columns);
    matrix.show(data, rows, columns);
    choose(Math.min(chosen.row, rows.length - 1), chosen.column < columns.length ? chosen.column : -1);
  }

  addEventListener("message", ({ source, data: message }) => {
    const { view, ...requested } = (source === parent && message?.regard) || {};
    if (
      view !== given.view ||
      !given.layers[requested.layer] ||
      Object.keys(chosen).every((key) => chosen[key] === requested[key])
    )
      return;
    Object.assign(chosen, requested);
    load();
  });
  document
    .getElementById("view")
    .append(
      el(
        "section.card",
        el("header", given.title ? el("h2", { dir: "auto" }, given.title) : null, controls),
        sub,
        body,
        el("p.legend.dim", "0", el("i"), "1"),
      ),
    );
  load();
}
