"""Choose on a trial set with gold links how to align: the layer, the step, the way to join two directions.

The choice has the lowest alignment error rate on the trial set. Score it once, on other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from regard.errors import OptionError
from regard.evaluation.alignment import AlignmentScore, Gold, score
from regard.models.translator import Translator
from regard.pipelines.align import View, attention_of_pairs
from regard.pipelines.token_words import Words, word_weights
from regard.pipelines.word_links import SYMMETRIZATIONS, Links, LinkSelection

Weights = list[Tensor]  # for each pair (target words, source words)
JOINS = ("weights", *SYMMETRIZATIONS)
THRESHOLDS = (0.1, 0.2, 0.3, 0.4)  # of joined weights


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
        links = "mutual links" if self.selection.mutual else "strongest links"
        how = f"{links}, {self.selection.join}"
        if self.selection.join == "weights":
            threshold = self.selection.threshold
            how = "joined by weights" + ("" if threshold is None else f" of at least {threshold}")
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
    """Joined weights with their mutual links or by threshold, and every symmetrization of strongest and of
    mutual links.
    """
    yield LinkSelection()
    yield from map(LinkSelection, THRESHOLDS)
    for join, mutual in product(SYMMETRIZATIONS, (False, True)):
        yield LinkSelection(mutual=mutual, join=join)


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
