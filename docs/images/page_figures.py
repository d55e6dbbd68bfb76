"""Figures of other pages: interactions, schedules, tags, recordings, batches, requests, search, folders."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse
from svg import Drawing

import regard
from regard.data import BIO, IO, IOBES, Batches, Span, load_corpus, spans
from regard.data.keyword_signals import recordings
from regard.data.tokenizer import PAD
from regard.interactions import FactorizationMachine, MatrixFactorization, Polynomial2
from regard.optimization.schedules import Constant, CosineDecay, InverseSqrt, Plateau, ScheduleContext

DOCS = Path(__file__).parents[1]


def interactions() -> Drawing:
    """Learned interaction matrices: which weight each model has for a pair of predictors."""
    users, items = 12, 9
    rng = np.random.default_rng(2)
    taste, style = rng.normal(size=(2, users)), rng.normal(size=(2, items))
    user, item = np.divmod(rng.permutation(users * items)[:60], items)
    y = 3 + (taste[:, user] * style[:, item]).sum(0)
    rows = np.tile(np.arange(60), 2)
    x = sparse.csr_matrix((np.ones(120), (rows, np.append(user, users + item))), shape=(60, users + items))
    poly = Polynomial2().fit(x, y).W_.toarray()
    mf = MatrixFactorization(2, split=users, random_state=0).fit(x, y)
    block = np.zeros((users + items, users + items))
    block[:users, users:] = mf.W_.T @ mf.V_
    fm = FactorizationMachine(2, form="lecture", random_state=0).fit(x, y)
    shown = {
        "polynomial: W": poly,
        "matrix factorisation: [W 0]ᵀ[0 V]": block,
        "factorisation machine: WᵀV": fm.W_.T @ fm.V_,
    }
    drawing = Drawing("Interaction matrices of three models on the same 60 ratings")
    for i, (name, matrix) in enumerate(shown.items()):
        left = 60 + i * 240
        drawing.text(left + 95, 18, name, "small middle")
        drawing.matrix(left, 42, (np.abs(matrix) / np.abs(matrix).max()).tolist(), cell=9)
        drawing.text(left + 54, 36, "users", "tiny mute middle")
        drawing.text(left + 148, 36, "items", "tiny mute middle")
    drawing.text(52, 100, "users", "tiny mute end")
    drawing.text(52, 195, "items", "tiny mute end")
    return drawing


def schedules() -> Drawing:
    """The learning rate of a run of 10 000 steps under each schedule."""
    steps, peak = 10_000, 1.0
    shown = {
        "inverse-sqrt, warmup: 2000": InverseSqrt(warmup=2000),
        "cosine, warmup: 1000": CosineDecay(warmup=1000),
        "plateau, improves until 4000": Plateau(warmup=500, patience=1),
        "constant, warmup: 500": Constant(warmup=500),
    }
    drawing = Drawing("Learning rate over a run of 10,000 steps, by schedule")
    for i, (name, schedule) in enumerate(shown.items()):
        context, points = ScheduleContext(peak, steps), []
        for step in range(100, steps, 100):
            if step % 1000 == 0:
                schedule.observe(step <= 4000, context)
            points.append((step / steps, schedule.rate(step, context)))
        left = 8 + i * 176
        drawing.text(left, 18, name, "small")
        drawing.path(f"M{left} 30V120H{left + 156}", "axis", 1)
        drawing.path(curve([(left + 156 * x, 120 - 84 * y) for x, y in points]), width=2)
        drawing.text(left + 156, 134, "10,000", "tiny mute end")
    return drawing


def tag_schemes() -> Drawing:
    """Two adjacent titles as tags of three schemes."""
    words = ["Hamlet", "Faust", "Part", "One", "opened"]
    titles = [Span(0, 1, "title"), Span(1, 4, "title")]
    drawing = Drawing("Two adjacent spans in BIO, IOBES and IO")
    for i, word in enumerate(words):
        drawing.text(110 + i * 84, 24, word, "middle")
    for i, (start, end, _) in enumerate(titles):
        drawing.path(f"M{76 + start * 84} 34H{144 + (end - 1) * 84}", width=3)
        drawing.text(110 + (start + end - 1) * 42, 48, f"title {i + 1}", "tiny mute middle")
    for row, scheme in enumerate((BIO, IOBES, IO)):
        y = 58 + row * 34
        drawing.text(48, y + 18, scheme.name, "end")
        for i, tag in enumerate(scheme.tags(titles, len(words))):
            drawing.rectangle(76 + i * 84, y, 68, 26, "pick" if tag[0] in "BS" else "box", round_=5)
            drawing.text(110 + i * 84, y + 17, tag, "small middle")
    return drawing


def recording() -> Drawing:
    """A recording of `keyword_signals`: channels by frames, with the words that are hidden in the noise."""
    (x,), _, (tags,) = recordings(1, seed=45)
    drawing = Drawing("A recording of 64 frames with 8 channels, and the words in it")
    drawing.text(20, 24, "8 channels × 64 frames of noise, and the tones of the words", "title")
    left, top, cell = 20, 66, 10
    loudness = x.T[::-1].clip(0) / x.max()  # high channels on top
    drawing.matrix(left, top, loudness.tolist(), cell=cell)
    for start, end, word in spans(tags):
        drawing.path(f"M{left + start * cell} {top - 8}H{left + end * cell}", width=3)
        drawing.text(left + (start + end) * cell / 2, top - 14, word, "small middle")
    return drawing


def padding() -> Drawing:
    """Target tokens of the bundled sample as batches: rows in the order of the file, and by `Batches`."""
    data = {"corpus": "tatoeba-sample", "source": "en", "target": "de"}
    train = load_corpus(data, {"kind": "bpe", "size": 2000}).train
    budget, width, height = 320, 8, 5
    batches = Batches(train, tokens=budget, seed=1, shuffle=False)  # sorted by length
    epoch = [next(batches) for _ in range(batches.per_epoch())]
    panels = [[(row != PAD).sum().item() for row in epoch[int(at * len(epoch))].target] for at in QUANTILES]
    unsorted = (train.target_lengths[:budget] + 1).tolist()  # 1 for BOS
    while len(unsorted) * max(unsorted) > budget:
        unsorted.pop()
    drawing, left = (
        Drawing("Batches of the bundled sample: tokens and padding, by length and in file order"),
        8,
    )
    drawing.text(left, 16, "in file order", "small title")
    for rows in [unsorted, *panels]:
        longest = max(rows)
        drawing.text(left, 34, f"{len(rows)} rows × {longest}", "small")
        drawing.text(left, 47, f"{1 - sum(rows) / longest / len(rows):.0%} padding", "tiny mute")
        for j, length in enumerate(rows):
            y, end = 54 + j * height, left + width * length
            drawing.rectangle(left, y, width * length, height - 1, "cell", 0.85, 1)
            if length < longest:
                drawing.rectangle(end, y, width * (longest - length), height - 1, "cell", 0.15, 1)
        left += max(90, width * longest + 24) + (30 if rows is unsorted else 0)
        if rows is unsorted:
            drawing.text(left, 16, f"Batches(train, tokens={budget}): rows of similar length", "small title")
    return drawing


QUANTILES = (0.02, 0.3, 0.75, 0.97)  # of an epoch that is sorted by length


def requests() -> Drawing:
    """Requests to `regard serve`, one row per connection: a run of benchmarks/serve_times.py."""
    path = DOCS.parent / "benchmarks" / "results" / "serve-times.json"
    log = json.loads(path.read_text(encoding="utf-8"))
    title = (
        f"{log['requests']} requests over {len(log['milliseconds'])} connections, in {log['batches']} batches"
    )
    drawing, left, top, height = Drawing(f"{title}: the first second"), 100, 40, 13
    drawing.text(left, 16, f"{title}; the first second", "small")
    for i, connection in enumerate(log["milliseconds"]):
        y = top + i * height
        if i % 5 == 0:
            drawing.text(left - 10, y + 9, f"connection {i + 1}", "tiny mute end")
        for j, (sent, answered) in enumerate(connection):
            if sent < 1000:
                x, end = left + 0.6 * sent, left + 0.6 * min(answered, 1000)
                opacity = 0.85 if j % 2 else 0.45  # neighbours differ
                drawing.rectangle(x, y, round(end - x, 1), height - 3, "cell", opacity, 1)
    bottom = top + height * len(log["milliseconds"])
    drawing.path(f"M{left} {bottom + 3}H{left + 600}", "axis", 1)
    for time in range(0, 1001, 200):
        drawing.text(left + 0.6 * time, bottom + 17, f"{time} ms", "tiny mute middle")
    return drawing


def lengths() -> Drawing:
    """BLEU by sentence length: the table of docs/results.md as curves."""
    (header, *rows) = table(DOCS / "results.md", "### BLEU by sentence length")
    drawing = Drawing("BLEU by sentence length, by kind of decoder")
    left, bottom, scale = 40, 190, 4.0
    drawing.path(f"M{left} 20V{bottom}H{left + 330}", "axis", 1)
    for bleu in (10, 20, 30, 40):
        drawing.text(left - 8, bottom - scale * bleu + 4, f"{bleu}", "tiny mute end")
        drawing.path(f"M{left} {bottom - scale * bleu}H{left + 330}", "axis", 0.3)
    for i, row in enumerate(rows):
        drawing.text(left + 20 + i * 72, bottom + 16, f"{row[0]} words", "tiny mute middle")
    for column, name in enumerate(header[2:], start=2):
        points = [(left + 20 + i * 72, bottom - scale * float(row[column])) for i, row in enumerate(rows)]
        drawing.path(curve(points), width=1 + 0.7 * (column - 2), opacity=0.45 + 0.18 * (column - 2))
        drawing.text(points[-1][0] + 10, points[-1][1] + 4, name, "small")
    return drawing


def search_speed() -> Drawing:
    """Recall beside queries per second, a million vectors: the last table of docs/searching.md."""
    (_, *rows) = table(DOCS / "searching.md", "One million, mixed")
    drawing = Drawing("Recall@10 by queries per second, one million vectors: regard and faiss")
    left, bottom = 50, 190

    def place(recall: float, speed: float) -> tuple[float, float]:
        return left + 95 * math.log2(speed / 500), bottom - 1600 * (recall - 0.9)

    drawing.path(f"M{left} 20V{bottom}H{left + 400}", "axis", 1)
    for recall in (0.9, 0.95, 1.0):
        drawing.text(left - 8, place(recall, 500)[1] + 4, f"{recall:.2f}", "tiny mute end")
    for speed in (500, 1000, 2000, 4000):
        drawing.text(place(0.9, speed)[0], bottom + 16, f"{speed}/s", "tiny mute middle")
    for row, style in zip(rows, ("line", "axis"), strict=True):
        pairs = [cell.strip("*").split(", ") for cell in row[3:]]
        points = [place(float(recall), float(speed.removesuffix("/s"))) for recall, speed in pairs]
        drawing.path(curve(points), style, width=2)
        x, y = points[0]
        if style == "line":
            drawing.text(x - 8, y + 4, row[0], "small end")
        else:
            drawing.text(x + 6, y + 4, row[0], "small")
    return drawing


def folders() -> Drawing:
    """The folders of the package, one row per layer: a folder imports only from the rows above it."""
    settings = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    package = Path(regard.__file__).parent
    drawing, y = Drawing("The folders of regard, from the bottom layer to the command line"), 8.0
    for layer in reversed(layers):
        names = [name.strip(" ()").removeprefix("regard.") for name in layer.split("|")]
        names = [name for name in names if (package / name).is_dir()]
        for i, name in enumerate(names):
            drawing.rectangle(8 + 128 * i, y, 120, 24, "box", round_=5)
            drawing.text(68 + 128 * i, y + 16, f"{name}/", "middle")
        if names:
            drawing.text(20 + 128 * len(names), y + 16, FOLDERS[names[0]], "small mute")
            y += 31
    return drawing


FOLDERS = {
    "files": "atomic writes, locks, the cache directory, progress",
    "pictures": "heat maps, lines and grids of heads as SVG and matplotlib figures",
    "attention": "the operator: energies, masks, biases, normalizers, kernels",
    "layers": "multi-head attention; any attention function tested; Hugging Face models",
    "data": "corpora, readers, tokenizers, batches",
    "interactions": "linear models, factorisation machines",
    "models": "encoders, decoders, translator, classifier, tagger, embedder",
    "decoding": "beam search, sampling, constraints, C++ and CUDA engines",
    "pipelines": "translate, generate, classify, tag, embed, align",
    "evaluation": "BLEU, alignment error, F1, calibration, cost",
    "tasks": "what differs between tasks in training; optimizers and schedules",
    "recipe": "schema, loading, checks",
    "training": "the loop, validation, checkpoints, distributed; drawings of models",
    "search": "the document index, BM25, hybrid",
    "interchange": "export and import: Hugging Face, CTranslate2, ONNX",
    "serving": "HTTP; running and checking lessons",
    "explorer": "the page that shows attention",
    "cli": "one file per command",
}


def curve(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through the points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def table(path: Path, after: str) -> list[list[str]]:
    """The cells of the first Markdown table after the line that begins with `after`, header first."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in _table_lines(path, after)]


def _table_lines(path: Path, after: str) -> Iterator[str]:
    lines = iter(path.read_text(encoding="utf-8").split("\n"))
    if not any(line.startswith(after) for line in lines):
        raise ValueError(f"{path.name} has no line that begins with {after!r}")
    inside = False
    for line in lines:
        if line.startswith("|"):
            inside = True
            if set(line) - set("|:- "):  # not the line below the header
                yield line
        elif inside:
            return


def faithfulness() -> Drawing:
    """Rank correlation of attention with other explanations: the SST-2 table of docs/faithfulness.md."""
    header, *rows = table(DOCS / "faithfulness.md", "SST-2 (test accuracy")
    drawing = Drawing("Kendall's tau between attention and other explanations, for three encoders")
    left, scale = 250, 260  # the zero line, and pixels per unit of tau
    for i, row in enumerate(row for row in rows if row[0].startswith("τ")):
        top = 34 + i * 66
        drawing.text(16, top + 26, row[0], "small")
        for j, (encoder, cell) in enumerate(zip(header[1:4], row[1:4], strict=True)):
            mean = float(cell.split(" ± ")[0].replace("−", "-"))
            x, width, y = left + scale * min(0.0, mean), scale * abs(mean), top + j * 17
            drawing.rectangle(x, y, max(width, 1), 13, "cell", opacity=1 - 0.3 * j, round_=1.5)
            drawing.text(max(left, x + width) + 6, y + 10.5, f"{encoder} {cell.split(' ')[0]}", "tiny")
    drawing.path(f"M{left} 26V{34 + 3 * 66}", "axis", 1)
    drawing.text(left, 18, "0: unrelated", "tiny mute middle")
    drawing.text(left + scale, 18, "1: same order of tokens", "tiny mute middle")
    return drawing
