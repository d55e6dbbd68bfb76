"""Lines that a model was not trained to hold: translated in parts, and made one again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.decoding.limits import max_positions
from regard.decoding.strategy import Hypothesis
from regard.models.translator import Translator
from regard.pipelines.sentence_split import Piece, join, pieces
from regard.pipelines.translate import Translation


class LongLineSplitter:
    """Cuts what is longer than the model's limit; without a limit nothing is."""

    def __init__(self, model: Translator, limit: int | None) -> None:
        self.model, self.limit = model, limit

    def __call__(self, texts: Sequence[str]) -> list[list[Piece]]:
        """The parts of each text; none of one that is empty or blank."""
        most = self.limit
        whole = [[Piece(text, "", True)] if text.strip() else [] for text in texts]
        if most is None:
            return whole
        # No token is less than a byte, so most texts need not be counted.
        long = [
            i for i, text in enumerate(texts) if whole[i] and (len(text.encode()) >= most or "\n" in text)
        ]
        for i, tokens in zip(long, self._count([texts[i] for i in long]), strict=True):
            if tokens > most or "\n" in texts[i]:
                whole[i] = pieces(texts[i], self._count, most)
        return whole

    def _count(self, texts: Sequence[str]) -> list[int]:
        return [len(tokens) for tokens in self.model.source_tokenizer.encode_batch(texts)]  # type: ignore[operator, union-attr]


def longest(model: Translator) -> int | None:
    """How many tokens a line may have: what the model was trained on, and no more than it has positions for (one for the end)."""
    card: dict[str, Any] = getattr(model, "card", {})
    trained, room = (
        ((card.get("recipe") or {}).get("data") or {}).get("max_length"),
        max_positions(model.encoder),
    )
    return min([each for each in (trained, room and room - 1) if each], default=None)


def joined(parts: Sequence[Piece], translations: Sequence[Translation]) -> list[tuple[str, list[Hypothesis]]]:
    """The best texts of a line, each with what it was made of: the second of a line in parts of each part's second, and so on."""
    found = []
    for rank in range(max((len(each.hypotheses) for each in translations), default=0)):
        chosen = [
            each.hypotheses[min(rank, len(each.hypotheses) - 1)] if each.hypotheses else None
            for each in translations
        ]
        found.append(
            (join(parts, ["" if h is None else h.text for h in chosen]), [h for h in chosen if h is not None])
        )
    return found
