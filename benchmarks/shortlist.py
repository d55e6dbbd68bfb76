"""Translation with and without a vocabulary shortlist on one core: python -m benchmarks.shortlist MODEL

Translates the model's test set greedily and with beam 5, in float32 and int8, with the full vocabulary and
with the shortlist that `regard shortlist MODEL` learned, in turns. Prints target tokens per second of
processor time, the best of three rounds, and BLEU.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.decode_peers.texts import Text, read
from benchmarks.peers import command, machine
from benchmarks.peers.tables import markdown_table
from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.engine.shortlist import load as load_shortlist
from regard.decoding.limits import Limits
from regard.evaluation.bleu import corpus_bleu
from regard.pipelines.translate import translate_tokens

PRECISIONS, BEAMS, ROUNDS = ("float32", "int8"), (1, 5), 3


def measure(engine: Any, text: Text, beam: int) -> tuple[float, list[list[int]]]:
    """Target tokens per second of processor time, EOS included, and the translations."""
    start = time.process_time()
    hypotheses = translate_tokens(
        engine, text.sources, strategy=Beam(beam), limits=Limits(max_length=text.limit, workers=1)
    )
    seconds = time.process_time() - start
    outputs = [best.tokens for best, *_ in hypotheses]
    return sum(len(tokens) + 1 for tokens in outputs) / seconds, outputs


def bleu(model: Any, text: Text, outputs: list[list[int]]) -> float:
    lines = [model.target_tokenizer.decode([t for t in tokens if t != EOS]) for tokens in outputs]
    return corpus_bleu(lines, text.references, tokenize=text.tokenize)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.shortlist", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", type=Path, help="folder of a translator or its run, with a shortlist")
    parser.add_argument("--sentences", type=int, default=1000, help="of the test set (default 1000)")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    torch.set_num_threads(1)
    model: Any = regard.load(options.model)
    shortlist, text = load_shortlist(options.model), read(model, options.sentences)[0]
    rows = []
    for precision, beam in product(PRECISIONS, BEAMS):
        engines = [regard.fast(model, precision), regard.fast(model, precision, shortlist=shortlist)]
        rates, scores = [0.0, 0.0], [0.0, 0.0]
        for _ in range(ROUNDS):
            for i, engine in enumerate(engines):
                rate, outputs = measure(engine, text, beam)
                rates[i], scores[i] = max(rate, rates[i]), bleu(model, text, outputs)
        full, short = rates
        gain = f"{short:,.0f} ({100 * (short / full - 1):+.0f} %)"
        name = f"{precision}, {'greedy' if beam == 1 else f'beam {beam}'}"
        rows.append([name, f"{full:,.0f}", gain, *(f"{score:.2f}" for score in scores)])
        print(f"{name}: {full:,.0f}, with shortlist {gain} tokens/s", file=sys.stderr, flush=True)
    header = ["", "tokens/s, full", "with shortlist", "BLEU, full", "with shortlist"]
    print("\n".join(markdown_table(header, rows)))
    print(f"\n{machine.stamp(machine.cpu_name())}; {len(text.sources)} sentences of {text.name}")
    return 0


if __name__ == "__main__":
    command.run(main)
