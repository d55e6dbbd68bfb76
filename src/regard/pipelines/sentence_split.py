"""Split long lines into sentences, clauses or words by simple rules, and join the translations.

Splitting loses nothing: the pieces, joined, are the text. The rules know punctuation and a few abbreviations.
Where they are wrong a sentence is translated as two, which is better than a sentence that is too long for the
model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Count = Callable[[Sequence[str]], list[int]]  # texts → number of tokens of each

_CLOSING = "\"'”’»›)\\]}"
# A run of marks is matched from its first one only: matching from each takes quadratic time for a line of
# dots.
_END = re.compile(rf"(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?=\s)|[。！？｡]++[」』”’）】]*+|(?<=\S)(?=\s*\n)")
_CLAUSE = re.compile(rf"[,;:—–][{_CLOSING}]*+(?=\s)|[、，；：]")
_LOWER_NEXT = re.compile(r"\s+[\"'“‘„«‹(\[]*([^\W\d_])")
_LAST_WORD = re.compile(r"([^\W_]+)\.$")
_SPACE = re.compile(r"\s+")
# Scripts without spaces between sentences.
_UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]")

# Abbreviations with a dot that rarely end a sentence, in English, German and French; single letters and short
# numbers are treated alike.
_ABBREVIATIONS = re.compile(
    "mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|eg|ie|cf|al|fig|no|nos|vol|pp|"
    "gen|col|lt|sgt|rep|sen|gov|inc|ltd|co|corp|dept|est|approx|"
    "jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec|"
    "bzw|ca|evtl|ggf|hr|fr|nr|str|tel|usw|vgl|zzgl|inkl|abs|art|bd|hrsg|mio|mrd|bspw|sog|geb|gest|"
    "mm|mme|mlle|av|env|ex",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Piece:
    """A piece of a line that is translated by itself.

    Attributes:
        text: the text.
        gap: the spaces that follow.
        ends: whether a sentence ends here.
        capitals: whether it is a piece of a line in capitals, which was lowered (capitals.py).
    """

    text: str
    gap: str
    ends: bool
    capitals: bool = False


def sentences(text: str) -> list[str]:
    """Split a text into sentences, each with the spaces that follow it."""
    return _split_after(text, _END, lambda end: _ends_sentence(text, end))


def pieces(text: str, count: Count, limit: int) -> list[Piece]:
    """Split a line into sentences; split those over `limit` tokens at clauses, then words and characters."""
    result = [Piece("", text[: len(text) - len(text.lstrip())], False)]
    for sentence in sentences(text.lstrip()):
        parts = _split(sentence, count, limit, (_clauses, _words, _halves))
        result += [_piece(part, i == len(parts) - 1) for i, part in enumerate(parts)]
    return [piece for piece in result if piece.text or piece.gap]


def join(parts: Sequence[Piece], translations: Sequence[str]) -> str:
    """Join the translations of the pieces of a line, with the spaces of the source between them.

    A space is added between sentences if the source script has no spaces (Chinese) and the target's has.
    """
    text = ""
    for i, translation in enumerate(translations):
        text += (gap(parts[i - 1], text, translation) if i else "") + translation
    return text


def gap(part: Piece, text: str, following: str) -> str:
    """Return the space between the text up to the end of a piece and the translation that follows."""
    spaced = not (_UNSPACED.match(text[-1:]) or _UNSPACED.match(following[:1]))
    return part.gap or (" " if part.ends and spaced and text and following else "")


def _piece(part: str, ends: bool) -> Piece:
    text = part.rstrip()
    return Piece(text, part[len(text) :], ends)


def _split(text: str, count: Count, limit: int, splits: tuple[Callable[[str], list[str]], ...]) -> list[str]:
    """Split with the first function that helps; neighbours that fit into one piece stay together."""
    if not splits or count([text.rstrip()])[0] <= limit:
        return [text]
    parts = splits[0](text)
    if len(parts) == 1:
        return _split(text, count, limit, splits[1:])
    groups, room = [""], limit
    for part, tokens in zip(parts, count([part.rstrip() for part in parts]), strict=True):
        if groups[-1] and tokens > room:
            groups.append("")
            room = limit
        groups[-1] += part
        room -= tokens
    if len(groups) == 1:  # the sum of the parts' tokens is within the limit, but the whole text is not
        half = len(parts) // 2
        groups = ["".join(parts[:half]), "".join(parts[half:])]
        return [piece for group in groups for piece in _split(group, count, limit, splits)]
    further = splits if splits[0] is _halves else splits[1:]
    return [piece for group in groups for piece in _split(group, count, limit, further)]


def _clauses(text: str) -> list[str]:
    return _split_after(text, _CLAUSE, lambda end: True)


def _words(text: str) -> list[str]:
    return _split_after(text, _SPACE, lambda end: True)


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]] if middle else [text]


def _split_after(text: str, mark: re.Pattern[str], is_end: Callable[[int], bool]) -> list[str]:
    """Split a text after marks and the spaces that follow them."""
    parts, start = [], 0
    for match in mark.finditer(text):
        if is_end(match.end()):
            spaces = _SPACE.match(text, match.end())
            stop = spaces.end() if spaces else match.end()
            parts.append(text[start:stop])
            start = stop
    return parts + ([text[start:]] if start < len(text) else [])


def _ends_sentence(text: str, end: int) -> bool:
    """False after an abbreviation, or if a lowercase letter follows on the same line."""
    gap = _SPACE.match(text, end)
    if gap and "\n" in gap.group():
        return True
    following = _LOWER_NEXT.match(text, end)
    if following and following.group(1).islower():
        return False
    word = _LAST_WORD.search(text[max(0, end - 20) : end])
    if word is None:
        return True
    last = word.group(1)
    return not (
        _ABBREVIATIONS.fullmatch(last)
        or (len(last) == 1 and last != "I")
        or (last.isdigit() and len(last) <= 2)
    )
