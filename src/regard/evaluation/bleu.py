"""BLEU: the lecture's sentence formula, token for token, and the corpus BLEU that papers report.

The sentence formula is that of Schmidt-Thieme's lecture on attention layers, "BLEU score", for one reference y and one
hypothesis ŷ, both sequences of tokens:

    p_n(y, ŷ)  = Σ_a min(f_n(ŷ)_a, f_n(y)_a) / (|ŷ| − n + 1)
    brev(y, ŷ) = e^(−max(0, |y| − |ŷ|) / |ŷ|)
    bleu(y, ŷ) = brev(y, ŷ) · (p_1 p_2 p_3 p_4)^(1/4), in [0, 1]

Where the formula divides by nothing (ŷ empty or shorter than n) there is nothing to match: the precision is 0, and so is BLEU.
Corpus BLEU adds up matches and lengths over all sentences before it divides; it is sacreBLEU's (Post 2018), in [0, 100].
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from regard.arguments import listed, quoted
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

MAX_ORDER = 4  # n-grams of 1 to 4 tokens


def ngrams(tokens: Sequence[Hashable], n: int) -> Counter[tuple[Hashable, ...]]:
    """f_n: how often each sequence of n tokens occurs."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise OptionError(f"n must be a whole number of at least 1, got {n!r}")
    tokens = _tokens(tokens, "tokens")
    return Counter(tokens[i : i + n] for i in range(len(tokens) - n + 1))


def precision(reference: Sequence[Hashable], hypothesis: Sequence[Hashable], n: int) -> float:
    """p_n: which share of the hypothesis' n-grams occur in the reference, each at most as often as there."""
    found = ngrams(hypothesis, n)
    return (found & ngrams(reference, n)).total() / found.total() if found else 0.0


def brevity_penalty(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> float:
    """The penalty for a hypothesis shorter than its reference, since precision alone favours short ones."""
    missing = max(0, len(_tokens(reference, "reference")) - len(_tokens(hypothesis, "hypothesis")))
    if missing == 0:
        return 1.0
    return math.exp(-missing / len(hypothesis)) if len(hypothesis) else 0.0


def sentence_bleu(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> float:
    """The lecture's BLEU of one sentence, in [0, 1]; 0 unless at least one 4-gram matches."""
    product = math.prod(precision(reference, hypothesis, n) for n in range(1, MAX_ORDER + 1))
    return brevity_penalty(reference, hypothesis) * product ** (1 / MAX_ORDER)


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> float:
    """sacreBLEU's corpus BLEU, in [0, 100]. For text that is already tokenised, its tokens apart by spaces: `tokenize="none"`.

    `references`: one list of lines, or several such lists, one for each reference document.
    """
    documents = reference_documents(hypotheses, references)
    return float(bleu_metric(tokenize, lowercase).corpus_score(hypotheses, documents).score)


def bleu_metric(tokenize: str = "13a", lowercase: bool = False) -> BLEU:
    """sacreBLEU's BLEU with its default settings; warnings about tokenised text come from `evaluation.translation`."""
    from sacrebleu.metrics.bleu import BLEU

    if not isinstance(tokenize, str) or tokenize not in BLEU.TOKENIZERS:
        near = difflib.get_close_matches(str(tokenize), BLEU.TOKENIZERS, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"tokenize must be one of {', '.join(BLEU.TOKENIZERS)}, got {tokenize!r}{meant}")
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    except (
        ImportError,
        OSError,
        RuntimeError,
    ) as error:  # sacreBLEU's tokenisers for some languages need packages or files
        reason = " ".join(str(error).split())
        raise OptionError(f"tokenize={tokenize!r} needs something that is not here: {reason}") from error


def reference_documents(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """One list of lines for each reference, each as long as the hypotheses; anything else is said and not guessed."""
    hypotheses = _lines(hypotheses, "hypotheses")
    if isinstance(references, str) or not isinstance(references, Sequence) or not references:
        raise DataError(
            f"references must be a list of lines or of several such lists, got {quoted(references)}"
        )
    if isinstance(references[0], str):
        documents = [_lines(references, "references")]
    else:
        documents = [_lines(document, f"reference {i}") for i, document in enumerate(references, 1)]
    if not hypotheses:
        raise DataError("there are no hypotheses to score; give at least one line")
    sizes = {len(document) for document in documents}
    if len(documents) == len(hypotheses) and len(sizes) == 1 and sizes != {len(hypotheses)}:
        raise DataError(
            f"the references look transposed: {len(documents)} lists of {sizes.pop()} for {len(hypotheses)} hypotheses; "
            "give one list of lines for each reference document, as [list(lines) for lines in zip(*references)] does"
        )
    for number, document in enumerate(documents, 1):
        if len(document) != len(hypotheses):
            raise DataError(
                _unequal(
                    hypotheses, document, f"reference {number}" if len(documents) > 1 else "the reference"
                )
            )
    return documents


def _unequal(hypotheses: list[str], document: list[str], name: str) -> str:
    longer, side = max((hypotheses, "the hypothesis"), (document, name), key=lambda x: len(x[0]))
    extra = abs(len(hypotheses) - len(document))
    blank = not any(line.strip() for line in longer[-extra:])
    why = (
        f"the last {extra} of {side} are empty: remove them"
        if blank
        else "give one line for each sentence on both sides"
    )
    return f"the hypothesis has {len(hypotheses)} lines but {name} has {len(document)}; {why}"


def _lines(lines: Sequence[object], name: str) -> list[str]:
    if isinstance(lines, str):
        raise DataError(f"{name} must be a list of lines, got one text {lines!r:.60}; split it into lines")
    if not isinstance(lines, Iterable):
        raise DataError(f"{name} must be a list of lines, got {quoted(lines)}")
    for number, line in enumerate(lines := list(lines), 1):
        if not isinstance(line, str):
            raise DataError(f"line {number} of {name} must be text, got {quoted(line)}")
    return list(lines)  # pyright: ignore[reportReturnType]


def _tokens(tokens: Sequence[Hashable], name: str) -> tuple[Hashable, ...]:
    if isinstance(tokens, str):  # a string is a sequence too, of letters, and would be scored without a word
        raise OptionError(f"{name} must be a sequence of tokens, got the text {tokens!r:.60}; split it first")
    return tuple(listed(name, tokens, "a sequence of tokens"))
