"""Size and loading time of a translator stored in int8, beside float32; weights are random.

python -m benchmarks.load_int8
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from itertools import product
from pathlib import Path

import torch

import regard
from benchmarks.peers import machine
from regard.data.tokenizer import Tokenizer
from regard.decoding.engine import why_not
from regard.interchange.quantize import quantize_folder
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.folder import load, save

LAYER = {"kind": "transformer", "heads": 6, "inner": 1536, "norm": "pre"}
MODEL = {"dim": 384, "encoder": LAYER | {"layers": 6}, "decoder": LAYER | {"layers": 2}}
VOCABULARY, REPEATS = 16_000, 5


def write_model(folder):
    """Save a random model with a tokenizer of made-up words of three syllables, twice each."""
    syllables = [a + b for a, b in product("bdfgklmnprstvwz", "aeiou")]
    words = random.Random(0).sample(["".join(parts) for parts in product(syllables, repeat=3)], VOCABULARY)
    tokenizer = Tokenizer.train(words * 2, "bpe", VOCABULARY, languages=["de", "en", "fr"])
    config = AutoregressiveOptions.model_validate(MODEL).model_dump()
    torch.manual_seed(0)
    model = regard.build(config, len(tokenizer), len(tokenizer))
    save(folder, model, config, tokenizer, tokenizer, {})
    return len(tokenizer)


def shortest_time(call):
    """The shortest wall-clock and CPU seconds of some calls, and the last result."""
    times, result = [], None
    for _ in range(REPEATS):
        start = time.perf_counter(), time.process_time()
        result = call()
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return *(min(column) for column in zip(*times, strict=True)), result


def main():
    torch.set_num_threads(1)
    print(f"{machine.stamp()}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as temporary_folder:
        folders = {name: Path(temporary_folder) / name for name in ("float32", "int8")}
        print(f"vocabulary {write_model(folders['float32']):,}")
        print(quantize_folder(folders["float32"], folders["int8"]))
        for name, folder in folders.items():
            size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
            wall, cpu, model = shortest_time(lambda folder=folder: load(folder))
            line = f"{name:8} {size:6.1f} MiB   load {wall:.2f} s ({cpu:.2f} s CPU)"
            if why_not(model, name) is None:
                wall, cpu, _ = shortest_time(lambda model=model, name=name: regard.fast(model, name))
                line += f"   engine {wall:.2f} s ({cpu:.2f} s CPU)"
            print(line)


if __name__ == "__main__":
    main()
