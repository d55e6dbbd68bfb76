"""Decoding on a GPU beside Hugging Face's Marian: python -m benchmarks.decode_gpu [--device cpu --quick] …

Transformer base (61 M parameters) with random weights, sources of 32 tokens, outputs of exactly 32: the end
mark is made impossible, so that every system writes the same number of tokens. Tokens/s count the best output
of each sentence, whatever the beam; from token ids to token ids, one batch per run, the median of some runs.
The check compares our outputs with those of the torch model by plain search in float32, where only near-ties
may differ.

Needs torch, numpy, tokenizers and regard; transformers for the peer. `--profile` shows where the time of one
search goes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from benchmarks.peers import machine
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.graphs import run_eagerly
from regard.decoding.limits import Limits
from regard.models.build import build
from regard.pipelines.translate import translate_tokens

NEVER = -1e4  # the bias of a word that nobody writes
Sentences = list[list[int]]


@dataclass(frozen=True)
class Sizes:
    dim: int = 512
    layers: int = 6
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 32768
    words: int = 32


QUICK = Sizes(dim=64, layers=2, heads=4, inner=128, vocabulary=1000, words=12)


def ours(sizes: Sizes, device: str) -> Any:
    """A regard translator with every key of its recipe section written out: no schema is needed."""
    part = {
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
        build({**config, "encoder": part, "decoder": part}, sizes.vocabulary, sizes.vocabulary)
        .eval()
        .to(device)
    )
    with torch.no_grad():
        model.output.projection.bias[EOS] = NEVER
    return model


class System(Protocol):
    name: str
    parameters: int

    def __call__(self, sentences: Sentences, beam: int) -> list[list[int]]:
        """The best text of each sentence."""
        ...


class Regard:
    """A writer of regard's, by the function that users call."""

    def __init__(self, name: str, writer: Any, words: int) -> None:
        self.name, self.writer, self.words = name, writer, words
        self.parameters = sum(p.numel() for p in getattr(writer, "model", writer).parameters())

    def __call__(self, sentences: Sentences, beam: int) -> list[list[int]]:
        room = len(sentences) * (self.words + 2) * beam  # one batch
        found = translate_tokens(
            self.writer,
            sentences,
            strategy=Beam(beam),
            limits=Limits(max_length=self.words, batch_tokens=room),
        )
        return [texts[0].tokens for texts in found]


class Marian:
    """Hugging Face's MarianMTModel.generate with its cache."""

    def __init__(self, sizes: Sizes, device: str, dtype: torch.dtype) -> None:
        import transformers
        from transformers import MarianConfig, MarianMTModel

        self.name, self.words, self.device = f"HF Marian {transformers.__version__}", sizes.words, device
        config = MarianConfig(
            vocab_size=sizes.vocabulary, d_model=sizes.dim, encoder_layers=sizes.layers,
            decoder_layers=sizes.layers, encoder_attention_heads=sizes.heads,
            decoder_attention_heads=sizes.heads, encoder_ffn_dim=sizes.inner,
            decoder_ffn_dim=sizes.inner, activation_function="relu", scale_embedding=True,
            max_position_embeddings=1024, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS,
            decoder_start_token_id=BOS, forced_eos_token_id=None,
        )  # fmt: skip
        torch.manual_seed(0)
        model: Any = MarianMTModel(config).eval()
        self.model = model.to(device=device, dtype=dtype)
        self.model.final_logits_bias[0, EOS] = NEVER
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @torch.inference_mode()
    def __call__(self, sentences: Sentences, beam: int) -> list[list[int]]:
        source = torch.tensor([[*s, EOS] for s in sentences], device=self.device)
        found = self.model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), num_beams=beam, do_sample=False,
            max_new_tokens=self.words, forced_eos_token_id=None,
        )  # fmt: skip
        return [row[1:] for row in found.tolist()]


def seconds(run: Callable[[], Any], device: str, warm: int, times: int) -> tuple[float, float, Any]:
    """The median and the least of some runs, after some to warm up, and what the last one gave."""
    found, taken = None, []
    for i in range(warm + times):
        wait(device)
        begin = time.perf_counter()
        found = run()
        wait(device)
        taken.append(time.perf_counter() - begin)
        if i < warm:
            print(f"    warm-up {i + 1} of {warm}: {taken.pop():.2f} s", flush=True)
    return statistics.median(taken), min(taken), found


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak(device: str) -> str:
    return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device.startswith("cuda") else "–"


def systems(given: argparse.Namespace, sizes: Sizes, dtype: torch.dtype) -> Iterator[System]:
    """One after the other, so that only one holds memory."""
    if "regard" in given.systems:
        yield Regard("regard", engine(ours(sizes, given.device), dtype), sizes.words)
    if "eager" in given.systems:
        yield Regard(
            "regard, steps not recorded",
            engine(ours(sizes, given.device), dtype, run=run_eagerly),
            sizes.words,
        )
    if "torch" in given.systems:
        yield Regard("regard, torch model", ours(sizes, given.device).to(dtype), sizes.words)
    if "marian" in given.systems:
        yield Marian(sizes, given.device, dtype)


def measure(given: argparse.Namespace, sizes: Sizes, dtype: torch.dtype) -> list[str]:
    lines = []
    draw = torch.Generator().manual_seed(1)
    most = max(given.sentences)
    words = torch.randint(4, sizes.vocabulary, (most, sizes.words), generator=draw).tolist()
    for system in systems(given, sizes, dtype):
        print(f"{system.name}: {system.parameters / 1e6:.1f} M parameters", flush=True)
        for beam in given.beams:
            for count in given.sentences:
                if given.device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats()
                sentences = words[:count]
                try:
                    middle, least, found = seconds(
                        lambda: system(sentences, beam), given.device, given.warm, given.times
                    )
                except torch.OutOfMemoryError:
                    lines.append(f"| {system.name} | {beam} | {count} | out of memory | | |")
                    print("  " + lines[-1], flush=True)
                    continue
                written = sum(map(len, found))
                assert written == count * sizes.words, f"{written} words instead of {count * sizes.words}"
                rate = f"{written / middle:,.0f} | {written / least:,.0f}"
                lines.append(
                    f"| {system.name} | {beam} | {count} | {rate} | {1e3 * middle / sizes.words:.2f} "
                    f"| {peak(given.device)} |"
                )
                print("  " + lines[-1], flush=True)
    return lines


def check(given: argparse.Namespace, sizes: Sizes) -> str:
    """Compare the engine with the torch model's search, both in float32."""
    model, count = ours(sizes, given.device), min(64, max(given.sentences))
    draw = torch.Generator().manual_seed(2)
    sentences = [
        row[: 1 + i % sizes.words]
        for i, row in enumerate(
            torch.randint(4, sizes.vocabulary, (count, sizes.words), generator=draw).tolist()
        )
    ]
    cuda_engine, lines = engine(model, torch.float32), []
    for beam in given.beams:
        expected = translate_tokens(
            model, sentences, strategy=Beam(beam), limits=Limits(max_length=sizes.words)
        )
        # Twice: the second search replays the captured graphs.
        *_, actual = [
            translate_tokens(
                cuda_engine, sentences, strategy=Beam(beam), limits=Limits(max_length=sizes.words)
            )
            for _ in range(2)
        ]
        pairs = list(zip(actual, expected, strict=True))
        same = sum(a[0].tokens == b[0].tokens for a, b in pairs)
        difference = max(abs(a[0].score - b[0].score) for a, b in pairs)
        lines.append(f"beam {beam}: {same} of {count} texts equal, scores differ by at most {difference:.1e}")
    return "; ".join(lines)


def profile(given: argparse.Namespace, sizes: Sizes, dtype: torch.dtype) -> None:
    from torch.profiler import ProfilerActivity

    cuda = given.device.startswith("cuda")
    system = Regard("regard", engine(ours(sizes, given.device), dtype), sizes.words)
    words = torch.randint(4, sizes.vocabulary, (given.sentences[0], sizes.words)).tolist()
    for beam in given.beams:
        for _ in range(2):
            system(words, beam)
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        ) as seen:
            system(words, beam)
            wait(given.device)
        print(f"beam {beam}, {len(words)} sentences", flush=True)
        order = "self_device_time_total" if cuda else "self_cpu_time_total"
        print(seen.key_averages().table(sort_by=order, row_limit=30, max_name_column_width=70), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens/s on a GPU, ours and Hugging Face's Marian.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--sentences", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument(
        "--systems", nargs="+", choices=["regard", "eager", "torch", "marian"], default=["regard", "marian"]
    )
    parser.add_argument("--warm", type=int, default=2, help="runs before those that count")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few sentences: does all of this run?"
    )
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.sentences, given.times, given.warm = [8, 16], 2, 1
    sizes = QUICK if given.quick else Sizes()
    dtype = getattr(torch, given.precision)
    where = torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device
    made = f"{machine.stamp(where)}; {given.precision}, {sizes.words}-token sentences"
    print(made, flush=True)
    if given.profile:
        profile(given, sizes, dtype)
        return
    checked = check(given, sizes)
    print(f"check in float32: {checked}", flush=True)
    lines = measure(given, sizes, dtype)
    print(
        "\n| system | beam | sentences | tokens/s, median | best | ms a step | peak memory |\n"
        "|---|---|---|---|---|---|---|"
    )
    print("\n".join(lines))
    print(f"\n{made}; in float32: {checked}")


if __name__ == "__main__":
    main()
