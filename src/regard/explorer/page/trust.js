// How far attention explains one output: faithfulness measures in numbers and words.

import * as api from "./api.js";
import { announce, bold, choice, el, meter, num, rove } from "./dom.js";
import { mapName, marksWords, part, percent, token, weight } from "./format.js";
import { newest } from "./newest.js";
import { rowOf, set, state } from "./state.js";

const QUESTION = "Does attention explain the output?";
const SHORT = 40; // for longer texts the line beside a picture is only a button
const KINDS = { translate: ["cross"], generate: ["decoder"] };
const explains = (run, map) =>
  run.task !== "embed" && (KINDS[run.task] ?? ["encoder", "pooling", "decoder"]).includes(map.kind);
const COLUMNS = { attention: "attention", gradient: "gradient × input", leave_one_out: "leave-one-out" };

/** The outputs that can be explained: [index, text]. */
function outputs(run) {
  if (run.task === "tag") return run.output.words.map((word, i) => [i, `${word} ${run.output.tags[i]}`]);
  if (!("tokenLogP" in run.output)) return [];
  const first = run.output.promptTokens ?? 0;
  const { tokens } = run.sides.target,
    marks = marksWords(tokens);
  return tokens
    .map((text, i) => [i, part(text, marks)])
    .slice(first)
    .filter(([i]) => i > 0 || run.task === "translate");
}

/** The output that the address names: a token, or the first token of the chosen word. */
function chosen(run) {
  const all = outputs(run).map(([i]) => i);
  const side = run.sides.target,
    row = side ? rowOf(run, "target") : -1;
  const selected =
    state.token !== ""
      ? Number(state.token)
      : row < 0
        ? -1
        : state.level === "words"
          ? side.words[row]?.tokens[0]
          : row;
  return all.includes(selected) ? selected : (all[0] ?? null);
}

const value = (x) => (x === null ? "–" : x.toFixed(2).replace("-", "−"));

/**
 * A bar from 0 to a value over the band of chance, and its limit, on a scale from `lowest` (or the value) to
 * 1.
 */
function gauge(x, band, lowest, name) {
  const low = Math.min(lowest, x ?? 0),
    at = (y) => (100 * (Math.max(low, Math.min(1, y)) - low)) / (1 - low);
  const part = (kind, from, to) => {
    const node = el("i", { class: kind });
    Object.assign(node.style, { left: `${at(from)}%`, width: `${at(to) - at(from)}%` });
    return node;
  };
  const bar = el(
    "span.gauge",
    { "aria-hidden": "true" },
    band ? part("chance", ...band) : null,
    x === null ? null : part("value", Math.min(0, x), Math.max(0, x)),
    part("zero", 0, 0),
  );
  if (!band) return [bar];
  const limit = band[name === "sufficiency" ? 0 : 1],
    right = at(limit) > 50;
  const edge = el(
    `span.edge${right ? ".right" : ""}`,
    `${name.startsWith("change") ? "too little" : "chance"} ${name === "sufficiency" ? "≥" : "≤"} ${value(limit)}`,
  );
  edge.style[right ? "right" : "left"] = `${right ? 100 - at(limit) : at(limit)}%`;
  return [bar, el("span.edges", edge)];
}

function figure({ name, title, value: x, band, beyond, mark, scale, reading }) {
  const [bar, edges] = gauge(x, band, name.startsWith("tau") ? -1 : 0, name);
  return el(
    "div.figure",
    { "data-figure": name, "data-beyond": beyond },
    el("h3", title),
    bar,
    num(value(x)),
    edges,
    el("p.mark", mark),
    el("p", reading),
    el("p.dim", scale),
  );
}

/** The verdict on all figures. */
const sentence = ({ claim, reason }) => [bold(claim), `: ${reason}.`];

/** The importance of tokens by three measures, each scaled to its largest value. */
function scores({ tokens, scores: by }) {
  const names = Object.keys(COLUMNS).filter((name) => by[name]),
    most = names.map((name) => Math.max(...by[name].map(Math.abs), 1e-12));
  return el(
    "div.scroll",
    { tabindex: 0, role: "group", "aria-label": "Importance of the tokens" },
    el(
      "table.choices",
      el(
        "thead",
        el(
          "tr",
          el("th", { scope: "col" }, "token"),
          names.map((name) => el("th", { scope: "col" }, COLUMNS[name])),
        ),
      ),
      el(
        "tbody",
        tokens.map((text, i) =>
          el(
            "tr",
            el("th", { scope: "row", dir: "auto" }, token(text)),
            names.map((name, n) =>
              el("td", meter(by[name][i] / most[n]), num(weight(Math.abs(by[name][i])))),
            ),
          ),
        ),
      ),
    ),
  );
}

export function view(run, model) {
  const maps = run.maps.filter((map) => explains(run, map));
  const words = el("div.side", { role: "group", "aria-label": "Output to explain" }),
    body = el("div", { "aria-live": "polite" });
  const title = el("h2", QUESTION),
    sub = el("p.dim");
  let row = chosen(run),
    attention = maps.some((map) => map.name === state.attention) ? state.attention : "";
  rove(words, "button");

  function showWords() {
    words.replaceChildren(
      ...outputs(run).map(([i, text]) =>
        el(
          "button.word",
          {
            dir: "auto",
            "aria-pressed": i === row,
            tabindex: i === row ? 0 : -1,
            onclick: () => {
              row = i;
              set({ token: i });
              load();
              words.querySelector("[aria-pressed=true]").focus();
            },
          },
          text,
        ),
      ),
    );
  }

  const load = newest(
    async (fresh) => {
      showWords();
      body.setAttribute("aria-busy", "true");
      const trust = await fresh(api.trust(run, row, attention));
      body.removeAttribute("aria-busy");
      if (trust.reason) {
        title.textContent = QUESTION;
        sub.textContent = "";
        body.replaceChildren(el("p.empty", trust.reason));
        return;
      }
      const tested = trust.attention.at(-1);
      select.querySelector("select").value = tested;
      title.replaceChildren("Does attention explain ", bold(trust.prediction), "?");
      sub.textContent = `The model gave it a probability of ${percent(trust.probability)}.${outputs(run).length > 1 ? " Click another one below." : ""}`;
      body.replaceChildren(
        el(
          "p.notice",
          { id: "verdict", "data-grade": trust.verdict.grade },
          sentence(trust.verdict),
          ` This concerns one token of this text and ${mapName(maps.find((map) => map.name === tested) ?? maps.at(-1), "mean")}.`,
        ),
        el("p.legend.dim", el("i.chance"), "what chance would give, or too little to count", ranked(trust)),
        el("div.figures", trust.figures.map(figure)),
        el("h3", "Importance of each token, by three measures"),
        scores(trust),
      );
      announce(`${trust.verdict.claim}: ${trust.verdict.reason}`);
    },
    (error) => {
      title.textContent = QUESTION;
      sub.textContent = "";
      body.removeAttribute("aria-busy");
      body.replaceChildren(el("p.error", { role: "alert" }, error.message));
    },
  );

  function ranked({ tokens, row: at }) {
    const before = run.task === "generate" ? at + 1 : Infinity; // no text sees what comes after it
    const all = Math.min(before, run.sides[maps[0].columnSide].tokens.length);
    return `. Figures rank ${tokens.length} tokens${tokens.length < all ? `, of ${all}: “end” and the like are no part of the text` : ""}.`;
  }

  const select = choice(
    "attention",
    maps.map((map) => [map.name, mapName(map)]),
    attention,
    (to) => {
      attention = to;
      set({ attention });
      load();
    },
  );
  load();
  return el(
    "section.card.trust",
    el("header", title, sub, el("div.controls", maps.length > 1 ? select : null)),
    words,
    body,
  );
}

/** Fill the line beside a picture: the verdict on its map, once no other has been chosen for a moment. */
export async function fillLine(fresh, node, run, map, head, show) {
  const alone = head === "mean" || map.heads < 2;
  const link = el("button.chip", { onclick: () => show("trust") }, "all figures");
  node.replaceChildren();
  if (!explains(run, map)) return;
  const question = `Can you trust ${mapName(map, "mean")}${alone ? "" : " (not this head alone)"}? `;
  if (map.columns > SHORT) {
    node.replaceChildren(question, link);
    return;
  }
  await fresh(new Promise((rested) => setTimeout(rested, 350)));
  const { reason, verdict } = await fresh(api.trust(run, chosen(run), map.name));
  if (reason) node.textContent = reason;
  else node.replaceChildren(question, ...sentence(verdict), " ", link);
}
