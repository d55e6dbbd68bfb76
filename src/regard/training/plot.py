"""Plot the curves of a run: loss by step, and the metric of the task on the validation set."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

from regard.files.atomic import write_file
from regard.tasks import Task, get_task
from regard.training.run_log import read_log


def draw(log: Path, picture: Path, title: str = "", task: Task | None = None) -> None:
    """Plot a run's log as a PNG file; nothing is written without matplotlib or if the log has no values."""
    if find_spec("matplotlib") is None:
        return
    task = task or get_task("translate")
    events = list(read_log(log))
    train = [(e["step"], e["nll"]) for e in events if e["event"] == "train" and e.get("nll") is not None]
    valid = [e for e in events if e["event"] == "validation"]
    if not train and not valid:
        return
    from matplotlib.figure import Figure  # not pyplot, which needs a display

    score = task.metric if any(task.metric in e for e in valid) else "perplexity"
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*zip(*train, strict=True), label="training", linewidth=1) if train else None
    losses = [(e["step"], e["loss"]) for e in valid if e.get("loss") is not None]
    left.plot(*zip(*losses, strict=True), label="validation", marker=".") if losses else None
    left.set(xlabel="step", ylabel="−log p (nats)", title=title)
    left.legend()
    scores = [(e["step"], e[score]) for e in valid if e.get(score) is not None]
    right.plot(*zip(*scores, strict=True), marker=".", color="tab:green") if scores else None
    right.set(xlabel="step", ylabel=task.metric_name if score == task.metric else score, title="validation")
    if score == "perplexity" and scores and max(s for _, s in scores) > 10 * min(s for _, s in scores):
        right.set_yscale("log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_file(picture, content.getvalue())
