"""Lines longer than a model was trained for: cut into sentences by simple rules, and put together again.

A cut loses nothing: the parts, one after the other, are the text. Rules know marks and a few abbreviations, no language; where
they are wrong a sentence is translated as two, which beats one that the model cannot hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Count = Callable[[Sequence[str]], list[int]]  # texts → how many tokens each has

_CLOSING = "\"'”’»›)\\]}"
# A run of marks is looked at from its first one only: looking from each would take quadratic time in a line of dots.
_END = re.compile(rf"(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?=\s)|[。！？｡]++[」』”’）】]*+|(?<=\S)(?=\s*\n)")
_CLAUSE = re.compile(rf"[,;:—–][{_CLOSING}]*+(?=\s)|[、，；：]")
_LOWER_NEXT = re.compile(r"\s+[\"'“‘„«‹(\[]*([^\W\d_])")
_LAST_WORD = re.compile(r"([^\W_]+)\.$")
_SPACE = re.compile(r"\s+")
_WIDE = re.compile(
    r"[\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]"
)  # scripts that put no space between sentences

# What ends in a dot and rarely ends a sentence, in English, German and French; single letters and short numbers come on top.
_ABBREVIATIONS = re.compile(
    "mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|eg|ie|cf|al|fig|no|nos|vol|pp|gen|col|lt|sgt|rep|sen|gov|inc|ltd|co|corp|dept|est|approx|"
    "jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec|"
    "bzw|ca|evtl|ggf|hr|fr|nr|str|tel|usw|vgl|zzgl|inkl|abs|art|bd|hrsg|mio|mrd|bspw|sog|geb|gest|"
    "mm|mme|mlle|av|env|ex",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Piece:
    """A part of a line to be translated on its own: the text, the spaces that follow, and whether a sentence ends here."""

    text: str
    gap: str
    ends: bool


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with the spaces that follow it; joined they are the text."""
    return _cut_after(text, _END, lambda end: _ends_sentence(text, end))


def pieces(text: str, count: Count, most: int) -> list[Piece]:
    """A line as parts of at most `most` tokens: sentences; where one is too long its clauses, then its words, then letters."""
    found = [Piece("", text[: len(text) - len(text.lstrip())], False)]
    for sentence in sentences(text.lstrip()):
        parts = _fitting(sentence, count, most, (_clauses, _words, _halves))
        found += [_piece(part, i == len(parts) - 1) for i, part in enumerate(parts)]
    return [piece for piece in found if piece.text or piece.gap]


def join(parts: Sequence[Piece], translations: Sequence[str]) -> str:
    """One line from the translations of its parts, with the spaces of the source between them.

    Where the source's script puts no space between sentences and the target's does, one space is put in.
    """
    text = ""
    for i, translation in enumerate(translations):
        text += (gap(parts[i - 1], text, translation) if i else "") + translation
    return text


def gap(part: Piece, text: str, following: str) -> str:
    """What stands between the text up to the end of a part and the translation that follows."""
    narrow = not (_WIDE.match(text[-1:]) or _WIDE.match(following[:1]))
    return part.gap or (" " if part.ends and narrow and text and following else "")


def _piece(part: str, ends: bool) -> Piece:
    text = part.rstrip()
    return Piece(text, part[len(text) :], ends)


def _fitting(text: str, count: Count, most: int, ways: tuple[Callable[[str], list[str]], ...]) -> list[str]:
    """Cut by the first way that helps; neighbours that fit together stay together."""
    if not ways or count([text.rstrip()])[0] <= most:
        return [text]
    parts = ways[0](text)
    if len(parts) == 1:
        return _fitting(text, count, most, ways[1:])
    groups, room = [""], most
    for part, tokens in zip(parts, count([part.rstrip() for part in parts]), strict=True):
        if groups[-1] and tokens > room:
            groups.append("")
            room = most
        groups[-1] += part
        room -= tokens
    if len(groups) == 1:  # one by one they are few tokens, together they are not
        half = len(parts) // 2
        groups = ["".join(parts[:half]), "".join(parts[half:])]
        return [small for group in groups for small in _fitting(group, count, most, ways)]
    further = ways if ways[0] is _halves else ways[1:]
    return [small for group in groups for small in _fitting(group, count, most, further)]


def _clauses(text: str) -> list[str]:
    return _cut_after(text, _CLAUSE, lambda end: True)


def _words(text: str) -> list[str]:
    return _cut_after(text, _SPACE, lambda end: True)


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]] if middle else [text]


def _cut_after(text: str, mark: re.Pattern[str], wanted: Callable[[int], bool]) -> list[str]:
    """Parts of a text that end after a mark and the spaces behind it."""
    found, start = [], 0
    for match in mark.finditer(text):
        if wanted(match.end()):
            gap = _SPACE.match(text, match.end())
            stop = gap.end() if gap else match.end()
            found.append(text[start:stop])
            start = stop
    return found + ([text[start:]] if start < len(text) else [])


def _ends_sentence(text: str, end: int) -> bool:
    """Whether the marks before `end` close a sentence: not after an abbreviation, nor before a small letter in the same line."""
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
