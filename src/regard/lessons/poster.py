"""The poster of lesson 9: six models from no attention to the Transformer, one panel per figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import OptionError
from regard.pictures.canvas import Canvas, straight
from regard.pictures.picture import Picture

MARGIN, LEFT, BAR, GAP = 24.0, 148.0, 150.0, 34.0  # LEFT: the names; BAR: the longest bar
ROW, HEIGHT, HEAD = 44.0, 15.0, 118.0  # HEAD: headline and titles of the panels
SPARK = 96.0  # width of a curve of BLEU by length
Value = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True)
class Panel:
    """A column of bars: what is shown, and the sentence below its title."""

    title: str
    note: str
    value: Value
    form: str
    style: str


def _faithfulness(model: Mapping[str, Any]) -> float | None:
    return model["faithfulness"]["tau_leave_one_out"]["value"] if "faithfulness" in model else None


PANELS = (
    Panel("BLEU", "higher is better", lambda model: model["bleu"], ".1f", "state"),
    Panel(
        "Alignment error",
        "per cent, lower is better",
        lambda model: 100 * model["alignment"]["aer"] if "alignment" in model else None,
        ".0f",
        "attention",
    ),
    Panel("Faithfulness", "τ with leave-one-out", _faithfulness, ".2f", "output"),
    Panel("Training cost", "10¹² FLOPs", lambda model: model["flops"] / 1e12, ",.1f", "layer"),
)


@dataclass(frozen=True, eq=False)
class Poster(Picture):
    """Bars of BLEU, alignment error, faithfulness and FLOPs, and BLEU by sentence length, of a progression.

    Args:
        log: what `python -m benchmarks.progression` writes.
    """

    log: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.log.get("models"):
            raise OptionError("the log has no models; run `python -m benchmarks.progression` first")

    def canvas(self) -> Canvas:
        log, models = self.log, list(self.log["models"].values())
        canvas = Canvas("From no attention to the Transformer")
        canvas.text(MARGIN, MARGIN + 16, "From no attention to the Transformer", size=21, bold=True)
        about = (
            f"{log['corpus']}, {log['source']} → {log['target']}: {log['train_lines']:,} pairs, "
            f"{log['steps']:,} steps each, {log['test_lines']:,} test sentences. All with the same data."
        )
        canvas.text(MARGIN, MARGIN + 38, about, "mute", size=12)
        bottom = HEAD + ROW * len(models)
        for row, model in enumerate(models):
            y = HEAD + ROW * row
            if row % 2 == 0:
                canvas.rectangle(MARGIN - 8, y, self._width() - 2 * MARGIN + 16, ROW, "band", radius=5)
            canvas.text(MARGIN, y + ROW / 2 + 5, model["title"], size=15, bold=True)
        x = MARGIN + LEFT
        self._bars(canvas, PANELS[0], models, x)
        x += BAR + GAP + 26
        self._curves(canvas, models, x)
        x += SPARK + GAP + 34
        for panel in PANELS[1:]:
            self._bars(canvas, panel, models, x)
            x += BAR + GAP + 26
        made = [log["command"], f"regard {log['regard']}", log["date"], log["device"], f"seed {log['seed']}"]
        canvas.text(MARGIN, bottom + 30, " · ".join(made), "mute", size=10.5)
        canvas.reach(self._width() - MARGIN, bottom + 34)
        return canvas

    @staticmethod
    def _width() -> float:
        return 2 * MARGIN + LEFT + 4 * (BAR + 26) + SPARK + 34 + 4 * GAP

    @staticmethod
    def _bars(canvas: Canvas, panel: Panel, models: Sequence[Mapping[str, Any]], x: float) -> None:
        """A bar per model with its number; a dash where a model has none."""
        values = [panel.value(model) for model in models]
        most = max((abs(value) for value in values if value is not None), default=1.0) or 1.0
        _title(canvas, panel.title, panel.note, x)
        for row, value in enumerate(values):
            y = HEAD + ROW * row + ROW / 2
            if value is None:
                canvas.text(x, y + 5, "–", "mute", size=14)
                continue
            length = max(1.5, BAR * max(0.0, value) / most)
            canvas.rectangle(x, y - HEIGHT / 2, length, HEIGHT, panel.style, radius=3)
            canvas.text(x + length + 7, y + 5, f"{value:{panel.form}}".replace("-", "−"), size=13.5)

    @staticmethod
    def _curves(canvas: Canvas, models: Sequence[Mapping[str, Any]], x: float) -> None:
        """BLEU by length of each model as a small curve; all on one scale."""
        buckets = [b for b in models[0]["by_length"] if b["lines"]]
        words = f"≤ {buckets[0]['longest']} to ≥ {buckets[-1]['shortest']} words"
        _title(canvas, "BLEU by length", words, x)
        most = max(b["bleu"] for model in models for b in model["by_length"] if b["lines"]) or 1.0
        for row, model in enumerate(models):
            scores = [b["bleu"] for b in model["by_length"] if b["lines"]]
            base = HEAD + ROW * (row + 1) - 7
            points = [
                (x + i * SPARK / max(1, len(scores) - 1), base - (ROW - 14) * score / most)
                for i, score in enumerate(scores)
            ]
            canvas.path(*straight((x, base), (x + SPARK, base)), style="frame", width=0.8)
            canvas.path(*straight(*points), style="weight", width=2.2)
            canvas.text(x + SPARK + 7, points[-1][1] + 4.5, f"{scores[-1]:.0f}", size=12)


def _title(canvas: Canvas, title: str, note: str, x: float) -> None:
    canvas.text(x, HEAD - 26, title, size=14, bold=True)
    canvas.text(x, HEAD - 9, note, "mute", size=11)
