// What two sequences share: the longest common subsequence.

import { el } from "./dom.js";

/** Pairs [i, j] of equal items of two lists, in order. */
export function matches(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  const pairs = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (table[i + 1][j] >= table[i][j + 1]) i++;
    else j++;
  }
  return pairs;
}

/** The output of a model; what `other` does not have is marked. */
export function answer(out, other = out) {
  const tag = (i) => (out.tags[i] === other.tags[i] ? out.tags[i] : el("ins", out.tags[i]));
  const shown = out.tags
    ? out.words.flatMap((word, i) => [
        i ? " " : "",
        word,
        out.tags[i] === "O" && other.tags[i] === "O" ? "" : el("span.tag", tag(i)),
      ])
    : out.width
      ? `a vector of ${out.width} numbers`
      : out.text === undefined
        ? out.label || "(no label)"
        : other !== out
          ? marked(other.text, out.text)
          : out.prompt
            ? [el("span.prompt", out.prompt), out.text]
            : out.text || "(nothing)";
  return el("p.answer", { dir: "auto" }, shown);
}

/** Words and punctuation marks, each with the space before it. */
const split = (text) => text.trim().match(/\s*(?:[\p{L}\p{M}\p{N}]+(?:['’][\p{L}\p{M}\p{N}]+)*|\S)/gu) ?? [];

/** The words of `after`, those that `before` does not share marked. */
export function marked(before, after) {
  if (!after.trim()) return ["(nothing)"];
  const words = split(after),
    plain = (list) => list.map((word) => word.trim());
  const shared = new Set(matches(plain(split(before)), plain(words)).map(([, j]) => j));
  return words.flatMap((word, i) => [
    word.slice(0, -word.trim().length),
    shared.has(i) ? word.trim() : el("ins", word.trim()),
  ]);
}
