"""Long lines: split what is longer than a model's training sentences, or has several sentences for a model
of single ones, and join the translations of the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard.data.tokenizer import split_language
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.decoding.strategy import Hypothesis
from regard.models.encoder import max_positions
from regard.models.target_language import target_languages
from regard.models.translator import Translator
from regard.pipelines.sentence_split import Piece, join, pieces, sentences
from regard.pipelines.text_form import as_read
from regard.pipelines.text_warnings import split_tokens, trained_length
from regard.pipelines.translate import Translation


class LongLineSplitter:
    """Split texts of more than `limit` tokens into pieces; without a limit each text is one piece.

    For a model of single sentences, a text of several sentences is split above `split_tokens`, unless it has
    a prefix or required words. The language token at the start of a text is repeated in each piece.
    """

    def __init__(self, model: Translator, limit: int | None) -> None:
        self.model, self.limit = model, limit
        self._languages = target_languages(model)
        if self._languages and limit is not None:
            self.limit = max(1, limit - 1)  # one is for the language token

    def __call__(self, texts: Sequence[str], constraints: Constraints = NO_CONSTRAINTS) -> list[list[Piece]]:
        """Return the pieces of each text; none for a blank text."""
        limit = self.limit
        result = [[Piece(text, "", True)] if text.strip() else [] for text in texts]
        if limit is None:
            return result
        most = limit if constraints.are_of_text() else min(limit, split_tokens(self.model) or limit)
        read, forms = as_read(texts, self.model, constraints)
        # A token has at least one byte, so most texts need not be counted.
        long = [
            i for i, text in enumerate(texts) if result[i] and (len(text.encode()) >= most or "\n" in text)
        ]
        for i, tokens in zip(long, self._count([read[i] for i in long]), strict=True):
            code, text = split_language(texts[i], self._languages)
            if tokens > limit or "\n" in texts[i] or (tokens > most and len(sentences(text)) > 1):
                result[i] = pieces(text, self._count_lower if forms[i].capitals else self._count, limit)
                if forms[i].capitals:
                    result[i] = [replace(p, text=p.text.lower(), capitals=True) for p in result[i]]
                if code is not None:
                    result[i] = [replace(piece, text=f">>{code}<< {piece.text}") for piece in result[i]]
        return result

    def _count(self, texts: Sequence[str]) -> list[int]:
        return [len(tokens) for tokens in self.model.source_tokenizer.encode_batch(texts)]  # type: ignore[operator, union-attr]

    def _count_lower(self, texts: Sequence[str]) -> list[int]:
        return self._count([text.lower() for text in texts])


def max_source_length(model: Translator) -> int | None:
    """Return the maximum number of source tokens: that of the training data, and of the model's positions."""
    trained, positions = trained_length(model), max_positions(model.encoder)
    limits = (trained, positions and positions - 1)  # one position is for the end-of-sentence token
    return min((limit for limit in limits if limit), default=None)


def join_hypotheses(
    parts: Sequence[Piece], translations: Sequence[Translation]
) -> list[tuple[str, list[Hypothesis]]]:
    """Return the n best texts of a line with their hypotheses: the i-th joins the i-th of each piece.

    A piece of symbols alone has a text and no hypotheses.
    """
    joined = []
    for rank in range(max((len(t.hypotheses) or bool(t) for t in translations), default=0)):
        chosen = [
            t.hypotheses[min(rank, len(t.hypotheses) - 1)] if t.hypotheses else None for t in translations
        ]
        texts = [str(t) if h is None else h.text for t, h in zip(translations, chosen, strict=True)]
        text = join(parts, [t.upper() if p.capitals else t for p, t in zip(parts, texts, strict=True)])
        joined.append((text, [h for h in chosen if h is not None]))
    return joined
