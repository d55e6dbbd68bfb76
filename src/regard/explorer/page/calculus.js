// Attention on small matrices (arrays of rows): energy, + bias, mask, normaliser, output.
// The conventions are those of regard.attend: a masked weight is 0, and a row that sees nothing gives zeros.

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

export const ENERGIES = {
  "scaled dot": { formula: "q·k / √d", value: (q, k) => dot(q, k) / Math.sqrt(q.length) },
  dot: { formula: "q·k", value: dot },
  distance: { formula: "−‖q − k‖²", value: (q, k) => -q.reduce((sum, x, i) => sum + (x - k[i]) ** 2, 0) },
  additive: {
    formula: "Σ tanh(q + k)",
    value: (q, k) => q.reduce((sum, x, i) => sum + Math.tanh(x + k[i]), 0),
  },
};

export const MASKS = {
  none: () => true,
  causal: (t, s) => s <= t,
  "window 1": (t, s) => Math.abs(t - s) <= 1,
  "not itself": (t, s) => t !== s,
};

export const NORMALISERS = {
  softmax(row, allowed, temperature) {
    const peak = Math.max(...row.filter((_, i) => allowed[i]));
    const powers = row.map((e, i) => (allowed[i] ? Math.exp((e - peak) / temperature) : 0));
    const sum = powers.reduce((a, b) => a + b, 0);
    return sum > 0 ? powers.map((p) => p / sum) : powers;
  },
  sparsemax(row, allowed, temperature) {
    const scores = row.map((e) => e / temperature);
    const sorted = scores.filter((_, i) => allowed[i]).sort((a, b) => b - a);
    let sum = 0,
      threshold = 0;
    sorted.forEach((z, i) => {
      sum += z;
      if (1 + (i + 1) * z > sum) threshold = (sum - 1) / (i + 1);
    });
    return scores.map((z, i) => (allowed[i] ? Math.max(0, z - threshold) : 0));
  },
  sigmoid: (row, allowed, temperature) =>
    row.map((e, i) => (allowed[i] ? 1 / (1 + Math.exp(-e / temperature)) : 0)),
  hard(row, allowed) {
    let best = -1;
    row.forEach((e, i) => {
      if (allowed[i] && (best < 0 || e > row[best])) best = i;
    });
    return row.map((_, i) => (i === best ? 1 : 0));
  },
};

/** Sinusoidal positions of width d (Vaswani et al. 2017), interleaved. */
export function position(t, d) {
  return Array.from({ length: d }, (_, i) => {
    const angle = t / 10000 ** ((2 * Math.floor(i / 2)) / d);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** All stages of one attention: {q, k, v, energies, biased, allowed, weights, output}. */
export function attend({
  q,
  k,
  v,
  energy = "scaled dot",
  mask = "none",
  slope = 0,
  positions = false,
  temperature = 1,
  normaliser = "softmax",
}) {
  const placed = (rows) =>
    positions ? rows.map((row, t) => row.map((x, i) => x + position(t, row.length)[i])) : rows;
  const queries = placed(q),
    keys = placed(k);
  const energies = queries.map((a) => keys.map((b) => ENERGIES[energy].value(a, b)));
  const biased = energies.map((row, t) => row.map((e, s) => e - slope * Math.abs(t - s)));
  const allowed = energies.map((row, t) => row.map((_, s) => MASKS[mask](t, s)));
  const weights = biased.map((row, t) =>
    allowed[t].some(Boolean) ? NORMALISERS[normaliser](row, allowed[t], temperature) : row.map(() => 0),
  );
  const output = weights.map((row) => v[0].map((_, i) => row.reduce((sum, w, s) => sum + w * v[s][i], 0)));
  return { q: queries, k: keys, v, energies, biased, allowed, weights, output };
}
