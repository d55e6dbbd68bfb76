"""Copy corpora, or a part of them: python -m benchmarks.pack FOLDER CORPUS … [--pairs N] [--files PATTERN …]

For machines without network or with little disk. FOLDER has the layout of REGARD_DATA, so every benchmark
finds the corpora there: REGARD_DATA=FOLDER python -m benchmarks.align fr. Of each file that starts with
`train`, the first N lines are kept; all others are copied. `--files` copies only those whose path in the
corpus matches a pattern, such as 'tok/*'. Prints the size of each corpus.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from benchmarks.align import corpus_folder
from benchmarks.peers import command
from regard.data.text_files import lines
from regard.errors import OptionError
from regard.files.atomic import write_file


def pack(name: str, folder: Path, pairs: int | None, patterns: Sequence[str] = ("*",)) -> int:
    """Copy the files of a corpus that match a pattern; return their bytes."""
    source, target = corpus_folder(name), folder / name
    files = {path.relative_to(source): path for path in sorted(source.rglob("*")) if path.is_file()}
    chosen = {relative: path for relative, path in files.items() if any(map(relative.match, patterns))}
    if not chosen:
        raise OptionError(f"--files: no file of {name} matches {' or '.join(patterns)}")
    for relative, path in chosen.items():
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        if pairs is not None and path.name.startswith("train.") and path.suffix == ".xz":
            kept = islice((line for block in lines(path) for line in block), pairs)
            text = "".join(f"{line}\n" for line in kept)
            write_file(copy, lzma.compress(text.encode(), preset=9))
        else:
            shutil.copyfile(path, copy)
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.pack", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpora", nargs="+", metavar="CORPUS")
    parser.add_argument("--pairs", type=int, metavar="N", help="lines of each training file; default: all")
    parser.add_argument("--files", nargs="+", default=["*"], metavar="PATTERN", help="default: all files")
    options = parser.parse_args(argv)
    for name in options.corpora:
        print(
            f"{name}: {pack(name, options.folder, options.pairs, options.files) / 2**20:.1f} MiB", flush=True
        )
    return 0


if __name__ == "__main__":
    command.run(main)
