"""Translation speed on a CPU: regard, CTranslate2, Hugging Face generate and Joey NMT with the same weights.

The parts are in benchmarks/decode_peers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import regard
from benchmarks.decode_peers import handout, report
from benchmarks.decode_peers.measure import Bench, Latency, Name, Row
from benchmarks.decode_peers.systems import OURS, PRECISIONS
from benchmarks.decode_peers.texts import Text, read
from benchmarks.peers import command
from benchmarks.peers.process import say
from regard.data.tokenizer import EOS
from regard.errors import OptionError, RegardError
from regard.evaluation.bleu import corpus_bleu
from regard.models.translator import Translator

NAME = "benchmarks.decode_speed"
ABOUT = """\
Tokens per second, BLEU, peak memory and latency of one sentence, of the same trained translator in regard,
CTranslate2, Hugging Face generate and Joey NMT, on the test set of the model's own corpus and on
Europarl-length sentences, beam 1 and 5.

The weights are exported to each system, and the outputs are compared. Each system first searches its fastest
setting on this machine. Joey NMT is installed with pip into a virtual environment in the cache on the first
run; a system that cannot be installed, cannot express the model or fails is named below the table. Ctrl-C
prints what was finished."""

EXAMPLES = """\
examples:
  python -m benchmarks.decode_speed runs/multi30k-en-de             everything; an hour or two
  python -m benchmarks.decode_speed runs/multi30k-en-de --quick     60 sentences, one round
  python -m benchmarks.decode_speed runs/multi30k-en-de --systems regard CTranslate2 --beams 1"""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = command.parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument("model", type=Path, help="a translator, as `regard train` leaves it")
    parser.add_argument("--quick", action="store_true", help="60 sentences of each text and one round")
    parser.add_argument(
        "--sentences", type=int, default=1000, help="at most so many of each text (default 1000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="times that each translates everything (default 5)"
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds: who has used so many rests (default 60)"
    )
    parser.add_argument(
        "--systems", nargs="+", choices=tuple(PRECISIONS), default=list(PRECISIONS), metavar="SYSTEM",
        help="these only: " + ", ".join(PRECISIONS),
    )  # fmt: skip
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5], help="default 1 and 5")
    parser.add_argument(
        "--texts", nargs="+", choices=("own", "long"), default=["own", "long"], help="default both"
    )
    options = command.parse(parser, argv, sentences=1, rounds=1, beams=1)
    if options.quick:
        options.sentences, options.rounds = min(60, options.sentences), 1
    return options


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    try:
        model = regard.load(options.model)
        if not isinstance(model, Translator):
            raise OptionError(
                f"{options.model} is a language model, and this table is of translators; give a translator"
            )
        texts = [
            text
            for text, name in zip(read(model, options.sentences), ("own", "long"), strict=True)
            if name in options.texts
        ]
    except RegardError as trouble:
        say(f"error: {trouble}")
        return 2
    facts = report.facts(model, texts, command.line(NAME, argv), command.busy())
    rows, alone, finished = measured(model, texts, options)
    if rows:
        tables = report.markdown(rows, alone, facts)
        print(tables)
        command.keep(options, json=report.as_json(rows, alone, facts), markdown=tables)
    # A peer that fails, or a precision that this CPU lacks, gets a footnote; our failure in float32 is a bug.
    return 130 if not finished else int(any(row.name == (OURS, "float32") and row.trouble for row in rows))


def measured(
    model: Any, texts: list[Text], options: argparse.Namespace
) -> tuple[list[Row], dict[Name, Latency], bool]:
    """Return all rows, latencies, and whether the run was complete."""
    rows: list[Row] = []
    alone: dict[Name, Latency] = {}
    with tempfile.TemporaryDirectory(prefix="regard-decode-speed-") as name:
        folder = Path(name)
        try:
            handout.write(model, options.model, texts, folder)
            places = {system: handout.place(model, system, folder) for system in options.systems}
            bench = Bench(folder, places, options.rounds, options.patience)
            say("one sentence at a time")
            alone |= bench.latency(texts[0])
            for text in texts:
                for beam in options.beams:
                    say(f"{text.name}, beam {beam}")
                    found = bench.run(text, beam)
                    for row in found:
                        row.bleu = bleu(model, text, row)
                    rows += found
        except KeyboardInterrupt:
            say("stopped")
            return rows, alone, False
    return rows, alone, True


def bleu(model: Any, text: Text, row: Row) -> float | None:
    if not row.outputs:
        return None
    written = [
        model.target_tokenizer.decode([word for word in words if word != EOS]) for words in row.outputs
    ]
    return corpus_bleu(written, text.references, tokenize=text.tokenize)


if __name__ == "__main__":
    sys.exit(main())
