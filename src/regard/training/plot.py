"""The picture of a run: loss by step, and the figure of the task on the validation set."""

from __future__ import annotations

import io
from pathlib import Path

from regard.files.atomic import write_file
from regard.tasks import TASKS, Task
from regard.training.log import read_lines


def draw(log: Path, picture: Path, title: str = "", task: Task = TASKS["translate"]) -> None:
    """Read a run's log and write a PNG. A log without anything to draw gives no picture."""
    events = list(read_lines(log))
    train = [(e["step"], e["nll"]) for e in events if e["event"] == "train" and e.get("nll") is not None]
    valid = [e for e in events if e["event"] == "validation"]
    if not train and not valid:
        return
    from matplotlib.figure import Figure  # no pyplot: it would look for a screen

    score = task.figure if any(task.figure in e for e in valid) else "perplexity"
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*zip(*train, strict=True), label="training", linewidth=1) if train else None
    losses = [(e["step"], e["loss"]) for e in valid if e.get("loss") is not None]
    left.plot(*zip(*losses, strict=True), label="validation", marker=".") if losses else None
    left.set(xlabel="step", ylabel="−log p (nats)", title=title)
    left.legend()
    scores = [(e["step"], e[score]) for e in valid if e.get(score) is not None]
    right.plot(*zip(*scores, strict=True), marker=".", color="tab:green") if scores else None
    right.set(xlabel="step", ylabel=task.title if score == task.figure else score, title="validation")
    if score == "perplexity" and scores and max(s for _, s in scores) > 10 * min(s for _, s in scores):
        right.set_yscale("log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_file(picture, content.getvalue())
