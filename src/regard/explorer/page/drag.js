// Set attention weights by dragging cells of a matrix, or with Shift and the up and down arrows.

const FULL = 150; // px from weight 0 to weight 1
const STEP = 0.1; // of a key

/** Call `onweight(row, column, weight)` as a cell of a matrix is dragged up or down. */
export function draggable(matrix, onweight) {
  const { canvas } = matrix;
  let start = null;
  const weight = () => matrix.weights[matrix.row * matrix.columns.length + matrix.column];
  const chosen = () => matrix.column >= 0 && weight() >= 0; // false while weights are loading
  const set = (value) => onweight(matrix.row, matrix.column, Math.max(0, Math.min(1, value)));
  canvas.style.touchAction = "none";
  canvas.style.cursor = "ns-resize";
  canvas.addEventListener("pointerdown", (event) => {
    matrix.point(event);
    if (event.button || !chosen()) return;
    canvas.setPointerCapture(event.pointerId);
    start = { y: event.clientY, weight: weight() };
  });
  canvas.addEventListener(
    "pointermove",
    (event) => {
      if (!start) return;
      event.stopImmediatePropagation(); // the chosen cell stays
      set(start.weight + (start.y - event.clientY) / FULL);
    },
    true,
  );
  for (const name of ["pointerup", "pointercancel"])
    canvas.addEventListener(name, () => {
      start = null;
    });
  canvas.addEventListener(
    "keydown",
    (event) => {
      const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!event.shiftKey || !sign || !chosen()) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      set(weight() + sign * STEP);
    },
    true,
  );
}

/** A row with a new weight in one column; the first `count` others keep their proportions. */
export function reweighted(row, column, weight, count = row.length) {
  const rest = row.reduce((sum, w, i) => sum + (i === column ? 0 : w), 0);
  return row.map((w, i) =>
    i === column
      ? weight
      : i >= count
        ? 0
        : rest > 1e-9
          ? (w * (1 - weight)) / rest
          : (1 - weight) / Math.max(1, count - 1),
  );
}

/** Kendall's τ-b of two lists of scores; null if all of one are equal. */
export function kendall(x, y) {
  let agree = 0,
    untiedX = 0,
    untiedY = 0;
  for (let i = 0; i < x.length; i++) {
    for (let j = 0; j < i; j++) {
      const a = Math.sign(x[i] - x[j]),
        b = Math.sign(y[i] - y[j]);
      agree += a * b;
      untiedX += a * a;
      untiedY += b * b;
    }
  }
  return untiedX * untiedY ? agree / Math.sqrt(untiedX * untiedY) : null;
}
