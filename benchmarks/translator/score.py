"""BLEU and chrF of a translator of several languages, per corpus and direction.

python -m benchmarks.translator.score MODEL FOLDER                  validation sets
python -m benchmarks.translator.score MODEL FOLDER --split test     test sets: once, at the end

`--log FILE` keeps everything that a table needs: scores, signatures, command, version, date and checksums.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import regard
from benchmarks.peers import command
from regard.decoding.beam import GREEDY, default_beam
from regard.errors import DataError
from regard.files.checksums import file_sha256
from regard.models.folder import model_in

DIRECTIONS = ("en-de", "de-en", "en-fr", "fr-en")
WEIGHTS = "model.safetensors"
CORPORA = ("tatoeba", "europarl", "newstest2013", "multi30k")  # those that prepare.py writes


def main(argv: list[str] | None = None) -> int:
    import sacrebleu

    options = _parser().parse_args(argv)
    model = regard.load(options.model, options.device)
    translator = regard.fast(model, options.precision)
    stored = default_beam(model.card)
    beam = options.beam or (5 if stored is GREEDY else stored.size)
    metrics = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}
    names = [(corpus, direction) for corpus in CORPORA for direction in options.directions]
    paths = {name: options.data / f"{'.'.join(name)}.{options.split}.tsv" for name in names}
    sets = {name: path for name, path in paths.items() if path.is_file()}
    results = [_score(*name, path, translator, beam, metrics, options) for name, path in sets.items()]
    if not sets:
        raise DataError(
            f"{options.data} has no CORPUS.DIRECTION.{options.split}.tsv; make it with prepare.py"
        )
    signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    print(f"beam {beam}, {options.precision}, {', '.join(signatures.values())}")
    if options.log:
        arguments = sys.argv[1:] if argv is None else argv
        record = {
            "command": command.command_line("benchmarks.translator.score", arguments),
            "regard": regard.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "model": {"name": options.model.name, "sha256": file_sha256(model_in(options.model) / WEIGHTS)},
            "split": options.split,
            "beam": beam,
            "precision": options.precision,
            "signatures": signatures,
            "limit": options.limit,
            "scores": results,
        }
        options.log.parent.mkdir(parents=True, exist_ok=True)
        options.log.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("data", type=Path, help="folder of the files per direction, by prepare.py")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--beam", type=int, help="default: that of the model's card, else 5")
    parser.add_argument("--precision", default="auto", help="of the CPU engine: auto, float32 or int8")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--limit", type=int, help="first rows of each set")
    parser.add_argument("--outputs", type=Path, help="folder for the translations")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="write scores and all that led to them, as JSON"
    )
    return parser


def _score(
    corpus: str,
    direction: str,
    path: Path,
    translator: Any,
    beam: int,
    metrics: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Translate a set, print its scores and return them; with --outputs, write the translations."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    sources, references = zip(*rows[: options.limit], strict=True)
    start = time.perf_counter()
    outputs = [str(x) for x in regard.translate(list(sources), translator, beam=beam)]
    seconds = time.perf_counter() - start
    bleu, chrf = (m.corpus_score(outputs, [list(references)]).score for m in metrics.values())
    print(
        f"{corpus:>14} {direction} {options.split}: BLEU {bleu:.2f}, chrF {chrf:.1f}, "
        f"{len(outputs)} lines, {seconds:.0f} s",
        flush=True,
    )
    if options.outputs:
        options.outputs.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"source": s, "output": o, "reference": r}, ensure_ascii=False) + "\n"
            for s, o, r in zip(sources, outputs, references, strict=True)
        ]
        target = options.outputs / f"{corpus}.{direction}.{options.split}.jsonl"
        target.write_text("".join(lines), encoding="utf-8")
    return {
        "corpus": corpus,
        "direction": direction,
        "lines": len(outputs),
        "bleu": round(bleu, 4),
        "chrf": round(chrf, 4),
        "seconds": round(seconds, 1),
        "sha256": file_sha256(path),
    }


if __name__ == "__main__":
    command.run(main)
