"""`align`: word alignments of texts and their translations, from the cross-attention of a translator.

In a Transformer the step that *reads* a target token often shows its alignment better than the step that
generates it (Garg et al. 2019; Chen et al. 2020, "shift"): `View(shift=True)`. Which layer and step are best
differs between models; `clearest_view` finds out, and a model's card can hold the choice (`View.of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, overload

import torch
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import EOS, split_language
from regard.decoding.attention_weights import AttentionMaps, attention_of_tokens, best_head
from regard.errors import DataError, OptionError
from regard.models.default import as_model
from regard.models.frames import require_text
from regard.models.target_language import add_target, source_of, target_languages, target_of
from regard.models.translator import Translator
from regard.pipelines.alignment_head import AlignmentHead
from regard.pipelines.token_words import WordAlignment, Words, word_weights
from regard.pipelines.word_links import Links, LinkSelection, mutual

SAMPLE = 200  # pairs by which a head or layer is chosen
CHUNK = 1024  # pairs that are sorted by length to form batches


@dataclass(frozen=True)
class View:
    """Which cross-attention to align with.

    Args:
        layer: a layer, from 0; by default the mean of all.
        head: a head, from 0; by default the mean of all.
        shift: use the step that reads a target token, not the one that generates it.
    """

    layer: int | None = None
    head: int | None = None
    shift: bool = False

    def __call__(self, attention: AttentionMaps) -> Tensor:
        """Return the weights (target, source). With `shift` the last row stays if no step has read the last
        token.
        """
        cross = attention.cross(self.layer, self.head)
        return torch.cat([cross[1:], cross[-1:]]) if self.shift else cross

    @classmethod
    def of(cls, model: Any) -> View:
        """The view in the card of a model, `alignment: {layer: 0, shift: true}`; else the mean of all."""
        stored = (getattr(model, "card", None) or {}).get("alignment")
        if not isinstance(stored, dict):
            return cls()
        layer, head = (stored.get(name) for name in ("layer", "head"))
        return cls(
            layer if isinstance(layer, int) else None,
            head if isinstance(head, int) else None,
            stored.get("shift") is True,
        )


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
    to: str | None = None,
    view: View | AlignmentHead | None = None,
    threshold: float | None = None,
    mutual: bool = False,
    symmetrize: str | None = None,
) -> Links | list[Links]:
    """Align the words of a text and its translation, or of each pair of two lists.

    >>> sorted(regard.align("Tom is happy .", "Tom ist glücklich .", "tatoeba-en-de-bahdanau"))
    [(0, 0), (1, 1), (2, 2), (3, 3)]

    The translations may come from anywhere: the model reads both sides. An empty text has no links.

    Args:
        sources: a text or a list of texts.
        targets: its translation or a list of translations.
        model: a model folder, a name of `regard models` or a loaded translator. By default the folder in
            REGARD_MODEL, else a bundled model.
        to: the language of the targets, for a model of several; guessed from them by default.
        view: the layer, head and step to align with, or a learned `AlignmentHead`; by default that of the
            model's card, else the mean of all layers and heads.
        threshold: return every link of at least this weight; by default each target word's strongest. With
            `mutual` or two directions, leave out links of less weight.
        mutual: return only links between words that are each other's strongest.
        symmetrize: how the directions of a model that translates both ways are joined: "weights" (default),
            "grow-diag", "grow-diag-final-and", "intersection", "union", or "none" for one direction.
    """
    source_texts, single = arguments.one_or_more("sources", sources)
    target_texts, single_target = arguments.one_or_more("targets", targets)
    if single != single_target:
        raise OptionError(
            "sources and targets are two texts or two lists of texts, got one of each; "
            "give both in the same form"
        )
    arguments.instance("view", view, (View, AlignmentHead, type(None)), "a View, an AlignmentHead, or None")
    selection = LinkSelection(threshold, arguments.flag("mutual", mutual), symmetrize)
    translator = as_model(model, "align", to)
    if not isinstance(translator, Translator) or getattr(translator, "source_tokenizer", None) is None:
        raise OptionError("align needs a translator with its tokenizers, as regard.load returns it")
    require_text(translator, "align")
    _check_lengths(source_texts, target_texts)
    language = target_of(target_texts, translator, to)
    learned = isinstance(view, AlignmentHead)
    back = None if learned else reverse_language(source_texts, translator, language, selection)
    if learned and symmetrize not in (None, "none"):
        raise OptionError("a learned head aligns in one direction; leave symmetrize out")
    tagged = add_target(source_texts, translator, language)
    if back is None:
        aligned = align_words(tagged, target_texts, translator, view)
        by_index = {i: selection.links(alignment.weights) for i, alignment in aligned}
        links = [by_index[i] for i in range(len(target_texts))]
    else:
        links = _joined_links(tagged, target_texts, translator, view, back, selection)
    return links[0] if single else links


def reverse_language(
    sources: Sequence[str], model: Translator, to: str | None, selection: LinkSelection
) -> str | None:
    """The language of the sources if the links of both directions of this model are joined, else None."""
    back = None if selection.symmetrize == "none" else source_of(sources, model, to)
    if back is None and selection.symmetrize not in (None, "none"):
        raise OptionError(
            f"symmetrize={selection.symmetrize!r} joins two directions, and this model has one for these "
            "texts; name a model of the reverse direction with `regard align --reverse MODEL`"
        )
    return back


def plain_sources(sources: Sequence[str], model: Translator) -> list[str]:
    """The sources as targets of the reverse direction: without a language code in front."""
    return [split_language(text, target_languages(model))[1] for text in sources]


def _joined_links(
    sources: list[str],
    targets: list[str],
    model: Translator,
    view: View | AlignmentHead | None,
    back: str,
    selection: LinkSelection,
) -> list[Links]:
    """The links of both directions of one model; the sources have their language codes."""
    links = []
    for start in range(0, len(sources), CHUNK):
        source, target = sources[start : start + CHUNK], targets[start : start + CHUNK]
        forward = dict(align_words(source, target, model, view))
        tagged = add_target(target, model, back)
        backward = dict(align_words(tagged, plain_sources(source, model), model, view))
        links += [selection.joined(forward[i].weights, backward[i].weights) for i in range(len(target))]
    return links


def align_words(
    sources: Sequence[str],
    targets: Sequence[str],
    model: Translator,
    view: View | AlignmentHead | None = None,
) -> Iterator[tuple[int, WordAlignment]]:
    """Yield the index and the attention between words of each pair, in any order."""
    _check_lengths(sources, targets)
    if isinstance(view, AlignmentHead):
        yield from view.align_words(sources, targets, model)
        return
    view = view or View.of(model)
    for i, attention in attention_of_pairs(sources, targets, model):
        source, target = _words(model, sources[i], targets[i])
        yield i, WordAlignment(word_weights(view(attention), source, target), source.words, target.words)


def best_view(
    sources: Sequence[str], targets: Sequence[str], model: Translator, *, shift: bool = False
) -> View:
    """Return the view of the single head that `best_head` chooses on the first pairs."""
    attention = (maps for _, maps in attention_of_pairs(sources[:SAMPLE], targets[:SAMPLE], model))
    return View(*best_head(attention), shift)


def clearest_view(sources: Sequence[str], targets: Sequence[str], model: Translator) -> View:
    """Return the layer and step with the most mutual links on the first pairs; needs no gold alignment."""
    counts: dict[View, int] = {}
    for i, attention in attention_of_pairs(sources[:SAMPLE], targets[:SAMPLE], model):
        source, target = _words(model, sources[i], targets[i])
        for layer, shift in product(range(len(attention.names("cross"))), (False, True)):
            view = View(layer, shift=shift)
            counts[view] = counts.get(view, 0) + len(mutual(word_weights(view(attention), source, target)))
    return max(counts, key=counts.__getitem__, default=View())


def attention_of_pairs(
    sources: Sequence[str], targets: Sequence[str], model: Any
) -> Iterator[tuple[int, AttentionMaps]]:
    """Yield the index and the cross-attention of each pair, in any order."""
    source_ids = model.source_tokenizer.encode_batch(sources)
    target_ids = model.target_tokenizer.encode_batch(targets)
    return attention_of_tokens(source_ids, [[*ids, EOS] for ids in target_ids], model, kinds=("cross",))


def _check_lengths(sources: Sequence[str], targets: Sequence[str]) -> None:
    if len(sources) != len(targets):
        raise DataError(
            f"there are {len(sources)} sources and {len(targets)} targets; give one target for each source"
        )


def _words(model: Any, source: str, target: str) -> tuple[Words, Words]:
    return Words.of_text(model.source_tokenizer, source), Words.of_text(model.target_tokenizer, target)
