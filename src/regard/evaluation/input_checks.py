"""Warnings about hypotheses and references before scoring: misaligned lines and mismatched tokenisation.

A file that lost a line, or is tokenised while the other is not, gets a low BLEU that looks like a bad model.
Each check returns a sentence only if it is certain; a weak model gives no warning.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

# CJK: each character is a word.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
MIN_WORDS = 4  # lines with fewer distinct words match a neighbouring line by chance
MIN_WORDS_SEARCH = 6  # lines with fewer match some line of the whole file by chance
SUBWORDS = {"'@@' of BPE": r"@@(?= |$)", "'▁' of SentencePiece": "▁", "'##' of WordPiece": r"(?<= )##\w"}
ESCAPES = re.compile(r"&(?:apos|quot|amp|lt|gt|#91|#93|#124);| @-@ ")
# Only full stops and commas: French has a space before ? ! : ; in plain text.
SEPARATE, ATTACHED = re.compile(r"\S [.,](?= |$)"), re.compile(r"\w[.,](?= |$)")


def input_warnings(
    hypotheses: Sequence[str], documents: Sequence[Sequence[str]], tokenize: str, lowercase: bool
) -> list[str]:
    """One sentence per problem; empty if there is none."""
    names = (
        [f"reference {i}" for i in range(1, len(documents) + 1)] if len(documents) > 1 else ["the reference"]
    )
    warnings = _empty(hypotheses, "the hypothesis")
    for name, document in zip(names, documents, strict=True):
        warnings += _empty(document, name)
    warnings += _tokenisation(hypotheses, documents, tokenize)
    if not lowercase:
        warnings += _case(hypotheses, documents)
    warnings += _transposed(hypotheses, documents)
    bags = [_bag(line) for line in hypotheses]
    for name, document in zip(names, documents, strict=True):
        others = [_bag(line) for line in document]
        warnings += (
            _same(hypotheses, document, name) or _shifted(bags, others, name) or _shuffled(bags, others, name)
        )
    return warnings


def _empty(lines: Sequence[str], name: str) -> list[str]:
    count = sum(not line.strip() for line in lines)
    return [f"{count} of {len(lines)} lines of {name} {'is' if count == 1 else 'are'} empty"] if count else []


# ---- tokenised against detokenised ----


def _tokenisation(hypotheses: Sequence[str], documents: Sequence[Sequence[str]], tokenize: str) -> list[str]:
    reference = [line for document in documents for line in document]
    sides = {"the hypothesis": hypotheses, "the reference": reference}
    warnings = []
    for name, lines in sides.items():
        for mark, pattern in SUBWORDS.items():
            count = _lines_with(re.compile(pattern), lines)
            if count >= max(1, len(lines) / 100):
                warnings.append(
                    f"{name} has the subword mark {mark} in {count} of {len(lines)} lines; join the "
                    f"subwords first"
                )
    escaped = {name: _lines_with(ESCAPES, lines) for name, lines in sides.items()}
    for name, other in (("the hypothesis", "the reference"), ("the reference", "the hypothesis")):
        if escaped[name] >= max(1, len(sides[name]) / 100) and not escaped[other]:
            marks = (
                f"a tokeniser's escapes (&apos; &quot; @-@ …) in {escaped[name]} of {len(sides[name])} lines"
            )
            warnings.append(f"{name} has {marks} and {other} has none; undo the escapes")
    return warnings + _punctuation(looks_tokenised(hypotheses), looks_tokenised(reference), tokenize)


def _punctuation(hypothesis: bool | None, reference: bool | None, tokenize: str) -> list[str]:
    if hypothesis is None or reference is None:
        return []
    if hypothesis != reference:
        one, other = (
            ("the hypothesis", "the reference") if hypothesis else ("the reference", "the hypothesis")
        )
        return [
            f"{one} looks tokenised (' .' and ' ,' with spaces) and {other} does not; "
            f"detokenise {one} or tokenise both"
        ]
    if hypothesis and tokenize != "none":
        return [
            f"both sides look tokenised and {tokenize} tokenises them again; "
            "detokenise both or use tokenize none"
        ]
    if not hypothesis and tokenize == "none":
        return [
            "both sides look like plain text, where tokenize none counts 'end.' as one word; "
            "tokenise both or use 13a"
        ]
    return []


def looks_tokenised(lines: Sequence[str]) -> bool | None:
    """True if full stops and commas are separated by spaces; None if undecided."""
    separate, attached = (
        sum(len(pattern.findall(line.strip())) for line in lines) for pattern in (SEPARATE, ATTACHED)
    )
    if separate + attached < 3 or 0.2 < separate / (separate + attached) < 0.8:
        return None
    return separate > attached


def _lines_with(pattern: re.Pattern[str], lines: Sequence[str]) -> int:
    return sum(pattern.search(line) is not None for line in lines)


def _case(hypotheses: Sequence[str], documents: Sequence[Sequence[str]]) -> list[str]:
    shares = {}
    for name, lines in (
        ("the hypothesis", hypotheses),
        ("the reference", [line for d in documents for line in d]),
    ):
        cased = [line for line in lines if line.lower() != line.upper()]
        if len(cased) < 5:
            return []
        shares[name] = sum(line != line.lower() for line in cased) / len(cased)
    for name, other in (("the hypothesis", "the reference"), ("the reference", "the hypothesis")):
        if shares[name] <= 0.02 and shares[other] >= 0.5:
            return [
                f"{name} is in lower case and {other} is not; restore the case or score both with lowercase"
            ]
    return []


# ---- misaligned lines ----


def _bag(line: str) -> frozenset[str]:
    return frozenset(WORD.findall(line.lower()))


def _dice(one: frozenset[str], other: frozenset[str], min_words: int = MIN_WORDS) -> float:
    """Dice coefficient of the words of two lines; 0 for lines with too few words."""
    return 2 * len(one & other) / (len(one) + len(other)) if min(len(one), len(other)) >= min_words else 0.0


def _same(hypotheses: Sequence[str], document: Sequence[str], name: str) -> list[str]:
    count = sum(h == r and bool(h.strip()) for h, r in zip(hypotheses, document, strict=True))
    if len(hypotheses) >= 10 and count >= 0.95 * len(hypotheses):
        return [
            f"{count} of {len(hypotheses)} lines of the hypothesis equal {name}; check that the files are "
            f"different"
        ]
    return []


def _transposed(hypotheses: Sequence[str], documents: Sequence[Sequence[str]]) -> list[str]:
    """With as many references as lines, only the words tell whether the references are transposed."""
    n = len(hypotheses)
    if n < 2 or len(documents) != n:
        return []
    bags, table = [_bag(h) for h in hypotheses], [[_bag(line) for line in document] for document in documents]
    as_given = sum(max(_dice(bags[i], table[k][i], min_words=1) for k in range(n)) for i in range(n)) / n
    transposed = sum(max(_dice(bags[i], table[i][k], min_words=1) for k in range(n)) for i in range(n)) / n
    if transposed > as_given + 0.2:
        return [
            f"the references look transposed; give {n} documents of {n} lines each, as zip(*references) does"
        ]
    return []


def _shifted(bags: Sequence[frozenset[str]], others: Sequence[frozenset[str]], name: str) -> list[str]:
    """Detect a run of lines that match a reference up to three lines away: a line was lost or added.

    Finds the run with the largest sum of (similarity to the shifted line − similarity to the own line − 0.15)
    by Kadane's algorithm. A sum of 3 is not reached by chance.
    """
    n = len(bags)
    own = [_dice(h, r) for h, r in zip(bags, others, strict=True)]
    best: tuple[float, int, int, int] = (3.0, 0, 0, 0)
    for offset in (1, -1, 2, -2, 3, -3):
        total, start = 0.0, 0
        for i in range(max(0, -offset), min(n, n - offset)):
            if total <= 0:
                total, start = 0.0, i
            total += _dice(bags[i], others[i + offset]) - own[i] - 0.15
            best = max(best, (total, offset, start, i))
    _, offset, start, end = best
    if not offset:
        return []
    where = (
        f"{abs(offset)} line{'s' if abs(offset) > 1 else ''} {'after' if offset > 0 else 'before'} their own"
    )
    lost = f"a line was lost or added near line {start + 1}"
    return [f"lines {start + 1} to {end + 1} of the hypothesis match {name} {where}; {lost}"]


def _shuffled(bags: Sequence[frozenset[str]], others: Sequence[frozenset[str]], name: str) -> list[str]:
    """Detect lines that match their own reference no better than chance, but other lines of it very well."""
    places = [i for i in range(len(bags)) if min(len(bags[i]), len(others[i])) >= MIN_WORDS_SEARCH]
    if len(places) < 20:
        return []
    sample = places[:: -(-len(places) // 200)]
    own = [_dice(bags[i], others[i]) for i in sample]
    jump = len(places) // 2
    partner = {place: places[(k + jump) % len(places)] for k, place in enumerate(places)}
    chance = [_dice(bags[i], others[partner[i]]) for i in sample]
    gains = [a - b for a, b in zip(own, chance, strict=True)]
    mean = sum(gains) / len(gains)
    error = (sum((g - mean) ** 2 for g in gains) / (len(gains) - 1) / len(gains)) ** 0.5
    if mean > 3 * error + 1e-9:
        return []
    matched = set()
    index = _index(others)
    for i, similarity in zip(sample, own, strict=True):
        score, j = _nearest(bags[i], others, index)
        if score >= max(0.5, similarity + 0.2):
            matched.add(j)
    if len(matched) < max(8, 0.3 * len(sample)):
        return []
    count = f"of {len(sample)} sampled lines, {len(matched)} match another line of {name} and not their own"
    return [f"the hypothesis and {name} seem not to be in the same order: {count}"]


def _index(others: Sequence[frozenset[str]]) -> dict[str, list[int]]:
    """Lines in which each rare word occurs; common words are left out."""
    often = max(20, len(others) // 100)
    counts = Counter(word for bag in others for word in bag)
    index = defaultdict(list)
    for j, bag in enumerate(others):
        for word in bag:
            if counts[word] <= often:
                index[word].append(j)
    return index


def _nearest(
    bag: frozenset[str], others: Sequence[frozenset[str]], index: dict[str, list[int]]
) -> tuple[float, int]:
    candidates = {j for word in bag for j in index.get(word, ())}
    return max(
        ((_dice(bag, others[j], min_words=MIN_WORDS_SEARCH), j) for j in candidates), default=(0.0, -1)
    )
