"""Figures of results: each is drawn from the tables of the page that shows it."""

from __future__ import annotations

import math
import re

from page_figures import DOCS, table
from svg import Drawing


def bench() -> Drawing:
    """Speed of regard over that of the best peer, forward and in training: the table of docs/bench.md."""
    header, *rows = table(DOCS / "bench.md", "Intel(R) Xeon(R)")
    case, length, mode, ratio = (header.index(name) for name in ("case", "T", "mode", "ratio"))
    ratios = dict[str, list[tuple[str, float]]]()
    for row in rows:
        ratios.setdefault(f"{row[case]}, T = {row[length]}", []).append((row[mode], float(row[ratio])))
    drawing, left, top, step = Drawing("Speed over that of the best peer, by case"), 270, 44, 18

    def place(ratio: float) -> float:
        return left + 70 * math.log2(ratio / 0.5)

    bottom = top + step * len(ratios)
    for x in (0.5, 1, 2, 4, 8, 16):
        drawing.path(f"M{place(x):g} {top - 6}V{bottom}", "axis", 1.5 if x == 1 else 0.4)
        drawing.text(place(x), top - 12, f"{x:g} ×", "tiny mute middle")
    for i, (name, marks) in enumerate(ratios.items()):
        y = top + step * (i + 0.5)
        drawing.text(left - 14, y + 4, name, "small end")
        for mode_name, value in marks:
            inside = "cell" if mode_name == "training" else "box"
            drawing.path(f"M{place(1):g} {y:g}H{place(value):g}", "line", 1, 0.35)
            drawing.rectangle(place(value) - 4.5, y - 4.5, 9, 9, inside, round_=4.5)
    for i, (style, text) in enumerate((("box", "forward"), ("cell", "training"))):
        drawing.rectangle(left + i * 90, 7, 9, 9, style, round_=4.5)
        drawing.text(left + 14 + i * 90, 16, text, "small")
    drawing.text(place(1) + 180, 16, "right of 1 ×: regard is faster", "small mute")
    return drawing


def conformance() -> Drawing:
    """Share of passes by class and function, and where one was silently wrong: docs/conformance.md."""
    peers, *rows = table(DOCS / "conformance.md", "Measured in one run")
    kernels, *own = table(DOCS / "conformance.md", "regard's automatic choice")
    names, left, top, cell = [*peers[1:], "", *kernels[1:]], 150, 130, 18
    drawing = Drawing("Share of passed cases by class of input and attention function")
    for j, name in enumerate(names):
        drawing.text(left + (j + 0.5) * cell + 3, top - 8, name, "small", turn=-50)
    for i, (row, kernel) in enumerate(zip(rows, own, strict=True)):
        y = top + i * cell
        drawing.text(left - 8, y + 13, row[0], "small end")
        for j, text in enumerate([*row[1:], "", *kernel[1:]]):
            if text:
                _verdict(drawing, left + j * cell, y, cell, text)
    for i, (text, label) in enumerate(LEGEND.items()):
        _verdict(drawing, left + i * 100, top + cell * len(rows) + 16, cell, text)
        drawing.text(left + 24 + i * 100, top + cell * len(rows) + 29, label, "small")
    drawing.width = max(drawing.width, left + len(names) * cell + 70)
    return drawing


LEGEND = {
    "60": "all pass",
    "30 · 30 refused": "half pass",
    "60 refused": "none pass",
    "1 · **1 wrong**": "some silently wrong",
}


def _verdict(drawing: Drawing, x: float, y: float, cell: float, text: str) -> None:
    """Draw one entry of the tables, such as `56 · **4 wrong**`: shaded by its share of passes."""
    counts = {kind or "pass": int(count) for count, kind in re.findall(r"(\d+)(?: ([a-z]+))?", text)}
    share = counts.get("pass", 0) / sum(counts.values())
    wrong = "wrong" in counts
    style, opacity = ("cell", 0.15 if wrong else 0.15 + 0.7 * share) if share else ("ring", 1)
    drawing.rectangle(x + 1.5, y + 1.5, cell - 3, cell - 3, style, opacity, round_=2)
    if wrong:
        drawing.text(x + cell / 2, y + 14, "✗", "middle title")


def shortlist() -> Drawing:
    """Tokens per second with the full vocabulary and with a shortlist: the table of docs/engine.md."""
    _, *rows = table(DOCS / "engine.md", "## Shortlists")
    drawing, left = Drawing("Tokens per second with the full vocabulary and with a shortlist"), 130
    for i, (name, full, short, bleu, short_bleu) in enumerate(rows):
        drawing.text(left - 10, 43 + i * 50, name, "small end")
        for j, (speed, score) in enumerate(((full, bleu), (short, short_bleu))):
            width = float(speed.split()[0].replace(",", "")) / 35
            y = 20 + i * 50 + j * 18
            drawing.rectangle(left, y, width, 14, "cell", 1 - 0.5 * (1 - j), round_=1.5)
            label = f"{('full vocabulary', 'shortlist')[j]}: {speed}, BLEU {score}"
            drawing.text(left + width + 6, y + 11, label, "tiny")
    drawing.path(f"M{left} 14V{20 + 50 * len(rows)}", "axis", 1)
    return drawing


def fine_tuning() -> Drawing:
    """Test scores of a fine-tuned MiniLM beside two baselines: the table of docs/fine-tuning.md."""
    _, *rows = table(DOCS / "fine-tuning.md", "sentence-transformers 6.2.0")
    drawing, left = (
        Drawing("Test scores: fine-tuned, logistic regression on frozen embeddings, from scratch"),
        150,
    )
    for i, row in enumerate(rows):
        top = 12 + i * 66
        drawing.text(left - 10, top + 20, row[0].split(",")[0], "end")
        drawing.text(left - 10, top + 36, row[1], "tiny mute end")
        scores = {
            "fine-tuned": row[3],
            "frozen, logistic regression": row[6],
            "from scratch": row[7].split()[0],
        }
        for j, (name, score) in enumerate(scores.items()):
            y, width = top + j * 18, 4 * float(score)
            drawing.rectangle(left, y, width, 14, "cell", 1 - 0.3 * j, round_=1.5)
            drawing.text(left + width + 6, y + 11, f"{score}  {name}", "tiny")
    drawing.path(f"M{left} 6V{12 + 66 * len(rows)}", "axis", 1)
    return drawing


def distillation() -> Drawing:
    """Teacher, its cached translations and the students, with the test BLEU of docs/distillation.md."""
    _, *rows = table(DOCS / "distillation.md", "BLEU on the included")
    bleu = {row[0]: f"test BLEU {row[4]}" for row in rows}
    size = {row[0]: f"{row[2]} parameters" for row in rows}
    drawing = Drawing("Distillation: the teacher translates the training sources, the student learns from it")
    plain, distilled = "student, references", "student, teacher's translations"
    _node(drawing, 8, 20, "training pairs", "sources", "references")
    _node(drawing, 208, 20, "teacher", size["teacher"], bleu["teacher"], "pick")
    _node(drawing, 408, 20, "its translations", "beam 4, in the cache", "one per source")
    _node(drawing, 608, 20, "student, distilled", size[distilled], bleu[distilled], "pick")
    _node(drawing, 608, 120, "student, plain", size[plain], bleu[plain], "pick")
    for x in (160, 360, 560):
        _arrow(drawing, f"M{x} 51H{x + 44}", x + 44, 51)
    drawing.text(184, 44, "sources", "tiny mute middle")
    _arrow(drawing, "M84 84V143Q84 151 92 151H604", 604, 151)
    drawing.text(344, 145, "references", "tiny mute middle")
    drawing.text(608, 214, f"with both, one seed: {bleu['student, both (one seed)']}", "small mute")
    return drawing


def attacks() -> Drawing:
    """What `make soak` attacks, how often, and what it accepts as a result: docs/attacks.md."""
    _, *rows = table(DOCS / "attacks.md", "## One run")
    number = {row[0]: int(row[1].replace(",", "")) for row in rows}
    failures = sum(int(row[2]) for row in rows)
    count = {
        part: sum(n for name, n in number.items() if part in name)
        for part in ("kills", "requests", "folders")
    }
    calls = number["wrong calls"]
    shown = (
        (f"{count['kills']} kills", "training, indexing, file jobs", "resumed, with the same bytes"),
        (f"{count['requests']:,} requests", "regard serve", "the same answers as without a server"),
        (
            f"{count['folders']} changed folders",
            "models, indexes, stopped runs",
            "a sentence and exit code 2, or no effect",
        ),
        (f"{calls:,} wrong calls", "public functions, recipes", "a result or a RegardError"),
    )
    drawing = Drawing("The four parts of the soak run, what each attacks, and what must happen")
    for x, text in ((8, "attack"), (208, "target"), (448, "expected")):
        drawing.text(x, 16, text, "small mute")
    for i, (attack, target, result) in enumerate(shown):
        y = 26 + i * 44
        for x, width, text, style in (
            (8, 156, attack, "box"),
            (208, 196, target, "pick"),
            (448, 270, result, "box"),
        ):
            drawing.rectangle(x, y, width, 32, style, round_=5)
            drawing.text(x + width / 2, y + 20, text, "small middle")
        _arrow(drawing, f"M168 {y + 16}H204", 204, y + 16)
        _arrow(drawing, f"M408 {y + 16}H444", 444, y + 16)
    drawing.text(8, 216, f"failures in the run of this page: {failures}", "small")
    return drawing


def formats() -> Drawing:
    """The formats that regard reads and writes: the columns of the table of docs/exporting.md."""
    header, models, *_ = table(DOCS / "exporting.md", "## What each format supports")
    drawing = Drawing("Formats that are imported and exported, each compared with regard's own outputs")
    outputs = list(zip(header[1:], models[1:], strict=True))
    inputs = (("MarianMT", "OPUS-MT translators"), ("GPT-2", "language models"), ("BERT-like", "embedders"))
    middle = 24 + 56 * len(outputs) / 2
    for i, (name, what) in enumerate(inputs):
        y = middle + 56 * (i - len(inputs) / 2) + 6
        _node(drawing, 8, y, name, what)
        _arrow(drawing, f"M160 {y + 22:g}C200 {y + 22:g} 200 {middle:g} 240 {middle:g}", 240, middle)
    _node(drawing, 244, middle - 31, "model folder", "config, weights,", "tokenizer, card", "pick")
    for i, (name, what) in enumerate(outputs):
        y = middle + 56 * (i - len(outputs) / 2) + 6
        _arrow(drawing, f"M396 {middle:g}C436 {middle:g} 436 {y + 22:g} 476 {y + 22:g}", 476, y + 22)
        _node(drawing, 480, y, name, what)
    drawing.text(84, 16, "regard import", "small mute middle")
    drawing.text(556, 16, "regard export", "small mute middle")
    return drawing


def tasks() -> Drawing:
    """The parts of a model, by task, and the metric that selects a checkpoint: docs/recipes.md."""
    _, *rows = table(DOCS / "recipes.md", "`task` determines")
    drawing = Drawing("The model of each task as a chain of blocks, and its metric")
    for i, (task, row, _, metric) in enumerate(rows):
        y, name = 8 + i * 46, task.strip("`")
        drawing.text(8, y + 15, name, "title")
        drawing.text(8, y + 29, row, "tiny mute")
        x = 190
        for part in CHAINS[name]:
            drawing.rectangle(x, y, 108, 30, "pick" if part in ("encoder", "decoder") else "box", round_=5)
            drawing.text(x + 54, y + 19, part, "small middle")
            _arrow(drawing, f"M{x + 110} {y + 15}H{x + 130}", x + 130, y + 15)
            x += 134
        drawing.text(x + 2, y + 19, metric, "small")
    return drawing


CHAINS = {  # the blocks under `model:`, in the order in which data goes through them
    "translate": ("input", "encoder", "decoder"),
    "language": ("decoder",),
    "classify": ("input", "encoder", "pooling", "head"),
    "tag": ("input, characters", "encoder", "crf"),
    "embed": ("input", "encoder", "pooling"),
}


def _node(drawing: Drawing, x: float, y: float, *lines: str) -> None:
    """A box with a title and up to two small lines; a last "pick" marks it."""
    style = "pick" if lines[-1] == "pick" else "box"
    title, *rest = lines[:-1] if style == "pick" else lines
    drawing.rectangle(x, y, 152, 62 if len(rest) == 2 else 44, style, round_=5)
    drawing.text(x + 76, y + 19, title, "middle title")
    for i, line in enumerate(rest):
        drawing.text(x + 76, y + 35 + 15 * i, line, "tiny middle")


def _arrow(drawing: Drawing, d: str, x: float, y: float) -> None:
    """A line that ends at (x, y), from the left, with an arrow head."""
    drawing.path(d, "line", 1.2)
    drawing.path(f"M{x - 5:g} {y - 4:g}L{x:g} {y:g}L{x - 5:g} {y + 4:g}", "line", 1.2)
