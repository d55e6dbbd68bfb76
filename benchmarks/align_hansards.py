"""Word alignment of the Canadian Hansards (English-French) by translators trained on Europarl."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

import regard
from benchmarks.peers import machine
from regard.data.corpora import data_folder
from regard.data.text_files import lines
from regard.errors import DataError, RegardError
from regard.evaluation.alignment import read_gold, score
from regard.models.translator import Translator
from regard.pipelines.align import View, align_words, clearest_view
from regard.pipelines.word_links import SYMMETRIZATIONS, Links, LinkSelection, flipped

ABOUT = """\
Alignment error rate on the Hansards of the HLT-NAACL 2003 shared task (447 pairs), by the attention of
translators that were trained on Europarl alone.

The gold text has its own spelling: punctuation stands alone, and French has "de le" and "que il" for "du" and
"qu'il". So `write` converts Europarl to that spelling and two translators are trained on it, one in each
direction. `score` aligns the test set; each model uses the layer and step in which most words align mutually,
which needs no gold."""

EXAMPLES = """\
examples:
  python -m benchmarks.align_hansards write runs/hansards
  regard train europarl-en-fr --run runs/en-fr data.corpus=null tokenizer.lowercase=true \\
      'data.train=[[runs/hansards/train.en, runs/hansards/train.fr]]' \\
      'data.validation=[[runs/hansards/dev.en, runs/hansards/dev.fr]]'
  regard train europarl-en-fr --run runs/fr-en data.source=fr data.target=en …           the same files
  python -m benchmarks.align_hansards score runs/en-fr runs/fr-en"""

TOKENS = re.compile(
    r"\d+(?:[.,]\d+)+|\b(?:mr|mrs|ms|dr|hon|st|m)\.|aujourd'|'s\b|\w+|--|\.\.\.|[^\w\s]", re.IGNORECASE
)
FRENCH = (
    (re.compile(r"\bs'(?=ils?\b)", re.IGNORECASE), "si "),
    (re.compile(r"\b((?:jus|lors|puis|quoi|quel)?qu|[cdjlmnst])'(?=\w)", re.IGNORECASE), r"\1e "),
    (re.compile(r"\bdu\b", re.IGNORECASE), "de le"),
    (re.compile(r"\bdes\b", re.IGNORECASE), "de les"),
    (re.compile(r"\bau\b", re.IGNORECASE), "à le"),
    (re.compile(r"\baux\b", re.IGNORECASE), "à les"),
)


def as_in_gold(text: str, language: str) -> str:
    """A sentence in the spelling and tokenisation of the gold text."""
    text = text.replace("’", "'")
    for pattern, replacement in FRENCH if language == "fr" else ():
        text = pattern.sub(replacement, text)
    return " ".join(TOKENS.findall(text))


def write(folder: Path) -> None:
    """Write Europarl's training and development text in the spelling of the gold text."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev"):
        for language in ("en", "fr"):
            path = folder / f"{split}.{language}"
            print(f"writing {path}", file=sys.stderr, flush=True)
            with path.open("w", encoding="utf-8", newline="\n") as file:
                for block in lines(_corpus_folder("europarl-en-fr") / f"{split}.{language}.xz"):
                    file.writelines(f"{as_in_gold(line, language)}\n" for line in block)


def _corpus_folder(name: str) -> Path:
    folder = data_folder() / name
    if not folder.is_dir():
        raise DataError(
            f"there is no {name} in {data_folder()}; let REGARD_DATA name the folder of the corpora"
        )
    return folder


def table(forward: Path, backward: Path) -> str:
    """Alignment error rate, precision and recall of each direction and of both, as Markdown."""
    folder = _corpus_folder("align-hansards-en-fr")
    text = {x: [line for block in lines(folder / f"test.{x}.gz") for line in block] for x in ("en", "fr")}
    gold = read_gold(folder / "test.talp.gz", base=1)
    rows: list[tuple[str, list[Links]]] = []
    best: list[list[Tensor]] = []
    for path, source, target in ((forward, "en", "fr"), (backward, "fr", "en")):
        model = regard.load(path)
        if not isinstance(model, Translator):
            raise DataError(f"{path} is no translator; give two that were trained on the files of `write`")
        clearest = clearest_view(text[source], text[target], model)
        step = "reads" if clearest.shift else "writes"
        decoder: Any = model.decoder
        clearest_name = f"layer {clearest.layer} (of {len(decoder.layers)}, from 0), the step that {step}"
        for name, view in (("mean of all", View()), (clearest_name, clearest)):
            alignments = dict(align_words(text[source], text[target], model, view))
            weights = [alignments[i].weights for i in range(len(alignments))]
            for name_of_selection, mutual in (("strongest", False), ("mutual", True)):
                links = [LinkSelection(mutual=mutual).links(matrix) for matrix in weights]
                rows.append(
                    (
                        f"{source}-{target}, {name}: {name_of_selection}",
                        links if source == "en" else [flipped(matrix) for matrix in links],
                    )
                )
        best.append(weights)
    joins = ("weights", *SYMMETRIZATIONS)
    rows += [
        (
            f"both by those layers: {name}",
            [LinkSelection(join=name).joined(a, b) for a, b in zip(*best, strict=True)],
        )
        for name in joins
    ]
    table = []
    for name, links in rows:
        result = score(links, gold)
        table.append(
            f"| {name} | {100 * result.aer:.1f} | {100 * result.precision:.1f} | {100 * result.recall:.1f} |"
        )
    return "\n".join(["| links by | AER | precision | recall |", "|---|---|---|---|", *table])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.align_hansards", description=ABOUT, epilog=EXAMPLES
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    write_parser = commands.add_parser("write", help="write Europarl in the spelling of the gold text")
    write_parser.add_argument("folder", type=Path, help="folder for the files")
    score_parser = commands.add_parser("score", help="align the Hansards and print the table")
    score_parser.add_argument("forward", type=Path, help="an English-French translator")
    score_parser.add_argument("backward", type=Path, help="a French-English translator")
    options = parser.parse_args(argv)
    print(machine.stamp(), flush=True)
    try:
        if options.command == "write":
            write(options.folder)
        else:
            print(table(options.forward, options.backward))
    except RegardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
