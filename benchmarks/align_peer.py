"""What a statistical aligner reaches with the same data: python -m benchmarks.align_peer fr --eflomal PROGRAM

Runs eflomal (Östling and Tiedemann 2016; a Bayesian HMM with fertility, of the class of GIZA++) in both
directions on the training text of `benchmarks.align`, gold text without links included, and scores its links
and their symmetrizations on the test set. PROGRAM is the binary that `make` in the folder src of
github.com/robertostling/eflomal builds; it is GPL and no part of regard. Prints a table.
"""

from __future__ import annotations

import argparse
import math
import subprocess
from pathlib import Path

from benchmarks.align import TASKS, Task, gold_pairs, say, write_text
from benchmarks.peers import command, machine
from regard.data.text_files import lines
from regard.evaluation.alignment import score
from regard.files.atomic import write_file
from regard.pipelines.word_links import SYMMETRIZATIONS, Links

MAX_WORDS = 60


def write_ids(texts: list[str], path: Path) -> None:
    """Write texts as eflomal reads them: counts first, then a line of word ids for each text."""
    ids: dict[str, int] = {}
    rows = [[ids.setdefault(word, len(ids)) for word in text.split()] for text in texts]
    body = "".join(f"{' '.join(map(str, (len(row), *row)))}\n" for row in rows)
    write_file(path, f"{len(rows)} {len(ids)}\n{body}")


def read_links(path: Path, count: int) -> list[Links]:
    """The links of the last texts of a file."""
    rows = path.read_text(encoding="utf-8").split("\n")[:-1][-count:]
    return [
        frozenset((int(s), int(t)) for s, _, t in (x.partition("-") for x in row.split())) for row in rows
    ]


def training_pairs(task: Task, folder: Path) -> list[tuple[str, str]]:
    """The training pairs of Europarl, then the gold text."""
    columns = (
        [x.lower() for block in lines(folder / f"train.{name}") for x in block]
        for name in ("en", task.language)
    )
    gold = gold_pairs(task)
    known = set(gold)
    pairs = [
        pair
        for pair in zip(*columns, strict=True)
        if pair not in known and all(len(text.split()) <= MAX_WORDS for text in pair)
    ]
    return pairs + gold


def align_both(task: Task, folder: Path, program: str) -> tuple[list[Links], list[Links]]:
    """The links (English word, other word) of the test set by each direction."""
    pairs = training_pairs(task, folder)
    files = [folder / f"eflomal.{name}" for name in ("source", "target", "forward", "backward")]
    for side in (0, 1):
        write_ids([pair[side] for pair in pairs], files[side])
    rounds = max(2, round(5000 / math.sqrt(len(pairs))))  # as its Python front end
    first = str(max(2, rounds // 4))
    arguments = [
        program,
        "-m",
        "3",
        "-n",
        "1",
        "-N",
        "0.2",
        "-1",
        first,
        "-2",
        first,
        "-3",
        str(rounds),
        "-q",
    ]
    for option, file in zip(("-s", "-t", "-f", "-r"), files, strict=True):
        arguments += [option, str(file)]
    say(f"eflomal on {len(pairs):,} pairs")
    subprocess.run(arguments, check=True)
    count = len(task.read("test")[2])
    return read_links(files[2], count), read_links(files[3], count)


def table(task: Task, forward: list[Links], backward: list[Links]) -> str:
    """Error, precision and recall of both directions and of every symmetrization, in per cent."""
    gold = task.read("test")[2]
    systems = {"English to the other language": forward, "the other language to English": backward}
    for name in SYMMETRIZATIONS:
        join = SYMMETRIZATIONS[name]
        systems[name] = [join(a, b) for a, b in zip(forward, backward, strict=True)]
    text = ["| links by eflomal | AER | precision | recall |", "|---|---|---|---|"]
    for name, links in systems.items():
        result = score(links, gold)
        numbers = (f"{100 * x:.1f}" for x in (result.aer, result.precision, result.recall))
        text.append(f"| {name} | {' | '.join(numbers)} |")
    return "\n".join(text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.align_peer", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("language", choices=list(TASKS))
    parser.add_argument("--eflomal", required=True, metavar="PROGRAM")
    parser.add_argument("--folder", type=Path, default=Path("runs/align-peer"))
    parser.add_argument("--limit", type=int, default=250_000, help="training pairs of Europarl")
    options = parser.parse_args(argv)
    task = TASKS[options.language]
    folder = options.folder / f"{options.language}-{options.limit}"
    folder.mkdir(parents=True, exist_ok=True)
    print(machine.stamp(), flush=True)
    write_text(task, folder, options.limit)
    print(table(task, *align_both(task, folder, options.eflomal)))
    return 0


if __name__ == "__main__":
    command.run(main)
