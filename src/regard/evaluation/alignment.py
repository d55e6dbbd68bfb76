"""Word alignments against gold: alignment error rate, precision and recall (Och and Ney 2003, section 5).

Annotators mark sure links S and possible links P ⊇ S. For predicted links A,

    precision = |A∩P| / |A|     recall = |A∩S| / |S|     AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|)

over all sentences. If every link is sure, AER is 1 − F₁.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.data.text_files import lines
from regard.errors import DataError, OptionError
from regard.pipelines.word_links import Link, Links, flipped


@dataclass(frozen=True)
class Gold:
    """Gold links of a sentence pair, (source word, target word) from 0; `possible` includes `sure`."""

    sure: Links
    possible: Links


@dataclass(frozen=True)
class AlignmentScore:
    """Alignment error rate (lower is better), precision and recall in [0, 1], and the counts."""

    aer: float
    precision: float
    recall: float
    predicted: int
    sure: int
    possible: int
    sentences: int

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"AER {self.aer:.4f}, precision {self.precision:.4f}, recall "
            f"{self.recall:.4f}\n{self.sentences:,} sentences: {self.predicted:,} links predicted; gold has "
            f"{self.sure:,} sure and {self.possible - self.sure:,} further possible links"
        )


def score(predicted: Sequence[Collection[Link]], gold: Sequence[Gold]) -> AlignmentScore:
    """Score predicted links; counts are summed over all sentences before dividing."""
    if len(predicted) != len(gold):
        raise DataError(
            f"got links for {len(predicted)} sentences and gold for {len(gold)}; give one line per sentence"
        )
    pairs = [(frozenset(links), g) for links, g in zip(predicted, gold, strict=True)]
    total = sum(len(links) for links, _ in pairs)
    sure, possible = sum(len(g.sure) for g in gold), sum(len(g.possible) for g in gold)
    correct_sure = sum(len(links & g.sure) for links, g in pairs)
    correct = sum(len(links & g.possible) for links, g in pairs)
    return AlignmentScore(
        aer=1 - (correct_sure + correct) / (total + sure) if total + sure else 0.0,
        precision=correct / total if total else 0.0,
        recall=correct_sure / sure if sure else 0.0,
        predicted=total, sure=sure, possible=possible, sentences=len(gold),
    )  # fmt: skip


_LINK = re.compile(r"(\d+)([-p?])(\d+)")  # of Pharaoh and TALP
_ROW = re.compile(r"(\d+)\s+(\d+)\s+(\d+)(?:\s+([SP])(?:\s+\S+)?)?")


def read_gold(path: str | Path, *, base: int | None = None, flip: bool = False) -> list[Gold]:
    """Read gold links from a plain or compressed file. The format is detected:

    - Pharaoh, `0-0 1?2`: one line per sentence, "-" sure, "?" possible, words counted from 0;
    - TALP, `1-1 2p3`: the same with "p" for possible, counted from 1 (used if the file contains a "p");
    - NAACL 2003, `0001 1 1 S`: one line per link with sentence, source word, target word and S or P (default
      S), counted from 1.

    `base` overrides the number of the first word; `flip` swaps source and target.
    """
    if base not in (None, 0, 1):
        raise OptionError(f"base must be 0 or 1, the number of the first word, got {base!r}")
    rows = [line.strip() for block in lines(Path(path)) for line in block]
    return parse_gold(rows, str(path), base=base, flip=flip)


def parse_gold(rows: list[str], name: str, *, base: int | None = None, flip: bool = False) -> list[Gold]:
    """Parse gold links in the formats of `read_gold`; `name` is what errors call them."""
    filled = [row for row in rows if row]
    if filled and all(_ROW.fullmatch(row) for row in filled):
        sentences, start = _parse_links(name, filled), 1
    else:
        sentences, start = _parse_sentences(name, rows), int(any("p" in row for row in rows))
    start = start if base is None else base
    if any(min(link) < start for sentence in sentences for link, _ in sentence):
        raise DataError(f"{name} has a word number 0 although words are counted from 1; set base to 0")
    return [_gold(sentence, start, flip) for sentence in sentences]


_Sentence = list[tuple[Link, bool]]  # (link as in the file, whether it is sure)


def _parse_sentences(name: str, rows: list[str]) -> list[_Sentence]:
    sentences: list[_Sentence] = []
    for number, row in enumerate(rows, 1):
        links: _Sentence = []
        for text in row.split():
            match = _LINK.fullmatch(text)
            if match is None:
                raise DataError(
                    f"line {number} of {name} has {text[:40]!r} instead of a link such as 0-0 or 1?2"
                )
            links.append(((int(match[1]), int(match[3])), match[2] == "-"))
        sentences.append(links)
    return sentences


def _parse_links(name: str, rows: list[str]) -> list[_Sentence]:
    sentences: list[_Sentence] = []
    for row in rows:
        match = _ROW.fullmatch(row)
        assert match is not None  # checked by the caller
        sentence = int(match[1])
        if not 1 <= sentence <= len(sentences) + 100_000:
            raise DataError(
                f"{name} has a link of sentence {sentence}; sentences are counted from 1, so correct the file"
            )
        sentences.extend([] for _ in range(sentence - len(sentences)))
        sentences[sentence - 1].append(((int(match[2]), int(match[3])), match[4] != "P"))
    return sentences


def _gold(sentence: _Sentence, base: int, flip: bool) -> Gold:
    links = [((s - base, t - base), sure) for (s, t), sure in sentence]
    to_links = flipped if flip else frozenset
    return Gold(to_links(link for link, sure in links if sure), to_links(link for link, _ in links))


def validate_gold(gold: list[Gold], sizes: Sequence[tuple[int, int]]) -> list[Gold]:
    """Check gold links against sentence lengths, (source words, target words) each.

    Formats with one line per link omit sentences without links; missing ones at the end are added.
    """
    if len(gold) > len(sizes):
        raise DataError(
            f"the gold has {len(gold)} sentences and the text {len(sizes)}; give the text that was annotated"
        )
    for number, (g, size) in enumerate(zip(gold, sizes, strict=False), 1):
        for link in sorted(g.possible):
            if link[0] >= size[0] or link[1] >= size[1]:
                raise DataError(
                    f"gold link {link[0]}-{link[1]} of sentence {number}, counted from 0, lies outside its "
                    f"{size[0]} source and {size[1]} target words; try flip, or another base"
                )
    return gold + [Gold(frozenset(), frozenset())] * (len(sizes) - len(gold))
