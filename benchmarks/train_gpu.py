"""Training on a GPU beside Hugging Face's Marian: python -m benchmarks.train_gpu [--device cpu --quick] …

Transformer base (61 M parameters) by the recipe `transformer-base`: complete steps (forward, backward,
update) in bfloat16 with float32 weights, through the trainer's own step. All sentences have --length tokens
on both sides, so that there is no padding and target tokens/s mean the same for all. The peers see the same
batches: MarianMTModel with its own loss, in autocast, with torch's fused Adam, eager and under torch.compile;
they compute no label smoothing and do not check whether a step was finite.

Needs torch, numpy, pydantic and regard; transformers for the peers. `--profile` shows where the time of a
step goes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.gpu.marian import build_marian
from benchmarks.gpu.timing import peak_memory, profile, time_runs
from benchmarks.peers import machine
from regard.data.batch import Batch
from regard.data.tokenizer import BOS, EOS, PAD
from regard.layers.fused_parts import use_parts
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
    """A model with its training step."""

    name: str
    model: Any

    def step(self, batch: Batch) -> None:
        """One training step: forward, backward, update."""
        ...

    def loss(self) -> float:
        """The loss per target token of the last batch."""
        ...


class Regard:
    """The trainer's own step, with the given fused kernels; None: those that are on by default."""

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        vocabulary: int,
        device: torch.device,
        parts: list[str] | None = None,
    ) -> None:
        self.name, self.number, self.device, world = name, 0, device, World(device)
        self.parts = parts
        torch.manual_seed(0)
        self.model = build(recipe.model.model_dump(), vocabulary, vocabulary).to(device)
        module = distribute(self.model, world, recipe.training.strategy, recipe.training.agreement)
        self.stepper = Stepper(
            self.model, module, make_optimizer(self.model, recipe.optimizer), recipe, world
        )

    def step(self, batch: Batch) -> None:
        self.number, self.tokens = self.number + 1, batch.tokens
        self.stepper.loss_sums.zero_()
        step = StepBatches([batch], batch.tokens, batch.source_tokens, len(batch), 0)
        with nullcontext() if self.parts is None else use_parts(*self.parts):
            self.stepper.step(self.number, step, RATE)

    def loss(self) -> float:
        assert self.stepper.check() is None, "a step was not finite"
        return float(self.stepper.loss_sums[1]) / self.tokens


class Marian:
    """Hugging Face's model and loss, with a plain loop."""

    def __init__(self, recipe: Recipe, vocabulary: int, device: torch.device, compiled: bool) -> None:
        import transformers

        self.name = f"HF Marian {transformers.__version__}, {'compiled' if compiled else 'eager'}"
        encoder, dim, dropout = recipe.model.encoder, recipe.model.dim, recipe.model.dropout
        model = build_marian(
            vocabulary,
            dim,
            encoder.layers,
            encoder.heads,
            encoder.inner,
            dropout=dropout,
            max_position_embeddings=512,
        )
        self.model = model.to(device).train()
        self.forward = torch.compile(self.model) if compiled else self.model
        self.device, self.last_loss = device, torch.zeros((), device=device)
        fused = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=fused)

    def step(self, batch: Batch) -> None:
        assert batch.source is not None
        source, target = (x.to(self.device, non_blocking=True) for x in (batch.source, batch.target))
        with torch.autocast(self.device.type, torch.bfloat16):
            output = self.forward(
                input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target[:, :-1],
                labels=target[:, 1:].masked_fill(target[:, 1:] == PAD, -100), use_cache=False,
            )  # fmt: skip
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.last_loss = output.loss.detach()

    def loss(self) -> float:
        return float(self.last_loss)


def batches(count: int, rows: int, length: int, vocabulary: int, device: torch.device) -> list[Batch]:
    """Random token ids, the same for every system."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.full((rows,), length)

    def side() -> Tensor:
        text = torch.randint(4, vocabulary, (rows, length), generator=generator)
        text[:, -1] = EOS
        return text

    made_batches = [
        Batch(
            torch.cat([torch.full((rows, 1), BOS), side()], 1), lengths, torch.arange(rows), side(), lengths
        )
        for _ in range(count)
    ]
    return [batch.pin() for batch in made_batches] if device.type == "cuda" else made_batches


def systems(options: argparse.Namespace, device: torch.device) -> Iterator[System]:
    """Build the systems one after the other, so that only one holds memory."""
    settings = [
        f"batch.tokens={options.tokens}",
        f"training.device={options.device}",
        *(QUICK if options.quick else []),
    ]
    for name in options.systems:
        graph = "false" if name == "regard-eager" else "true"
        recipe = load_recipe("transformer-base", [*settings, f"training.graph={graph}"])
        if name == "regard-fused":
            label = f"regard, fused {', '.join(options.parts)}"
            yield Regard(label, recipe, options.vocabulary, device, options.parts)
        elif name == "regard-plain":
            yield Regard("regard, nothing fused", recipe, options.vocabulary, device, [])
        elif name.startswith("regard"):
            label = "regard" if graph == "true" else "regard, training.graph=false"
            yield Regard(label, recipe, options.vocabulary, device)
        else:
            yield Marian(recipe, options.vocabulary, device, name == "marian-compiled")


def train_on_all(system: System, work: list[Batch]) -> None:
    """One pass over the batches."""
    for batch in work:
        system.step(batch)


def measure(options: argparse.Namespace, device: torch.device, work: list[Batch]) -> list[str]:
    """Time the steps of every system; return the rows of the table."""
    lines = []
    for system in systems(options, device):
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        passes, _ = time_runs(partial(train_on_all, system, work), device, options.warm, options.times)
        seconds = [total / len(work) for total in passes]  # of one step
        median = statistics.median(seconds)
        parameters = sum(p.numel() for p in system.model.parameters() if p.requires_grad)
        lines.append(
            f"| {system.name} | {work[0].tokens / median:,.0f} "
            f"| {1e3 * median:.1f} (best {1e3 * min(seconds):.1f}) "
            f"| {system.loss():.2f} | {peak_memory(device)} | {parameters / 1e6:.1f} M |"
        )
        print("  " + lines[-1], flush=True)
        del system
    return lines


def print_profile(options: argparse.Namespace, device: torch.device, work: list[Batch]) -> None:
    """Print where the time of the steps goes, for each system."""
    for system in systems(options, device):
        for _ in range(2):  # warm-up: capture of graphs, compilation
            train_on_all(system, work)
        table = profile(partial(train_on_all, system, work), device, options.rows, name_width=90)
        print(f"{system.name}, {len(work)} steps", flush=True)
        print("\n".join(_without_cpu(line) for line in table.split("\n")), flush=True)


def _without_cpu(line: str) -> str:
    """A row of the profiler's table without the columns of CPU time."""
    cells = line.split("  ")
    cells = [cell.strip() for cell in cells if cell.strip()]
    return "  ".join([cells[0], *cells[-4:]]) if len(cells) > 5 else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Target tokens/s of training on a GPU, ours and Hugging Face's Marian."
    )
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default cuda)")
    parser.add_argument(
        "--tokens", type=int, default=25_000, help="tokens of a batch on each side (default 25000)"
    )
    parser.add_argument("--length", type=int, default=64, help="tokens of every sentence (default 64)")
    parser.add_argument("--vocabulary", type=int, default=32768, help="vocabulary size (default 32768)")
    names = ["regard", "regard-fused", "regard-plain", "regard-eager", "marian", "marian-compiled"]
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=names,
        default=names,
        help="regard; with --parts fused, nothing fused, without CUDA graphs; HF Marian eager and compiled "
        "(default all)",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=["residual", "loss"],
        default=["residual", "loss"],
        help="fused kernels of regard-fused (default all)",
    )
    parser.add_argument("--warm", type=int, default=2, help="warm-up passes over the batches (default 2)")
    parser.add_argument("--times", type=int, default=7, help="timed passes over the batches (default 7)")
    parser.add_argument("--batches", type=int, default=4, help="batches in a pass (default 4)")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and small batches, to check that everything runs"
    )
    parser.add_argument("--profile", action="store_true", help="print where the time goes, and stop")
    parser.add_argument("--rows", type=int, default=40, help="rows of the profile (default 40)")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.length, options.vocabulary, options.times, options.warm = 256, 16, 1000, 2, 1
    device = torch.device(options.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else options.device
    rows = max(1, options.tokens // options.length)
    pair = f"{options.length} + {options.length} tokens"
    stamp = f"{machine.stamp(where)}; bfloat16, batches of {rows} pairs of {pair}"
    print(stamp, flush=True)
    work = batches(options.batches, rows, options.length, options.vocabulary, device)
    with torch_settings(
        load_recipe("transformer-base", [f"training.device={options.device}"]), World(device), None
    ):
        if options.profile:
            print_profile(options, device, work)
            return
        lines = measure(options, device, work)
    print(
        "\n| system | target tokens/s | ms a step | loss | peak memory | parameters |\n"
        "|---|---|---|---|---|---|"
    )
    print("\n".join(lines) + f"\n\n{stamp}")


if __name__ == "__main__":
    main()
