"""Word alignments against gold: alignment error rate, precision and recall (Och and Ney 2003, section 5).

Annotators mark sure links S and possible ones P ⊇ S. Of the links A that were found

    precision = |A∩P| / |A|     recall = |A∩S| / |S|     AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|)

over all sentences together. Where every link is sure, AER is 1 − F₁.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.data.text_files import lines
from regard.errors import DataError, OptionError
from regard.pipelines.align import Link, Links, flipped


@dataclass(frozen=True)
class Gold:
    """The links of one sentence pair, (source word, target word) from 0; the possible ones include the sure."""

    sure: Links
    possible: Links


@dataclass(frozen=True)
class AlignmentScore:
    """Error rate (lower is better), precision and recall, each in [0, 1], and what was counted."""

    aer: float
    precision: float
    recall: float
    found: int
    sure: int
    possible: int
    sentences: int

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"AER {self.aer:.4f}, precision {self.precision:.4f}, recall {self.recall:.4f}\n"
            f"{self.sentences:,} sentences: {self.found:,} links found; gold has {self.sure:,} sure and "
            f"{self.possible - self.sure:,} more possible ones"
        )


def score(found: Sequence[Collection[Link]], gold: Sequence[Gold]) -> AlignmentScore:
    """Score the links of each sentence pair; counts are added up over sentences before anything is divided."""
    if len(found) != len(gold):
        raise DataError(
            f"there are links for {len(found)} sentences and gold for {len(gold)}; give one line for each sentence"
        )
    pairs = [(frozenset(links), g) for links, g in zip(found, gold, strict=True)]
    many = sum(len(links) for links, _ in pairs)
    sure, possible = (
        sum(len(side) for side in sides) for sides in ([g.sure for g in gold], [g.possible for g in gold])
    )
    right_sure = sum(len(links & g.sure) for links, g in pairs)
    right = sum(len(links & g.possible) for links, g in pairs)
    return AlignmentScore(
        aer=1 - (right_sure + right) / (many + sure) if many + sure else 0.0,
        precision=right / many if many else 0.0,
        recall=right_sure / sure if sure else 0.0,
        found=many, sure=sure, possible=possible, sentences=len(gold),
    )  # fmt: skip


_LINK = re.compile(r"(\d+)([-p?])(\d+)")
_ROW = re.compile(r"(\d+)\s+(\d+)\s+(\d+)(?:\s+([SP])(?:\s+\S+)?)?")


def read_gold(path: str | Path, *, base: int | None = None, flip: bool = False) -> list[Gold]:
    """The gold links of a file, plain or packed, by what its lines look like:

    - `0-0 1?2`, one line a sentence: "-" sure, "?" possible, words counted from 0 (Pharaoh);
    - `1-1 2p3`, likewise with "p" for possible, from 1 (talp: one "p" in the file decides);
    - `0001 1 1 S`, one line a link: sentence, source word, target word, S or P (sure if left out), from 1 (NAACL 2003).

    `base` says otherwise from where words are counted; `flip` swaps source and target.
    """
    if base not in (None, 0, 1):
        raise OptionError(f"words of gold links are counted from 0 or from 1, got {base!r}")
    path = Path(path)
    rows = [line.strip() for block in lines(path) for line in block]
    filled = [row for row in rows if row]
    if filled and all(_ROW.fullmatch(row) for row in filled):
        found, start = _by_links(path, filled), 1
    else:
        found, start = _by_sentences(path, rows), int(any("p" in row for row in rows))
    start = start if base is None else base
    if any(min(link) < start for sentence in found for link, _ in sentence):
        raise DataError(f"{path} has a word 0 where words are counted from 1; say so with base 0")
    return [_gold(sentence, start, flip) for sentence in found]


_Sentence = list[tuple[Link, bool]]  # links as they stand in the file, and whether each is sure


def _by_sentences(path: Path, rows: list[str]) -> list[_Sentence]:
    found: list[_Sentence] = []
    for number, row in enumerate(rows, 1):
        links = [(_LINK.fullmatch(part), part) for part in row.split()]
        for match, part in links:
            if match is None:
                raise DataError(
                    f"line {number} of {path} has {part[:40]!r} where a link such as 0-0 or 1?2 belongs"
                )
        found.append([((int(m[1]), int(m[3])), m[2] == "-") for m, _ in links if m is not None])
    return found


def _by_links(path: Path, rows: list[str]) -> list[_Sentence]:
    found: list[_Sentence] = []
    for row in rows:
        match = _ROW.fullmatch(row)
        assert match is not None  # the caller has looked
        sentence = int(match[1])
        if not 1 <= sentence <= len(found) + 100_000:
            raise DataError(
                f"{path} has a link of sentence {sentence}; sentences are counted from 1, so check the file"
            )
        found.extend([] for _ in range(sentence - len(found)))
        found[sentence - 1].append(((int(match[2]), int(match[3])), match[4] != "P"))
    return found


def _gold(sentence: _Sentence, base: int, flip: bool) -> Gold:
    links = [((s - base, t - base), sure) for (s, t), sure in sentence]
    turned = flipped if flip else frozenset
    return Gold(turned(link for link, sure in links if sure), turned(link for link, _ in links))


def validate_gold(gold: list[Gold], sizes: Sequence[tuple[int, int]]) -> list[Gold]:
    """The gold of exactly these sentences, (source words, target words) each; links outside a sentence mean a wrong file.

    A file with one line a link cannot mention sentences without any: those at the end are added.
    """
    if len(gold) > len(sizes):
        raise DataError(
            f"the gold has {len(gold)} sentences and the text {len(sizes)}; give the text it was made for"
        )
    for number, (g, size) in enumerate(zip(gold, sizes, strict=False), 1):
        for link in sorted(g.possible):
            if link[0] >= size[0] or link[1] >= size[1]:
                raise DataError(
                    f"gold link {link[0]}-{link[1]} of sentence {number}, counted from 0, lies outside its {size[0]} source and "
                    f"{size[1]} target words; the gold may be the other way round (flip), or count from another base"
                )
    return gold + [Gold(frozenset(), frozenset())] * (len(sizes) - len(gold))
