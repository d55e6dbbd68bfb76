"""What looks wrong with a hypothesis and its reference before they are scored: lines out of order, and text of two kinds.

BLEU gives a number for anything. A file that lost a line, or that is tokenised while the other is not, gives a low one that looks
like a bad model. Each check here says one sentence when it is sure and nothing when it is not: a weak model is no suspicion.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)  # CJK: each sign
FEW = 4  # lines with fewer different words resemble a neighbour by chance
MANY = 6  # and with fewer than these, one of many thousand others
SUBWORDS = {"'@@' of BPE": r"@@(?= |$)", "'▁' of SentencePiece": "▁", "'##' of WordPiece": r"(?<= )##\w"}
ESCAPES = re.compile(r"&(?:apos|quot|amp|lt|gt|#91|#93|#124);| @-@ ")
# Full stops and commas only: French sets a space before ? ! : ; in ordinary text.
APART, JOINED = re.compile(r"\S [.,](?= |$)"), re.compile(r"\w[.,](?= |$)")


def input_warnings(
    hypotheses: Sequence[str], documents: Sequence[Sequence[str]], tokenize: str, lowercase: bool
) -> list[str]:
    """One sentence for each thing that looks wrong; empty when nothing does."""
    names = (
        [f"reference {i}" for i in range(1, len(documents) + 1)] if len(documents) > 1 else ["the reference"]
    )
    found = _empty(hypotheses, "the hypothesis")
    for name, document in zip(names, documents, strict=True):
        found += _empty(document, name)
    found += _kinds(hypotheses, documents, tokenize)
    if not lowercase:
        found += _case(hypotheses, documents)
    found += _transposed(hypotheses, documents)
    bags = [_bag(line) for line in hypotheses]
    for name, document in zip(names, documents, strict=True):
        others = [_bag(line) for line in document]
        found += (
            _same(hypotheses, document, name) or _shifted(bags, others, name) or _shuffled(bags, others, name)
        )
    return found


def _empty(lines: Sequence[str], name: str) -> list[str]:
    count = sum(not line.strip() for line in lines)
    return [f"{count} of {len(lines)} lines of {name} {'is' if count == 1 else 'are'} empty"] if count else []


# ---- tokenised against detokenised ----


def _kinds(hypotheses: Sequence[str], documents: Sequence[Sequence[str]], tokenize: str) -> list[str]:
    reference = [line for document in documents for line in document]
    sides = {"the hypothesis": hypotheses, "the reference": reference}
    found = []
    for name, lines in sides.items():
        for mark, pattern in SUBWORDS.items():
            count = _lines_with(re.compile(pattern), lines)
            if count >= max(1, len(lines) / 100):
                found.append(
                    f"{name} has the subword mark {mark} in {count} of {len(lines)} lines; join the subwords first"
                )
    escaped = {name: _lines_with(ESCAPES, lines) for name, lines in sides.items()}
    for name, other in (("the hypothesis", "the reference"), ("the reference", "the hypothesis")):
        if escaped[name] >= max(1, len(sides[name]) / 100) and not escaped[other]:
            marks = (
                f"a tokeniser's escapes (&apos; &quot; @-@ …) in {escaped[name]} of {len(sides[name])} lines"
            )
            found.append(f"{name} has {marks} and {other} has none; undo the escapes")
    return found + _punctuation(looks_tokenised(hypotheses), looks_tokenised(reference), tokenize)


def _punctuation(hypothesis: bool | None, reference: bool | None, tokenize: str) -> list[str]:
    if hypothesis is None or reference is None:
        return []
    if hypothesis != reference:
        one, other = (
            ("the hypothesis", "the reference") if hypothesis else ("the reference", "the hypothesis")
        )
        return [
            f"{one} looks tokenised (' .' and ' ,' stand apart) and {other} does not; detokenise {one} or tokenise both"
        ]
    if hypothesis and tokenize != "none":
        return [
            f"both sides look tokenised and {tokenize} tokenises them again; detokenise both or take tokenize none"
        ]
    if not hypothesis and tokenize == "none":
        return [
            "both sides look like plain text, where tokenize none counts 'end.' as one word; tokenise both or take 13a"
        ]
    return []


def looks_tokenised(lines: Sequence[str]) -> bool | None:
    """Whether full stops and commas stand apart; None when too few do or do not."""
    apart, joined = (sum(len(pattern.findall(line.strip())) for line in lines) for pattern in (APART, JOINED))
    if apart + joined < 3 or 0.2 < apart / (apart + joined) < 0.8:
        return None
    return apart > joined


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
                f"{name} is in small letters and {other} is not; restore the case or score both with lowercase"
            ]
    return []


# ---- the wrong line ----


def _bag(line: str) -> frozenset[str]:
    return frozenset(WORD.findall(line.lower()))


def _alike(one: frozenset[str], other: frozenset[str], few: int = FEW) -> float:
    """Dice: the share of words that two lines have in common. Lines of a few words say nothing either way: 0."""
    return 2 * len(one & other) / (len(one) + len(other)) if min(len(one), len(other)) >= few else 0.0


def _same(hypotheses: Sequence[str], document: Sequence[str], name: str) -> list[str]:
    count = sum(h == r and bool(h.strip()) for h, r in zip(hypotheses, document, strict=True))
    if len(hypotheses) >= 10 and count >= 0.95 * len(hypotheses):
        return [
            f"{count} of {len(hypotheses)} lines of the hypothesis equal {name}; was the same file given twice?"
        ]
    return []


def _transposed(hypotheses: Sequence[str], documents: Sequence[Sequence[str]]) -> list[str]:
    """As many references as lines: only the words can tell documents of lines from lines of references."""
    n = len(hypotheses)
    if n < 2 or len(documents) != n:
        return []
    bags, table = [_bag(h) for h in hypotheses], [[_bag(line) for line in document] for document in documents]
    given = sum(max(_alike(bags[i], table[k][i], few=1) for k in range(n)) for i in range(n)) / n
    turned = sum(max(_alike(bags[i], table[i][k], few=1) for k in range(n)) for i in range(n)) / n
    if turned > given + 0.2:
        return [
            f"the references look transposed; give {n} documents of {n} lines each, as zip(*references) does"
        ]
    return []


def _shifted(bags: Sequence[frozenset[str]], others: Sequence[frozenset[str]], name: str) -> list[str]:
    """A stretch of lines that resemble the line before or after their own reference: somewhere a line was lost or added.

    Over each stretch the likeness to the neighbour, less that to the own line, less 0.15 a line, is added up (Kadane); a stretch
    counts from 3 on, which lines that resemble each other by chance do not reach.
    """
    n = len(bags)
    own = [_alike(h, r) for h, r in zip(bags, others, strict=True)]
    best: tuple[float, int, int, int] = (3.0, 0, 0, 0)
    for offset in (1, -1, 2, -2, 3, -3):
        total, start = 0.0, 0
        for i in range(max(0, -offset), min(n, n - offset)):
            if total <= 0:
                total, start = 0.0, i
            total += _alike(bags[i], others[i + offset]) - own[i] - 0.15
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
    """Lines that match their own reference no better than chance, and other lines of it, one to one, very well."""
    places = [i for i in range(len(bags)) if min(len(bags[i]), len(others[i])) >= MANY]
    if len(places) < 20:
        return []
    sample = places[:: -(-len(places) // 200)]
    own = [_alike(bags[i], others[i]) for i in sample]
    jump = len(places) // 2
    turn = {place: places[(k + jump) % len(places)] for k, place in enumerate(places)}
    chance = [_alike(bags[i], others[turn[i]]) for i in sample]
    gains = [a - b for a, b in zip(own, chance, strict=True)]
    mean = sum(gains) / len(gains)
    error = (sum((g - mean) ** 2 for g in gains) / (len(gains) - 1) / len(gains)) ** 0.5
    if mean > 3 * error + 1e-9:
        return []
    matched = set()
    index = _index(others)
    for i, likeness in zip(sample, own, strict=True):
        score, j = _nearest(bags[i], others, index)
        if score >= max(0.5, likeness + 0.2):
            matched.add(j)
    if len(matched) < max(8, 0.3 * len(sample)):
        return []
    count = f"of {len(sample)} lines looked at, {len(matched)} match another line of {name} and not their own"
    return [f"the hypothesis and {name} seem not to be in the same order: {count}"]


def _index(others: Sequence[frozenset[str]]) -> dict[str, list[int]]:
    """Where each word occurs, common words left out: a line is found by its rare ones."""
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
    return max(((_alike(bag, others[j], few=MANY), j) for j in candidates), default=(0.0, -1))
