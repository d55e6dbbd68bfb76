"""Tokens per second of translating on a CPU: regard, CTranslate2, Hugging Face generate and Joey NMT with the same weights.

The parts are in benchmarks/decode_peers.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import regard
from benchmarks.decode_peers import handout, report
from benchmarks.decode_peers.measure import Bench, Latency, Name, Row
from benchmarks.decode_peers.systems import OURS, PRECISIONS
from benchmarks.decode_peers.texts import Text, read
from benchmarks.peers import machine
from benchmarks.peers.process import say
from regard.data.tokenizer import EOS
from regard.errors import OptionError, RegardError
from regard.evaluation.bleu import corpus_bleu
from regard.models.translator import Translator

ABOUT = """\
Tokens per second, BLEU, peak memory and latency of one sentence, of the same trained translator in regard, CTranslate2,
Hugging Face generate and Joey NMT, on the test set of the model's own corpus and on Europarl-length sentences, beam 1 and 5.

The weights are exported to each system, and whether all translate alike is checked and told. Each system first looks for its own
best setting for this machine. Joey NMT is put into a virtual environment of the cache with pip on the first run; a system that
cannot be installed, cannot express the model or fails is said so below the table. Ctrl-C prints what was finished."""

EXAMPLES = """\
examples:
  python -m benchmarks.decode_speed runs/multi30k-en-de                       everything; an hour or two
  python -m benchmarks.decode_speed runs/multi30k-en-de --quick               a glance: 60 sentences, one round
  python -m benchmarks.decode_speed runs/multi30k-en-de --systems regard CTranslate2 --beams 1"""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.decode_speed", description=ABOUT, epilog=EXAMPLES, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, help="a translator, as `regard train` leaves it")
    parser.add_argument("--quick", action="store_true", help="60 sentences of each text and one round")
    parser.add_argument("--sentences", type=int, default=1000, help="at most so many of each text (default 1000)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each translates everything (default 5)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds: who has used so many rests (default 60)")
    parser.add_argument("--systems", nargs="+", choices=tuple(PRECISIONS), default=list(PRECISIONS), metavar="SYSTEM",
                        help="these only: " + ", ".join(PRECISIONS))  # fmt: skip
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5], help="default 1 and 5")
    parser.add_argument("--texts", nargs="+", choices=("own", "long"), default=["own", "long"], help="default both")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers there")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables there too")
    options = parser.parse_args(argv)
    if options.quick:
        options.sentences, options.rounds = min(60, options.sentences), 1
    for name in ("sentences", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if min(options.beams) < 1:
        parser.error(f"--beams must be at least 1, got {min(options.beams)}")
    for path in (options.json, options.markdown):
        if path is not None and not path.resolve().parent.is_dir():
            parser.error(f"the folder of {path} does not exist; make it first, the numbers would go nowhere")
    return options


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` stops as Ctrl-C does
    try:
        model = regard.load(options.model)
        if not isinstance(model, Translator):
            raise OptionError(f"{options.model} is a language model, and this table is of translators; give a translator")
        texts = [text for text, name in zip(read(model, options.sentences), ("own", "long"), strict=True) if name in options.texts]
    except RegardError as trouble:
        say(f"error: {trouble}")
        return 2
    told = report.facts(model, texts, command(argv))
    if told["load"] and told["load"] > 0.5:
        say(f"the machine is busy (load {machine.load():.1f}): expect noise, most of all with several threads")
    rows, alone, finished = measured(model, texts, options)
    if rows:
        tables = report.markdown(rows, alone, told)
        print(tables)
        if options.json is not None:
            options.json.write_text(report.as_json(rows, alone, told), encoding="utf-8")
        if options.markdown is not None:
            options.markdown.write_text(tables, encoding="utf-8")
    # A peer that fails, or a precision that this CPU lacks, is told in a footnote; our own failure in float32 is a bug here.
    return 130 if not finished else int(any(row.name == (OURS, "float32") and row.trouble for row in rows))


def measured(model: Any, texts: list[Text], options: argparse.Namespace) -> tuple[list[Row], dict[Name, Latency], bool]:
    """All rows, latencies, and whether nobody stopped it."""
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
    written = [model.target_tokenizer.decode([word for word in words if word != EOS]) for words in row.outputs]
    return corpus_bleu(written, text.references, tokenize=text.tokenize)


def command(argv: list[str]) -> str:
    """The command line without this machine's folders."""
    return shlex.join(["python", "-m", "benchmarks.decode_speed", *(Path(x).name if Path(x).is_absolute() else x for x in argv)])


if __name__ == "__main__":
    sys.exit(main())
