"""Choose how to align: the layer, the head, the step, the way to join two directions.

With gold links of a trial set, the choice has the lowest alignment error rate on it. Without gold, of a model
of both directions, it has the links on which the directions agree most. Score it once, on other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from regard.errors import OptionError
from regard.evaluation.alignment import AlignmentScore, Gold, score
from regard.models.target_language import add_target
from regard.models.translator import Translator
from regard.pipelines.align import View, attention_of_pairs
from regard.pipelines.token_words import Words, word_weights
from regard.pipelines.word_links import SYMMETRIZATIONS, Links, LinkSelection, flipped, strongest

Weights = list[Tensor]  # for each pair (target words, source words)


@dataclass(frozen=True)
class AlignmentChoice:
    """How two directions are joined, and the score that chose it.

    Attributes:
        forward, backward: names of the weights of each direction.
        selection: how links are selected and joined.
        score: on the trial set.
    """

    forward: str
    backward: str
    selection: LinkSelection
    score: AlignmentScore

    def links(self, forward: dict[str, Weights], backward: dict[str, Weights]) -> list[Links]:
        """The links of pairs, given the weights of both directions by name."""
        pairs = zip(forward[self.forward], backward[self.backward], strict=True)
        return [self.selection.joined(a, b) for a, b in pairs]

    def __str__(self) -> str:
        mutual, method = self.selection.mutual, self.selection.symmetrize
        if method == "weights":
            how = "joined by weights, mutual links" + ("" if mutual else " and neighbours")
        else:
            how = f"{'mutual' if mutual else 'strongest'} links, {method}"
        return f"forward {self.forward}, backward {self.backward}, {how}"


def layer_weights(sources: Sequence[str], targets: Sequence[str], model: Translator) -> dict[str, Weights]:
    """The weights between words by each layer of a translator, at the step that generates or reads a token.

    Names are "layer 2, generates" and "layer 2, reads".
    """
    by_name: dict[str, dict[int, Tensor]] = {}
    for i, attention in attention_of_pairs(sources, targets, model):
        source = Words.of_text(model.source_tokenizer, sources[i])
        target = Words.of_text(model.target_tokenizer, targets[i])
        for layer, shift in product(range(len(attention.names("cross"))), (False, True)):
            name = f"layer {layer}, {'reads' if shift else 'generates'}"
            weights = word_weights(View(layer, shift=shift)(attention), source, target)
            by_name.setdefault(name, {})[i] = weights
    return {name: [weights[i] for i in range(len(sources))] for name, weights in by_name.items()}


def selections() -> Iterator[LinkSelection]:
    """Joined weights with and without neighbours, every symmetrization of strongest and of mutual links."""
    for method, mutual in product(("weights", *SYMMETRIZATIONS), (True, False)):
        yield LinkSelection(mutual=mutual, symmetrize=method)


def choose_alignment(
    forward: dict[str, Weights], backward: dict[str, Weights], gold: Sequence[Gold]
) -> AlignmentChoice:
    """The pair of weights and the selection with the lowest alignment error rate; the first of equals.

    `forward` has weights (target, source) by name, `backward` (source, target), as `layer_weights` returns
    them; gold links are (source, target).
    """
    best: AlignmentChoice | None = None
    for a, b, selection in product(forward, backward, list(selections())):
        joined = [selection.joined(x, y) for x, y in zip(forward[a], backward[b], strict=True)]
        result = score(joined, gold)
        if best is None or result.aer < best.score.aer:
            best = AlignmentChoice(a, b, selection, result)
    if best is None:
        raise OptionError("there are no weights to choose from; give those of both directions")
    return best


def view_agreement(
    sources: Sequence[str], targets: Sequence[str], model: Translator, languages: tuple[str, str]
) -> dict[View, float]:
    """The share of links on which both directions of one model agree, by layer, head and step.

    The model translates from the first of the two languages into the second and back. Links are each target
    word's strongest; with those of the two directions A and B, the share is 2 |A ∩ B| / (|A| + |B|). It needs
    no gold links.
    """
    forward = _links_by_view(add_target(sources, model, languages[1]), targets, model)
    backward = _links_by_view(add_target(targets, model, languages[0]), sources, model)
    shares = {}
    for view, links in forward.items():
        pairs = [(a, flipped(b)) for a, b in zip(links, backward[view], strict=True)]
        total = sum(len(a) + len(b) for a, b in pairs)
        shares[view] = 2 * sum(len(a & b) for a, b in pairs) / max(1, total)
    return shares


def _links_by_view(
    sources: Sequence[str], targets: Sequence[str], model: Translator
) -> dict[View, list[Links]]:
    """The strongest links of each pair, by the mean of all, by layers and by heads, at both steps."""
    by_view: dict[View, dict[int, Links]] = {}
    for i, attention in attention_of_pairs(sources, targets, model):
        source = Words.of_text(model.source_tokenizer, sources[i])
        target = Words.of_text(model.target_tokenizer, targets[i])
        layers = {layer: len(attention[name]) for layer, name in enumerate(attention.names("cross"))}
        places = [(None, None), *((layer, None) for layer in layers)]
        places += [(layer, head) for layer, heads in layers.items() for head in range(heads) if heads > 1]
        for (layer, head), shift in product(places, (False, True)):
            view = View(layer, head, shift)
            links = strongest(word_weights(view(attention), source, target))
            by_view.setdefault(view, {})[i] = links
    return {view: [links[i] for i in range(len(sources))] for view, links in by_view.items()}
