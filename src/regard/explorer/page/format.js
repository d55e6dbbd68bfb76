// Numbers and tokens as people read them.

const NAMES = { "<s>": "start", "</s>": "end", "<pad>": "padding", "<unk>": "unknown" };

export const KINDS = {
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  cross: "Cross-attention",
  pooling: "Attention pooling",
};

/** The name of an attention map, of one of its heads or of their mean, from 1. */
export function mapName({ kind, layer, heads }, head = null) {
  const which =
    head === null
      ? ""
      : head === "mean"
        ? heads > 1
          ? ", mean of heads"
          : ""
        : `, head ${Number(head) + 1}`;
  return `${KINDS[kind]}, layer ${layer + 1}${which}`;
}

/** The largest finite magnitude; a map may have too many values for Math.max(...values). */
export const largest = (values) =>
  values.reduce((most, x) => (Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most), 1e-6);

/** A token without its word-boundary mark; special tokens by name. */
export function token(text) {
  if (Object.hasOwn(NAMES, text)) return NAMES[text]; // a token may be “constructor”
  const shown = text.replace(/^[▁Ġ]/u, "");
  return shown === "" ? "␣" : shown.replaceAll("▁", " ");
}

/** Whether tokens mark where a word begins; single characters do not. */
export const marksWords = (tokens) => tokens.some((text) => /^[▁Ġ]./u.test(text));

/** A token among others: with marks, one that continues a word starts with a hyphen. */
export const part = (text, marks) =>
  marks && /^[\p{L}\p{M}\p{N}]/u.test(text) ? `‑${token(text)}` : token(text);

export const weight = (w) => (w >= 0.0005 || w === 0 ? w.toFixed(3) : w.toExponential(1));
export const percent = (p) =>
  p >= 0.0995 ? `${Math.round(p * 100)} %` : p >= 0.001 ? `${(p * 100).toFixed(1)} %` : "< 0.1 %";

/** [label, probability] pairs, likeliest first: an object has labels that are numbers in their own order. */
export const ranked = (labels) => Object.entries(labels).sort(([, p], [, q]) => q - p);

/** The likeliest labels in one line. */
export const likeliest = (labels) =>
  ranked(labels)
    .slice(0, 4)
    .map(([label, p]) => `${label} ${percent(p)}`)
    .join(" · ");

/** A probability given as its logarithm. */
export function probability(logP) {
  const p = Math.exp(logP);
  return p >= 0.01 ? p.toFixed(3) : p === 0 ? `e^${logP.toFixed(0)}` : p.toExponential(1);
}

/** The largest entries of a row, as indices; what remains of the mass is `rest`. */
export function top(row, count) {
  const order = [...row.keys()]
    .sort((a, b) => row[b] - row[a])
    .slice(0, count)
    .filter((i) => row[i] > 0);
  const total = row.reduce((sum, w) => sum + w, 0);
  return { order, rest: Math.max(0, total - order.reduce((sum, i) => sum + row[i], 0)) };
}

/** The direction of a text: that of its first letter. */
export const direction = (text) => (/^[^\p{L}]*[\u0590-\u08ff\ufb1d-\ufefc]/u.test(text) ? "rtl" : "ltr");

/** A word inside a sentence; a right-to-left one is isolated. */
export const inside = (text) => (/[\u0590-\u08ff\ufb1d-\ufefc]/u.test(text) ? `\u2068${text}\u2069` : text);

/** One sentence on a row: name: a 0.63 · b 0.11 · rest 0.26. */
export function reading(name, row, labels, count = 4) {
  const { order, rest } = top(row, count);
  const parts = order.map((i) => `${inside(labels[i])} ${weight(row[i])}`);
  if (rest > 0.0005) parts.push(`rest ${weight(rest)}`);
  return [name, parts.join(" · ") || "no weight", order];
}
