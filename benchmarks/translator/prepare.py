"""Build the data of the bundled translator from Tatoeba and Europarl: clean splits, four directions.

    python -m benchmarks.translator.prepare OUT               from the four corpora in REGARD_DATA
    python -m benchmarks.translator.prepare OUT --directions  only write train.tsv from OUT's pairs again

A test or validation row is the only one of its English sentence and of its other side. Training rows that
share a side with any test or validation row, also of another corpus, are left out: sides are compared without
case, punctuation and accents. So no sentence of a test set, in any language, is in the training data.

Written to OUT:
    pairs.LANGUAGES.CORPUS.tsv.xz     training pairs, English first
    train.tsv                         all directions: `>>de<< English text` TAB German text; Tatoeba repeated
    validation.tsv                    some rows of each direction, for validation while training
    CORPUS.DIRECTION.SPLIT.tsv        one file per direction: source with its language token, target
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.peers import command
from regard.data import corpora
from regard.files.progress import track

PAIRS = {"de": ("tatoeba-en-de", "europarl-en-de"), "fr": ("tatoeba-en-fr", "europarl-en-fr")}
MAX_WORDS, MAX_RATIO = 50, 2.5  # of Europarl pairs
_SEPARATORS, _ACCENTS = re.compile(r"[\W_]+"), re.compile("[\u0300-\u036f]")

Pair = tuple[str, str]


def comparable(text: str) -> str:
    """The text without case, punctuation and accents: sentences that differ only so count as the same."""
    text = text.casefold()
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return _SEPARATORS.sub(" ", text).strip()


def order(pair: Pair) -> bytes:
    """A hash by which pairs are drawn at random, the same on every machine."""
    return hashlib.sha256("\t".join(pair).encode()).digest()


def held_out(rows: Iterable[Pair]) -> list[Pair]:
    """One pair of each English sentence and of each other sentence, drawn at random."""
    kept, seen = [], (set(), set())
    for pair in sorted(rows, key=order):
        sides = [comparable(text) for text in pair]
        if all(sides) and sides[0] not in seen[0] and sides[1] not in seen[1]:
            kept.append(pair)
            for seen_texts, side in zip(seen, sides, strict=True):
                seen_texts.add(side)
    return kept


def read(corpus: str, split: str, language: str) -> Iterator[Pair]:
    yield from corpora.find(corpus).rows(split, "en", language)  # type: ignore[misc]


def is_plausible(pair: Pair) -> bool:
    """Whether a Europarl pair has a usual length and two sides of similar length."""
    lengths = [len(text.split()) for text in pair]
    return min(lengths) >= 1 and max(lengths) <= MAX_WORDS and max(lengths) <= MAX_RATIO * min(lengths) + 3


def other_test_sets() -> Iterator[tuple[str, Pair]]:
    """Rows of test sets that are only used for scores."""
    for corpus in ("wmt-newstest", "multi30k"):
        test_corpus = corpora.find(corpus)
        for split in test_corpus.splits:
            if corpus == "multi30k" and not split.startswith("test"):
                continue
            for language in PAIRS:
                if test_corpus.has(split, "en", language):
                    for row in test_corpus.rows(split, "en", language):
                        yield language, (row[0], row[1])


def prepare(out: Path, europarl: int) -> None:
    """Write the pairs and the held-out files."""
    out.mkdir(parents=True, exist_ok=True)
    splits: dict[tuple[str, str], list[Pair]] = {}
    excluded: dict[str, set[str]] = {"en": set(), "de": set(), "fr": set()}
    for language, (tatoeba, parliament) in PAIRS.items():
        for split in ("validation", "test"):
            splits[f"tatoeba.{language}", split] = held_out(read(tatoeba, split, language))
            splits[f"europarl.{language}", split] = list(read(parliament, split, language))
    held_out_pairs = [(name.split(".")[1], pair) for (name, _), pairs in splits.items() for pair in pairs]
    for language, pair in (*held_out_pairs, *other_test_sets()):
        excluded["en"].add(comparable(pair[0]))
        excluded[language].add(comparable(pair[1]))
    for language, (tatoeba, parliament) in PAIRS.items():
        for corpus, limit in ((tatoeba, None), (parliament, europarl)):
            pairs = [pair for pair in read(corpus, "train", language) if limit is None or is_plausible(pair)]
            kept: list[Pair] = []
            with track(limit or len(pairs), f"choosing pairs of {corpus}", "pairs") as progress:
                for pair in pairs if limit is None else sorted(pairs, key=order):
                    if comparable(pair[0]) in excluded["en"] or comparable(pair[1]) in excluded[language]:
                        continue
                    kept.append(pair)
                    progress.advance(1)
                    if len(kept) == limit:
                        break
            path = out / f"pairs.en-{language}.{corpus.split('-')[0]}.tsv.xz"
            with lzma.open(path, "wt", preset=1, encoding="utf-8", newline="\n") as file:
                file.writelines(f"{english}\t{other}\n" for english, other in kept)
            print(f"{path.name}: {len(kept):,} pairs")
    validation: list[str] = []
    for (name, split), pairs in splits.items():
        corpus, language = name.split(".")
        for source, target in (("en", language), (language, "en")):
            rows = [_row(pair, target) for pair in pairs]
            path = out / f"{corpus}.{source}-{target}.{split}.tsv"
            path.write_text("".join(rows), encoding="utf-8", newline="\n")
            if split == "validation":
                validation += rows[: 250 if corpus == "tatoeba" else 50]
            print(f"{path.name}: {len(rows):,} rows")
    (out / "validation.tsv").write_text("".join(validation), encoding="utf-8", newline="\n")


def _row(pair: Pair, target: str) -> str:
    english, other = pair
    return f">>en<< {other}\t{english}\n" if target == "en" else f">>{target}<< {english}\t{other}\n"


def write_directions(out: Path, repeat: int) -> None:
    """Write train.tsv: every pair in both directions, Tatoeba's `repeat` times."""
    count = 0
    with (out / "train.tsv").open("w", encoding="utf-8", newline="\n") as file:
        for path in sorted(out.glob("pairs.*.tsv.xz")):
            _, languages, corpus, *_ = path.name.split(".")
            with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
                pairs = [tuple(line.rstrip("\n").split("\t")) for line in lines]
            rows = [_row(pair, target) for pair in pairs for target in (languages[3:], "en")]  # type: ignore[arg-type]
            for _ in range(repeat if corpus == "tatoeba" else 1):
                file.writelines(rows)
                count += len(rows)
    print(f"train.tsv: {count:,} rows")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--europarl", type=int, default=300_000, help="pairs of each Europarl corpus")
    parser.add_argument("--repeat", type=int, default=3, help="how often train.tsv repeats Tatoeba's pairs")
    parser.add_argument("--directions", action="store_true", help="only write train.tsv, from OUT's pairs")
    options = parser.parse_args(argv)
    if not options.directions:
        prepare(options.out, options.europarl)
    write_directions(options.out, options.repeat)
    return 0


if __name__ == "__main__":
    command.run(main)
