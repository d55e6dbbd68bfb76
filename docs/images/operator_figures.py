"""Figures of the operator: masks, normalisers, positions, stages, edits, blocks, caches, ONNX's offsets."""

from __future__ import annotations

import torch
from svg import Drawing

import regard
from regard.attention import (
    Diagonal,
    Dilated,
    Documents,
    Entmax,
    Hard,
    Mapped,
    Packed,
    Permuted,
    Pinned,
    Prefix,
    Sigmoid,
    Uniform,
    Zero,
)
from regard.layers import StaticCache


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
    """Similarity of sinusoidal encodings by position and by distance, and ALiBi's bias."""
    n, cell, left, top, height = 16, 10.5, 236.0, 28.0, 168.0
    table = regard.Sinusoidal(64).table(n, dtype=torch.float64)
    similarity = (table @ table.T / 32).clamp(min=0)
    drawing = Drawing("Position encodings: similarity of sinusoids by position and by distance; ALiBi's bias")
    drawing.text(8, 18, "PE(t) · PE(s), Sinusoidal(64)", "small")
    drawing.matrix(8, top, (similarity**2).tolist(), cell=cell)
    drawing.text(left, 18, "the same by distance, 0 to 64", "small")
    for value in (0.0, 0.5, 1.0):
        y = top + (1 - value) * height
        drawing.path(f"M{left} {y:g}h260", "axis", 0.6, 0.6)
        drawing.text(left - 6, y + 4, f"{value:g}", "tiny mute end")
    for dim, opacity in ((512, 0.45), (64, 1.0)):
        values = regard.Sinusoidal(dim).similarity(65).tolist()
        places = [f"{left + d * 4:g} {top + (1 - value) * height:.1f}" for d, value in enumerate(values)]
        drawing.path("M" + "L".join(places), width=1.8, opacity=opacity)
    drawing.text(left + 266, top + (1 - 0.47) * height, "width 64: rises and falls", "small")
    drawing.text(left + 266, top + (1 - 0.47) * height + 16, "width 512 (paler): smoother", "small mute")
    x = torch.zeros(1, 2, n, 4)
    bias = regard.weights(x, x, bias=regard.ALiBi(2), mask=regard.Causal(), stage="masked")[0]
    drawing.text(left + 456, 18, "exp(ALiBi), head 0, causal", "small")
    drawing.matrix(left + 456, top, bias[0].exp().tolist(), cell=cell)
    return drawing


def stages() -> Drawing:
    """One small call after each step of the operator, from scores to weights."""
    torch.manual_seed(3)
    query, key = torch.randn(1, 1, 7, 8), torch.randn(1, 1, 7, 8)
    options = {"bias": regard.ALiBi(1), "mask": regard.Causal(), "gate": regard.Window(2)}
    shown = {
        "energy": "q·k / √d",
        "biased": "+ ALiBi()",
        "masked": "mask=Causal()",
        "normalised": "softmax of each row",
        "gated": "gate=Window(2)",
    }
    drawing = Drawing("One call of attend, stage by stage: energy, bias, mask, normaliser, gate")
    for i, (stage, label) in enumerate(shown.items()):
        matrix = regard.weights(query, key, stage=stage, **options)[0, 0]
        if i < 3:  # scores, shown by their exponentials: an excluded key is empty
            matrix = (matrix - matrix.max()).exp() ** 0.5
        left = 8 + i * 146
        drawing.text(left + 52, 18, stage, "middle")
        drawing.matrix(left, 28, matrix.tolist(), cell=15)
        drawing.text(left + 52, 152, label, "small mute middle")
        if i:
            drawing.text(left - 20, 86, "→", "middle")
    return drawing


def edits() -> Drawing:
    """The weights of one head as the model computes them, and under five edits."""
    torch.manual_seed(1)
    layer, x = regard.MultiHead(16, heads=1, mask=regard.Causal()).eval(), 1.5 * torch.randn(1, 8, 16)
    shown = {
        "as computed": Mapped(lambda weights: weights),
        "Uniform()": Uniform(),
        "Permuted(0)": Permuted(0),
        "Zero(queries=[5])": Zero(queries=[5]),
        "Pinned(0)": Pinned(0),
        "Mapped(sharper)": Mapped(lambda weights: weights**3 / (weights**3).sum(-1, keepdim=True)),
    }
    drawing = Drawing("Weights of one head under the edits of regard.intervene")
    for i, (name, edit) in enumerate(shown.items()):
        with torch.no_grad(), regard.intervene(layer, {"self": edit}), regard.watch(layer) as seen:
            layer(x)
        left = 8 + i * 124
        drawing.text(left + 48, 18, name, "small middle")
        drawing.matrix(left, 26, seen["self"].weights()[0, 0].tolist(), cell=12)
    return drawing


def blocks() -> Drawing:
    """Which blocks of the T × T matrix a kernel computes, 1024 queries and keys in blocks of 64."""
    shown = {
        "Causal()": regard.Causal(),
        "Window(128, 128)": regard.Window(128, 128),
        "Causal() & Padding([700])": regard.Causal() & regard.Padding([700]),
        "Packed.of_lengths(…)": Packed.of_lengths([300, 150, 574], mask=regard.Causal()),
    }
    drawing = Drawing("Blocks of 64 × 64 pairs that a kernel skips, masks and computes without a mask")
    for i, (name, mask) in enumerate(shown.items()):
        kind = mask.blocks(1024, 1024, 64).reshape(-1, 16, 16)[0]  # 0 empty, 1 partial, 2 full
        left = 8 + i * 172
        drawing.text(left + 64, 18, name, "small middle")
        drawing.matrix(left, 26, (kind * 0.4).tolist(), cell=8)
        skipped = float((kind == 0).float().mean())
        drawing.text(left + 64, 172, f"{skipped:.0%} skipped", "small mute middle")
    for x, weight, label in ((8, 0.8, "computed"), (108, 0.4, "computed with the mask"), (280, 0, "skipped")):
        drawing.rectangle(x, 184, 10, 10, "cell" if weight else "ring", weight or 1, round_=1)
        drawing.text(x + 16, 193, label, "small")
    return drawing


def caches() -> Drawing:
    """A static cache while rows of different length are decoded, and the same rows packed."""
    lengths, cell = torch.tensor([4, 1, 6]), 16.0
    layer = regard.MultiHead(16, heads=2, mask=regard.Causal()).eval()
    cache = StaticCache.of(layer, batch=3, max_len=12)
    drawing, left = Drawing("A static cache with a length per row; packed sequences"), 8.0
    steps = ("prompts, padded", "crop(lengths)", "one token per row")
    for step, title in enumerate(steps):
        with torch.no_grad():
            if step == 1:
                cache.crop(lengths)
            else:
                layer(torch.randn(3, 1 if step else 6, 16), cache=cache)
        old = lengths if step == 2 else cache.lengths
        filled = [
            [0.35 * (j < old[i]) + 0.95 * (old[i] <= j < cache.lengths[i]) for j in range(12)]
            for i in range(3)
        ]
        drawing.text(left, 18, title, "small")
        drawing.matrix(left, 26, filled, cell=cell)
        left += 12 * cell + 28
    packed = Packed.of_lengths(lengths.tolist(), mask=regard.Causal())
    x = torch.zeros(1, 1, int(lengths.sum()), 4)
    drawing.text(
        8, 104, "Packed.of_lengths([4, 1, 6], mask=Causal()): the same rows, one after the other", "small"
    )
    drawing.matrix(8, 112, ((regard.weights(x, x, mask=packed)[0, 0] > 0) * 0.8).tolist(), cell=11)
    return drawing


def onnx_offsets() -> Drawing:
    """The causal mask of four queries and seven keys: regard's own, and ONNX's in three kinds of call."""
    shown = {
        "regard: Causal()": regard.Causal(),
        "ONNX, no cache: offset=0": regard.Causal(offset=0),
        "past_key of length 3: offset=3": regard.Causal(offset=3),
        "nonpad_kv_seqlen 5: offset=1": regard.Causal(offset=1) & regard.Padding([5]),
    }
    drawing = Drawing("Causal masks of four queries and seven keys, by the offset that ONNX's inputs imply")
    query, key, cell = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 7, 4), 20
    for i, (name, mask) in enumerate(shown.items()):
        allowed = (regard.weights(query, key, mask=mask)[0, 0] > 0) * 0.85
        left = 66 + i * 196
        drawing.text(left + 70, 16, name, "small middle")
        drawing.matrix(left, 40, allowed.tolist(), cell=cell)
        for j in range(7):
            drawing.text(left + (j + 0.5) * cell, 34, f"{j}", "tiny mute middle")
        for j in range(4):
            drawing.text(left - 7, 40 + (j + 0.5) * cell + 3, f"{j}" if i else f"query {j}", "tiny mute end")
    return drawing
