"""Training on a GPU beside Hugging Face's Marian: python -m benchmarks.train_gpu [--device cpu --quick] …

Transformer base (61 M parameters) by the recipe `transformer-base`: complete steps (forward, backward,
update) in bfloat16 with float32 weights, through the trainer's own step. All sentences have --words tokens on
both sides, so that there is no padding and target tokens/s mean the same for all. The peers see the same
batches: MarianMTModel with its own loss, in autocast, with torch's fused Adam, eager and under torch.compile;
they compute no label smoothing and do not check whether a step was finite.

Needs torch, numpy, pydantic and regard; transformers for the peers. `--profile` shows where the time of a
step goes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.peers import machine
from regard.data.batch import Batch
from regard.data.tokenizer import BOS, EOS, PAD
from regard.models.build import build
from regard.optimization.optimizers import make_optimizer
from regard.recipe.loading import Recipe, load_recipe
from regard.training.distributed import World, distribute
from regard.training.step import Stepper
from regard.training.step_iterator import StepBatches
from regard.training.trainer import torch_settings

QUICK = [
    f"model.{key}"
    for key in ("dim=64", "encoder.layers=2", "decoder.layers=2", "encoder.inner=128", "decoder.inner=128")
]
RATE = 1e-4


class System(Protocol):
    name: str
    model: Any

    def step(self, batch: Batch) -> None:
        """Learn from a batch."""
        ...

    def loss(self) -> float:
        """Of the last batch, a word."""
        ...


class Regard:
    """The trainer's own step."""

    def __init__(self, name: str, recipe: Recipe, vocabulary: int, device: torch.device) -> None:
        self.name, self.number, self.device, world = name, 0, device, World(device)
        torch.manual_seed(0)
        self.model = build(recipe.model.model_dump(), vocabulary, vocabulary).to(device)
        module = distribute(self.model, world, recipe.training.strategy, recipe.training.agreement)
        self.stepper = Stepper(
            self.model, module, make_optimizer(self.model, recipe.optimizer), recipe, world
        )

    def step(self, batch: Batch) -> None:
        self.number, self.tokens = self.number + 1, batch.tokens
        self.stepper.loss_sums.zero_()
        self.stepper.step(
            self.number, StepBatches([batch], batch.tokens, batch.source_tokens, len(batch), 0), RATE
        )

    def loss(self) -> float:
        assert self.stepper.check() is None, "a step was not finite"
        return float(self.stepper.loss_sums[1]) / self.tokens


class Marian:
    """Hugging Face's model and loss, with a plain loop."""

    def __init__(self, recipe: Recipe, vocabulary: int, device: torch.device, compiled: bool) -> None:
        import transformers
        from transformers import MarianConfig, MarianMTModel

        self.name = f"HF Marian {transformers.__version__}, {'compiled' if compiled else 'eager'}"
        part, dim = recipe.model.encoder, recipe.model.dim
        config = MarianConfig(
            vocab_size=vocabulary, d_model=dim, encoder_layers=part.layers, decoder_layers=part.layers,
            encoder_attention_heads=part.heads, decoder_attention_heads=part.heads,
            encoder_ffn_dim=part.inner, decoder_ffn_dim=part.inner, activation_function="relu",
            scale_embedding=True, dropout=recipe.model.dropout, max_position_embeddings=512,
            pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=BOS,
        )  # fmt: skip
        torch.manual_seed(0)
        model: Any = MarianMTModel(config)
        self.model = model.to(device).train()
        self.run = torch.compile(self.model) if compiled else self.model
        self.device, self.last = device, torch.zeros((), device=device)
        fused = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=fused)

    def step(self, batch: Batch) -> None:
        assert batch.source is not None
        source, target = (x.to(self.device, non_blocking=True) for x in (batch.source, batch.target))
        with torch.autocast(self.device.type, torch.bfloat16):
            found = self.run(
                input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target[:, :-1],
                labels=target[:, 1:].masked_fill(target[:, 1:] == PAD, -100), use_cache=False,
            )  # fmt: skip
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.last = found.loss.detach()

    def loss(self) -> float:
        return float(self.last)


def batches(count: int, rows: int, words: int, vocabulary: int, device: torch.device) -> list[Batch]:
    """Random token ids, the same for every system."""
    draw = torch.Generator().manual_seed(1)
    full = torch.full((rows,), words)

    def side() -> Tensor:
        text = torch.randint(4, vocabulary, (rows, words), generator=draw)
        text[:, -1] = EOS
        return text

    made = [
        Batch(torch.cat([torch.full((rows, 1), BOS), side()], 1), full, torch.arange(rows), side(), full)
        for _ in range(count)
    ]
    return [batch.pin() for batch in made] if device.type == "cuda" else made


def systems(given: argparse.Namespace, device: torch.device) -> Iterator[System]:
    """One after the other, so that only one holds memory."""
    settings = [
        f"batch.tokens={given.tokens}",
        f"training.device={given.device}",
        *(QUICK if given.quick else []),
    ]
    for name in given.systems:
        graph = "false" if name == "regard-eager" else "true"
        recipe = load_recipe("transformer-base", [*settings, f"training.graph={graph}"])
        if name.startswith("regard"):
            yield Regard(
                "regard" if graph == "true" else "regard, training.graph=false",
                recipe,
                given.vocabulary,
                device,
            )
        else:
            yield Marian(recipe, given.vocabulary, device, name == "marian-compiled")


def timed(
    run: Callable[[Batch], None], work: list[Batch], device: torch.device, warm: int, times: int
) -> list[float]:
    """Seconds of a step, one figure for each pass over the batches; `warm` passes come before."""
    found = []
    for i in range(warm + times):
        wait(device)
        begin = time.perf_counter()
        for batch in work:
            run(batch)
        wait(device)
        found.append((time.perf_counter() - begin) / len(work))
        if i < warm:
            print(f"    warm-up {i + 1} of {warm}: {1e3 * found[-1]:.1f} ms a step", flush=True)
    return found[warm:]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(given: argparse.Namespace, device: torch.device, work: list[Batch]) -> list[str]:
    lines = []
    for system in systems(given, device):
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        taken = timed(system.step, work, device, given.warm, given.times)
        middle = statistics.median(taken)
        peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device.type == "cuda" else "–"
        parameters = sum(p.numel() for p in system.model.parameters() if p.requires_grad)
        lines.append(
            f"| {system.name} | {work[0].tokens / middle:,.0f} "
            f"| {1e3 * middle:.1f} (best {1e3 * min(taken):.1f}) "
            f"| {system.loss():.2f} | {peak} | {parameters / 1e6:.1f} M |"
        )
        print("  " + lines[-1], flush=True)
        del system
    return lines


def profile(given: argparse.Namespace, device: torch.device, work: list[Batch]) -> None:
    from torch.profiler import ProfilerActivity

    cuda = device.type == "cuda"
    for system in systems(given, device):
        timed(system.step, work, device, 1, 1)
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        ) as seen:
            timed(system.step, work, device, 0, 1)
        print(f"{system.name}, {len(work)} steps", flush=True)
        order = "self_device_time_total" if cuda else "self_cpu_time_total"
        table = seen.key_averages().table(sort_by=order, row_limit=given.rows, max_name_column_width=90)
        print("\n".join(_short(line) for line in table.split("\n")), flush=True)


def _short(line: str) -> str:
    """A row of the profiler's table without what it says of the CPU."""
    cells = line.split("  ")
    cells = [cell.strip() for cell in cells if cell.strip()]
    return "  ".join([cells[0], *cells[-4:]]) if len(cells) > 5 else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Target tokens/s of training on a GPU, ours and Hugging Face's Marian."
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=25_000, help="of each side of a batch")
    parser.add_argument("--words", type=int, default=64, help="of every sentence")
    parser.add_argument("--vocabulary", type=int, default=32768)
    names = ["regard", "regard-eager", "marian", "marian-compiled"]
    parser.add_argument("--systems", nargs="+", choices=names, default=names)
    parser.add_argument("--warm", type=int, default=2, help="passes over the batches before those that count")
    parser.add_argument("--times", type=int, default=7, help="passes that count; their median is reported")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and small batches: does all of this run?"
    )
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rows", type=int, default=40, help="of the profile")
    given = parser.parse_args()
    if given.quick:
        given.tokens, given.words, given.vocabulary, given.times, given.warm = 256, 16, 1000, 2, 1
    device = torch.device(given.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else given.device
    rows = max(1, given.tokens // given.words)
    made = (
        f"{machine.stamp(where)}; bfloat16, batches of {rows} pairs of {given.words} + {given.words} tokens"
    )
    print(made, flush=True)
    work = batches(given.batches, rows, given.words, given.vocabulary, device)
    with torch_settings(
        load_recipe("transformer-base", [f"training.device={given.device}"]), World(device), None
    ):
        if given.profile:
            profile(given, device, work)
            return
        lines = measure(given, device, work)
    print(
        "\n| system | target tokens/s | ms a step | loss | peak memory | parameters |\n"
        "|---|---|---|---|---|---|"
    )
    print("\n".join(lines) + f"\n\n{made}")


if __name__ == "__main__":
    main()
