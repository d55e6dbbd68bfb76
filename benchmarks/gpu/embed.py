"""Embedding on a GPU, all-MiniLM-L6-v2: regard beside sentence-transformers, in texts per second.

    python -m benchmarks.gpu.embed                       # on a GPU, about 4 minutes on an H200 (a plan)
    python -m benchmarks.gpu.embed --device cpu --texts 1000 --precisions float32 --rounds 3
    python -m benchmarks.gpu.embed --tiny                # a small model on the CPU, seconds
    python -m benchmarks.gpu.embed --gather build/embed  # what a machine without network needs, 3 MiB

From texts to float32 vectors in the CPU's memory: tokenizing, computing and copying all count. Two sets of
29,000 texts: Multi30k (captions, 16 tokens on average) and lines of Europarl with 200 to 1,000 characters
(55 tokens). Each system first tries its batch sizes (regard: tokens; sentence-transformers: texts) and keeps
the fastest one; then both take turns. In half precision all weights are: `Embedder.load(…, precision=…)` and
`SentenceTransformer(…).half()` or `.bfloat16()`. Vectors are compared with those of sentence-transformers in
float32. "tokenizing" is that part alone, with the padding of batches. On a CPU, times are processor seconds.

`--gather FOLDER` writes configuration and tokenizer of MiniLM (0.4 MiB), both sets of texts (2.1 MiB) and the
wheel of sentence-transformers (0.7 MiB). The weights (87 MiB) stay: where `FOLDER/minilm` has none, or with
`--random`, both systems load the same random ones from a temporary folder, which are as fast. The wheels of
`python -m benchmarks.translator.session gather` (13 MiB) have what regard needs. On the other machine:

    mkdir -p build/libraries
    for w in build/translator/wheels/*.whl build/embed/wheels/*.whl; do
        python3 -m zipfile -e $w build/libraries; done
    export PYTHONPATH=$PWD/src:$PWD:$PWD/build/libraries
    python3 -m benchmarks.gpu.embed --folder build/embed

scipy and scikit-learn, which sentence-transformers imports for its evaluators and `encode` does not call, may
be missing there: see benchmarks/peers/placeholders.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import lzma
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.timing import peak_memory, profile, synchronize
from benchmarks.peers import command, machine
from benchmarks.peers.embedding import captions, difference, in_turn, sentences
from benchmarks.peers.placeholders import add_placeholders
from regard.data.text_files import lines
from regard.models.bert import minilm_folder
from regard.models.embedder import PRECISIONS, Embedder
from regard.pipelines import embed as pipeline

FILES = (
    "config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json",
    "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json",
)  # fmt: skip
SETS: dict[str, Callable[[int], list[str]]] = {
    "multi30k": captions,
    "europarl": lambda count: sentences(count, 200, 1000),
}
TEXTS = 29_000  # of each set
PEER = "sentence-transformers==6.2.0"  # 6.2 needs transformers 5
TOKENS = {"cuda": (8192, 16384, 32768, 65536, 131072), "cpu": (1024, 2048, 4096)}  # per batch of regard
SIZES = {"cuda": (32, 128, 512, 2048), "cpu": (8, 32, 128)}  # texts per batch of sentence-transformers
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TINY_TEXTS = [" ".join(["a dog", "sleeps", "near", "the", "river"] * n) for n in range(1, 9)]


@dataclass
class System:
    """One library in one precision: `run(texts, batch)` gives vectors, `tokenize` does its first part."""

    name: str
    run: Callable[[list[str], int], np.ndarray]
    tokenize: Callable[[list[str], int], Any]
    batches: tuple[int, ...]
    unit: str
    batch: int = 0
    peaks: list[str] = field(default_factory=list)


def gather(folder: Path) -> None:
    """Write what a machine without network needs, and print the sizes."""
    copy_settings(minilm_folder(), folder / "minilm")
    for name, read in SETS.items():
        text = "".join(f"{text}\n" for text in read(TEXTS))
        (folder / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    where = ["--python-version=3.12", "-d", str(folder / "wheels")]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, *where, PEER], check=True)
    for path in sorted(path for path in folder.iterdir()):
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        print(f"{path}: {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB")


def copy_settings(source: Path, target: Path) -> None:
    """Copy configuration and tokenizer, without weights."""
    for name in FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def write_random(source: Path, target: Path, changes: dict[str, int]) -> None:
    """Write a model folder with the configuration and tokenizer of another, `changes`, and random weights.

    Matrices are scaled so that vectors of different texts differ.
    """
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel

    copy_settings(source, target)
    config = json.loads((source / "config.json").read_text(encoding="utf-8")) | changes
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    pooling = target / "1_Pooling" / "config.json"
    settings = json.loads(pooling.read_text(encoding="utf-8"))
    settings["word_embedding_dimension"] = config["hidden_size"]
    pooling.write_text(json.dumps(settings), encoding="utf-8")
    torch.manual_seed(1)
    model = AutoModel.from_config(AutoConfig.from_pretrained(target))
    for name, weights in model.named_parameters():
        if weights.dim() == 2:
            scale = 4.0 if "word_embeddings" in name else 1.0
            torch.nn.init.normal_(weights, std=scale * weights.shape[1] ** -0.5)
    save_file({name: weights.contiguous() for name, weights in model.state_dict().items()},
              target / "model.safetensors")  # fmt: skip


def read_texts(name: str, folder: Path, count: int) -> list[str]:
    """A set of texts: that of `gather`, or from the corpora."""
    path = folder / f"{name}.txt.xz"
    texts = [line for block in lines(path) for line in block] if path.is_file() else SETS[name](count)
    return texts[:count]


def regard_system(folder: Path, device: str, precision: str) -> System:
    model = Embedder.load(folder, device, precision)

    def tokenize(texts: list[str], batch: int) -> None:
        size = pipeline.TOKENIZED.get(model.device.type, 1 << 16)
        for start in range(0, len(texts), size):
            rows = pipeline._encode(model, texts[start : start + size])
            for indices in pipeline._batches(rows, batch):
                pipeline._pad([rows[i] for i in indices])

    def run(texts: list[str], batch: int) -> np.ndarray:
        return pipeline.embed(texts, model, batch_tokens=batch)

    return System("regard", run, tokenize, TOKENS[device], "tokens")


def peer_system(folder: Path, device: str, precision: str) -> System:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=device).to(PRECISIONS[precision])

    def tokenize(texts: list[str], batch: int) -> None:
        order = np.argsort([-len(text) for text in texts])
        for start in range(0, len(texts), batch):
            model.preprocess([texts[i] for i in order[start : start + batch]])

    def run(texts: list[str], batch: int) -> np.ndarray:
        return np.asarray(model.encode(texts, batch_size=batch, show_progress_bar=False), np.float32)

    return System("sentence-transformers", run, tokenize, SIZES[device], "texts")


def clock_of(device: str) -> Callable[[], float]:
    """Processor seconds on a CPU, which other programs do not disturb; else seconds."""
    return time.process_time if device == "cpu" else time.perf_counter


def choose_batch(system: System, texts: list[str], device: str) -> None:
    """Set the fastest batch size: largest first, two runs each, one if that is far from the best."""
    best, tried, clock = float("inf"), [], clock_of(device)
    system.run(texts, max(system.batches))  # starts the clock of a GPU, chooses kernels
    for batch in sorted(system.batches, reverse=True):
        seconds = float("inf")
        for _ in range(2):
            start = clock()
            system.run(texts, batch)
            synchronize(device)
            seconds = min(seconds, clock() - start)
            if seconds > 1.5 * best:
                break
        tried.append(f"{batch}: {len(texts) / seconds:,.0f}")
        if seconds < best:
            best, system.batch = seconds, batch
    print(f"    {system.name}, texts/s by {system.unit} per batch: {', '.join(tried)}", flush=True)


def measure(
    systems: list[System], texts: list[str], device: str, rounds: int
) -> tuple[dict[str, list[float]], dict[str, np.ndarray], dict[str, float]]:
    """Seconds of each round, vectors, and seconds of tokenizing alone, by system."""

    def runner(system: System) -> Callable[[], np.ndarray]:
        def run() -> np.ndarray:
            if device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats()
            vectors = system.run(texts, system.batch)
            system.peaks.append(peak_memory(device))
            return vectors

        return run

    for system in systems:
        choose_batch(system, texts, device)
    clock = clock_of(device)
    seconds, vectors = in_turn({system.name: runner(system) for system in systems}, rounds, clock)
    alone = {system.name: lambda system=system: system.tokenize(texts, system.batch) for system in systems}
    tokenizing, _ = in_turn(alone, min(3, rounds), clock)
    return seconds, vectors, {name: min(times) for name, times in tokenizing.items()}


def compare(folder: Path, name: str, texts: list[str], options: argparse.Namespace) -> list[str]:
    """Rows of the table for one set of texts; each is also printed at once."""
    reference, rows = None, []
    for precision in options.precisions:
        makers = [regard_system, *([peer_system] if options.peer else [])]
        systems = [make(folder, options.device, precision) for make in makers]
        seconds, vectors, tokenizing = measure(systems, texts, options.device, options.rounds)
        if reference is None:
            reference = vectors[systems[-1].name]
        theirs = statistics.median(seconds[systems[-1].name])
        for system in systems:
            times = seconds[system.name]
            median = statistics.median(times)
            largest, cosine = difference(vectors[system.name], reference)
            cells = (
                name, precision, system.name, f"{system.batch} {system.unit}", f"{len(texts) / median:,.0f}",
                f"{len(texts) / min(times):,.0f}", f"{theirs / median:.2f}",
                f"{len(texts) / tokenizing[system.name]:,.0f}", system.peaks[-1],
                f"{largest:.0e}", f"{cosine:.6f}",
            )  # fmt: skip
            rows.append(f"| {' | '.join(cells)} |")
            print(rows[-1], flush=True)
        if options.profile:
            run = systems[0]
            print(profile(lambda: run.run(texts, run.batch), options.device, 30, 60), flush=True)
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu.embed", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--gather", type=Path, metavar="FOLDER", help="write what another machine needs")
    parser.add_argument("--folder", type=Path, default=Path("build/embed"), help="folder of --gather")
    parser.add_argument("--random", action="store_true", help="random weights, also if there are others")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS), help="texts to embed")
    parser.add_argument("--texts", type=int, default=TEXTS, help=f"of each set (default {TEXTS})")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=list(PRECISIONS))
    parser.add_argument("--rounds", type=int, default=7, help="in which the systems take turns (default 7)")
    parser.add_argument("--part", type=int, help="texts that regard tokenizes at a time, for experiments")
    parser.add_argument("--profile", action="store_true", help="show where the time of regard goes")
    parser.add_argument("--tiny", action="store_true", help="a small model and a few texts on the CPU")
    options = parser.parse_args(argv)
    if options.gather:
        gather(options.gather)
        return 0
    if options.tiny:
        options.device, options.precisions, options.rounds = "cpu", ["float32", "bfloat16"], 1
    if options.part:
        pipeline.TOKENIZED[options.device] = options.part
    options.peer = has_peer()
    on_gpu = options.device == "cuda"
    print(machine.stamp(torch.cuda.get_device_name() if on_gpu else None), flush=True)
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder / "minilm"
        folder = folder if folder.is_dir() else minilm_folder()
        if options.tiny or options.random or not (folder / "model.safetensors").is_file():
            write_random(folder, Path(made), TINY if options.tiny else {})
            print("random weights")
            folder = Path(made)
        rows, texts = [], []
        for name in options.sets:
            texts = TINY_TEXTS if options.tiny else read_texts(name, options.folder, options.texts)
            rows += compare(folder, name, texts, options)
    print(
        "| texts | precision | system | batch | texts/s, median | best | ratio | tokenizing, texts/s "
        f"| peak memory | largest difference | lowest cosine |\n|{'---|' * 11}"
    )
    print("\n".join(rows))
    print(
        f"{len(texts):,} texts of each set, {options.rounds} rounds in turn, {torch.get_num_threads()} "
        "threads of torch. Ratio: to sentence-transformers, by medians. Difference and cosine: to its "
        f"vectors in {options.precisions[0]}."
    )
    return 0


def has_peer() -> bool:
    """Whether sentence-transformers can be imported; prints its version or why not."""
    missing = add_placeholders(["scipy", "sklearn"])
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        import sentence_transformers
        import transformers
    except ImportError as error:
        print(f"sentence-transformers is not here ({error}); regard alone")
        return False
    without = f", without {' and '.join(missing)}, which encode does not call" if missing else ""
    print(f"transformers {transformers.__version__}, ", end="")
    print(f"sentence-transformers {sentence_transformers.__version__}{without}", flush=True)
    return True


if __name__ == "__main__":
    command.run(main)
