// Attention for two to six words, number by number: every value can be traced to its row and column.

import { attend, ENERGIES, MASKS, NORMALISERS } from "./calculus.js";
import { announce, choice, el } from "./dom.js";
import { alpha } from "./matrix.js";
import { set, stored } from "./state.js";

const DEFAULT = {
  words: ["the", "dog", "chased", "it"],
  q: [
    [0.2, 0.1],
    [1.2, 0.3],
    [0.4, 1.5],
    [1.4, 0.2],
  ],
  k: [
    [0.1, 0.2],
    [1.5, 0.2],
    [0.3, 1.3],
    [0.2, 0.3],
  ],
  v: [
    [1, 0],
    [0, 1],
    [0.5, 0.5],
    [0, 0],
  ],
};
const n = (x) => (Object.is(x, -0) ? 0 : x).toFixed(2).replace("-", "−");
const sub = (name, ...index) => `${name}[${index.map((i) => i + 1).join(",")}]`;

const LARGEST = 99; // of a number that is typed

const OPTIONS = {
  energy: "scaled dot",
  mask: "none",
  slope: 0,
  positions: false,
  temperature: 1,
  normaliser: "softmax",
};
const CHOICES = {
  energy: Object.keys(ENERGIES),
  mask: Object.keys(MASKS),
  slope: [0, 0.25, 1],
  positions: [false, true],
  temperature: [0.25, 0.5, 1, 2, 5],
  normaliser: Object.keys(NORMALISERS),
};
const NAMES = {
  slope: ["bias", ["none", "ALiBi, slope ¼", "ALiBi, slope 1"]],
  positions: ["positions", ["none", "sinusoidal"]],
};

/** Numbers and options of the address, if they are sound; else the example. */
function start() {
  const { words, q, k, v, ...given } = stored("mechanism") ?? {};
  const rows = (x) =>
    Array.isArray(x) &&
    x.length === words.length &&
    x.every(
      (row) =>
        Array.isArray(row) &&
        row.length === 2 &&
        row.every((y) => Number.isFinite(y) && Math.abs(y) <= LARGEST),
    );
  const valid =
    Array.isArray(words) &&
    words.length > 1 &&
    words.length < 7 &&
    words.every((word) => typeof word === "string") &&
    [q, k, v].every(rows);
  const options = Object.entries(OPTIONS).map(([key, value]) => [
    key,
    CHOICES[key].includes(given[key]) ? given[key] : value,
  ]);
  return {
    data: valid ? { words, q, k, v } : structuredClone(DEFAULT),
    options: Object.fromEntries(options),
  };
}

export function view() {
  const { data, options } = start();
  let chosen = { stage: "weights", row: data.words.length - 1, column: 1 };
  const controls = el("div.controls"),
    inputs = el("div.tables"),
    stages = el("div.tables");
  const trace = el("div.trace");
  let result = attend({ ...data, ...options });

  function table(caption, note, columns, cell, rowNames = data.words) {
    return el(
      "div",
      el("h3", caption, " ", el("span.dim", note)),
      el(
        "table.calc",
        { "aria-label": caption },
        columns
          ? el(
              "thead",
              el(
                "tr",
                el("td"),
                columns.map((c) => el("th", { scope: "col", dir: "auto" }, c)),
              ),
            )
          : null,
        el(
          "tbody",
          rowNames.map((word, r) => el("tr", el("th", { scope: "row", dir: "auto" }, word), cell(r))),
        ),
      ),
    );
  }

  function numbers(name, caption, note) {
    return table(caption, note, null, (r) =>
      data[name][r].map((x, i) =>
        el(
          "td",
          el("input", {
            type: "number",
            step: "0.1",
            value: x,
            "aria-label": `${name} of ${data.words[r]}, ${i + 1}`,
            "data-part": name,
            "data-row": r,
            oninput: (event) => {
              const value = Number(event.target.value);
              if (!Number.isFinite(value) || event.target.value === "") return;
              data[name][r][i] = Math.max(-LARGEST, Math.min(LARGEST, value));
              update(true);
            },
            onchange: (event) => {
              event.target.value = data[name][r][i]; // what is used, also for an empty field
            },
          }),
        ),
      ),
    );
  }

  function stage(name, caption, note, values, shade, columns = data.words) {
    return table(caption, note, columns, (r) =>
      values[r].map((x, c) => {
        const masked = name === "masked" && !result.allowed[r][c];
        const button = el(
          "button.cell",
          {
            "data-stage": name,
            "data-row": r,
            "data-column": c,
            "aria-label": `${caption} ${data.words[r]} ${columns[c]}: ${masked ? "masked" : n(x)}`,
            onpointerenter: () => choose(name, r, c),
            onfocus: () => choose(name, r, c),
            onclick: () => choose(name, r, c),
          },
          masked ? "·" : n(x),
        );
        if (shade) button.style.setProperty("--shade", (0.55 * alpha(x)).toFixed(3));
        return el("td", button);
      }),
    );
  }

  /** How one number comes about, and which others it uses. */
  function explain({ stage: name, row: t, column: s }) {
    const { q, k, v, energies, biased, allowed, weights, output } = result,
      d = q[t].length;
    const terms = (join) => q[t].map((x, i) => join(n(x), n(k[s]?.[i] ?? 0))).join(" + ");
    if (name === "energies") {
      const value = n(energies[t][s]);
      const sums = {
        "scaled dot": `(${terms((a, b) => `${a}·${b}`)}) / √${d}`,
        dot: terms((a, b) => `${a}·${b}`),
        distance: `−(${terms((a, b) => `(${a} − ${b})²`)})`,
        additive: terms((a, b) => `tanh(${a} + ${b})`),
      };
      return {
        text: `${sub("e", t, s)} = ${ENERGIES[options.energy].formula} = ${sums[options.energy]} = ${value}`,
        used: [
          ["q", t],
          ["k", s],
        ],
      };
    }
    if (name === "masked") {
      if (!allowed[t][s])
        return {
          text: `${data.words[t]} may not attend to ${data.words[s]}: the mask hides it, so its weight is 0.`,
          used: [],
        };
      const bias = options.slope
        ? `${n(energies[t][s])} − ${options.slope}·|${t + 1} − ${s + 1}|`
        : n(energies[t][s]);
      return {
        text: `${sub("e", t, s)} with bias = ${bias} = ${n(biased[t][s])}`,
        used: [["energies", t, s]],
      };
    }
    if (name === "weights") {
      const seen = biased[t]
        .map((e, i) => (allowed[t][i] ? n(e) : null))
        .filter((e) => e !== null)
        .join(", ");
      const heat = options.temperature === 1 ? "" : ` at temperature ${options.temperature}`;
      return {
        text: `${sub("a", t, s)} = ${options.normaliser}(${seen || "nothing"})${heat}, entry of ${data.words[s]} = ${n(weights[t][s])}`,
        used: biased[t].map((_, i) => ["masked", t, i]),
      };
    }
    const sum = weights[t].map((w, i) => `${n(w)}·${n(v[i][s])}`).join(" + ");
    return {
      text: `${sub("o", t, s)} = Σ a·v = ${sum} = ${n(output[t][s])}`,
      used: [...weights[t].map((_, i) => ["weights", t, i]), ...v.map((_, i) => ["v", i])],
    };
  }

  function choose(stage, row, column) {
    chosen = { stage, row, column };
    mark();
  }

  function mark() {
    const { text, used } = explain(chosen);
    trace.textContent = text;
    announce(text);
    const keys = new Set(used.map((parts) => parts.join("/")));
    for (const cell of stages.querySelectorAll("button.cell")) {
      const { stage, row, column } = cell.dataset;
      cell.setAttribute(
        "aria-pressed",
        String(stage === chosen.stage && Number(row) === chosen.row && Number(column) === chosen.column),
      );
      cell.classList.toggle("used", keys.has(`${stage}/${row}/${column}`));
    }
    for (const input of inputs.querySelectorAll("input[data-part]"))
      input.classList.toggle("used", keys.has(`${input.dataset.part}/${input.dataset.row}`));
  }

  function update(changed = false) {
    if (changed) set({ mechanism: JSON.stringify({ ...data, ...options }) });
    result = attend({ ...data, ...options });
    const dims = data.v[0].map((_, i) => String(i + 1));
    stages.replaceChildren(
      stage("energies", "1 Energies", ENERGIES[options.energy].formula, result.energies, false),
      stage(
        "masked",
        "2 Bias and mask",
        options.slope ? `− ${options.slope}·distance` : "",
        result.biased,
        false,
      ),
      stage("weights", "3 Weights", options.normaliser, result.weights, true),
      stage("output", "4 Output", "weights × values", result.output, false, dims),
    );
    mark();
  }

  function setWords(text) {
    const words = text.split(/\s+/u).filter(Boolean).slice(0, 6);
    if (words.length < 2) {
      trace.textContent = "Type two to six words; the numbers are those of the words before.";
      return announce(trace.textContent);
    }
    for (const name of ["q", "k", "v"]) {
      data[name] = words.map(
        (_, i) =>
          data[name][i] ?? [
            Math.round(10 * Math.sin(3 * i + name.charCodeAt(0))) / 10,
            Math.round(10 * Math.cos(2 * i)) / 10,
          ],
      );
    }
    data.words = words;
    chosen = {
      ...chosen,
      row: Math.min(chosen.row, words.length - 1),
      column: Math.min(chosen.column, chosen.stage === "output" ? 1 : words.length - 1),
    };
    showInputs();
    update(true);
  }

  function showInputs() {
    inputs.replaceChildren(
      numbers("q", "Queries", "what a word asks for"),
      numbers("k", "Keys", "what a word offers"),
      numbers("v", "Values", "what a word passes on"),
    );
  }

  const select = ([key, values]) => {
    const [name, texts] = NAMES[key] ?? [key, values];
    return choice(
      name,
      values.map((value, i) => [i, String(texts[i])]),
      values.indexOf(options[key]),
      (i) => {
        options[key] = values[i];
        update(true);
      },
    );
  };
  const text = el("input", {
    value: data.words.join(" "),
    size: 22,
    dir: "auto",
    "aria-label": "Two to six words",
    oninput: () => setWords(text.value),
  });
  controls.append(el("label.field", "words ", text), ...Object.entries(CHOICES).map(select));
  showInputs();
  update();
  return el(
    "div",
    el(
      "section.card",
      el(
        "header",
        el("h2", "Attention, number by number"),
        el("p.dim", "Change any number; point at a result to see where it comes from."),
      ),
      controls,
    ),
    el("section.card", inputs),
    el("section.card", stages, trace),
  );
}
