// Tokens merged into words: weights are summed over the columns of a word and averaged over its rows.

import { announce, bold } from "./dom.js";
import { inside, reading, token, weight } from "./format.js";

/** The entries of a side: words, or single tokens. */
export function entries(side, level) {
  if (level === "words") {
    return side.words.map((word) => ({ ...word, text: word.special ? token(word.text) : word.text }));
  }
  const special = new Set(side.words.filter((word) => word.special).flatMap((word) => word.tokens));
  return side.tokens.map((text, i) => ({ text: token(text), tokens: [i], special: special.has(i) }));
}

/** The entries of the rows and columns of a map. */
export const axes = (run, map, level) => [
  entries(run.sides[map.rowSide], level).filter((entry) => entry.tokens.every((t) => t < map.rows)), entries(run.sides[map.columnSide], level)];

/** Merge weights (rows × columns of tokens) into weights between entries. */
export function merge(weights, columnCount, rows, columns) {
  const single = (entry, i) => entry.tokens.length === 1 && entry.tokens[0] === i;
  if (columns.length === columnCount && rows.every(single) && columns.every(single)) return weights.subarray(0, rows.length * columnCount);
  const merged = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) => {
    columns.forEach((column, c) => {
      let sum = 0;
      for (const t of row.tokens) for (const s of column.tokens) sum += weights[t * columnCount + s];
      merged[r * columns.length + c] = sum / row.tokens.length;
    });
  });
  return merged;
}

/** Write into `node`, and announce, what a row attends to; with the exact weight of a column if one is chosen. */
export function readRow(node, data, rows, columns, row, column, count = 4) {
  const values = data.subarray(row * columns.length, (row + 1) * columns.length);
  const [name, text] = reading(rows[row].text, values, columns.map((c) => c.text), count);
  const exact = column < 0 ? "" : `${inside(columns[column].text)}: ${weight(values[column])}`;
  node.replaceChildren(bold(name), ` attends to ${text}${exact && ` — ${exact}`}`);
  announce(exact ? `${inside(name)}, ${exact}` : `${name} attends to ${text}`);
}
