"""Data diversification (Nguyen et al. 2020): a translator's own translations as further training rows.

    python -m benchmarks.translator.diversify sources DIRECTIONS FOLDER
    regard translate -i FOLDER/sources.txt -o FOLDER/translations.txt.xz --model MODEL --beam 4
    regard translate -i FOLDER/sources.txt -o FOLDER/samples-1.txt.xz --model MODEL --sample --top-k 10
    python -m benchmarks.translator.diversify rows DIRECTIONS FOLDER

The sources are all sentences of Tatoeba's training set: English into German and French, the others into
English. A translation is the target of a forward row, and the source of a backward row, whose target is the
sentence that a person wrote. Sampled translations (any number of files samples-N.txt.xz, or none) are only
sources (Edunov et al. 2018). Rows that share a side with a validation or test row are left out, as in
prepare.py. DIRECTIONS has the files of prepare.py; the rows are written there.
"""

from __future__ import annotations

import argparse
import lzma
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import command
from benchmarks.translator.prepare import Pair, comparable, row
from regard.errors import DataError
from regard.files.atomic import write_file
from regard.files.progress import track

TRANSLATIONS, SAMPLES = "translations.txt.xz", "samples-*.txt.xz"
KINDS = ("forward", "backward")
MAX_RATIO, FREE = 3.0, 5  # words of the longer side: at most 3 per word of the other, and 5 more


def distinct_sources(directions: Path) -> dict[str, str]:
    """Sources with the token of their target language, and the language of each source."""
    sources: dict[str, str] = {}
    for path in sorted(directions.glob("tatoeba.en-*.train.tsv")):
        other_language = path.name.split(".")[1][3:]
        for line in path.read_text(encoding="utf-8").splitlines():
            source, other = line.split("\t")
            english = source.split(" ", 1)[1]
            for target in ("de", "fr"):
                sources.setdefault(f">>{target}<< {english}", "en")
            sources.setdefault(f">>en<< {other}", other_language)
    if not sources:
        raise DataError(f"{directions} has no tatoeba.en-*.train.tsv; make them with prepare.py --directions")
    return sources


def read_held_out(directions: Path) -> set[str]:
    """The sides of all validation and test rows, as `comparable` texts."""
    paths = [path for split in ("validation", "test") for path in directions.glob(f"*.*-*.{split}.tsv")]
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return {comparable(text) for line in lines for text in line.split("<< ", 1)[1].split("\t")}


def is_plausible(pair: Pair) -> bool:
    lengths = [len(text.split()) for text in pair]
    return min(lengths) > 0 and max(lengths) <= MAX_RATIO * min(lengths) + FREE


def read_translations(directions: Path, path: Path) -> dict[str, tuple[str, str]]:
    """Language and translation of each source, which has the token of its target language."""
    sources = distinct_sources(directions)
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        translations = [line.rstrip("\n") for line in file]
    if len(translations) != len(sources):
        raise DataError(
            f"{path} has {len(translations):,} lines and there are {len(sources):,} sources; "
            "translate sources.txt of the same directions"
        )
    return {
        source: (language, translation)
        for (source, language), translation in zip(sources.items(), translations, strict=True)
    }


def new_rows(
    kind: str, translated: dict[str, tuple[str, str]], held_out: set[str]
) -> Iterator[tuple[str, str]]:
    """The rows of a kind that may be trained on, each with its direction."""
    with track(len(translated), f"choosing {kind} rows", "rows") as progress:
        for source, (language, translation) in translated.items():
            progress.advance(1)
            token, text = source.split(" ", 1)
            target = token.strip("<>")
            pair, direction = (text, translation), (language, target)
            if kind == "backward":
                pair, direction = (translation, text), (target, language)
            if is_plausible(pair) and held_out.isdisjoint(map(comparable, pair)):
                yield row(*pair, direction[1]), "-".join(direction)


def write_rows(directions: Path, folder: Path) -> None:
    """Write forward.train.tsv, backward.train.tsv, and samples-N.train.tsv for each file of samples."""
    held_out = read_held_out(directions)
    for path in (folder / TRANSLATIONS, *sorted(folder.glob(SAMPLES))):
        translated = read_translations(directions, path)
        names = {kind: kind for kind in KINDS}
        if path.name != TRANSLATIONS:
            names = {path.name.removesuffix(".txt.xz"): "backward"}
        for name, kind in names.items():
            out, written = directions / f"{name}.train.tsv", 0
            with out.open("w", encoding="utf-8", newline="\n") as file:
                for line, _ in new_rows(kind, translated, held_out):
                    file.write(line)
                    written += 1
            print(f"{out.name}: {written:,} rows of {len(translated):,}", flush=True)


def write_forward_rows(directions: Path, folder: Path) -> None:
    """Write forward.DIRECTION.train.tsv: sentences and their translations, for students (Kim & Rush 2016)."""
    files: dict[str, list[str]] = {}
    translated = read_translations(directions, folder / TRANSLATIONS)
    for line, direction in new_rows("forward", translated, read_held_out(directions)):
        files.setdefault(direction, []).append(line)
    for direction, rows in files.items():
        write_file(directions / f"forward.{direction}.train.tsv", "".join(rows))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.diversify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", choices=("sources", "rows"))
    parser.add_argument("directions", type=Path, help="folder of the files per direction, by prepare.py")
    parser.add_argument("folder", type=Path, help="folder of sources.txt and translations")
    options = parser.parse_args(argv)
    if options.step == "rows":
        write_rows(options.directions, options.folder)
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{source}\n" for source in distinct_sources(options.directions))
    (options.folder / "sources.txt").write_text(text, encoding="utf-8", newline="\n")
    print(f"{options.folder / 'sources.txt'}: {text.count(chr(10)):,} sources")
    return 0


if __name__ == "__main__":
    command.run(main)
