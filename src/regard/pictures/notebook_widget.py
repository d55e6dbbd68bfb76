"""What is chosen in a view of a notebook, as a widget that Python reads and sets; it needs anywidget.

The widget shows nothing. The view is HTML of its own, which an exported notebook keeps; they exchange
messages.
"""

from __future__ import annotations

import anywidget  # pyright: ignore[reportMissingImports]
import traitlets  # pyright: ignore[reportMissingImports]

SCRIPT = """
const CHOICE = ["layer", "head", "row", "column"];
function render({ model }) {
  const view = model.get("view");
  let hearing = false; // a choice that comes from the view is not sent back to it
  const hear = ({ data }) => {
    if (data?.regard?.view !== view) return;
    hearing = true;
    for (const key of CHOICE) model.set(key, data.regard[key]);
    hearing = false;
    model.save_changes();
  };
  const tell = () => {
    if (hearing) return;
    const regard = { view, ...Object.fromEntries(CHOICE.map((key) => [key, model.get(key)])) };
    const frames = document.getElementsByName(`regard-${view}`);
    for (const frame of frames) frame.contentWindow.postMessage({ regard }, "*");
  };
  addEventListener("message", hear);
  for (const key of CHOICE) model.on(`change:${key}`, tell);
  return () => {
    removeEventListener("message", hear);
    for (const key of CHOICE) model.off(`change:${key}`, tell);
  };
}
export default { render };
"""


class ViewSelection(anywidget.AnyWidget):
    """What is chosen in a view: `layer`, `head` (−1: the mean of all), `row` and `column` (−1: none)."""

    _esm = SCRIPT
    view = traitlets.Unicode().tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(-1).tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(-1).tag(sync=True)

    def __repr__(self) -> str:
        """Shown below the view where the notebook has no widgets."""
        return f"ViewSelection(layer={self.layer}, head={self.head}, row={self.row}, column={self.column})"
