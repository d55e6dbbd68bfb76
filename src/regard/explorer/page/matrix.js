// A matrix of values on a canvas: labels, hover, arrow keys, zoom. Cells are painted once; the canvas shows
// the part that is scrolled into view, so hovering costs the same for 5 and for 500 tokens.

import { el } from "./dom.js";

const FONT = "14px Inter, system-ui, 'Noto Sans', 'Noto Sans CJK SC', sans-serif";
const LARGEST = 44,
  SMALLEST = 5,
  LABEL = 14; // cell sizes in px; below LABEL only some labels are drawn
const STEEP = 22; // px of a cell below which column labels stand steeper
const SHAPES = 3000; // cells up to which each has a rounded shape of its own
const WIDEST = 32_767; // px of a canvas in every browser
const FAINT = 0.04; // opacity below which nothing is painted
const WRITTEN = 32,
  STRONG = 0.1; // px of a cell and weight from which the number is written
const OVERVIEW = 84; // px of the overview of a large matrix

// Low weights differ visibly from 0.
export const alpha = (w) => (w <= 0 ? 0 : Math.min(1, 0.02 + 0.98 * w ** 0.6));

/** Colours as 32-bit pixels, as ImageData stores them, without opacity. */
const pixel = (rgb) =>
  rgb
    .trim()
    .split(" ")
    .reduce((bits, part, i) => bits | (Number(part) << (8 * i)), 0);

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return Object.fromEntries(
    ["hot", "cold", "ink", "dim", "accent", "soft", "card"].map((name) => [name, read(`--${name}`)]),
  );
}

function shorten(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = [...text];
  while (characters.length > 1 && context.measureText(characters.join("") + "…").width > width)
    characters.pop();
  return characters.join("") + "…";
}

// One listener for all pictures: it would keep those that have left the page.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const node of document.querySelectorAll(".painted")) node.dispatchEvent(new Event("repaint"));
});

/**
 * A matrix view: {rows, columns} are entries with `text`; `onmove(row, column)` follows pointer and keys,
 * `onselect(row, column)` a click or Enter.
 */
export class Matrix {
  constructor({ label, onmove, onselect, largest = LARGEST, numbers = false }) {
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "attention matrix",
      "aria-label": `${label}; arrow keys move between cells, plus and minus zoom`,
    });
    this.space = el("div", this.canvas);
    this.scroller = el("div.matrix", this.space);
    const button = (text, name, factor) =>
      el("button.chip", { "aria-label": name, onclick: () => this.enlarge(factor) }, text);
    this.tools = el(
      "div.zoom",
      { role: "group", "aria-label": "Zoom", hidden: true },
      button("−", "Zoom out", 1 / 1.5),
      button("fit", "Fit the whole matrix", 0),
      button("+", "Zoom in", 1.5),
    );
    this.node = el("div.matrix-box.painted", this.tools, this.scroller);
    Object.assign(this, {
      onmove,
      onselect,
      largest,
      numbers,
      rows: [],
      columns: [],
      weights: new Float32Array(),
      row: -1,
      column: -1,
      size: 0,
      marks: [],
    });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => {
      if (document.activeElement !== this.canvas) this.move(this.row, -1, false);
    });
    this.canvas.addEventListener("click", (event) => {
      if (this.point(event, true) && this.row >= 0) this.onselect?.(this.row, this.column);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => {
      if (this.row < 0 || this.column < 0) this.move(Math.max(0, this.row), 0);
    });
    this.scroller.addEventListener("scroll", () => this.paint(), { passive: true });
    new ResizeObserver(() => this.layout()).observe(this.node);
    this.node.addEventListener("repaint", () => this.layout(true));
  }

  /** Show values; `signed` ones may be negative, and `limit` is the largest magnitude of the scale. */
  show(weights, rows, columns, { signed = false, limit = 1 } = {}) {
    if (columns.length !== this.columns.length) this.size = 0;
    Object.assign(this, { weights, rows, columns, signed, limit: limit || 1 });
    if (this.row >= rows.length) this.row = -1;
    if (this.column >= columns.length) this.column = -1;
    this.layout(true);
  }

  /** Draw rings around cells: {row, column, sure}; those that are not sure are dashed. */
  mark(marks) {
    this.marks = marks;
    if (this.base) this.paint();
  }

  layout(force = false) {
    const width = this.node.clientWidth;
    if (!width || !this.rows.length) return;
    if (!force && width === this.width && this.ratio === devicePixelRatio) return this.paint();
    this.width = width;
    this.ratio = devicePixelRatio || 1;
    const context = this.canvas.getContext("2d"),
      high = Math.max(280, innerHeight * 0.78);
    context.font = FONT;
    const measure = (entries) => Math.max(...entries.map((e) => context.measureText(e.text).width));
    this.left = Math.ceil(Math.min(measure(this.rows), width * 0.3, 150)) + 12;
    // Slanted labels reach beyond the last column.
    const right = Math.max(
      8,
      Math.ceil(Math.min(context.measureText(this.columns.at(-1).text).width, 110) * 0.6) + 4,
    );
    const fitting = (width - this.left - right - 2) / this.columns.length;
    const usual = Math.max(SMALLEST, Math.min(this.largest, Math.floor(fitting)));
    // Radians; labels of narrow columns would overlap.
    this.slant = (this.size || usual) < STEEP ? 1.35 : 0.92;
    this.top = Math.ceil(Math.min(measure(this.columns), 110) * Math.sin(this.slant)) + 18;
    this.tools.hidden = fitting >= LABEL && this.top + usual * this.rows.length <= high;
    this.fitCell = Math.max(0.5, Math.min(this.largest, fitting, (high - this.top - 4) / this.rows.length));
    this.cell = this.size || usual;
    const overflows =
      this.left + this.cell * this.columns.length + right > width ||
      this.top + this.cell * this.rows.length > high;
    if (overflows) {
      this.left = Math.max(this.left, OVERVIEW + 14);
      this.top = Math.max(this.top, OVERVIEW + 10);
    }
    this.w = this.left + this.cell * this.columns.length + right;
    this.h = this.top + this.cell * this.rows.length + 4;
    this.space.style.width = `${this.w}px`;
    this.space.style.height = `${this.h}px`;
    this.seen = [Math.min(this.w, width), Math.min(this.h, high)];
    this.scroller.style.maxHeight = `${Math.ceil(high)}px`;
    ["width", "height"].forEach((side, i) => {
      this.canvas[side] = Math.round(this.seen[i] * this.ratio);
      this.canvas.style[side] = `${this.seen[i]}px`;
    });
    Object.assign(this.canvas.dataset, { cell: this.cell, left: this.left, top: this.top });
    this.paints = colours();
    this.base =
      this.rows.length * this.columns.length <= SHAPES &&
      Math.max(this.rows.length, this.columns.length) * this.cell * this.ratio <= WIDEST
        ? this.shapes()
        : this.pixels(this.rows.length, this.columns.length);
    this.overview = !overflows
      ? null
      : this.pixels(Math.min(OVERVIEW, this.rows.length), Math.min(OVERVIEW, this.columns.length));
    this.paint();
  }

  /** Colour and opacity of a value; null where nothing is painted. */
  shade(value) {
    if (!Number.isFinite(value)) return null;
    const a = alpha(Math.abs(value) / this.limit);
    return a < FAINT ? null : [value < 0 && this.signed ? this.paints.cold : this.paints.hot, a];
  }

  /** All cells as rounded shapes; a value of −∞, which a mask leaves, is a dot. */
  shapes() {
    const { cell, columns, rows, ratio } = this;
    const base = new OffscreenCanvas(
      Math.max(1, columns.length * cell * ratio),
      Math.max(1, rows.length * cell * ratio),
    );
    const context = base.getContext("2d");
    context.scale(ratio, ratio);
    Object.assign(context, { font: FONT.replace("14", "12"), textAlign: "center", textBaseline: "middle" });
    const space = cell > 10 ? 1.5 : cell > 7 ? 0.5 : 0,
      round = cell > 16 ? 3 : 0;
    const shape = (x, y, fill) => {
      context.fillStyle = fill;
      context.beginPath();
      context.roundRect(x * cell + space / 2, y * cell + space / 2, cell - space, cell - space, round);
      context.fill();
    };
    rows.forEach((_, y) =>
      columns.forEach((__, x) => {
        const value = this.weights[y * columns.length + x],
          shaded = this.shade(value);
        if (value === -Infinity) {
          context.fillStyle = this.paints.dim;
          context.fillRect((x + 0.5) * cell - 1, (y + 0.5) * cell - 1, 2, 2);
          return;
        }
        if (space) shape(x, y, this.paints.soft);
        if (shaded) shape(x, y, `rgb(${shaded[0]} / ${shaded[1].toFixed(3)})`);
        if (!this.numbers || this.signed || cell < WRITTEN || value < STRONG) return;
        context.fillStyle = shaded[1] > 0.6 ? this.paints.card : this.paints.ink;
        context.fillText(value.toFixed(2), (x + 0.5) * cell, (y + 0.5) * cell);
      }),
    );
    return base;
  }

  /** The matrix as an image; each px shows the largest of its values. */
  pixels(height, width) {
    const { rows, columns, weights } = this,
      largest = new Float32Array(height * width);
    for (let y = 0; y < rows.length; y++) {
      const line = Math.floor((y * height) / rows.length) * width;
      for (let x = 0; x < columns.length; x++) {
        const at = line + Math.floor((x * width) / columns.length),
          value = weights[y * columns.length + x];
        if (Math.abs(value) > Math.abs(largest[at]) && Number.isFinite(value)) largest[at] = value;
      }
    }
    const image = new ImageData(width, height),
      cells = new Uint32Array(image.data.buffer);
    const hot = pixel(this.paints.hot),
      cold = this.signed ? pixel(this.paints.cold) : hot;
    for (let i = 0; i < largest.length; i++) {
      const a = alpha(Math.abs(largest[i]) / this.limit);
      if (a >= FAINT) cells[i] = (Math.round(255 * a) << 24) | (largest[i] < 0 ? cold : hot);
    }
    const base = new OffscreenCanvas(width, height);
    base.getContext("2d").putImageData(image, 0, 0);
    return base;
  }

  paint() {
    if (!this.base) return;
    const {
        cell,
        left,
        top,
        columns,
        rows,
        ratio,
        seen: [w, h],
      } = this,
      { ink, dim, accent, card } = this.paints;
    const ox = this.scroller.scrollLeft,
      oy = this.scroller.scrollTop;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, w, h);
    const visibleW = Math.min(w - left, columns.length * cell - ox),
      visibleH = Math.min(h - top, rows.length * cell - oy);
    const sx = this.base.width / (columns.length * cell),
      sy = this.base.height / (rows.length * cell);
    context.imageSmoothingEnabled = false;
    if (visibleW > 0 && visibleH > 0)
      context.drawImage(
        this.base,
        ox * sx,
        oy * sy,
        visibleW * sx,
        visibleH * sy,
        left,
        top,
        visibleW,
        visibleH,
      );
    this.labels(context, ox, oy);
    if (this.overview) {
      context.fillStyle = this.paints.soft;
      context.fillRect(4, 4, OVERVIEW, OVERVIEW);
      context.drawImage(this.overview, 4, 4, OVERVIEW, OVERVIEW);
      context.strokeStyle = accent;
      context.lineWidth = 1.5;
      const [fx, fy] = [OVERVIEW / (columns.length * cell), OVERVIEW / (rows.length * cell)];
      context.strokeRect(4 + ox * fx, 4 + oy * fy, Math.max(3, visibleW * fx), Math.max(3, visibleH * fy));
    }
    context.save();
    context.beginPath();
    context.rect(left - 2, top - 2, w, h);
    context.clip();
    for (const { row, column, sure } of this.marks) {
      const inset = Math.max(1, Math.min(5, cell * 0.16)),
        size = cell - 2 * inset;
      for (const [style, line] of [
        [card, 4],
        [ink, 1.75],
      ]) {
        context.strokeStyle = style;
        context.lineWidth = line;
        context.setLineDash(sure ? [] : [3, 3]);
        context.strokeRect(left + column * cell - ox + inset, top + row * cell - oy + inset, size, size);
      }
    }
    context.setLineDash([]);
    if (this.row >= 0) {
      context.strokeStyle = accent;
      context.lineWidth = 1.5;
      context.strokeRect(
        left - ox - 0.5,
        top + this.row * cell - oy - 0.5,
        columns.length * cell + 1,
        cell + 1,
      );
      if (this.column >= 0) {
        context.lineWidth = 2.5;
        context.strokeRect(left + this.column * cell - ox, top + this.row * cell - oy, cell, cell);
      }
    }
    context.restore();
  }

  labels(context, ox, oy) {
    const {
        cell,
        left,
        top,
        columns,
        rows,
        seen: [w, h],
      } = this,
      { ink, dim, accent } = this.paints;
    const step = Math.max(1, Math.ceil(LABEL / cell));
    const drawn = (i, chosen) =>
      i === chosen || (i % step === 0 && (step === 1 || Math.abs(i - chosen) * cell >= LABEL || chosen < 0));
    const colour = (entry, chosen) => (chosen ? accent : entry.special ? dim : ink);
    context.font = FONT;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let y = Math.floor(oy / cell); y < rows.length && top + y * cell - oy < h; y++) {
      const at = top + (y + 0.5) * cell - oy;
      if (at < top + 2 || !drawn(y, this.row)) continue;
      context.fillStyle = colour(rows[y], y === this.row);
      context.fillText(shorten(context, rows[y].text, left - 12), left - 8, at);
    }
    context.textAlign = "left";
    for (let x = Math.floor(ox / cell); x < columns.length && left + x * cell - ox < w; x++) {
      const at = left + (x + 0.5) * cell - ox;
      if (at < left || !drawn(x, this.column)) continue;
      context.save();
      context.translate(at + 2, top - 7);
      context.rotate(-this.slant);
      context.fillStyle = colour(columns[x], x === this.column);
      context.fillText(shorten(context, columns[x].text, 110), 0, 0);
      context.restore();
    }
  }

  /** Move to the cell under the pointer; a click (`jump`) on the overview scrolls there. */
  point(event, jump = false) {
    const box = this.canvas.getBoundingClientRect(),
      { cell, left, top } = this;
    const px = event.clientX - box.left,
      py = event.clientY - box.top;
    if (px < left && py < top) {
      if (jump && this.overview)
        this.centre(((py - 4) / OVERVIEW) * this.rows.length, ((px - 4) / OVERVIEW) * this.columns.length);
      return false;
    }
    const x = Math.floor((px - left + this.scroller.scrollLeft) / cell),
      y = Math.floor((py - top + this.scroller.scrollTop) / cell);
    if (py < top || y < 0 || y >= this.rows.length) return false;
    this.move(y, px >= left && x < this.columns.length ? x : -1);
    return true;
  }

  centre(row, column) {
    const [w, h] = this.seen;
    this.scroller.scrollTo(column * this.cell - (w - this.left) / 2, row * this.cell - (h - this.top) / 2);
  }

  /** Zoom by a factor around the chosen cell; 0 fits the whole matrix. */
  enlarge(factor) {
    this.size = factor ? Math.max(this.fitCell, Math.min(this.largest, this.cell * factor)) : this.fitCell;
    this.layout(true);
    this.centre(Math.max(0, this.row), Math.max(0, this.column));
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const zooms = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: 0 };
    const last = [this.rows.length - 1, this.columns.length - 1];
    let target = null;
    if (!this.base || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) target = [this.row + moves[event.key][0], this.column + moves[event.key][1]];
    else if (event.key === "Home") target = [this.row, 0];
    else if (event.key === "End") target = [this.row, last[1]];
    else if (event.key === "PageUp") target = [0, this.column];
    else if (event.key === "PageDown") target = [last[0], this.column];
    else if (event.key === "Enter" || event.key === " ") this.onselect?.(this.row, this.column);
    else if (event.key in zooms) {
      if (!this.tools.hidden) this.enlarge(zooms[event.key]);
    } else return;
    event.preventDefault();
    if (!target) return;
    const [row, column] = target.map((value, i) => Math.max(0, Math.min(last[i], value)));
    this.reveal(row, column);
    this.move(row, column);
  }

  /** Scroll a cell into view. */
  reveal(row, column) {
    const {
      scroller,
      cell,
      left,
      top,
      seen: [w, h],
    } = this;
    const within = (at, start, size) => Math.max(Math.min(start, at * cell), (at + 1) * cell - size);
    scroller.scrollTo(
      within(column, scroller.scrollLeft, w - left - 4),
      within(row, scroller.scrollTop, h - top - 4),
    );
  }

  /** Choose a cell; column −1 chooses the row alone. */
  move(row, column, tell = true) {
    if (!this.base || (row === this.row && column === this.column)) return;
    this.row = row;
    this.column = column;
    this.paint();
    if (tell) this.onmove?.(row, column);
  }
}
