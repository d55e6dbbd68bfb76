// The search tree: what hypotheses share is drawn once. A token can be forced.

import * as api from "./api.js";
import { marked } from "./difference.js";
import { announce, bold, chip, el, errorLine, meter, num, refill } from "./dom.js";
import { inside, marksWords, part, percent, probability, token } from "./format.js";
import { alpha } from "./matrix.js";
import { newest } from "./newest.js";
import { indexOf, set, state } from "./state.js";

const LINE = 44,
  GAP = 26,
  FONT = "15px Inter, system-ui, 'Noto Sans', 'Noto Sans CJK SC', sans-serif";
const STATUS = { kept: "kept", ended: "finished", pruned: "pruned" };
const KINDS = { forced: "forced", before: "kept from before", left: "pruned later" };

// What the frames of tokens mean: class and text.
const KEY = [
  ["sure", "darker: likelier token"],
  ["kept", "in another hypothesis"],
  ["left", "kept for a while, pruned later"],
  ["pruned", "pruned at once"],
  ["before", "kept from before"],
  ["forced", "forced by you"],
  ["selected", "selected"],
];
const EMPTY = Infinity; // of a line: the first step in use

/**
 * Assign a line to each shown node: below a path its branches, those of later steps first, so that no curve
 * passes behind a token.
 */
function lines(tree, pruned) {
  const { nodes, hypotheses } = tree,
    children = nodes.map(() => []),
    line = new Map(),
    first = [];
  nodes.forEach((node, i) => {
    if (i && (pruned || node.status !== "pruned")) children[node.parent].push(i);
  });
  for (const { nodes: path } of hypotheses.toReversed()) {
    // what continues the best hypothesis comes first
    for (const i of path) children[nodes[i].parent].sort((a, b) => (b === i) - (a === i));
  }
  const place = (start, above) => {
    const path = [start];
    for (let next = children[start][0]; next !== undefined; next = children[next][0]) path.push(next);
    const last = nodes[path.at(-1)],
      end = last.status === "ended" ? EMPTY : last.step + 2; // a label, or a gap
    let at = above + 1;
    while ((first[at] ?? EMPTY) < end) at++;
    for (let i = above + 1; i <= at; i++)
      first[i] = Math.min(first[i] ?? EMPTY, nodes[start].step + (i < at)); // a curve passes
    for (const i of path) line.set(i, at);
    for (const i of path.reverse()) for (const branch of children[i].slice(1)) place(branch, at);
  };
  place(0, -1);
  return { line, children };
}

const signed = (x) => x.toFixed(3).replace("-", "−");
/** p(token | tokens before it). */
const chance = (nodes, i) => Math.exp(nodes[i].logP - nodes[nodes[i].parent].logP);

class Tree {
  constructor(tree, pins, onchoose) {
    Object.assign(this, { tree, pins, onchoose, chosen: -1, buttons: new Map() });
    this.marks = marksWords(tree.nodes.map((node) => node.token));
    this.svg = el("svg", { "aria-hidden": "true" });
    this.space = el("div.tree-space", { role: "group", "aria-label": "Search tree; arrow keys follow it" });
    this.node = el("div.tree", { tabindex: -1 }, this.space);
    this.space.addEventListener("keydown", (event) => this.key(event));
  }

  show(pruned) {
    const { nodes, hypotheses, prefix } = this.tree,
      { pins } = this,
      { line, children } = lines(this.tree, pruned);
    Object.assign(this, { line, children });
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    context.font = FONT;
    const width = (i) =>
      Math.ceil(
        context.measureText(part(nodes[i].token, this.marks) + (pins.has(nodes[i].step) ? " forced" : ""))
          .width,
      ) + 20;
    const widest = [];
    for (const i of line.keys())
      if (i) widest[nodes[i].step] = Math.max(widest[nodes[i].step] ?? 0, width(i));
    const left = [0, 4];
    widest.forEach((width, step) => {
      left[step + 1] = left[step] + width + GAP;
    });
    const place = (i) => ({ x: left[nodes[i].step], y: line.get(i) * LINE, w: width(i) });
    const best = new Set(hypotheses[0].nodes),
      final = new Set(hypotheses.flatMap((h) => h.nodes));
    const lasts = hypotheses.map((h) => h.nodes.at(-1));
    this.buttons.clear();
    const shown = [...line.keys()].filter(Boolean).sort((a, b) => a - b);
    this.space.replaceChildren(
      this.svg,
      ...shown.map((i) => {
        const { x, y } = place(i),
          node = nodes[i],
          p = chance(nodes, i),
          forced = pins.has(node.step);
        const kind = forced
          ? "forced"
          : node.step <= prefix.length
            ? "before"
            : node.status === "pruned"
              ? "pruned"
              : best.has(i)
                ? "best"
                : final.has(i)
                  ? "kept"
                  : "left";
        const button = el(
          "button",
          {
            class: `node ${kind}`,
            dir: "auto",
            tabindex: -1,
            "data-node": i,
            "aria-label": `${token(node.token)}, probability ${percent(p)}, ${KINDS[kind] ?? STATUS[node.status]}`,
            onclick: () => this.choose(i),
            onfocus: () => this.choose(i),
          },
          part(node.token, this.marks),
          forced ? el("small", " forced") : null,
        );
        Object.assign(button.style, { left: `${x}px`, top: `${y}px` });
        if (kind !== "pruned" && kind !== "before")
          button.style.setProperty("--shade", (alpha(p) * 0.32).toFixed(3));
        this.buttons.set(i, button);
        return button;
      }),
      ...shown
        .filter((i) => nodes[i].status === "ended" || lasts.includes(i))
        .map((i) => {
          const { x, y, w } = place(i),
            rank = lasts.indexOf(i),
            score = rank < 0 ? nodes[i].score : hypotheses[rank].score;
          const label = el(
            "span.score",
            num(signed(score)),
            rank
              ? ` ${nodes[i].status === "ended" ? "finished" : "not finished"}, ${rank < 0 ? "pruned" : "not best"}`
              : " best",
          );
          Object.assign(label.style, { left: `${x + w + 12}px`, top: `${y}px` });
          return label;
        }),
    );
    const last = (i) => (best.has(i) ? 1 : 0); // the best path lies above the others
    this.svg.replaceChildren(
      ...shown
        .filter((i) => nodes[i].parent > 0)
        .sort((a, b) => last(a) - last(b))
        .map((i) => {
          const a = place(nodes[i].parent),
            b = place(i),
            x = a.x + a.w,
            y = a.y + 16,
            v = b.y + 16,
            middle = Math.max(x, b.x - GAP);
          return el("path", {
            class: best.has(i) ? "best" : "",
            d: `M${x} ${y}H${middle}C${middle + 14} ${y} ${b.x - 14} ${v} ${b.x} ${v}`,
          });
        }),
    );
    this.space.style.width = `${left.at(-1) + 180}px`;
    this.space.style.height = `${(Math.max(...line.values()) + 1) * LINE}px`;
    this.mark();
  }

  choose(i) {
    if (i === this.chosen) return;
    this.chosen = i;
    this.mark();
    this.onchoose(i);
  }

  /** Scroll sideways to the chosen token. */
  reveal() {
    const button = this.buttons.get(this.chosen);
    if (button) this.node.scrollLeft = button.offsetLeft - (this.node.clientWidth - button.offsetWidth) / 2;
  }

  mark() {
    const reachable = this.buttons.has(this.chosen) ? this.chosen : this.buttons.keys().next().value;
    for (const [i, button] of this.buttons) {
      button.setAttribute("aria-pressed", String(i === this.chosen));
      button.tabIndex = i === reachable ? 0 : -1;
    }
  }

  key(event) {
    const here = Number(document.activeElement?.dataset?.node),
      { nodes } = this.tree;
    if (!here) return;
    const column = [...this.buttons.keys()]
      .filter((i) => nodes[i].step === nodes[here].step)
      .sort((a, b) => this.line.get(a) - this.line.get(b));
    const next = {
      ArrowLeft: nodes[here].parent,
      ArrowRight: this.children[here][0],
      ArrowUp: column[column.indexOf(here) - 1],
      ArrowDown: column[column.indexOf(here) + 1],
      Home: this.tree.hypotheses[0].nodes[0],
      End: this.tree.hypotheses[0].nodes.at(-1),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    this.buttons.get(next)?.focus();
  }
}

/** The tokens that were considered where a node stands; each can be forced. */
function alternatives(tree, i, force) {
  const { nodes } = tree,
    { parent } = nodes[i];
  const children = nodes
    .map((node, at) => at)
    .filter((at) => at && nodes[at].parent === parent)
    .sort((a, b) => nodes[b].logP - nodes[a].logP);
  return el(
    "table.choices",
    el(
      "thead",
      el(
        "tr",
        ["token", "its probability here", "status", ""].map((name) =>
          el(name ? "th" : "td", { scope: name ? "col" : null }, name),
        ),
      ),
    ),
    el(
      "tbody",
      children.map((at) => {
        const p = chance(nodes, at),
          text = token(nodes[at].token);
        return el(
          "tr",
          el("th", { scope: "row", dir: "auto", class: at === i ? "now" : "" }, text),
          el("td", meter(p), num(percent(p))),
          el("td.dim", STATUS[nodes[at].status]),
          el("td", el("button.chip", { "aria-label": `Force ${text}`, onclick: () => force(at) }, "force")),
        );
      }),
    ),
  );
}

export function view(run, model, { force }) {
  const space = el("div"),
    panel = el("div.panel"),
    result = el("div.result"),
    filter = el("div.controls");
  const [error, fail] = errorLine();
  const key = el("p.legend.dim", { id: "search-key" }),
    how = el("p.dim");
  const numbers = (text) => text.split(",").filter(Boolean).map(Number),
    { target, prefix: forced = [], ...asked } = run.request;
  // Steps that the user forced.
  const pins = new Set(forced.length ? numbers(state.pins || String(forced.length)) : []);
  let tree = null,
    drawn = null;

  const path = (i) => {
    const ids = [];
    for (let at = i; at > 0; at = tree.nodes[at].parent) ids.unshift(tree.nodes[at].id);
    return ids;
  };

  const type = newest(async (fresh, i, text) => {
    error.hidden = true;
    if (!text.trim()) throw new Error("Type a word to force.");
    const { prefix } = await fresh(api.search({ ...asked, prefix: path(i).slice(0, -1), then: text }));
    force(run, prefix, tree.nodes[i].step);
  }, fail);

  function choose(i) {
    const node = tree.nodes[i],
      input = el("input", { size: 14, dir: "auto", maxlength: 200, "aria-label": "A word to force here" });
    set({ node: i });
    const before = node.parent > 0 ? token(tree.nodes[node.parent].token) : null;
    panel.replaceChildren(
      el(
        "h3",
        "In place of ",
        bold(token(node.token)),
        before ? el("span.dim", " after ", el("span", { dir: "auto" }, before)) : "",
      ),
      el(
        "p.dim",
        `step ${node.step}, rank ${node.rank + 1}: ${STATUS[node.status]}; of the whole path so far: log p ${signed(node.logP)}, score ${signed(node.score)}`,
      ),
      alternatives(tree, i, (at) => force(run, path(at), node.step)),
      el(
        "form.controls",
        {
          onsubmit: (event) => {
            event.preventDefault();
            type(i, input.value);
          },
        },
        el("label.field", "another word ", input),
        el("button.chip", { type: "submit" }, "force"),
      ),
    );
    announce(`${token(node.token)}, probability ${percent(chance(tree.nodes, i))}, ${STATUS[node.status]}`);
  }

  function outputs(original) {
    const side = (name, best, other) =>
      el(
        "section",
        el("h3.dim", name),
        el("p.answer", { dir: "auto" }, ...marked(other.text, best.text)),
        el("p.dim", "probability ", num(probability(best.logP)), ", score ", num(signed(best.score))),
      );
    const [a, b] = [original.hypotheses[0], tree.hypotheses[0]],
      at = (step) => tree.nodes[b.nodes[step - 1]];
    const words = [...pins]
      .filter(at)
      .map((step) => token(at(step).token))
      .join(" ");
    result.replaceChildren(
      el(
        "div.pair",
        side("as the model searched", a, b),
        side(`with “${inside(words)}” forced; underlined words differ`, b, a),
      ),
    );
    announce(`with forced tokens the output is ${b.text}`);
  }

  function showFilter() {
    refill(
      filter,
      chip("show all pruned tokens", state.pruned !== "", () => {
        set({ pruned: state.pruned ? "" : "1" });
        showFilter();
        drawn.show(state.pruned !== "");
      }),
    );
    const sign = ([kind, text]) => el("span", el("span", { class: `node ${kind}` }, "token"), text);
    key.replaceChildren(
      ...KEY.filter(
        ([kind]) =>
          (!["forced", "before"].includes(kind) || drawn.node.querySelector(`.${kind}`)) &&
          (kind !== "pruned" || state.pruned),
      ).map(sign),
    );
  }

  const load = newest(async (fresh) => {
    const searches = [api.search({ ...asked, prefix: forced })];
    if (forced.length) searches.push(api.search(asked));
    const [newTree, original] = await fresh(Promise.all(searches));
    tree = newTree;
    drawn = new Tree(tree, pins, choose);
    space.replaceChildren(drawn.node);
    drawn.show(state.pruned !== "");
    showFilter();
    how.textContent = `Beam size ${tree.beam}${tree.beam > 1 ? "" : " (greedy search)"}. The best hypothesis is on top; the number at an end is its score, log p per token.`;
    if (original) outputs(original);
    const free = tree.hypotheses[0].nodes.filter((i) => tree.nodes[i].step > forced.length);
    const doubt =
      free.sort((a, b) => chance(tree.nodes, a) - chance(tree.nodes, b))[0] ?? tree.hypotheses[0].nodes[0];
    if (doubt) drawn.choose(indexOf("node", tree.nodes.length, doubt) || doubt);
    drawn.reveal();
  }, fail);

  load();
  return el(
    "section.card",
    el("header", el("h2", "What the search kept and pruned"), how),
    result,
    error,
    el("div.controls.spread", el("p", "Click a token to force another one there."), filter),
    key,
    space,
    panel,
  );
}
