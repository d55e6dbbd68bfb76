"""Tagging schemes for spans: BIO (IOB2), IOBES and IO; parse, check, repair and convert tags.

A tag is O, or a letter and a type: B-PER begins a person, I-PER continues it, E-PER ends it, S-PER is a
person of one word. BIO has no E and S. IO has only I, so two adjacent spans of the same type become one span;
the other schemes keep them apart.

Every sequence of tags is read as `conlleval` reads it: a span begins at B or S, where the type changes, and
at an I or E that follows no span. `problems` lists where a sequence breaks the rules of its scheme; `repair`
rewrites the spans that were read as valid tags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from regard.errors import DataError, OptionError

OUTSIDE = "O"
LETTERS = "BIES"


class Span(NamedTuple):
    """A span of words start … stop − 1, and its type."""

    start: int
    stop: int
    type: str


class TagProblem(NamedTuple):
    """A tag that breaks the rules."""

    place: int  # index of the word
    what: str


def parse(tag: str) -> tuple[str, str]:
    """The prefix and type of a tag: ("B", "PER"); ("O", "") for O."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if not is_tag(tag):
        raise DataError(f"{tag!r} is not a tag; a tag is O, or B-, I-, E- or S- and a type, as B-PER")
    return tag[0], tag[2:]


def is_tag(text: str) -> bool:
    """True if the text has the form of a tag."""
    return text == OUTSIDE or (len(text) > 2 and text[0] in LETTERS and text[1] == "-")


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of a sentence, of any scheme, well formed or not."""
    result: list[Span] = []
    start, before = 0, (OUTSIDE, "")
    for place, after in enumerate([*map(parse, tags), (OUTSIDE, "")]):
        if _separate(before, after):
            if before[0] != OUTSIDE:
                result.append(Span(start, place, before[1]))
            start = place
        before = after
    return result


def _separate(before: tuple[str, str], after: tuple[str, str]) -> bool:
    """True if two neighbours are in different spans, by conlleval's rules."""
    outside = OUTSIDE in (before[0], after[0])
    return outside or before[1] != after[1] or before[0] in "ES" or after[0] in "BS"


class Scheme(ABC):
    """A tagging scheme."""

    name: str
    letters: str  # prefixes other than O

    @abstractmethod
    def span(self, length: int) -> str:
        """The prefixes of a span of `length` words."""

    @abstractmethod
    def legal(self, before: str | None, after: str | None) -> bool:
        """True if one tag may follow another; None is the start or end of the sentence."""

    def tags(self, spans: Iterable[Span], length: int) -> list[str]:
        """The tags of a sentence of `length` words with these spans."""
        tags = [OUTSIDE] * length
        for span in spans:
            if not 0 <= span.start < span.stop <= length or set(tags[span.start : span.stop]) != {OUTSIDE}:
                raise DataError(
                    f"{span} does not fit into {length} words, or overlaps another; spans lie side by side"
                )
            tags[span.start : span.stop] = [
                f"{letter}-{span.type}" for letter in self.span(span.stop - span.start)
            ]
        return tags

    def convert(self, tags: Sequence[str]) -> list[str]:
        """Convert tags of any scheme, well formed or not, to this one."""
        return self.tags(spans(tags), len(tags))

    repair = convert  # invalid tags are read as conlleval does, then written by the rules

    def problems(self, tags: Sequence[str]) -> list[TagProblem]:
        """All violations of the rules."""
        return list(self._problems(tags))

    def _problems(self, tags: Sequence[str]) -> Iterator[TagProblem]:
        for place, tag in enumerate(tags):
            try:
                letter, _ = parse(tag)
            except DataError as error:
                yield TagProblem(place, str(error))
                return
            if letter != OUTSIDE and letter not in self.letters:
                yield TagProblem(
                    place, f"{tag} does not occur in {self.name}, which has {', '.join(self.letters)} and O"
                )
                continue
            before = tags[place - 1] if place else None
            if not self.legal(before, tag):
                yield TagProblem(
                    place,
                    f"{tag} cannot {f'follow {before}' if before else 'begin a sentence'} in {self.name}",
                )
            if place == len(tags) - 1 and not self.legal(tag, None):
                yield TagProblem(place, f"{tag} cannot end a sentence in {self.name}")

    def __repr__(self) -> str:
        return self.name


class _Bio(Scheme):
    """B begins a span, I continues it."""

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
    """B begins a span, I continues it, E ends it, S is a span of one word."""

    name, letters = "IOBES", "BIES"

    def span(self, length: int) -> str:
        return "S" if length == 1 else "B" + "I" * (length - 2) + "E"

    def legal(self, before: str | None, after: str | None) -> bool:
        inside, continues = before is not None and before[0] in "BI", after is not None and after[0] in "IE"
        return inside == continues and (not continues or before[2:] == after[2:])  # type: ignore[index]


class _Io(Scheme):
    """I is inside a span."""

    name, letters = "IO", "I"

    def span(self, length: int) -> str:
        return "I" * length

    def legal(self, before: str | None, after: str | None) -> bool:
        return True


BIO, IOBES, IO = _Bio(), _Iobes(), _Io()
SCHEMES: dict[str, Scheme] = {"bio": BIO, "iobes": IOBES, "io": IO}


def scheme(name: str) -> Scheme:
    """The scheme of that name."""
    if name.lower() not in SCHEMES:
        raise OptionError(f"the scheme of tags is one of {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name.lower()]


def scheme_of(tags: Iterable[str]) -> Scheme:
    """Guess the scheme from the prefixes of the tags."""
    letters = {parse(tag)[0] for tag in set(tags)}
    return IOBES if letters & {"E", "S"} else BIO if "B" in letters else IO
