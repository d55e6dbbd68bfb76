"""Spans as tags: BIO (IOB2), IOBES and IO; read, checked, repaired and turned into each other.

A tag is O, or a letter and a type: B-PER begins a person, I-PER goes on with it, E-PER ends it, S-PER is one of a single word. BIO
has no E and S; IO has I alone, so that two spans of one type side by side become one in it, and in no other scheme.

Every sequence of tags is read as `conlleval` reads it: a span begins where its letter says so, where the type changes, and where
an I or E follows nothing. `problems` says where a sequence breaks the rules of its scheme, `repair` writes what was read anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from regard.errors import DataError, OptionError

OUTSIDE = "O"
LETTERS = "BIES"


class Span(NamedTuple):
    """Words start … stop − 1 of a sentence, and what they are."""

    start: int
    stop: int
    type: str


class Problem(NamedTuple):
    """What is wrong with the tag of a word."""

    place: int  # of the word, from 0
    what: str


def parse(tag: str) -> tuple[str, str]:
    """Letter and type of a tag: ("B", "PER"); ("O", "") of O."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if not is_tag(tag):
        raise DataError(f"{tag!r} is not a tag; a tag is O, or B-, I-, E- or S- and a type, as B-PER")
    return tag[0], tag[2:]


def is_tag(text: str) -> bool:
    """Whether this is spelled as a tag."""
    return text == OUTSIDE or (len(text) > 2 and text[0] in LETTERS and text[1] == "-")


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of a sentence, of any scheme, well formed or not."""
    found: list[Span] = []
    start, before = 0, (OUTSIDE, "")
    for place, after in enumerate([*map(parse, tags), (OUTSIDE, "")]):
        if _apart(before, after):
            if before[0] != OUTSIDE:
                found.append(Span(start, place, before[1]))
            start = place
        before = after
    return found


def _apart(before: tuple[str, str], after: tuple[str, str]) -> bool:
    """Whether two neighbours do not lie in one span: by conlleval's rules."""
    outside = OUTSIDE in (before[0], after[0])
    return outside or before[1] != after[1] or before[0] in "ES" or after[0] in "BS"


class Scheme(ABC):
    """How spans are written as tags."""

    name: str
    letters: str  # that it uses beside O

    @abstractmethod
    def span(self, length: int) -> str:
        """The letters of a span of so many words."""

    @abstractmethod
    def legal(self, before: str | None, after: str | None) -> bool:
        """Whether one tag may follow another; None stands for the ends of a sentence."""

    def tags(self, found: Iterable[Span], length: int) -> list[str]:
        """The tags of a sentence of so many words with these spans."""
        tags = [OUTSIDE] * length
        for span in found:
            if not 0 <= span.start < span.stop <= length or set(tags[span.start : span.stop]) != {OUTSIDE}:
                raise DataError(
                    f"{span} does not fit into {length} words, or overlaps another; spans lie side by side"
                )
            tags[span.start : span.stop] = [
                f"{letter}-{span.type}" for letter in self.span(span.stop - span.start)
            ]
        return tags

    def convert(self, tags: Sequence[str]) -> list[str]:
        """The tags of any scheme, well formed or not, in this one."""
        return self.tags(spans(tags), len(tags))

    repair = convert  # reading what cannot be right as conlleval does, and writing it by the rules

    def problems(self, tags: Sequence[str]) -> list[Problem]:
        """Where a sequence breaks the rules, and how."""
        return list(self._problems(tags))

    def _problems(self, tags: Sequence[str]) -> Iterator[Problem]:
        for place, tag in enumerate(tags):
            try:
                letter, _ = parse(tag)
            except DataError as error:
                yield Problem(place, str(error))
                return
            if letter != OUTSIDE and letter not in self.letters:
                yield Problem(
                    place, f"{tag} does not occur in {self.name}, which has {', '.join(self.letters)} and O"
                )
                continue
            before = tags[place - 1] if place else None
            if not self.legal(before, tag):
                yield Problem(
                    place,
                    f"{tag} cannot {f'follow {before}' if before else 'begin a sentence'} in {self.name}",
                )
            if place == len(tags) - 1 and not self.legal(tag, None):
                yield Problem(place, f"{tag} cannot end a sentence in {self.name}")

    def __repr__(self) -> str:
        return self.name


class _Bio(Scheme):
    """B begins, I goes on."""

    name, letters = "BIO", "BI"

    def span(self, length: int) -> str:
        return "B" + "I" * (length - 1)

    def legal(self, before: str | None, after: str | None) -> bool:
        return (
            after is None
            or after[0] != "I"
            or (before is not None and before[0] != OUTSIDE and before[2:] == after[2:])
        )


class _Iobes(Scheme):
    """B begins, I goes on, E ends, S is alone."""

    name, letters = "IOBES", "BIES"

    def span(self, length: int) -> str:
        return "S" if length == 1 else "B" + "I" * (length - 2) + "E"

    def legal(self, before: str | None, after: str | None) -> bool:
        inside, goes_on = before is not None and before[0] in "BI", after is not None and after[0] in "IE"
        return inside == goes_on and (not goes_on or before[2:] == after[2:])  # type: ignore[index]


class _Io(Scheme):
    """I is inside."""

    name, letters = "IO", "I"

    def span(self, length: int) -> str:
        return "I" * length

    def legal(self, before: str | None, after: str | None) -> bool:
        return True


BIO, IOBES, IO = _Bio(), _Iobes(), _Io()
SCHEMES: dict[str, Scheme] = {"bio": BIO, "iobes": IOBES, "io": IO}


def scheme(name: str) -> Scheme:
    """A scheme by name."""
    if name.lower() not in SCHEMES:
        raise OptionError(f"the scheme of tags is one of {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name.lower()]


def scheme_of(tags: Iterable[str]) -> Scheme:
    """The scheme that these tags are from, by the letters that occur among them."""
    letters = {parse(tag)[0] for tag in set(tags)}
    return IOBES if letters & {"E", "S"} else BIO if "B" in letters else IO
