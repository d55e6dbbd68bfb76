"""Build the data of the bundled translator from Tatoeba and Europarl: clean splits, four directions.

    python -m benchmarks.translator.prepare OUT                       from the four corpora in REGARD_DATA
    python -m benchmarks.translator.prepare OUT --directions FOLDER   files per direction, from OUT's pairs

A test or validation row is the only one of its English sentence and of its other side. Training rows that
share a side with any test or validation row, also of another corpus, are left out: sides are compared without
case, punctuation and accents. So no sentence of a test set, in any language, is in the training data.

Written to OUT:
    CORPUS.en-LANGUAGE.SPLIT.tsv.xz   pairs, English first
Written to FOLDER:
    CORPUS.DIRECTION.SPLIT.tsv        one file per direction: `>>de<< English text` TAB German text
    validation.tsv                    some rows of each direction, for validation while training
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from benchmarks.peers import command
from regard.data import corpora
from regard.files.progress import track

OTHER_TESTS = {"newstest2013": ("wmt-newstest", "newstest2013"), "multi30k": ("multi30k", "test_2016_flickr")}
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
    drawn, seen = [], (set(), set())
    for pair in sorted(rows, key=order):
        sides = [comparable(text) for text in pair]
        if all(sides) and sides[0] not in seen[0] and sides[1] not in seen[1]:
            drawn.append(pair)
            for seen_texts, side in zip(seen, sides, strict=True):
                seen_texts.add(side)
    return drawn


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
    """Write the pairs of all splits."""
    out.mkdir(parents=True, exist_ok=True)
    excluded: dict[str, set[str]] = {"en": set(), "de": set(), "fr": set()}

    def exclude(language: str, pair: Pair) -> None:
        excluded["en"].add(comparable(pair[0]))
        excluded[language].add(comparable(pair[1]))

    for language, corpus_names in PAIRS.items():
        for corpus, split in ((corpus, split) for corpus in corpus_names for split in ("validation", "test")):
            rows = read(corpus, split, language)
            pairs = held_out(rows) if corpus.startswith("tatoeba") else list(rows)
            for pair in pairs:
                exclude(language, pair)
            write_pairs(out, corpus, language, split, pairs)
    for language, pair in other_test_sets():
        exclude(language, pair)
    for name, (corpus, split) in OTHER_TESTS.items():
        for language in PAIRS:
            write_pairs(out, name, language, "test", list(read(corpus, split, language)))
    for language, (tatoeba, parliament) in PAIRS.items():
        for corpus, limit in ((tatoeba, None), (parliament, europarl)):
            pairs = [pair for pair in read(corpus, "train", language) if limit is None or is_plausible(pair)]
            chosen: list[Pair] = []
            with track(limit or len(pairs), f"choosing pairs of {corpus}", "pairs") as progress:
                for pair in pairs if limit is None else sorted(pairs, key=order):
                    if comparable(pair[0]) in excluded["en"] or comparable(pair[1]) in excluded[language]:
                        continue
                    chosen.append(pair)
                    progress.advance(1)
                    if len(chosen) == limit:
                        break
            write_pairs(out, corpus, language, "train", chosen)


def write_pairs(out: Path, corpus: str, language: str, split: str, pairs: list[Pair]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{corpus.split('-')[0]}.en-{language}.{split}.tsv.xz"
    with lzma.open(path, "wt", preset=6, encoding="utf-8", newline="\n") as file:
        file.writelines(f"{english}\t{other}\n" for english, other in pairs)
    print(f"{path.name}: {len(pairs):,} pairs, {path.stat().st_size / 1e6:.1f} MB", flush=True)


def read_pairs(path: Path, limit: int | None = None) -> list[Pair]:
    """The first `limit` pairs of a file that `write_pairs` wrote."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        rows = [line.rstrip("\n").split("\t") for line in islice(lines, limit)]
    return [(english, other) for english, other in rows]


def row(source: str, target: str, language: str) -> str:
    """A line of a file of one direction: the source begins with the token of the target language."""
    return f">>{language}<< {source}\t{target}\n"


def write_directions(data: Path, out: Path, limit: int | None = None) -> None:
    """Write a file per corpus, direction and split, and validation.tsv, from the pairs in `data`."""
    out.mkdir(parents=True, exist_ok=True)
    validation: list[str] = []
    for path in sorted(data.glob("*.en-*.*.tsv.xz")):
        corpus, languages, split, *_ = path.name.split(".")
        pairs, language = read_pairs(path, limit), languages[3:]
        directions = {
            f"en-{language}": [row(english, other, language) for english, other in pairs],
            f"{language}-en": [row(other, english, "en") for english, other in pairs],
        }
        for direction, rows in directions.items():
            file = out / f"{corpus}.{direction}.{split}.tsv"
            file.write_text("".join(rows), encoding="utf-8", newline="\n")
            if split == "validation":
                validation += rows[: 10 if limit else 250 if corpus == "tatoeba" else 50]
    (out / "validation.tsv").write_text("".join(validation), encoding="utf-8", newline="\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--europarl", type=int, default=200_000, help="pairs of each Europarl corpus")
    parser.add_argument(
        "--directions", type=Path, metavar="FOLDER", help="only write files per direction here"
    )
    options = parser.parse_args(argv)
    if options.directions:
        write_directions(options.out, options.directions)
    else:
        prepare(options.out, options.europarl)
    return 0


if __name__ == "__main__":
    command.run(main)
