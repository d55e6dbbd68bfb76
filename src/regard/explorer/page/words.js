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
  entries(run.sides[map.rowSide], level).filter((entry) => entry.tokens.every((t) => t < map.rows)),
  entries(run.sides[map.columnSide], level),
];

/** Merge weights (rows × columns of tokens) into weights between entries. */
export function merge(weights, columnCount, rows, columns) {
  const single = (entry, i) => entry.tokens.length === 1 && entry.tokens[0] === i;
  if (columns.length === columnCount && rows.every(single) && columns.every(single))
    return weights.subarray(0, rows.length * columnCount);
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

const ORDINAL = ["th", "st", "nd", "rd"];

/** The text of an entry, with a number if there are several: "to (2nd)". */
function called(all, i) {
  const same = all.filter(({ text }) => text === all[i].text),
    at = same.indexOf(all[i]) + 1;
  return same.length < 2
    ? all[i].text
    : `${all[i].text} (${at}${ORDINAL[at % 100 > 10 && at % 100 < 14 ? 0 : at % 10] ?? "th"})`;
}

/** Write into `node`, and announce, what a row attends to, and the weight of a chosen column. */
export function readRow(node, data, rows, columns, row, column, count = 4) {
  const values = data.subarray(row * columns.length, (row + 1) * columns.length);
  const [name, text, listed] = reading(
    called(rows, row),
    values,
    columns.map((_, i) => called(columns, i)),
    count,
  );
  const exact = column < 0 ? "" : `${inside(called(columns, column))}: ${weight(values[column])}`,
    parts = text.split(" · ");
  const at = listed.indexOf(column); // its number is in the list already
  if (exact) parts[at < 0 ? parts.length : at] = bold(at < 0 ? exact : parts[at]);
  node.replaceChildren(bold(name), " attends to ", ...parts.flatMap((part, i) => [i ? " · " : "", part]));
  announce(exact ? `${inside(name)}, ${exact}` : `${name} attends to ${text}`);
}
