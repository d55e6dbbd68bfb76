"""Word alignments from attention: pieces merged to words, words linked, two directions joined, written as "0-0 1-2".

A word is what stands between whitespace, on both sides. A link is a pair (source word, target word), counted from 0. The weight
of a source word for a target word is the sum over the source word's pieces, and the mean over the target word's.

In a Transformer the step that *reads* a word often shows its alignment better than the one that writes it (Garg et al. 2019; Chen
et al. 2020, "shift"): `View(shift=True)`. Which layer and step it is differs from model to model; `clearest_view` finds out.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Any, overload

import torch
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import _CHARACTERS, EOS, UNK, Tokenizer
from regard.decoding.attention import Attention, attention_of_tokens, best_head
from regard.errors import DataError, OptionError
from regard.models.default import as_model
from regard.models.translator import Translator

Link = tuple[int, int]  # source word, target word
Links = frozenset[Link]
SAMPLE = 200  # pairs of text that a best head is chosen by


@dataclass(frozen=True)
class Words:
    """The words of a text, and which of its tokens are pieces of which: (tokens, words), 1 or 0.

    A piece that is only space belongs to the word that follows. The end mark is nobody's piece.
    """

    words: list[str]
    owner: Tensor

    @classmethod
    def of_text(cls, tokenizer: Tokenizer, text: str) -> Words:
        """Of a text that is given; its tokens are those of `tokenizer.encode`."""
        return cls._of_spans(text, tokenizer._inner.encode(text, add_special_tokens=False).offsets)

    @classmethod
    def of_tokens(cls, tokenizer: Tokenizer, tokens: Sequence[int]) -> Words:
        """Of tokens that a model wrote, which may spell a text in another way than `encode` would."""
        spelled = [_spelled(tokenizer, token) for token in tokens]
        text, character = _decoded(b"".join(spelled))
        edges = pairwise(accumulate(map(len, spelled), initial=0))
        return cls._of_spans(
            text, [(character[a], character[b - 1] + 1) if a < b else None for a, b in edges]
        )

    @classmethod
    def _of_spans(cls, text: str, spans: Sequence[tuple[int, int] | None]) -> Words:
        """From the characters that each token stands for."""
        words = list(re.finditer(r"\S+", text))
        owner = torch.zeros(len(spans), len(words), dtype=torch.float64)
        starts, ends = [word.start() for word in words], [word.end() for word in words]
        for t, span in enumerate(spans):
            if span is not None:
                first, after = bisect_right(ends, span[0]), bisect_left(starts, span[1])
                owner[t, first : max(after, first + 1)] = 1  # of no word: the next one, if any
        return cls([word.group() for word in words], owner)


def _spelled(tokenizer: Tokenizer, token: int) -> bytes:
    """What a token adds to the text, in UTF-8; a byte-bpe token may be a part of a character."""
    if token <= EOS and token != UNK:
        return b""
    piece = tokenizer._pieces[token]
    if tokenizer.kind == "byte-bpe":
        return bytes(_CHARACTERS[c] for c in piece)
    return f" {piece}".encode() if tokenizer.kind == "word" else piece.encode()


def _decoded(data: bytes) -> tuple[str, list[int]]:
    """The text as `decode` gives it, � for what is no character, and for each byte which character it is in."""
    text, character = "", []
    while data:
        try:
            good, bad = data.decode(), 0
        except UnicodeDecodeError as error:
            good, bad = data[: error.start].decode(), error.end - error.start
        character += [len(text) + i for i, c in enumerate(good) for _ in range(len(c.encode()))]
        used = len(good.encode()) + bad
        text += good + "\ufffd" * bool(bad)
        character += [len(text) - 1] * bad
        data = data[used:]
    return text, character


@dataclass(frozen=True)
class View:
    """Which cross-attention to align by: a layer's or the mean of all, a head's or the mean of all, and at which step."""

    layer: int | None = None
    head: int | None = None
    shift: bool = False  # the row of the step that reads the word, which is the one after

    def __call__(self, attention: Attention) -> Tensor:
        """(target, source); with `shift` a text that did not end keeps its last row, as no step has read its last word."""
        cross = attention.cross(self.layer, self.head)
        return torch.cat([cross[1:], cross[-1:]]) if self.shift else cross


def word_weights(cross: Tensor, source: Words, target: Words) -> Tensor:
    """(target words, source words) from the weights between tokens, (target, source). What looks at the end mark is left out."""
    cross = cross.double()[: len(target.owner), : len(source.owner)]
    pieces = target.owner.sum(0)[:, None].clamp(min=1)
    return target.owner.T @ cross @ source.owner / pieces


def strongest(weights: Tensor) -> Links:
    """Each target word and the source word it looks at most, of equals the first; nothing where it looks at none."""
    if not weights.numel():
        return frozenset()
    top, at = weights.max(-1)
    return frozenset((s, t) for t, (s, w) in enumerate(zip(at.tolist(), top.tolist(), strict=True)) if w > 0)


def at_least(weights: Tensor, threshold: float) -> Links:
    """Every pair with at least this share of the target word's attention."""
    return frozenset((s, t) for t, s in (weights >= threshold).nonzero().tolist())


def balanced(weights: Tensor) -> Tensor:
    """√(w · w/Σ): each weight and its share of what its source word gets, so that words which all look at weigh less."""
    return (
        weights * weights / weights.sum(-2, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    ).sqrt()


def mutual(weights: Tensor) -> Links:
    """The pairs in which, by balanced weights, each word is the other's strongest: few and good from one direction alone."""
    even = balanced(weights)
    return strongest(even) & flipped(strongest(even.T))


def chosen(weights: Tensor, threshold: float | None = None, *, both: bool = False) -> Links:
    """The links of at least a threshold; without one the strongest of each target word, or with `both` the mutual ones."""
    if threshold is not None:
        return at_least(weights, threshold)
    return mutual(weights) if both else strongest(weights)


def pharaoh(links: Collection[Link]) -> str:
    """ "0-0 1-2": source word - target word, in order."""
    return " ".join(f"{s}-{t}" for s, t in sorted(links))


@overload
def align(sources: str, targets: str, model: Any = None, **options: Any) -> Links: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def align(
    sources: Sequence[str], targets: Sequence[str], model: Any = None, **options: Any
) -> list[Links]: ...


def align(  # pyright: ignore[reportInconsistentOverload]
    sources: str | Sequence[str],
    targets: str | Sequence[str],
    model: Any = None,
    *,
    view: View | None = None,
    threshold: float | None = None,
    both: bool = False,
) -> Links | list[Links]:
    """Word links (source word, target word) of a text and its translation, or of each pair of two lists.

    >>> sorted(regard.align("Tom is happy .", "Tom ist glücklich .", "runs/small"))
    [(0, 0), (1, 1), (2, 2), (3, 3)]

    Whoever translated: the model is made to write each target. `model` is a folder, a loaded translator, or left out for the
    default (the folder in REGARD_MODEL). Without a threshold every target word gets its strongest source word; with `both` only
    if it is that one's strongest too. An empty text has no links.
    """
    left, one = arguments.one_or_more("sources", sources)
    right, one_target = arguments.one_or_more("targets", targets)
    if one != one_target:
        raise OptionError(
            "sources and targets are two texts or two lists of texts, got one of each; give both alike"
        )
    arguments.instance("view", view, (View, type(None)), "a View, or None")
    if threshold is not None:
        arguments.number("threshold", threshold, 0, 1)
    translator, both = as_model(model, "align"), arguments.flag("both", both)
    if not isinstance(translator, Translator) or getattr(translator, "source_tokenizer", None) is None:
        raise OptionError("align takes a translator with its tokenizers, as regard.load gives it")
    found = {
        i: chosen(weights, threshold, both=both)
        for i, weights, _, _ in aligned(left, right, translator, view=view)
    }
    return found[0] if one else [found[i] for i in range(len(right))]


def aligned(
    sources: Sequence[str], targets: Sequence[str], model: Translator, *, view: View | None = None
) -> Iterator[tuple[int, Tensor, list[str], list[str]]]:
    """For each pair its place, the weights between words (target, source), and the words of both; in no order."""
    if len(sources) != len(targets):
        raise DataError(
            f"there are {len(sources)} sources and {len(targets)} targets; give one target for each source"
        )
    view = view or View()
    for i, attention in _looks(sources, targets, model):
        source = Words.of_text(model.source_tokenizer, sources[i])  # type: ignore[arg-type]
        target = Words.of_text(model.target_tokenizer, targets[i])  # type: ignore[arg-type]
        yield i, word_weights(view(attention), source, target), source.words, target.words


def best_view(
    sources: Sequence[str], targets: Sequence[str], model: Translator, *, shift: bool = False
) -> View:
    """The view of the single head that `best_head` chooses on the first pairs."""
    return View(
        *best_head(attention for _, attention in _looks(sources[:SAMPLE], targets[:SAMPLE], model)), shift
    )


def clearest_view(sources: Sequence[str], targets: Sequence[str], model: Translator) -> View:
    """The layer and step by which, on the first pairs, most words find one another; no gold is needed to choose."""
    found: dict[View, int] = {}
    for i, attention in _looks(sources[:SAMPLE], targets[:SAMPLE], model):
        source = Words.of_text(model.source_tokenizer, sources[i])  # type: ignore[arg-type]
        target = Words.of_text(model.target_tokenizer, targets[i])  # type: ignore[arg-type]
        for layer, shift in product(range(len(attention.names("cross"))), (False, True)):
            view = View(layer, shift=shift)
            found[view] = found.get(view, 0) + len(mutual(word_weights(view(attention), source, target)))
    return max(found, key=found.__getitem__, default=View())


def _looks(sources: Sequence[str], targets: Sequence[str], model: Any) -> Iterator[tuple[int, Attention]]:
    """The cross-attention of texts that end."""
    read, written = model.source_tokenizer.encode_batch(sources), model.target_tokenizer.encode_batch(targets)
    return attention_of_tokens(read, [[*text, EOS] for text in written], model, kinds=("cross",))


def flipped(links: Iterable[Link]) -> Links:
    """The links of a model that translates the other way."""
    return frozenset((t, s) for s, t in links)


def intersection(forward: Links, backward: Links) -> Links:
    """The links that both directions found: few and good."""
    return forward & backward


def union(forward: Links, backward: Links) -> Links:
    """The links that either direction found: many."""
    return forward | backward


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """The intersection, grown by neighbours of its links from the union (Och and Ney 2003; Koehn et al. 2003).

    A neighbour, diagonal ones too, is added while one of its words has no link yet; then each direction's links between two
    words that both have none.
    """
    found, every = set(forward & backward), forward | backward
    sources, targets = {s for s, _ in found}, {t for _, t in found}

    def add(link: Link) -> None:
        found.add(link)
        sources.add(link[0])
        targets.add(link[1])

    before = -1
    while before != len(found):
        before = len(found)
        for t, s in product(
            range(_end(every, 1)), range(_end(every, 0))
        ):  # target by target, as the original goes
            for ds, dt in _AROUND if (s, t) in found else ():
                near = (s + ds, t + dt)
                if near in every and near not in found and (near[0] not in sources or near[1] not in targets):
                    add(near)
    for links in (forward, backward):
        for s, t in sorted(links, key=lambda link: link[::-1]):
            if s not in sources and t not in targets:
                add((s, t))
    return frozenset(found)


_AROUND = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))
SYMMETRIES: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag-final-and": grow_diag_final_and,
}


def _end(links: Links, side: int) -> int:
    return max((link[side] for link in links), default=-1) + 1


def symmetry(name: str) -> Callable[[Links, Links], Links]:
    """A way to join the links of two directions, by its name."""
    if name not in SYMMETRIES:
        raise OptionError(
            f"two directions are joined by weights, or their links by {', '.join(SYMMETRIES)}; got {name!r}"
        )
    return SYMMETRIES[name]


def joined(
    forward: Tensor,
    backward: Tensor,
    join: str = "weights",
    threshold: float | None = None,
    *,
    both: bool = False,
) -> Links:
    """Links from the word weights of two models, (target, source) and the other way.

    `weights` takes the geometric mean of both matrices and its mutual links, or all of at least the threshold; the other names of
    `SYMMETRIES` choose the links of each direction first.
    """
    if join == "weights":
        return chosen((forward * backward.T).sqrt(), threshold, both=True)
    return symmetry(join)(
        chosen(forward, threshold, both=both), flipped(chosen(backward, threshold, both=both))
    )
