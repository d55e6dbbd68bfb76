// Two texts or two models: both outputs, both maps and their difference.

import * as api from "./api.js";
import { marked, matches } from "./difference.js";
import {
  announce,
  bold,
  chip,
  choice,
  el,
  errorLine,
  field,
  fit,
  headChoice,
  levelChips,
  num,
  refill,
} from "./dom.js";
import { inside, largest, likeliest, mapName, percent, probability, weight } from "./format.js";
import { Matrix } from "./matrix.js";
import { newest } from "./newest.js";
import { headOf, mapIndex, set, state } from "./state.js";
import { axes, merge } from "./words.js";

const BEGUN = ["The doctor said that he/she", "The nurse said that he/she"],
  LATE = BEGUN.map((text) => `${text} was late.`);
const PROBES = { translate: [...LATE, "He/She is a teacher."], generate: BEGUN, fill: LATE };
const PAIR = /([\p{L}\p{M}'’]+)\/([\p{L}\p{M}'’]+)/u;

/** The two texts and words of a template such as "the doctor said he/she was late"; null if it has none. */
export function variants(template) {
  const match = PAIR.exec(template);
  if (!match) return null;
  const [pair, a, b] = match,
    at = match.index;
  return {
    words: [a, b],
    texts: [a, b].map((word) => template.slice(0, at) + word + template.slice(at + pair.length)),
  };
}

const simple = ({ output: out }) =>
  out.text ?? out.label ?? (out.tags ? out.words.map((word, i) => `${word}/${out.tags[i]}`).join(" ") : "");

function outcome(name, run, other) {
  const out = run.output,
    parts = [el("h3.dim", { dir: "auto" }, name)];
  if (out.width) parts.push(el("p.answer", `a vector of ${out.width} numbers`));
  else parts.push(el("p.answer", { dir: "auto" }, ...marked(simple(other), simple(run))));
  if ("logP" in out) parts.push(el("p.dim", "probability ", num(probability(out.logP))));
  else if (out.probabilities) parts.push(el("p.dim", likeliest(out.probabilities)));
  return el("section", ...parts);
}

/** How likely the model finds each of the two words of a probe. */
function verdict(words, runs) {
  const [a, b] = runs.map((run) => run.output),
    quoted = words.map((word) => `“${word}”`);
  const share = (x, y) => {
    const p = 1 / (1 + Math.exp(y - x));
    return el(
      "p",
      `Of the two, the model prefers ${p >= 0.5 ? quoted[0] : quoted[1]}: `,
      ...[p, 1 - p].flatMap((value, i) => [i ? " · " : "", words[i], " ", num(percent(value))]),
    );
  };
  if (a.candidates) return share(...words.map((word) => Math.log(Math.max(1e-30, a.candidates[word]))));
  if ("promptTokens" in a) {
    const total = ({ tokenLogP, promptTokens }) =>
      tokenLogP.slice(0, promptTokens).reduce((sum, x) => sum + x, 0);
    return share(total(a), total(b));
  }
  if (!a.comparison || !b.comparison) return null;
  const cell = (x) => el("td.num", probability(x));
  const row = (output, first, second) =>
    el("tr", el("th", { scope: "row", dir: "auto" }, output), cell(first), cell(second));
  return el(
    "table",
    el("caption.dim", "Probability of each translation, by the word in the source"),
    el(
      "thead",
      el(
        "tr",
        el("td"),
        words.map((word) => el("th", { scope: "col", dir: "auto" }, word)),
      ),
    ),
    el(
      "tbody",
      a.text === b.text
        ? row(a.text, a.logP, b.logP)
        : [
            row(a.text, a.logP, b.comparison.original.plain),
            row(b.text, a.comparison.original.plain, b.logP),
          ],
    ),
  );
}

/** Both maps of a kind and layer, and their difference between entries that both have. */
function pictures(runs, names) {
  const body = el("div.triple"),
    controls = el("div.controls"),
    sub = el("p.reading.dim");
  const start = runs[0].maps.findLastIndex((map) => map.kind === "cross");
  let index = mapIndex(runs[0], start < 0 ? runs[0].maps.length - 1 : start);

  /** The map of a run that corresponds to map `index` of the first. */
  function same(run) {
    const { kind, layer } = runs[0].maps[index],
      maps = run.maps.map((map, i) => ({ ...map, i })).filter((map) => map.kind === kind);
    return maps.find((map) => map.layer === layer) ?? maps.at(-1);
  }

  async function part(run) {
    const map = same(run);
    if (!map) return null;
    const [rows, columns] = axes(run, map, state.level);
    return {
      map,
      rows,
      columns,
      data: merge(await api.head(run, map.i, headOf(map)), map.columns, rows, columns),
    };
  }

  function picture(name, label, { rows, columns, data }, options, read) {
    const matrix = new Matrix({
      label,
      largest: 34,
      onmove: (row, column) => {
        if (row < 0 || column < 0) return;
        sub.replaceChildren(
          bold(rows[row].text),
          ` → ${inside(columns[column].text)}: ${read(data[row * columns.length + column])} (${name})`,
        );
        announce(sub.textContent);
      },
    });
    matrix.show(data, rows, columns, options);
    return el("section", el("h3", { dir: "auto" }, name), matrix.node);
  }

  function difference(a, b) {
    const texts = (list) => list.map((entry) => entry.text);
    const rows = matches(texts(a.rows), texts(b.rows)),
      columns = matches(texts(a.columns), texts(b.columns));
    if (!rows.length || !columns.length)
      return el("p.empty", "The two have no tokens in common, so there is no difference map.");
    const data = new Float32Array(rows.length * columns.length);
    rows.forEach(([i, j], r) =>
      columns.forEach(([m, n], c) => {
        data[r * columns.length + c] = b.data[j * b.columns.length + n] - a.data[i * a.columns.length + m];
      }),
    );
    const most = largest(data);
    const section = picture(
      `difference: ${inside(names[1])} − ${inside(names[0])}`,
      "Difference of the two",
      { data, rows: rows.map(([i]) => a.rows[i]), columns: columns.map(([i]) => a.columns[i]) },
      { signed: true, limit: most },
      (x) => (x > 0 ? "+" : "") + (Math.abs(x) < 5e-4 ? "0.000" : x.toFixed(3)),
    );
    section.append(
      el("p.legend.dim", `less −${most.toFixed(2)}`, el("i.signed"), `+${most.toFixed(2)} more`),
    );
    const single = (side, pairs) =>
      [a, b].flatMap((one, k) =>
        one[side].filter((_, i) => pairs.every((pair) => pair[k] !== i)).map((entry) => inside(entry.text)),
      );
    const left = [
      ["rows", rows],
      ["columns", columns],
    ]
      .map(([side, pairs]) => [side, single(side, pairs).join(", ")])
      .filter(([, list]) => list);
    if (left.length)
      section.append(
        el(
          "p.dim",
          `Left out, as only one of the two has them: ${left.map((parts) => parts.join(" ")).join("; ")}.`,
        ),
      );
    return section;
  }

  const load = newest(
    async (fresh) => {
      const map = runs[0].maps[index];
      refill(
        controls,
        choice(
          "attention",
          runs[0].maps.map((m, i) => [i, mapName(m)]),
          index,
          (value) => {
            const sameRows = runs[0].maps[value].rowSide === map.rowSide;
            index = Number(value);
            set({ map: value, ...(sameRows ? {} : { row: "" }) });
            load();
          },
        ),
        ...headChoice(map, headOf(map), (head) => {
          set({ head });
          load();
        }),
        levelChips(state.level, (value) => {
          set({ level: value });
          load();
        }),
      );
      const parts = await fresh(Promise.all(runs.map(part)));
      if (parts.includes(null)) {
        body.replaceChildren(el("p.empty", "The second model has no attention of this kind."));
        return;
      }
      body.replaceChildren(
        ...parts.map((p, i) => picture(names[i], `Attention of ${names[i]}`, p, {}, weight)),
        difference(...parts),
      );
    },
    (error) => {
      sub.textContent = error.message;
    },
  );

  load();
  return el("div", controls, sub, body);
}

export function view(run, model) {
  const { target, prefix, ...asked } = run.request; // the texts are run without forced tokens
  const modes = {
    text: "another text",
    ...(model.models?.length > 1 ? { model: "another model" } : {}),
    ...(PROBES[model.task] ? { probe: "pronoun probe" } : {}),
  };
  if (!Object.hasOwn(modes, state.mode)) set({ mode: model.models?.length > 1 ? "model" : "text" });
  const chips = el("div.chips", { role: "group", "aria-label": "What to compare" }),
    form = el("div"),
    result = el("div.result");
  const [error, fail] = errorLine();

  function showModes() {
    refill(
      chips,
      ...Object.entries(modes).map(([mode, text]) =>
        chip(text, state.mode === mode, () => {
          set({ mode, other: "" });
          result.replaceChildren();
          showModes();
          compare();
        }),
      ),
    );
    if (state.mode === "model") {
      form.replaceChildren(el("p.dim", `${model.models.join(" and ")} with the text above.`));
      return;
    }
    const probe = state.mode === "probe";
    const input = el("textarea", {
      rows: 1,
      dir: "auto",
      spellcheck: "false",
      "aria-label": probe ? "Text with two words to choose from" : "Another text",
    });
    input.value = state.other || (probe ? PROBES[model.task][0] : "");
    const go = (text) => {
      input.value = text;
      fit(input);
      if (!text.trim())
        return fail(
          new Error(
            probe ? "Type a text with two words to choose from, as he/she." : "Type another text first.",
          ),
        );
      set({ other: text });
      return compare();
    };
    field(input, () => go(input.value));
    requestAnimationFrame(() => fit(input)); // once it is in the page
    form.replaceChildren(
      el(
        "form.ask",
        {
          onsubmit: (event) => {
            event.preventDefault();
            go(input.value);
          },
        },
        input,
        el("button.primary", { type: "submit" }, "Compare"),
      ),
      el(
        "div.chips",
        (probe ? PROBES[model.task] : model.examples.filter((text) => text !== run.text)).map((text) =>
          el("button.chip", { dir: "auto", onclick: () => go(text) }, text),
        ),
      ),
    );
  }

  /** The requests of the two runs and their names; null if a text is missing. */
  function requested() {
    if (state.mode === "model")
      return { requests: [null, { ...asked, model: 1 }], names: model.models.slice(0, 2), words: null };
    if (state.mode === "text")
      return state.other.trim()
        ? {
            requests: [null, { ...asked, text: state.other }],
            names: [run.text, state.other],
            words: null,
          }
        : null;
    const two = variants(state.other || PROBES[model.task][0]);
    if (!two)
      throw new Error(
        "Write two words with a slash between them, as in: The doctor said that he/she was late.",
      );
    return {
      requests: two.texts.map((text) => ({ ...asked, text })),
      names: two.texts,
      words: two.words,
    };
  }

  async function both({ requests, words }) {
    if (words && model.task === "fill") {
      const [text] = requests.map(({ text: filled }) => filled);
      const masked = text.replace(
        new RegExp(`(?<![\\p{L}\\p{M}])${words[0].replace(/[^\p{L}\p{M}]/gu, ".")}(?![\\p{L}\\p{M}])`, "u"),
        model.mask,
      );
      const filled = await api.run({ ...requests[0], text: masked, candidates: words });
      return Promise.all(
        requests.map(async (body) => {
          const done = await api.run(body);
          done.output.candidates = filled.output.candidates;
          return done;
        }),
      );
    }
    const first = requests[0] ? await api.run(requests[0]) : run;
    const second = await (state.mode === "model" ? api.run(requests[1]) : api.runAgainst(first, requests[1]));
    // With the second run as base, the first scores its output too.
    return words && "logP" in first.output
      ? [await api.runAgainst(second, requests[0]), second]
      : [first, second];
  }

  const compare = newest(
    async (fresh) => {
      error.hidden = true;
      result.removeAttribute("aria-busy");
      const pair = requested();
      if (!pair) return;
      result.setAttribute("aria-busy", "true");
      const runs = await fresh(both(pair));
      result.removeAttribute("aria-busy");
      const same = simple(runs[0]) === simple(runs[1]),
        { cosine } = runs[1].output;
      const summary =
        cosine !== undefined
          ? `The cosine of the two vectors is ${cosine.toFixed(4)}.`
          : same
            ? "Both outputs are the same."
            : "The outputs differ where underlined.";
      result.replaceChildren(
        el(
          "div.pair",
          runs.map((one, i) => outcome(pair.names[i], one, runs[1 - i])),
        ),
        el("p.dim.verdict", summary),
        ...[pair.words ? verdict(pair.words, runs) : null].filter(Boolean),
        ...(runs.every((one) => one.maps.length)
          ? [
              pictures(
                runs,
                pair.words ?? (state.mode === "model" ? pair.names : ["first text", "second text"]),
              ),
            ]
          : []),
      );
      announce(summary);
    },
    (problem) => {
      result.removeAttribute("aria-busy");
      fail(problem);
    },
  );

  showModes();
  compare();
  return el(
    "section.card",
    el(
      "header",
      el("h2", "What another text or model does"),
      el("p.dim", "Both outputs, both maps, and their difference where the tokens match."),
    ),
    chips,
    form,
    error,
    result,
  );
}
