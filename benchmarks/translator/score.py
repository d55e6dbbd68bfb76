"""BLEU and chrF of a translator of several languages, per corpus and direction.

python -m benchmarks.translator.score MODEL FOLDER                  validation sets
python -m benchmarks.translator.score MODEL FOLDER --split test     test sets: once, at the end
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import regard
from benchmarks.peers import command
from regard.errors import DataError

DIRECTIONS = ("en-de", "de-en", "en-fr", "fr-en")
CORPORA = ("tatoeba", "europarl", "newstest2013", "multi30k")  # those that prepare.py writes


def main(argv: list[str] | None = None) -> int:
    import sacrebleu

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("data", type=Path, help="folder of the files per direction, by prepare.py")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--precision", default="auto", help="of the CPU engine: auto, float32 or int8")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--limit", type=int, help="first rows of each set")
    parser.add_argument("--outputs", type=Path, help="folder for the translations")
    options = parser.parse_args(argv)
    translator = regard.fast(regard.load(options.model, options.device), options.precision)
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    names = [(corpus, direction) for corpus in CORPORA for direction in DIRECTIONS]
    paths = {name: options.data / f"{'.'.join(name)}.{options.split}.tsv" for name in names}
    sets = {name: path for name, path in paths.items() if path.is_file()}
    for (corpus, direction), path in sets.items():
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        sources, references = zip(*rows[: options.limit], strict=True)
        start = time.perf_counter()
        outputs = [str(x) for x in regard.translate(list(sources), translator, beam=options.beam)]
        seconds = time.perf_counter() - start
        scores = [metric.corpus_score(outputs, [list(references)]).score for metric in (bleu, chrf)]
        print(
            f"{corpus:>14} {direction} {options.split}: BLEU {scores[0]:.2f}, chrF {scores[1]:.1f}, "
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
    if not sets:
        raise DataError(
            f"{options.data} has no CORPUS.DIRECTION.{options.split}.tsv; make it with prepare.py"
        )
    print(f"beam {options.beam}, {options.precision}, {bleu.get_signature()}, {chrf.get_signature()}")
    return 0


if __name__ == "__main__":
    command.run(main)
