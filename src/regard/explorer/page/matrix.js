// A matrix of weights on a canvas: labels, hover, arrow keys. Cells are painted once; the selection is drawn over them.

import { el } from "./dom.js";

const FONT = "14px Inter, system-ui, 'Noto Sans', 'Noto Sans CJK SC', sans-serif";
const LARGEST = 44, SMALLEST = 5, LABEL = 14; // cell sizes in px; below LABEL only the chosen labels are drawn

export const alpha = (w) => (w <= 0 ? 0 : Math.min(1, 0.03 + 0.97 * w ** 0.75));

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { hot: read("--hot"), ink: read("--ink"), dim: read("--dim"), accent: read("--accent"), soft: read("--soft") };
}

function shorten(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(letters.join("") + "…").width > width) letters.pop();
  return letters.join("") + "…";
}

/**
 * A matrix view: {rows, columns} are entries with `text`; `onmove(row, column)` follows pointer and keys,
 * `onselect(row, column)` a click or Enter.
 */
export class Matrix {
  constructor({ label, onmove, onselect }) {
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "attention matrix",
      "aria-label": `${label}; arrow keys move between cells` });
    this.node = el("div", { class: "matrix" }, this.canvas);
    Object.assign(this, { onmove, onselect, rows: [], columns: [], weights: new Float32Array(), row: -1, column: -1 });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { if (document.activeElement !== this.canvas) this.move(this.row, -1, false); });
    this.canvas.addEventListener("click", (event) => { this.point(event); if (this.row >= 0) this.onselect?.(this.row, this.column); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => { if (this.row < 0 || this.column < 0) this.move(Math.max(0, this.row), 0); });
    new ResizeObserver(() => this.layout()).observe(this.node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.layout());
  }

  show(weights, rows, columns) {
    Object.assign(this, { weights, rows, columns });
    if (this.row >= rows.length) this.row = -1;
    if (this.column >= columns.length) this.column = -1;
    this.layout(true);
  }

  layout(force = false) {
    const width = this.node.clientWidth;
    if (!width || !this.rows.length || (!force && width === this.width && this.ratio === devicePixelRatio)) {
      if (this.rows.length && width) this.paint();
      return;
    }
    this.width = width;
    this.ratio = devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const measure = (entries) => Math.max(...entries.map((e) => context.measureText(e.text).width));
    this.left = Math.ceil(Math.min(measure(this.rows), width * 0.3, 150)) + 12;
    const tallest = Math.min(measure(this.columns), 110);
    this.top = Math.ceil(tallest * 0.82) + 16;
    // Slanted labels reach beyond the last column.
    const right = Math.max(8, Math.ceil(Math.min(context.measureText(this.columns.at(-1).text).width, 110) * 0.6) + 4);
    const fitting = (width - this.left - right - 2) / this.columns.length;
    this.cell = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(fitting)));
    this.w = this.left + this.cell * this.columns.length + right;
    this.h = this.top + this.cell * this.rows.length + 4;
    this.canvas.width = this.w * this.ratio;
    this.canvas.height = this.h * this.ratio;
    this.canvas.style.width = `${this.w}px`;
    this.canvas.style.height = `${this.h}px`;
    Object.assign(this.canvas.dataset, { cell: this.cell, left: this.left, top: this.top });
    this.base = this.cells();
    this.paint();
  }

  /** All cells on a canvas of their own; hovering then costs one copy. */
  cells() {
    const { cell, columns, rows, ratio } = this, { hot, soft } = colours();
    const base = new OffscreenCanvas(Math.max(1, columns.length * cell * ratio), Math.max(1, rows.length * cell * ratio));
    const context = base.getContext("2d");
    context.scale(ratio, ratio);
    const space = cell > 10 ? 1.5 : cell > 7 ? 0.5 : 0, round = cell > 16 ? 3 : 0;
    const shape = (x, y) => {
      context.beginPath();
      context.roundRect(x * cell + space / 2, y * cell + space / 2, cell - space, cell - space, round);
      context.fill();
    };
    if (space) context.fillStyle = soft;
    for (let y = 0; space && y < rows.length; y++) for (let x = 0; x < columns.length; x++) shape(x, y);
    for (let y = 0; y < rows.length; y++) {
      for (let x = 0; x < columns.length; x++) {
        const a = alpha(this.weights[y * columns.length + x]);
        if (a < 0.04) continue;
        context.fillStyle = `rgb(${hot} / ${a.toFixed(3)})`;
        if (round) shape(x, y);
        else context.fillRect(x * cell + space / 2, y * cell + space / 2, cell - space, cell - space);
      }
    }
    return base;
  }

  paint() {
    const { cell, left, top, columns, rows, ratio } = this, { ink, dim, accent } = colours();
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.w, this.h);
    context.drawImage(this.base, left, top, columns.length * cell, rows.length * cell);
    context.font = FONT;
    context.textBaseline = "middle";
    const step = Math.max(1, Math.ceil(LABEL / cell));
    const colour = (entry, chosen) => (chosen ? accent : entry.special ? dim : ink);
    context.textAlign = "right";
    rows.forEach((entry, y) => {
      if (y % step && y !== this.row) return;
      if (step > 1 && y !== this.row && Math.abs(y - this.row) * cell < LABEL) return;
      context.fillStyle = colour(entry, y === this.row);
      context.fillText(shorten(context, entry.text, left - 12), left - 8, top + (y + 0.5) * cell);
    });
    context.textAlign = "left";
    columns.forEach((entry, x) => {
      if (x % step && x !== this.column) return;
      if (step > 1 && x !== this.column && Math.abs(x - this.column) * cell < LABEL) return;
      context.save();
      context.translate(left + (x + 0.5) * cell + 2, top - 7);
      context.rotate(-Math.PI / 3.4);
      context.fillStyle = colour(entry, x === this.column);
      context.fillText(shorten(context, entry.text, 110), 0, 0);
      context.restore();
    });
    if (this.row >= 0) {
      context.strokeStyle = accent;
      context.lineWidth = 1.5;
      context.strokeRect(left - 0.5, top + this.row * cell - 0.5, columns.length * cell + 1, cell + 1);
      if (this.column >= 0) {
        context.lineWidth = 2.5;
        context.strokeRect(left + this.column * cell, top + this.row * cell, cell, cell);
      }
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left - this.left) / this.cell);
    const y = Math.floor((event.clientY - box.top - this.top) / this.cell);
    if (y < 0 || y >= this.rows.length) return;
    this.move(y, x >= 0 && x < this.columns.length ? x : -1);
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const last = [this.rows.length - 1, this.columns.length - 1];
    let target = null;
    if (event.key in moves) target = [this.row + moves[event.key][0], this.column + moves[event.key][1]];
    else if (event.key === "Home") target = [this.row, 0];
    else if (event.key === "End") target = [this.row, last[1]];
    else if (event.key === "PageUp") target = [0, this.column];
    else if (event.key === "PageDown") target = [last[0], this.column];
    else if (event.key === "Enter" || event.key === " ") this.onselect?.(this.row, this.column);
    else return;
    event.preventDefault();
    if (target) this.move(Math.max(0, Math.min(last[0], target[0])), Math.max(0, Math.min(last[1], target[1])));
  }

  /** Choose a cell; column −1 chooses the row alone. */
  move(row, column, tell = true) {
    if (row === this.row && column === this.column) return;
    this.row = row;
    this.column = column;
    if (this.base) this.paint();
    if (tell) this.onmove?.(row, column);
  }
}
