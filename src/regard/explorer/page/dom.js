// Elements from names, attributes and text. Text always becomes text nodes, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: el("p.dim", "text"), el("button.chip", { onclick: f }, "text", child, …). */
export function el(selector, ...content) {
  const [name, ...classes] = selector.split("."),
    attributes = content[0]?.constructor === Object ? content.shift() : {};
  const node =
    name === "svg" || name === "path" ? document.createElementNS(SVG, name) : document.createElement(name);
  if (name === "button") node.type = "button";
  if (classes.length) node.classList.add(...classes);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !key.startsWith("aria-"))) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : value);
  }
  node.append(...content.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const num = (text) => el("span.num", text);

/** A name or word, with its own direction. */
export const bold = (text) => el("b", { dir: "auto" }, text);

/** A bar whose length is a value from 0 to 1. */
export function meter(x) {
  const bar = el("i");
  bar.style.width = `${100 * Math.min(1, x)}%`;
  return el("span.meter", bar);
}

/** The colours of weights from 0 to 1. */
export const legend = (...content) => el("p.legend.dim", "0", el("i"), "1", ...content);

/** A line for an error; `fail(problem)` shows it. */
export function errorLine() {
  const node = el("p.error", { role: "alert", hidden: true });
  return [
    node,
    (problem) => {
      node.textContent = problem.message;
      node.hidden = false;
    },
  ];
}

/** A select of [value, text] pairs; a `hidden` label is for screen readers only. */
export function choice(label, options, value, onchange, hidden = false) {
  const select = el(
    "select",
    { "aria-label": label, onchange: () => onchange(select.value) },
    options.map(([key, text]) => el("option", { value: key }, text)),
  );
  select.value = String(value);
  return el("label.field", hidden ? "" : `${label} `, select);
}

/** A menu of the heads of a map, their mean first; nothing if there is one head. */
export function headChoice({ heads }, head, onchange) {
  if (heads < 2) return [];
  const names = Array.from({ length: heads }, (_, h) => [h, `head ${h + 1}`]);
  return [choice("head", [["mean", "mean of heads"], ...names], head, onchange, true)];
}

/** A toggle button. */
export function chip(text, pressed, onclick) {
  return el("button.chip", { "aria-pressed": pressed, onclick }, text);
}

/** Two toggle buttons for words and tokens. */
export function levelChips(level, onchange) {
  return el(
    "span.toggle",
    { role: "group", "aria-label": "Units" },
    chip("words", level === "words", () => onchange("words")),
    chip("tokens", level !== "words", () => onchange("tokens")),
  );
}

/** Replace the content of a node; the focus stays on the control of the same name, else of the same place. */
export function refill(node, ...content) {
  const controls = () => [...node.querySelectorAll("button, select")],
    name = (control) => control.getAttribute("aria-label") ?? control.textContent;
  const before = controls(),
    at = before.indexOf(document.activeElement);
  node.replaceChildren(...content);
  if (at < 0) return;
  const after = controls();
  (
    after.find((control) => name(control) === name(before[at])) ?? after.at(Math.min(at, after.length - 1))
  )?.focus();
}

/** Make a text field as high as its text. */
export function fit(node) {
  node.style.height = "auto";
  node.style.height = `${Math.min(node.scrollHeight + 2, 240)}px`;
}

/** Make a text field grow with its text; Enter calls `onenter`. */
export function field(node, onenter) {
  node.addEventListener("input", () => fit(node));
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      onenter();
    }
  });
}

let pending = 0;
/** Announce a reading to screen readers, once the pointer or the keys rest. */
export function announce(text) {
  clearTimeout(pending);
  pending = setTimeout(() => {
    document.getElementById("live").textContent = text;
  }, 150);
}

/** Arrow keys move the focus among the items of a container; Home and End go to the ends. */
export function rove(container, selector) {
  container.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const items = [...container.querySelectorAll(selector)];
    const here = items.indexOf(document.activeElement);
    if (here < 0) return;
    let next = null;
    if (event.key in steps) {
      const rtl = getComputedStyle(container).direction === "rtl" && /Left|Right/u.test(event.key) ? -1 : 1;
      next = items[here + rtl * steps[event.key]];
    }
    if (event.key === "Home") next = items[0];
    if (event.key === "End") next = items.at(-1);
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });
}
