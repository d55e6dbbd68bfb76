// How far attention explains one output: faithfulness measures, each with a sentence that interprets its value.

import * as api from "./api.js";
import { announce, choice, el, rove } from "./dom.js";
import { marksWords, part, percent, token, weight } from "./format.js";
import { set, state } from "./state.js";

const SHORT = 40; // for longer texts the line beside a picture shows only a button; computing it takes too long
const KINDS = { translate: ["cross"], generate: ["decoder"] };
const explains = (run, map) => run.task !== "embed" && (KINDS[run.task] ?? ["encoder", "pooling", "decoder"]).includes(map.kind);
const COLUMNS = { attention: "attention", gradient: "gradient × input", leave_one_out: "leave-one-out" };

/** The outputs that can be explained: [index, text]. */
function outputs(run) {
  if (run.task === "tag") return run.output.words.map((word, i) => [i, `${word} ${run.output.tags[i]}`]);
  if (!("tokenLogP" in run.output)) return [];
  const first = run.output.promptTokens ?? 0;
  const { tokens } = run.sides.target, marks = marksWords(tokens);
  return tokens.map((text, i) => [i, part(text, marks)]).slice(first).filter(([i]) => i > 0 || run.task === "translate");
}

/** The output that the address names: a token, or the first token of the chosen word. */
function chosen(run) {
  const all = outputs(run).map(([i]) => i);
  const side = run.sides.target, row = Number(state.row);
  const asked = state.token !== "" ? Number(state.token) : state.row === "" || !side ? -1 : state.level === "words" ? side.words[row]?.tokens[0] : row;
  return all.includes(asked) ? asked : all[0] ?? null;
}

const value = (x) => (x === null ? "–" : x.toFixed(2).replace("-", "−"));

/** A bar from 0 to a value between −1 and 1. */
function meter(x, signed) {
  const bar = el("i"), size = Math.min(1, Math.abs(x ?? 0)) * (signed ? 50 : 100);
  bar.style.width = `${size}%`;
  if (signed) bar.style.marginInlineStart = `${x < 0 ? 50 - size : 50}%`;
  return el("span", { class: signed ? "meter signed" : "meter" }, bar);
}

function figure({ name, title, value: x, scale, reading }) {
  return el("div", { class: "figure", "data-figure": name }, el("h3", {}, title), meter(x, name.startsWith("tau")),
    el("span", { class: "num" }, value(x)), el("p", {}, reading), el("p", { class: "dim" }, scale));
}

/** Tokens of the input with their importance by three measures, each column scaled to its largest value. */
function scores({ tokens, scores: by }) {
  const names = Object.keys(COLUMNS).filter((name) => by[name]), most = names.map((name) => Math.max(...by[name].map(Math.abs), 1e-12));
  return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Importance of the tokens" }, el("table", { class: "choices" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "token"), names.map((name) => el("th", { scope: "col" }, COLUMNS[name])))),
    el("tbody", {}, tokens.map((text, i) => el("tr", {}, el("th", { scope: "row", dir: "auto" }, token(text)),
      names.map((name, n) => el("td", {}, meter(by[name][i] / most[n]), el("span", { class: "num" }, weight(Math.abs(by[name][i]))))))))));
}

export function view(run, model) {
  const maps = run.maps.filter((map) => explains(run, map));
  const words = el("div", { class: "side", role: "group", "aria-label": "Output to explain" }), body = el("div", { "aria-live": "polite" });
  const title = el("h2", {}), sub = el("p", { class: "dim" });
  let row = chosen(run), attention = "";
  rove(words, "button");

  function showWords() {
    words.replaceChildren(...outputs(run).map(([i, text]) => el("button", { class: "word", type: "button", dir: "auto",
      "aria-pressed": String(i === row), tabindex: i === row ? 0 : -1,
      onclick: () => { row = i; set({ token: i }); load(); words.querySelector("[aria-pressed=true]").focus(); } }, text)));
  }

  async function load() {
    const mine = row;
    showWords();
    body.setAttribute("aria-busy", "true");
    try {
      const found = await api.trust(run, row, attention);
      if (mine !== row) return;
      if (found.reason) {
        title.textContent = "Does attention explain the output?";
        body.replaceChildren(el("p", { class: "empty" }, found.reason));
        return;
      }
      title.replaceChildren("Does attention explain ", el("b", { dir: "auto" }, found.prediction), "?");
      sub.textContent = `The model gave it a probability of ${percent(found.probability)}.`;
      body.replaceChildren(el("div", { class: "figures" }, found.figures.map(figure)),
        el("h3", {}, "Importance of each token, by three measures"), scores(found));
      announce(found.figures.map(({ title: name, value: x }) => `${name} ${value(x)}`).join("; "));
    } catch (error) {
      body.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
    } finally { body.removeAttribute("aria-busy"); }
  }

  load();
  const name = (map) => [map.name, `${map.kind} ${map.layer + 1}`];
  return el("section", { class: "card trust" }, el("header", {}, title, sub, el("div", { class: "controls" },
    maps.length > 1 ? choice("attention", [["", "last layer"], ...maps.map(name)], attention, (to) => { attention = to; load(); }) : null)), words, body);
}

let waiting = 0;
/** Write the line beside a picture: two measures for the chosen output and this attention map. */
export function updateLine(node, run, map, show) {
  const link = el("button", { class: "chip", type: "button", onclick: () => show("trust") }, "all figures");
  clearTimeout(waiting);
  node.replaceChildren();
  if (!explains(run, map)) return;
  if (map.columns > SHORT) { node.replaceChildren("Can you trust it? ", link); return; }
  waiting = setTimeout(async () => {
    try {
      const { reason, prediction, figures } = await api.trust(run, chosen(run), map.name);
      if (reason) { node.textContent = reason; return; }
      const [left, moved] = ["tau_leave_one_out", "change_permuted"].map((name) => figures.find((f) => f.name === name));
      node.replaceChildren("Can you trust it? For ", el("b", { dir: "auto" }, prediction), `: ${left.reading} ${moved.reading} `, link);
    } catch (error) { node.textContent = error.message; }
  }, 350);
}
