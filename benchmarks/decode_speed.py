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
from benchmarks.decode_peers import report
from benchmarks.decode_peers.measure import Bench, Latency, Name, Row
from benchmarks.decode_peers.systems import OURS, PRECISIONS
from benchmarks.decode_peers.texts import Text, read
from benchmarks.decode_peers.worker_inputs import prepare_system, write_inputs
from benchmarks.peers import command
from benchmarks.peers.process import log
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
  python -m benchmarks.decode_speed runs/multi30k-en-de --quick     60 sentences, some minutes
  python -m benchmarks.decode_speed runs/multi30k-en-de --systems regard CTranslate2 --beams 1"""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = command.make_parser(NAME, ABOUT, EXAMPLES)
    parser.add_argument("model", type=Path, help="run or model folder of a translator")
    parser.add_argument(
        "--quick", action="store_true", help="60 sentences of each text, about a second for each system"
    )
    parser.add_argument(
        "--sentences", type=int, default=1000, help="maximum number of sentences of each text (default 1000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each system translates a text (default 5)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a system that has translated for so long runs no further round (default 60)",
    )
    parser.add_argument(
        "--systems", nargs="+", choices=tuple(PRECISIONS), default=list(PRECISIONS), metavar="SYSTEM",
        help="systems to measure (default all): " + ", ".join(PRECISIONS),
    )  # fmt: skip
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5], help="beam sizes (default 1 5)")
    parser.add_argument(
        "--texts",
        nargs="+",
        choices=("own", "long"),
        default=["own", "long"],
        help="the test set of the model's corpus, and longer sentences (default both)",
    )
    options = command.parse_options(parser, argv, sentences=1, rounds=1, beams=1)
    if options.quick:
        # Sixty short sentences take some milliseconds, which one round would measure badly.
        options.sentences, options.rounds, options.patience = min(60, options.sentences), 30, 1.0
    return options


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    try:
        model = regard.load(options.model)
        if not isinstance(model, Translator):
            raise OptionError(
                f"{options.model} is {model.what}, and this benchmark translates; give a translator"
            )
        texts = [
            text
            for text, name in zip(read(model, options.sentences), ("own", "long"), strict=True)
            if name in options.texts
        ]
    except RegardError as error:
        log(f"error: {error}")
        return 2
    facts = report.facts(model, texts, command.command_line(NAME, argv), command.load_average())
    rows, latencies, finished = measure(model, texts, options)
    if rows:
        page = report.markdown(rows, latencies, facts)
        print(page)
        command.save_results(options, json=report.as_json(rows, latencies, facts), markdown=page)
    # A peer that fails, or a precision that this CPU lacks, gets a footnote; regard must work in float32.
    return 130 if not finished else int(any(row.name == (OURS, "float32") and row.failure for row in rows))


def measure(
    model: Any, texts: list[Text], options: argparse.Namespace
) -> tuple[list[Row], dict[Name, Latency], bool]:
    """Return all rows, the latencies, and whether the run was complete."""
    rows: list[Row] = []
    latencies: dict[Name, Latency] = {}
    with tempfile.TemporaryDirectory(prefix="regard-decode-speed-") as name:
        folder = Path(name)
        try:
            write_inputs(model, options.model, texts, folder)
            environments = {system: prepare_system(model, system, folder) for system in options.systems}
            bench = Bench(folder, environments, options.rounds, options.patience)
            log("one sentence at a time")
            latencies |= bench.latency(texts[0])
            for text in texts:
                for beam in options.beams:
                    log(f"{text.name}, beam {beam}")
                    new_rows = bench.run(text, beam)
                    for row in new_rows:
                        row.bleu = bleu(model, text, row)
                    rows += new_rows
        except KeyboardInterrupt:
            log("stopped")
            return rows, latencies, False
    return rows, latencies, True


def bleu(model: Any, text: Text, row: Row) -> float | None:
    """BLEU of a row's outputs; None if it has none."""
    if not row.outputs:
        return None
    tokenizer = model.target_tokenizer
    hypotheses = [tokenizer.decode([token for token in output if token != EOS]) for output in row.outputs]
    return corpus_bleu(hypotheses, text.references, tokenize=text.tokenize)


if __name__ == "__main__":
    sys.exit(main())
