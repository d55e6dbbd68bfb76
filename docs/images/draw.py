"""Draw the figures of the documentation from real calls to regard.

regard train small
regard train small model.encoder='{kind: recurrent, cell: gru}' model.decoder='{kind: bahdanau}' \
        name=bahdanau training.steps=2500
python docs/images/draw.py                        # all figures; reads runs/small and runs/bahdanau
python docs/images/draw.py masks normalizers      # some of them; these two need no model
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import torch
from svg import Drawing

import regard
from regard.attention import Diagonal, Dilated, Documents, Entmax, Hard, Prefix, Sigmoid
from regard.decoding import attention_maps

HERE = Path(__file__).parent
SENTENCE = "Tom does not want to go to school."


def attention(bahdanau: regard.Translator) -> Drawing:
    """The attention matrix of a translation: rows are target tokens, columns source tokens, dark is large."""
    found = regard.translate(SENTENCE, bahdanau, beam=4, attention=True)
    seen = found.hypotheses[0].attention
    weights = seen.cross() / seen.cross().max()
    rows, columns = (labels(pieces) for pieces in seen.pieces(seen.names("cross")[0]))
    drawing = Drawing(f"Attention of a translation: {SENTENCE} → {found}")
    drawing.matrix(90, 84, weights.tolist(), rows, columns)
    return drawing


def alignment(bahdanau: regard.Translator) -> Drawing:
    """Word alignment of the same translation, drawn as lines between the words."""
    text = regard.translate(SENTENCE, bahdanau, beam=4)
    links = regard.align(SENTENCE, text, bahdanau)
    drawing = Drawing(f"Word alignment: {SENTENCE} / {text}")
    middles = []
    for y, sentence in ((20, SENTENCE), (104, text)):
        x, places = 8.0, []
        for word in sentence.split():
            width = 8.2 * len(word)
            drawing.text(x + width / 2, y, word, "middle")
            places.append(x + width / 2)
            x += width + 26
        middles.append(places)
    for source, target in sorted(links):
        a, b = middles[0][source], middles[1][target]
        drawing.path(f"M{a:g} 28C{a:g} 58 {b:g} 60 {b:g} 88", width=2)
    return drawing


def heads(small: regard.Translator) -> Drawing:
    """Every head of a small Transformer's encoder on one sentence, as `watch` records it."""
    tokens = small.source_tokenizer.encode(SENTENCE)
    (seen,) = attention_maps([[*tokens]], [[3]], small)
    drawing, cell = Drawing("Encoder self-attention of a Transformer, by layer and head"), 9.0
    for layer, name in enumerate(seen.names("encoder")):
        for head, weights in enumerate(seen[name]):
            x, y = 62 + head * (cell * weights.shape[-1] + 22), 34 + layer * (cell * weights.shape[-2] + 22)
            drawing.matrix(x, y, weights.tolist(), cell=cell)
            if layer == 0:
                drawing.text(x + cell * weights.shape[-1] / 2, 22, f"head {head}", "small mute middle")
        drawing.text(52, y + cell * weights.shape[-2] / 2 + 4, f"layer {layer}", "small mute end")
    return drawing


def masks() -> Drawing:
    """What each mask allows: queries down, keys across."""
    shown = {
        "Causal()": regard.Causal(),
        "Window(2, 2)": regard.Window(2, 2),
        "Causal() & Window(2)": regard.Causal() & regard.Window(2),
        "Padding([5])": regard.Padding([5]),
        "Causal() | Prefix(3)": regard.Causal() | Prefix(3),
        "Documents & Causal": Documents.of_lengths([3, 5]) & regard.Causal(),
        "Dilated(2)": Dilated(2),
        "~Diagonal()": ~Diagonal(),
    }
    drawing, x = Drawing("Masks: a filled square is a key that the query may see"), torch.zeros(1, 1, 8, 4)
    for i, (name, mask) in enumerate(shown.items()):
        allowed = (regard.weights(x, x, mask=mask)[0, 0] > 0).double() * 0.85
        left, top = 8 + i % 4 * 160, 26 + i // 4 * 150
        drawing.text(left + 60, top - 8, name, "small middle")
        drawing.matrix(left, top, allowed.tolist(), cell=15)
    return drawing


def normalizers() -> Drawing:
    """One row of scores under several normalisers."""
    scores = torch.tensor([3.0, 2.5, 1.0, 0.5, 0.0, -1.0])
    query, key = torch.ones(1, 1, 1, 1), scores[None, None, :, None]
    shown = {
        "Softmax()": regard.Softmax(),
        "Softmax(3.0)": regard.Softmax(3.0),
        "Entmax(1.5)": Entmax(1.5),
        "Sparsemax()": regard.Sparsemax(),
        "Sigmoid()": Sigmoid(),
        "Hard()": Hard(),
    }
    drawing = Drawing("One row of scores under several normalisers")
    for i, (name, normalize) in enumerate(shown.items()):
        row = regard.weights(query, key, normalize=normalize)[0, 0, 0].tolist()
        left, top = 8 + i * 122, 130
        drawing.text(left + 48, 18, name, "small middle")
        drawing.path(f"M{left} {top + 0.5}H{left + 100}", "axis", 1)
        for j, weight in enumerate(row):
            if weight > 0:
                drawing.rectangle(left + 3 + j * 16, top - 96 * weight, 13, 96 * weight, "cell", round_=1.5)
    for j, score in enumerate(scores.tolist()):
        drawing.text(8 + 9.5 + j * 16, 146, f"{score:g}".replace("0.5", ".5"), "tiny mute middle")
    drawing.text(8 + 128, 146, "← the scores; bars are the weights", "small mute")
    return drawing


def positions() -> Drawing:
    """Similarity of sinusoidal encodings, and ALiBi's bias, by position."""
    n, cell = 16, 10.0
    table = regard.Sinusoidal(64).table(n, dtype=torch.float64)
    similarity = (table @ table.T / 32).clamp(min=0)
    x = torch.zeros(1, 2, n, 4)
    bias = regard.weights(x, x, bias=regard.ALiBi(2), mask=regard.Causal(), stage="masked")[0]
    drawing = Drawing("Position encodings: similarity of sinusoids; ALiBi's bias")
    drawing.text(8, 18, "PE(t) · PE(s), Sinusoidal(64)", "small")
    drawing.matrix(8, 28, (similarity**2).tolist(), cell=cell)
    for i, head in enumerate(bias):
        left = 8 + (i + 1) * 210
        drawing.text(left, 18, f"exp(ALiBi), head {i}, causal", "small")
        drawing.matrix(left, 28, head.exp().tolist(), cell=cell)
    return drawing


def beam(small: regard.Translator) -> Drawing:
    """The prefix tree of the n-best list of a beam search, with the log-probability of each finished text."""
    found = regard.translate("I do not know him.", small, beam=5, nbest=5)
    tree: dict[tuple[str, ...], float | None] = {(): None}
    pieces = {
        h.text: [small.target_tokenizer.decode([t]).strip() or "·" for t in h.tokens]
        for h in found.hypotheses
    }
    paths = []
    for hypothesis in found.hypotheses:
        path = tuple(pieces[hypothesis.text])
        paths.append((path, hypothesis.log_p))
        tree |= dict.fromkeys([path[:i] for i in range(len(path) + 1)])
    drawing, step, row = Drawing("Beam search: the five best translations as a tree"), 92.0, 40.0
    place = dict[tuple[str, ...], float]()
    for i, (path, log_p) in enumerate(sorted(paths)):
        place[path] = 24 + i * row
        drawing.text(22 + len(path) * step + 70, 28 + i * row, f"{log_p:.2f}", "small mute")
    for prefix in sorted(tree, key=len, reverse=True):
        below = [place[p] for p in place if len(p) == len(prefix) + 1 and p[: len(prefix)] == prefix]
        if below and prefix not in place:
            place[prefix] = sum(below) / len(below)
    best = paths[0][0]
    for prefix, y in place.items():
        x, chosen = 14 + len(prefix) * step, prefix == best[: len(prefix)]
        if prefix:
            before = place[prefix[:-1]]
            start, middle = x - step + 70, x - 11
            drawing.path(
                f"M{start:g} {before:g}C{middle:g} {before:g} {start:g} {y:g} {x:g} {y:g}",
                width=2.4 if chosen else 1.2,
            )
        drawing.rectangle(x, y - 12, 70, 24, "pick" if chosen else "box", round_=5)
        drawing.text(x + 35, y + 4.5, prefix[-1] if prefix else "start", "small middle")
    return drawing


def folders() -> Drawing:
    """The folders of the package, one row per layer: a folder imports only from the rows above it."""
    settings = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
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
    "training": "the loop, validation, checkpoints, distributed",
    "search": "the document index, BM25, hybrid",
    "interchange": "export and import: Hugging Face, CTranslate2, ONNX",
    "serving": "HTTP",
    "cli": "one file per command",
}


def labels(pieces: list[str]) -> list[str]:
    return [piece.replace("Ġ", "").replace("▁", "").strip() or "␣" for piece in pieces]


FIGURES = {
    "attention": (attention, "bahdanau"),
    "alignment": (alignment, "bahdanau"),
    "heads": (heads, "small"),
    "beam": (beam, "small"),
    "masks": (masks, None),
    "normalizers": (normalizers, None),
    "positions": (positions, None),
    "folders": (folders, None),
}


if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        draw, model = FIGURES[name]
        drawing = draw(regard.load(Path("runs") / model)) if model else draw()  # type: ignore[operator]
        drawing.save(HERE / f"{name}.svg")
        print(HERE / f"{name}.svg", f"{(HERE / f'{name}.svg').stat().st_size / 1024:.0f} KiB")
