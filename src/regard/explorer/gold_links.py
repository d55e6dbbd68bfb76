"""Gold links between the words of a text and its translation, and how well attention finds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.text_files import lines
from regard.decoding.attention_weights import kind_of
from regard.errors import DataError, OptionError
from regard.evaluation.alignment import parse_gold, score, validate_gold
from regard.explorer.run import Run, merge_tokens
from regard.pipelines.word_links import strongest

MAX_PAIRS = 500  # of a gold file, which the page gets at once


@dataclass(frozen=True)
class GoldPair:
    """A text, its translation and their links, as the page gets them."""

    source: str
    target: str
    links: str


def read_gold_pairs(path: Path) -> list[GoldPair]:
    """Read a file with lines `source TAB translation TAB links`, such as `ein Hund	a dog	0-0 1-1`."""
    pairs: list[GoldPair] = []
    for number, row in enumerate((line for block in lines(path) for line in block), 1):
        if not row.strip():
            continue
        fields = [field.strip() for field in row.split("\t")]
        if len(fields) != 3:
            raise DataError(
                f"line {number} of {path} has {len(fields)} fields; give source, translation and links, "
                "separated by tabs"
            )
        pair = GoldPair(*fields)
        gold = parse_gold([pair.links], f"line {number} of {path}")
        validate_gold(gold, [(len(pair.source.split()), len(pair.target.split()))])
        pairs.append(pair)
    if not pairs:
        raise DataError(f"{path} has no sentence; give lines with source, translation and links")
    return pairs[:MAX_PAIRS]


def score_links(run: Run, index: int, head: int | None, links: str) -> dict[str, Any]:
    """Score the strongest link of each target word of a head, or of the mean of all, against gold links."""
    weights = run.weights(index, head)
    if kind_of(run.names[index]) != "cross":
        raise OptionError("gold links are between source and target; choose a cross-attention")
    targets, sources = (
        [word["tokens"] for word in run.sides[side].words if not word["special"]]
        for side in ("target", "source")
    )
    between = merge_tokens(weights, targets, sources)  # (target words, source words)
    (gold,) = parse_gold([links.strip()], "the gold")
    validate_gold([gold], [(between.shape[1], between.shape[0])])
    predicted = strongest(between)
    return {
        "sure": sorted(gold.sure),
        "possible": sorted(gold.possible),
        "predicted": sorted(predicted),
    } | {
        name: value
        for name, value in score([predicted], [gold]).as_dict().items()
        if isinstance(value, float)
    }
