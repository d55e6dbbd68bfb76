// The page: the text that is run, the tabs, the output, errors.

import * as api from "./api.js";
import { alignmentView } from "./alignment.js";
import { answer } from "./difference.js";
import { announce, choice, el, field, fit, num, rove } from "./dom.js";
import { likeliest, probability } from "./format.js";
import { headsView } from "./heads.js";
import { leave, newest, shown } from "./newest.js";
import { readAddress, set, state } from "./state.js";

const VERBS = {
  fill: "Fill",
  translate: "Translate",
  generate: "Continue",
  classify: "Classify",
  tag: "Tag",
  embed: "Embed",
};
const byId = (id) => document.getElementById(id);
const page = Object.fromEntries(
  ["tabs", "model", "ask", "text", "to", "beam", "go", "examples", "error", "output", "view"].map((id) => [
    id,
    byId(id),
  ]),
);

// A view that is loaded when it is first shown has the name of its file.
const VIEWS = {
  alignment: {
    title: "Alignment",
    make: alignmentView,
    fits: (run) => run.maps.some((m) => m.kind === "cross"),
    only: "translate",
  },
  heads: { title: "Heads", make: headsView },
  search: { title: "Search", file: "search", plain: true },
  whatif: { title: "What if", file: "whatif" },
  trust: { title: "Trust", file: "trust", plain: true },
  compare: { title: "Compare", file: "compare", plain: true },
  mechanism: { title: "Mechanism", file: "mechanism", alone: true },
};

let model = null,
  current = null,
  running = null;
const actions = { force, again, trustLine };
// State of one text.
const NEW_TEXT = { row: "", token: "", node: "", prefix: "", pins: "", target: "", links: "", changes: "" };

function views() {
  return Object.entries(VIEWS).filter(
    ([name, view]) =>
      (model?.views ? model.views.includes(name) : model?.task || view.alone) &&
      (!view.only || view.only === model?.task),
  );
}

function showTabs() {
  page.tabs.replaceChildren(
    ...views().map(([name, view]) =>
      el(
        "button",
        {
          role: "tab",
          id: `tab-${name}`,
          "aria-selected": name === state.view,
          "aria-controls": "view",
          tabindex: name === state.view ? 0 : -1,
          onclick: () => show(name),
          onfocus: () => {
            if (name !== state.view) show(name);
          },
        },
        view.title,
      ),
    ),
  );
}

/** Show a view of the current run. */
async function show(name) {
  const focused = page.tabs.contains(document.activeElement);
  leave();
  const here = shown();
  set({ view: name });
  showTabs();
  if (focused) byId(`tab-${name}`)?.focus();
  byId(`tab-${name}`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const view = VIEWS[name];
  const needsRun = !view.alone;
  page.view.setAttribute("aria-labelledby", `tab-${name}`);
  page.view.setAttribute("role", "tabpanel");
  page.view.dataset.view = name;
  for (const part of [page.ask, page.examples]) part.hidden = !needsRun;
  page.output.hidden = !needsRun || !current;
  const empty = (text) => fill(el("p.empty", text));
  if (needsRun && !current) empty(running ? "Running…" : "Type a text and press Enter.");
  else if (needsRun && !view.plain && !current.maps.length)
    empty("This model has no attention to show. Compare and Mechanism work without.");
  else if (view.fits && !view.fits(current)) empty("This model has no attention between source and target.");
  else {
    try {
      if (!view.make) {
        empty("Loading…");
        view.make = (await load(view.file)).view;
      }
      if (here()) fill(view.make(current, model, actions));
    } catch (error) {
      showError(error);
    }
  }
}

/** Put a view in place of the one before; if the focus was there, it stays in the view. */
function fill(node) {
  const focused = page.view.contains(document.activeElement);
  page.view.replaceChildren(node);
  if (focused) page.view.focus({ preventScroll: true });
}

/** Show the view again; one that needs no run stays as it is. */
const refresh = () => VIEWS[state.view].alone || show(state.view);

/** Import a file of the page; the server may be gone. */
async function load(name) {
  try {
    return await import(`./${name}.js`);
  } catch {
    throw api.unreachable();
  }
}

/** A line beside a picture that summarizes the view Trust. */
function trustLine(run) {
  const node = el("p.trust-line.dim");
  const update = newest(
    async (fresh, map, head) => (await fresh(load("trust"))).fillLine(fresh, node, run, map, head, show),
    (error) => {
      node.textContent = error.message;
    },
  );
  return { node, update: (map, head) => model.views?.includes("trust") && update(map, head) };
}

function showOutput(run) {
  const out = run.output,
    parts = [answer(out)];
  if ("logP" in out) {
    parts.push(
      el(
        "p.dim",
        "probability ",
        num(probability(out.logP)),
        " (of the whole output)",
        out.ended ? "" : ", cut off at the length limit",
      ),
    );
  }
  if (out.forced) {
    parts.push(
      el(
        "p.dim",
        "forced to begin with ",
        el("span", { dir: "auto" }, out.forced),
        " ",
        el(
          "button.chip",
          {
            onclick: () => force(run, [], 0),
          },
          "release",
        ),
      ),
    );
  }
  if (out.probabilities) parts.push(el("p.dim", likeliest(out.probabilities)));
  page.output.replaceChildren(...parts);
  announce(page.output.textContent);
}

let polling = 0;
/** Show an error, or none. While the server does not answer, ask it every two seconds. */
function showError(error) {
  clearTimeout(polling);
  page.error.textContent = error ? error.message : "";
  page.error.hidden = !error;
  if (!error?.unreachable) return;
  polling = setTimeout(() => {
    api
      .describeModel(null, state.model)
      .then(() => (model ? rerun() : location.reload()))
      .catch((again) => showError(again));
  }, 2000);
}

/** Run the text of the form; before the model is known, `start` does so later. */
function submit() {
  const text = page.text.value;
  if (!model) return null;
  running?.abort();
  if (!text.trim()) return showError(new Error("Type a text first."));
  if (state.text !== text) {
    const given = model.gold?.find(({ source }) => source === text);
    set({ ...NEW_TEXT, ...(given ? { target: given.target, links: given.links } : {}) });
  }
  set({ text, to: page.to.value, beam: page.beam.value || 1 });
  return rerun();
}

/** Run the text of the address and show it. */
async function rerun() {
  running?.abort();
  const mine = (running = new AbortController()),
    focused = document.activeElement === page.go;
  page.go.disabled = true;
  page.view.setAttribute("aria-busy", "true");
  if (!current) refresh();
  try {
    current = await api.run(request(), mine.signal);
    showError(null);
    showOutput(current);
    refresh();
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  } finally {
    if (running === mine) {
      running = null;
      page.go.disabled = false;
      if (focused && document.activeElement === document.body) page.go.focus(); // lost while disabled
      page.view.removeAttribute("aria-busy");
      if (!current) refresh();
    }
  }
}

/** What the address asks for; the output is forced to a whole translation, or to its first tokens. */
function request() {
  const prefix = state.prefix.split(",").filter(Boolean).map(Number);
  return {
    text: state.text,
    beam: Number(state.beam) || 1,
    ...(state.to ? { to: state.to } : {}),
    ...(state.model ? { model: Number(state.model) } : {}),
    ...(state.target ? { target: state.target } : prefix.length ? { prefix } : {}),
  };
}

/** Run the text of a run again, with changes of the address: it may name another text, which failed. */
function again({ request: { text, to = "", beam } }, changes) {
  set({ text, to, beam, ...changes });
  return rerun();
}

/** Start the output of a run with these token ids, in every view; those from step `from` on are new. */
function force(run, prefix, from) {
  const steps = [
    ...state.pins.split(",").filter((step) => step && Number(step) < from),
    ...prefix.map((_, i) => i + 1).filter((step) => step >= from),
  ];
  return again(run, {
    prefix: prefix.join(","),
    pins: steps.join(","),
    target: "",
    links: "",
    node: "",
    row: "",
    token: "",
  });
}

function showModel() {
  const { source, target, choices } = model.languages;
  const direction = source && target ? `${source} → ${target}` : null; // of several languages, a field has the choice
  const size =
    model.parameters >= 1e6
      ? `${(model.parameters / 1e6).toFixed(1)} M`
      : `${Math.round(model.parameters / 1e3)} k`;
  const name = model.choices // another one is another page: nothing of this text belongs to it
    ? choice(
        "model",
        model.choices,
        state.model || "0",
        (index) => {
          location.search = index === "0" ? "" : `?model=${index}`;
        },
        true,
      )
    : `${model.name} · `;
  page.model.replaceChildren(name, [model.kind, direction, `${size} parameters`].filter(Boolean).join(" · "));
  document.title = `${model.name} · regard explorer`;
  page.go.textContent = VERBS[model.task];
  page.to.replaceChildren(
    el("option", { value: "" }, "auto"),
    ...choices.map((code) => el("option", { value: code }, code)),
  );
  byId("to-field").hidden = !choices.length;
  byId("beam-field").hidden = !["translate", "generate"].includes(model.task);
  page.beam.replaceChildren(
    ...Array.from({ length: model.limits.beam }, (_, i) => el("option", { value: i + 1 }, String(i + 1))),
  );
  page.examples.replaceChildren(
    ...model.examples.map((text) =>
      el(
        "button",
        {
          class: "chip",
          dir: "auto",
          onclick: () => {
            page.text.value = text;
            fit(page.text);
            submit();
          },
        },
        text,
      ),
    ),
  );
}

/** Show the parts of a text in backquotes as code. */
const code = (text) => text.split("`").map((part, i) => (i % 2 ? el("code", part) : part));

/** Call the server; where it needs a token, ask for it and call again. */
async function withToken(call, again = false) {
  try {
    return await call();
  } catch (error) {
    if (error.status !== 401) throw error;
    const input = el("input", { type: "password", id: "token", required: true, autocomplete: "off" });
    const form = el(
      "form.controls",
      el("label.field", { for: "token" }, "Token of this server"),
      input,
      el("button.primary", { type: "submit" }, "Open"),
    );
    page.ask.hidden = true;
    showError(again ? new Error("This is not the server's token.") : null);
    page.view.replaceChildren(form);
    input.focus();
    await new Promise((resolve) => {
      form.addEventListener(
        "submit",
        (event) => {
          event.preventDefault();
          resolve();
        },
        { once: true },
      );
    });
    api.setToken(input.value);
    page.view.replaceChildren();
    showError(null);
    return withToken(call, true);
  }
}

/** How much of the model is loaded, in a site without a server. */
function showProgress(part) {
  const bar = page.view.querySelector("progress") ?? el("progress", { "aria-label": "Loading the model" });
  bar.value = part;
  if (!bar.isConnected) page.view.replaceChildren(el("p.empty", "Loading the model ", bar));
}

async function start() {
  readAddress();
  page.ask.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  field(page.text, submit);
  rove(page.tabs, "button");
  try {
    model = await withToken(() => api.describeModel(showProgress, state.model));
  } catch (error) {
    showError(error);
    return show("mechanism");
  }
  if (model.notice) {
    page.view.before(el("p.notice", { id: "notice" }, ...code(model.notice)));
    return show("mechanism");
  }
  showModel();
  if (!views().some(([name]) => name === state.view)) set({ view: views()[0][0] });
  page.to.value = state.to;
  page.beam.value = state.beam;
  page.text.value ||= state.text || model.examples[0]; // what was typed meanwhile stays
  fit(page.text);
  show(state.view);
  return submit();
}

start();
