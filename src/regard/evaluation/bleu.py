"""BLEU: Schmidt-Thieme's sentence BLEU on tokens, and sacreBLEU's corpus BLEU.

The sentence formula is that of Schmidt-Thieme's lecture on attention layers, "BLEU score", for one reference
y and one hypothesis ŷ, both sequences of tokens:

    p_n(y, ŷ)  = Σ_a min(f_n(ŷ)_a, f_n(y)_a) / (|ŷ| − n + 1)
    brev(y, ŷ) = e^(−max(0, |y| − |ŷ|) / |ŷ|)
    bleu(y, ŷ) = brev(y, ŷ) · (p_1 p_2 p_3 p_4)^(1/4), in [0, 1]

If ŷ is shorter than n, the denominator is 0 and p_n is defined as 0, and so is BLEU.
Corpus BLEU sums matches and lengths over all sentences before dividing; computed by sacreBLEU (Post 2018), in
[0, 100].
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from regard.arguments import as_list, quoted
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

MAX_ORDER = 4  # n-grams up to this length


def ngrams(tokens: Sequence[Hashable], n: int) -> Counter[tuple[Hashable, ...]]:
    """f_n: how often each sequence of n tokens occurs."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise OptionError(f"n must be an integer of at least 1, got {n!r}")
    tokens = _tokens(tokens, "tokens")
    return Counter(tokens[i : i + n] for i in range(len(tokens) - n + 1))


def precision(reference: Sequence[Hashable], hypothesis: Sequence[Hashable], n: int) -> float:
    """p_n: clipped n-gram precision of the hypothesis."""
    counts = ngrams(hypothesis, n)
    return (counts & ngrams(reference, n)).total() / counts.total() if counts else 0.0


def brevity_penalty(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> float:
    """Penalty for hypotheses shorter than the reference, which precision alone would favour."""
    missing = max(0, len(_tokens(reference, "reference")) - len(_tokens(hypothesis, "hypothesis")))
    if missing == 0:
        return 1.0
    return math.exp(-missing / len(hypothesis)) if len(hypothesis) else 0.0


def sentence_bleu(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> float:
    """Schmidt-Thieme's BLEU of one sentence, in [0, 1]; 0 unless at least one 4-gram matches."""
    product = math.prod(precision(reference, hypothesis, n) for n in range(1, MAX_ORDER + 1))
    return brevity_penalty(reference, hypothesis) * product ** (1 / MAX_ORDER)


def sentence_bleu_of_lines(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> list[float]:
    """`sentence_bleu` of each line, with words as sacreBLEU's tokenizer splits them."""
    (references,) = reference_documents(hypotheses, references)
    tokenizer = bleu_metric(tokenize, lowercase).tokenizer

    def words(line: str) -> list[str]:
        return tokenizer((line.lower() if lowercase else line).rstrip()).split()

    return [
        sentence_bleu(words(reference), words(hypothesis))
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    ]


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> float:
    """sacreBLEU's corpus BLEU, in [0, 100]. Use `tokenize="none"` for text that is already tokenised.

    `references`: one list of lines, or a list of such lists, one per reference.
    """
    documents = reference_documents(hypotheses, references)
    return float(bleu_metric(tokenize, lowercase).corpus_score(hypotheses, documents).score)


def bleu_metric(tokenize: str = "13a", lowercase: bool = False) -> BLEU:
    """sacreBLEU's BLEU with default settings, without its warning about tokenised text (see
    `input_checks`).
    """
    from sacrebleu.metrics.bleu import BLEU

    if not isinstance(tokenize, str) or tokenize not in BLEU.TOKENIZERS:
        near = difflib.get_close_matches(str(tokenize), BLEU.TOKENIZERS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"tokenize must be one of {', '.join(BLEU.TOKENIZERS)}, got {tokenize!r}{hint}")
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    # Some of sacreBLEU's tokenisers need extra packages or files.
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(
            f"tokenize={tokenize!r} needs a package or file that is missing: {reason}"
        ) from error


def reference_documents(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """Normalise references to one list of lines per reference, each as long as the hypotheses."""
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
            f"the references look transposed: {len(documents)} lists of {sizes.pop()} for {len(hypotheses)} "
            "hypotheses; give one list of lines per reference, e.g. [list(lines) for lines in "
            "zip(*references)]"
        )
    for number, document in enumerate(documents, 1):
        if len(document) != len(hypotheses):
            raise DataError(
                _length_mismatch(
                    hypotheses, document, f"reference {number}" if len(documents) > 1 else "the reference"
                )
            )
    return documents


def _length_mismatch(hypotheses: list[str], document: list[str], name: str) -> str:
    longer, side = max((hypotheses, "the hypothesis"), (document, name), key=lambda x: len(x[0]))
    extra = abs(len(hypotheses) - len(document))
    blank = not any(line.strip() for line in longer[-extra:])
    fix = (
        f"the last {extra} of {side} are empty: remove them"
        if blank
        else "give one line for each sentence on both sides"
    )
    return f"the hypothesis has {len(hypotheses)} lines but {name} has {len(document)}; {fix}"


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
    if isinstance(tokens, str):  # a str is a sequence of characters and would be scored silently
        raise OptionError(f"{name} must be a sequence of tokens, got the text {tokens!r:.60}; split it first")
    return tuple(as_list(name, tokens, "a sequence of tokens"))
