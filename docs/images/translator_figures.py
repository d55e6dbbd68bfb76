"""Figures of translators: attention, also on a terminal, word alignment, heads, the tree of a beam search."""

from __future__ import annotations

import re

from svg import Drawing
from torch import Tensor

import regard
from regard.cli.weight_matrix import render
from regard.decoding import attention_maps
from regard.pipelines.align import View
from regard.pipelines.token_words import Words, word_weights

SENTENCE = "Tom does not want to go to school."
CROSSING = "I know that Tom does not want to go to school."


def attention() -> Drawing:
    """The word alignment of a translation by the bundled translator: rows are German words, dark is large."""
    return _word_attention(CROSSING)


def copied_word() -> Drawing:
    """The same for a faulty translation of docs/translations.md, in which a word is copied."""
    return _word_attention("I need a hammer to nail the boards.")


def _word_attention(sentence: str) -> Drawing:
    text, weights, source, target = _translate(sentence)
    drawing = Drawing(f"Attention of a translation: {sentence} → {text}")
    drawing.matrix(90, 84, (weights / weights.max()).tolist(), target, source)
    drawing.width += 40  # for the slanted label of the last column
    return drawing


def _translate(sentence: str) -> tuple[str, Tensor, list[str], list[str]]:
    """The German translation by the bundled translator, its attention, and the words of both sides."""
    model = regard.load("tatoeba-en-de-fr")
    best = regard.translate(sentence, model, "de", attention=True).hypotheses[0]
    source = Words.of_text(model.source_tokenizer, f">>de<< {sentence}")
    target = Words.of_tokens(model.target_tokenizer, best.tokens)
    weights = word_weights(View.of(model)(best.attention), source, target)
    return best.text, weights, list(source.words), list(target.words)


def terminal() -> Drawing:
    """The output of `regard translate --show` on a terminal with colours."""
    text, weights, source, target = _translate(SENTENCE)
    shown = render(weights, source, target, color=True, width=80)
    lines = [f'$ regard translate "{SENTENCE}" --to de --show', text, *shown.split("\n")]
    drawing = Drawing(f"On the terminal: {lines[0]}", TERMINAL)
    drawing.rectangle(4, 4, 640, 26 + 17 * len(lines), "screen", round_=6)
    for i, line in enumerate(lines):
        column = 0
        for color, characters in re.findall(r"(?:\x1b\[38;5;(\d+)m)?([^\x1b]+)(?:\x1b\[0m)?", line):
            x, y = 18 + 8.4 * column, 28 + 17 * i
            if color:
                drawing.rectangle(
                    x, y - 13, 8.4 * len(characters), 17, f"ansi{color}", BLOCKS[characters[0]], 0
                )
            elif i < 2:
                drawing.text(x, y, characters, "terminal")
            else:  # a character of a source word, or a target word
                for word in re.finditer(r"\S+", characters):
                    drawing.text(x + 8.4 * word.start(), y, word.group(), "terminal")
            column += len(characters)
    drawing.width, drawing.height = 644, 30 + 17 * len(lines)
    return drawing


BLOCKS = {"░": 0.35, "▒": 0.55, "▓": 0.8, "█": 1.0}  # how much of its cell a block character fills
TERMINAL = """
.screen { fill: #1b1e27; stroke: #9aa3b5; stroke-opacity: .5 }
.terminal { font: 14px ui-monospace, "SF Mono", Consolas, monospace; fill: #d5d9e2 }
.ansi24 { fill: #005f87 } .ansi31 { fill: #0087af } .ansi38 { fill: #00afd7 } .ansi45 { fill: #00d7ff }
.ansi220 { fill: #ffd700 } .ansi214 { fill: #ffaf00 } .ansi208 { fill: #ff8700 } .ansi202 { fill: #ff5f00 }
.ansi196 { fill: #ff0000 }"""


def alignment(bahdanau: regard.models.Translator) -> Drawing:
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


def heads(small: regard.models.Translator) -> Drawing:
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


def beam(small: regard.models.Translator) -> Drawing:
    """The prefix tree of the n-best list of a beam search, with the log-probability of each finished text."""
    translation = regard.translate("I do not know him.", small, beam=5, nbest=5)
    tree: dict[tuple[str, ...], float | None] = {(): None}
    pieces = {
        h.text: [small.target_tokenizer.decode([t]).strip() or "·" for t in h.tokens]
        for h in translation.hypotheses
    }
    paths = []
    for hypothesis in translation.hypotheses:
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


def labels(pieces: list[str]) -> list[str]:
    return [piece.replace("Ġ", "").replace("▁", "").strip() or "␣" for piece in pieces]
