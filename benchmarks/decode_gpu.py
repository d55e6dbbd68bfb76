"""Decoding on a GPU beside Hugging Face's Marian: python -m benchmarks.decode_gpu [--device cpu --quick] …

Transformer base (61 M parameters) with random weights, sources of 32 tokens, outputs of exactly 32: EOS is
made impossible, so that every system generates the same number of tokens. Tokens/s count the best output of
each sentence, whatever the beam; from token ids to token ids, one batch per run, the median of some runs.
The check compares our outputs with those of the torch model by plain search in float32, where only near-ties
may differ.

Needs torch, numpy, tokenizers and regard; transformers for the peer. `--profile` shows where the time of one
search goes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from benchmarks.gpu.marian import build_marian
from benchmarks.gpu.timing import peak_memory, profile, time_runs
from benchmarks.peers import machine
from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.graphs import run_eagerly
from regard.decoding.limits import Limits
from regard.layers.fused_parts import use_parts
from regard.models.build import build
from regard.pipelines.translate import translate_tokens

IMPOSSIBLE = -1e4  # logit bias of EOS, so that every output has the full length
Sentences = list[list[int]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model, and the length of sources and outputs in tokens."""

    dim: int = 512
    layers: int = 6
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 32768
    length: int = 32


QUICK = Sizes(dim=64, layers=2, heads=4, inner=128, vocabulary=1000, length=12)


def build_translator(sizes: Sizes, device: str) -> Any:
    """A regard translator with random weights; all keys are given, so that no recipe schema is needed."""
    layer = {
        "kind": "transformer", "layers": sizes.layers, "heads": sizes.heads, "key_heads": None,
        "inner": sizes.inner, "norm": "post", "norm_kind": "layer", "activation": "relu",
        "position": "sinusoidal", "max_positions": 1024, "mask": None, "sliced": False,
        "energy": "scaled-dot", "normalize": "softmax", "dropout": None, "attention_dropout": 0.0,
        "inner_dropout": 0.0,
    }  # fmt: skip
    config = {
        "dim": sizes.dim,
        "tie": "all",
        "scale_embeddings": True,
        "output_bias": True,
        "dropout": 0.0,
    }
    torch.manual_seed(0)
    model = (
        build({**config, "encoder": layer, "decoder": layer}, sizes.vocabulary, sizes.vocabulary)
        .eval()
        .to(device)
    )
    with torch.no_grad():
        model.output.projection.bias[EOS] = IMPOSSIBLE
    return model


class System(Protocol):
    """A model that translates token ids."""

    name: str
    parameters: int

    def __call__(self, sentences: Sentences, beam: int) -> list[list[int]]:
        """The best output of each sentence, as token ids."""
        ...


class Regard:
    """A model or engine of regard, through the function that users call."""

    def __init__(self, name: str, model: Any, length: int) -> None:
        self.name, self.model, self.length = name, model, length
        self.parameters = sum(p.numel() for p in getattr(model, "model", model).parameters())

    def __call__(self, sentences: Sentences, beam: int) -> list[list[int]]:
        batch_tokens = len(sentences) * (self.length + 2) * beam  # all in one batch
        limits = Limits(max_length=self.length, batch_tokens=batch_tokens)
        hypotheses = translate_tokens(self.model, sentences, strategy=Beam(beam), limits=limits)
        return [best.tokens for best, *_ in hypotheses]


class Marian:
    """Hugging Face's MarianMTModel.generate with its cache."""

    def __init__(self, sizes: Sizes, device: str, dtype: torch.dtype) -> None:
        import transformers

        self.name, self.length, self.device = f"HF Marian {transformers.__version__}", sizes.length, device
        model = build_marian(
            sizes.vocabulary,
            sizes.dim,
            sizes.layers,
            sizes.heads,
            sizes.inner,
            max_position_embeddings=1024,
            forced_eos_token_id=None,
        )
        self.model = model.eval().to(device=device, dtype=dtype)
        self.model.final_logits_bias[0, EOS] = IMPOSSIBLE
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @torch.inference_mode()
    def __call__(self, sentences: Sentences, beam: int) -> list[list[int]]:
        source = torch.tensor([[*s, EOS] for s in sentences], device=self.device)
        generated = self.model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), num_beams=beam, do_sample=False,
            max_new_tokens=self.length, forced_eos_token_id=None,
        )  # fmt: skip
        return [row[1:] for row in generated.tolist()]


def fused_engine(options: argparse.Namespace, sizes: Sizes, dtype: torch.dtype, *parts: str) -> Any:
    """An engine with these parts fused (layers/fused_parts.py)."""
    with use_parts(*parts):
        return engine(build_translator(sizes, options.device), dtype, fused=True)


def systems(options: argparse.Namespace, sizes: Sizes, dtype: torch.dtype) -> Iterator[System]:
    """Build the systems one after the other, so that only one holds memory."""
    if "regard" in options.systems:
        yield Regard("regard", engine(build_translator(sizes, options.device), dtype), sizes.length)
    if "fused" in options.systems:
        yield Regard("regard, fused kernels", fused_engine(options, sizes, dtype, "decoding"), sizes.length)
    if "fused-beam" in options.systems:
        yield Regard(
            "regard, fused kernels and beam",
            fused_engine(options, sizes, dtype, "decoding", "beam"),
            sizes.length,
        )
    if "eager" in options.systems:
        yield Regard(
            "regard, steps not recorded",
            engine(build_translator(sizes, options.device), dtype, run=run_eagerly),
            sizes.length,
        )
    if "torch" in options.systems:
        yield Regard("regard, torch model", build_translator(sizes, options.device).to(dtype), sizes.length)
    if "marian" in options.systems:
        yield Marian(sizes, options.device, dtype)


def measure(options: argparse.Namespace, sizes: Sizes, dtype: torch.dtype) -> list[str]:
    """Time every system with every beam and number of sentences; return the rows of the table."""
    lines = []
    sources = random_sources(sizes, max(options.sentences), seed=1)
    for system in systems(options, sizes, dtype):
        print(f"{system.name}: {system.parameters / 1e6:.1f} M parameters", flush=True)
        for beam in options.beams:
            for count in options.sentences:
                if options.device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats()
                sentences = sources[:count]
                try:
                    seconds, outputs = time_runs(
                        lambda: system(sentences, beam), options.device, options.warm, options.times
                    )
                except torch.OutOfMemoryError:
                    lines.append(f"| {system.name} | {beam} | {count} | out of memory | | |")
                    print("  " + lines[-1], flush=True)
                    continue
                tokens, median = sum(map(len, outputs)), statistics.median(seconds)
                assert tokens == count * sizes.length, f"{tokens} tokens instead of {count * sizes.length}"
                rate = f"{tokens / median:,.0f} | {tokens / min(seconds):,.0f}"
                lines.append(
                    f"| {system.name} | {beam} | {count} | {rate} | {1e3 * median / sizes.length:.2f} "
                    f"| {peak_memory(options.device)} |"
                )
                print("  " + lines[-1], flush=True)
    return lines


def random_sources(sizes: Sizes, count: int, seed: int) -> Sentences:
    """Sentences of random token ids, all of full length."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, sizes.vocabulary, (count, sizes.length), generator=generator).tolist()


def check(options: argparse.Namespace, sizes: Sizes) -> str:
    """Compare the engine with the torch model's search, both in float32."""
    model, count = build_translator(sizes, options.device), min(64, max(options.sentences))
    sources = random_sources(sizes, count, seed=2)
    sentences = [source[: 1 + i % sizes.length] for i, source in enumerate(sources)]  # of all lengths
    cuda_engine, lines = engine(model, torch.float32, fused=options.fused), []
    for beam in options.beams:
        expected = translate_tokens(
            model, sentences, strategy=Beam(beam), limits=Limits(max_length=sizes.length)
        )
        # Twice: the second search replays the captured graphs.
        *_, actual = [
            translate_tokens(
                cuda_engine, sentences, strategy=Beam(beam), limits=Limits(max_length=sizes.length)
            )
            for _ in range(2)
        ]
        pairs = list(zip(actual, expected, strict=True))
        same = sum(a[0].tokens == b[0].tokens for a, b in pairs)
        difference = max(abs(a[0].score - b[0].score) for a, b in pairs)
        lines.append(f"beam {beam}: {same} of {count} texts equal, scores differ by at most {difference:.1e}")
    return "; ".join(lines)


def print_profile(options: argparse.Namespace, sizes: Sizes, dtype: torch.dtype) -> None:
    """Print where the time of one search goes, for each beam."""
    model = build_translator(sizes, options.device)
    system = Regard("regard", engine(model, dtype, fused=options.fused), sizes.length)
    sources = random_sources(sizes, options.sentences[0], seed=1)
    for beam in options.beams:
        for _ in range(2):  # warm-up: the second search replays captured graphs
            system(sources, beam)
        table = profile(lambda: system(sources, beam), options.device, rows=30, name_width=70)
        print(f"beam {beam}, {len(sources)} sentences\n{table}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens/s on a GPU, ours and Hugging Face's Marian.")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default cuda)")
    parser.add_argument(
        "--precision", choices=["bfloat16", "float32"], default="bfloat16", help="(default bfloat16)"
    )
    parser.add_argument(
        "--sentences",
        type=int,
        nargs="+",
        default=[256, 1024, 4096],
        help="batch sizes (default 256 1024 4096)",
    )
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="beam sizes (default 1 4)")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=["regard", "fused", "fused-beam", "eager", "torch", "marian"],
        default=["regard", "marian"],
        help="regard's engine, with its fused kernels on, with that of the beam too, without CUDA graphs; "
        "torch model; HF Marian",
    )
    parser.add_argument("--warm", type=int, default=2, help="warm-up runs (default 2)")
    parser.add_argument("--times", type=int, default=5, help="timed runs (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few sentences, to check that everything runs"
    )
    parser.add_argument("--profile", action="store_true", help="print where the time goes, and stop")
    options = parser.parse_args()
    if options.quick:
        options.sentences, options.times, options.warm = [8, 16], 2, 1
    # Of the check and the profile:
    options.fused = True if {"fused", "fused-beam"} & set(options.systems) else None
    parts = use_parts("decoding", "beam") if "fused-beam" in options.systems else nullcontext()
    sizes = QUICK if options.quick else Sizes()
    dtype = getattr(torch, options.precision)
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    stamp = f"{machine.stamp(where)}; {options.precision}, {sizes.length}-token sentences"
    print(stamp, flush=True)
    with parts:
        if options.profile:
            print_profile(options, sizes, dtype)
            return
        checked = check(options, sizes)
    print(f"check in float32: {checked}", flush=True)
    lines = measure(options, sizes, dtype)
    print(
        "\n| system | beam | sentences | tokens/s, median | best | ms a step | peak memory |\n"
        "|---|---|---|---|---|---|---|"
    )
    print("\n".join(lines))
    print(f"\n{stamp}; in float32: {checked}")


if __name__ == "__main__":
    main()
