// Two texts with curves between a chosen word and the words that get its weight.

import { el, rove } from "./dom.js";
import { direction, top } from "./format.js";
import { alpha } from "./matrix.js";

const SHOWN = 8; // curves per word
const LONG = 60; // words of both texts; longer texts scroll

function visible(item, container) {
  const a = item.getBoundingClientRect(),
    b = container.getBoundingClientRect();
  return a.bottom > b.top + 4 && a.top < b.bottom - 4;
}

/**
 * The rows (queries) are buttons, the columns (keys) get the weight; `above` puts the columns first.
 * `onhover(row)` follows pointer and focus, `onselect(row)` a click.
 */
export class Lines {
  constructor({ rowName, columnName, onhover, onselect, above = true }) {
    Object.assign(this, { onhover, onselect, rows: [], columns: [], row: -1, shaded: [] });
    this.svg = el("svg", { "aria-hidden": "true" });
    this.keys = el("div.side", { role: "list", "aria-label": columnName });
    this.queries = el("div.side", { role: "group", "aria-label": rowName });
    const names = [el("p.side-name", columnName), el("p.side-name", rowName)];
    const gap = el("div.gap");
    const parts = above
      ? [names[0], this.keys, gap, this.queries, names[1]]
      : [names[1], this.queries, gap, this.keys, names[0]];
    this.above = above;
    this.node = el("div.lines", parts, this.svg);
    rove(this.queries, "button");
    new ResizeObserver(() => this.draw()).observe(this.node);
    for (const side of [this.keys, this.queries])
      side.addEventListener("scroll", () => this.draw(), { passive: true });
  }

  show(weights, rows, columns) {
    const same = rows === this.rows && columns === this.columns;
    Object.assign(this, { weights, rows, columns });
    this.node.classList.toggle("long", rows.length + columns.length > LONG);
    if (!same) {
      const sentence = (all) =>
        direction(
          all
            .filter((entry) => !entry.special)
            .map((entry) => entry.text)
            .join(" "),
        );
      this.keys.dir = sentence(columns);
      this.queries.dir = sentence(rows);
      this.keys.replaceChildren(
        ...columns.map((entry) =>
          el(
            "span",
            { class: entry.special ? "word special" : "word", role: "listitem", dir: "auto" },
            entry.text,
          ),
        ),
      );
      this.queries.replaceChildren(
        ...rows.map((entry, i) =>
          el(
            "button",
            {
              class: entry.special ? "word special" : "word",
              dir: "auto",
              "aria-pressed": "false",
              tabindex: i === Math.max(0, this.row) ? 0 : -1,
              onpointerenter: () => this.onhover?.(i),
              onfocus: () => this.onhover?.(i),
              onclick: () => this.onselect?.(i),
            },
            entry.text,
          ),
        ),
      );
    }
    this.draw();
  }

  choose(row) {
    for (const [i, on] of [
      [this.row, false],
      [0, false],
      [row, true],
    ]) {
      // only these: a text may have 500 words
      const button = this.queries.children[i];
      button?.setAttribute("aria-pressed", String(on));
      if (button) button.tabIndex = on ? 0 : -1;
    }
    this.row = row;
    if (this.node.classList.contains("long") && this.columns.length) this.reveal(row);
    this.draw();
  }

  /** Scroll to the key with the largest weight, and to the chosen word if it is out of sight. */
  reveal(row) {
    const { length } = this.columns,
      key = this.keys.children[top(this.weights.subarray(row * length, (row + 1) * length), 1).order[0]];
    if (key) this.keys.scrollTop = key.offsetTop - this.keys.clientHeight / 2;
    const query = this.queries.children[row];
    if (!visible(query, this.queries))
      this.queries.scrollTop = query.offsetTop - this.queries.clientHeight / 2;
  }

  draw() {
    const keys = this.keys.children;
    for (const key of this.shaded) key.style.background = "";
    this.shaded = [];
    this.svg.replaceChildren();
    const from = this.queries.children[this.row];
    if (!from || !this.columns.length || !visible(from, this.queries)) return;
    const row = this.weights.subarray(this.row * keys.length, (this.row + 1) * keys.length);
    const box = this.node.getBoundingClientRect(),
      a = from.getBoundingClientRect();
    const x = a.left + a.width / 2 - box.left,
      y = (this.above ? a.top : a.bottom) - box.top;
    for (const i of top(row, SHOWN).order.reverse()) {
      if (row[i] < 0.01) continue;
      this.shaded.push(keys[i]);
      keys[i].style.background = `rgb(var(--hot) / ${(alpha(row[i]) * 0.4).toFixed(3)})`;
      if (!visible(keys[i], this.keys)) continue;
      const b = keys[i].getBoundingClientRect();
      const u = b.left + b.width / 2 - box.left,
        v = (this.above ? b.bottom : b.top) - box.top;
      const middle = (y + v) / 2;
      this.svg.append(
        el("path", {
          d: `M${x} ${y}C${x} ${middle} ${u} ${middle} ${u} ${v}`,
          "stroke-width": (0.8 + 6 * row[i]).toFixed(2),
          opacity: alpha(row[i]).toFixed(3),
        }),
      );
    }
  }
}
