"""An interactive view whose choice Python reads and sets; it needs anywidget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

if TYPE_CHECKING:
    from regard.pictures.notebook_view import AttentionView

CHOICE = ("layer", "head", "row", "column")
SCRIPT = """
const CHOICE = ["layer", "head", "row", "column"];
function render({ model, el }) {
  const frame = document.createElement("iframe");
  Object.assign(frame, { srcdoc: model.get("page"), title: "attention" });
  frame.setAttribute("sandbox", "allow-scripts");
  frame.setAttribute("style", `width:100%;height:${model.get("height")}px;border:0`);
  let hearing = false; // a choice that comes from the page is not sent back to it
  const hear = ({ source, data }) => {
    if (source !== frame.contentWindow || !data?.regard) return;
    hearing = true;
    for (const key of CHOICE) model.set(key, data.regard[key]);
    hearing = false;
    model.save_changes();
  };
  const tell = () => {
    if (hearing) return;
    const regard = Object.fromEntries(CHOICE.map((key) => [key, model.get(key)]));
    frame.contentWindow?.postMessage({ regard }, "*");
  };
  addEventListener("message", hear);
  for (const key of CHOICE) model.on(`change:${key}`, tell);
  el.append(frame);
  return () => {
    removeEventListener("message", hear);
    for (const key of CHOICE) model.off(`change:${key}`, tell);
  };
}
export default { render };
"""


class AttentionWidget(anywidget.AnyWidget):
    """An interactive view; `layer`, `head`, `row` and `column` are what is chosen in it, and can be set.

    `head` is −1 for the mean of all heads, `column` −1 for a whole row.
    """

    _esm = SCRIPT
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int().tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(-1).tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(-1).tag(sync=True)

    def __init__(self, view: AttentionView, **options: Any) -> None:
        head = -1 if view.head is None else view.head
        super().__init__(page=view.html(), height=view.height, layer=view.first, head=head, **options)
        self.view = view

    @property
    def weights(self) -> Any:
        """The weights of the chosen layer and head, (rows, columns)."""
        weights = self.view.layers[self.layer].weights
        return weights.mean(0) if self.head < 0 else weights[self.head]
