"""Estimate the cost of a recipe: parameters, FLOPs, memory and time, from a sample of its data.

Some thousand rows are read and prepared, the model is built, and a few steps are timed on this device. If a
batch would take long, some of its rows are timed and the time is scaled by FLOPs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import torch
from torch import nn

from regard.attention.devices import pick_device
from regard.data import corpora
from regard.data.batch import Batch
from regard.data.datasets import load_corpus, split_rows
from regard.data.text_files import is_unreadable
from regard.data.tokenizer import SPECIALS
from regard.files.progress import track
from regard.models.build import build
from regard.optimization.optimizers import make_optimizer
from regard.recipe.loading import Recipe, load_recipe
from regard.tasks import get_task
from regard.training.distillation import Teacher
from regard.training.distributed import LossModule, World
from regard.training.ema import Ema
from regard.training.pretrained import Pretrained
from regard.training.rng_state import seed_all
from regard.training.step import Stepper
from regard.training.step_iterator import StepBatches, StepIterator, training_flops
from regard.training.trainer import check_machine, torch_settings
from regard.training.training_data import TrainingData

SAMPLE_ROWS = 10_000
SAMPLE_STEPS = 8  # FLOPs and tokens are averaged over these
FLOPS_LIMIT = {"cpu": 4e10, "cuda": 2e13}  # of a timed step: about a second


@dataclass(frozen=True)
class Estimate:
    """Sizes in numbers and bytes, costs in FLOPs and seconds."""

    name: str
    data: str
    rows: dict[str, int]  # by split
    read_all: bool  # all training rows were read, so the vocabulary is exact
    vocabulary: tuple[int | None, int]  # source, target
    parameters: dict[str, int]  # by part of the model
    source_entries: str  # tokens or channels
    target_entries: str | None  # labels or tags; None: tokens
    loss_unit: str  # target tokens, rows, tags
    notes: list[str]  # how files are read
    warnings: list[str]
    first_row: tuple[str, ...]
    flops_per_token: float  # of training, per loss unit
    tokens_per_step: float
    padding: float
    memory: dict[str, int]
    seconds_per_step: float
    steps: int | None  # None: only the time limit ends the run
    minutes: float | None
    device: str

    @property
    def seconds(self) -> float:
        """Training time without validation."""
        limits = [] if self.steps is None else [self.steps * self.seconds_per_step]
        return min(limits + ([] if self.minutes is None else [60 * self.minutes]))

    @property
    def flops(self) -> float:
        """FLOPs of the training."""
        return self.seconds / self.seconds_per_step * self.tokens_per_step * self.flops_per_token

    def __str__(self) -> str:
        lines = [f"{name:<11} {text}" for name, text in self._lines().items()]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    def _lines(self) -> dict[str, str]:
        steps = self.seconds / self.seconds_per_step
        by_part = ", ".join(f"{part} {count:,}" for part, count in self.parameters.items())
        memory = ", ".join(f"{part} {_format_bytes(size)}" for part, size in self.memory.items())
        # Batches of a sample are less full than those of all rows.
        padding = f", {self.padding:.1%} padding" if self.read_all else ""
        return {
            "recipe": self.name,
            "data": f"{self.data}: " + ", ".join(f"{n:,} {split}" for split, n in self.rows.items()),
            **({"columns": "\n            ".join(self.notes)} if self.notes else {}),
            "first row": " → ".join(text if len(text) <= 80 else f"{text[:79]}…" for text in self.first_row),
            "vocabulary": self._vocabulary_text(),
            "parameters": f"{sum(self.parameters.values()):,}: {by_part}",
            "batch": f"{self.tokens_per_step:,.0f} {self.loss_unit} per step{padding}",
            "FLOPs": f"{self.flops_per_token:.2e} per {self.loss_unit.removesuffix('s')} of training, "
            f"{self.flops:.2e} in total",
            "memory": f"{_format_bytes(sum(self.memory.values()))}: {memory}",
            "time": f"about {_format_duration(self.seconds)} for {steps:,.0f} steps of "
            f"{self.seconds_per_step:.3g} s on {self.device}, without validation",
        }

    def _vocabulary_text(self) -> str:
        source, target = self.vocabulary
        if self.target_entries:
            return f"{source:,} {self.source_entries}, {target - len(SPECIALS):,} {self.target_entries}"
        if self.source_entries == "channels":
            return f"{source:,} channels, {target:,} target tokens"
        sizes = f"{target:,}" if source in (None, target) else f"{source:,} source and {target:,} target"
        return f"{sizes} tokens" + (
            "" if self.read_all else f", by the recipe and the first {SAMPLE_ROWS:,} rows"
        )


def estimate(
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe, overrides: Iterable[str] = ()
) -> Estimate:
    """Estimate the cost of a recipe; makes all checks that `train` makes before its first step."""
    loaded = load_recipe(recipe, overrides)
    world = World(pick_device(loaded.training.device))
    limit = min(loaded.data.limit or SAMPLE_ROWS, SAMPLE_ROWS)
    check_machine(loaded, world)
    if loaded.distillation.teacher is not None:
        Teacher.check(loaded)
    with torch_settings(loaded, world, None):
        seed_all(loaded.seed)
        pretrained = Pretrained.load(loaded)
        data = _load_sample(loaded, limit, pretrained)
        rows = count_rows(loaded, data)
        exact_vocabulary = loaded.tokenizer.load is not None or pretrained is not None
        read_all = rows["training"] <= limit or exact_vocabulary
        vocabulary = _vocabulary_sizes(loaded, data, read_all)
        model = build(loaded.model.model_dump(), *vocabulary).to(world.device).train()
        model.source_tokenizer, model.target_tokenizer = data.source_tokenizer, data.target_tokenizer
        measured = Measurement(loaded, world, data, model)
        return _make_estimate(loaded, data, rows, read_all, vocabulary, measured)


def _load_sample(recipe: Recipe, limit: int, pretrained: Pretrained | None) -> TrainingData:
    task = get_task(recipe.task)
    sample = recipe.data.model_copy(update={"limit": limit})
    tokenizers = None if pretrained is None else pretrained.tokenizers(task)
    corpus = load_corpus(sample, recipe.tokenizer, task=task.rows(recipe), seed=recipe.seed, given=tokenizers)
    return TrainingData(corpus)


class Measurement:
    """Tokens, FLOPs, memory and time of a few steps."""

    def __init__(self, recipe: Recipe, world: World, data: TrainingData, model: Any) -> None:
        self.recipe, self.world, self.model = recipe, world, model
        stream = data.training_batches(recipe, world)
        iterator = StepIterator(stream, world, recipe.batch.accumulate, model.flops)
        self.padding, self.steps_per_epoch = stream.padding, iterator.steps_in(1.0)
        steps = [iterator.next() for _ in range(SAMPLE_STEPS)]
        self.tokens = sum(step.tokens for step in steps) / SAMPLE_STEPS
        self.flops = sum(step.flops for step in steps) / SAMPLE_STEPS
        typical = min(steps, key=lambda step: abs(step.flops - self.flops))
        rows, scale = _affordable_rows(typical.batches[0], model, world.device.type, self.flops)
        ema = Ema(model, recipe.training.ema) if recipe.training.ema else None
        optimizer = make_optimizer(model, recipe.optimizer)
        stepper = Stepper(model, LossModule(model), optimizer, recipe, world, ema)
        one, two = (_activation_bytes(stepper, step.batches[0]) for step in (rows, _doubled(rows)))
        fixed, growing = _fixed_and_growing(one, two)
        self.activations = round(fixed + growing * scale / recipe.batch.accumulate)
        fixed, growing = _fixed_and_growing(*_time_steps(stepper, rows))
        self.seconds = fixed + growing * scale

    def memory(self) -> dict[str, int]:
        """Return bytes by use; the optimizer is assumed to keep two values per weight, as Adam does."""
        size = sum(p.numel() * p.element_size() for p in self.model.parameters())
        memory = {"weights": size, "gradients": size, "optimizer": 2 * size}
        if self.recipe.training.ema:
            memory["moving average"] = size
        return {**memory, "activations": self.activations}


def _make_estimate(
    recipe: Recipe,
    data: TrainingData,
    rows: dict[str, int],
    read_all: bool,
    vocabulary: tuple[int | None, int],
    measured: Measurement,
) -> Estimate:
    task, training, corpus = get_task(recipe.task), recipe.training, data.corpus
    steps_per_epoch = measured.steps_per_epoch * rows["training"] / corpus.train.report.read
    by_epochs = None if training.epochs is None else round(training.epochs * steps_per_epoch)
    on_gpu = measured.world.device.type == "cuda"
    return Estimate(
        name=recipe.name,
        data=_describe_data(recipe),
        rows=rows,
        read_all=read_all,
        vocabulary=vocabulary,
        parameters=measured.model.parameters_by_part(),
        source_entries="channels" if task.rows(recipe).sequences else "tokens",
        target_entries=task.target_entries,
        loss_unit=task.loss_unit,
        notes=corpus.notes,
        warnings=corpus.warnings if read_all else [],  # those of a sample may be wrong
        first_row=_first_row(recipe),
        flops_per_token=measured.flops / measured.tokens,
        tokens_per_step=measured.tokens,
        padding=measured.padding,
        memory=measured.memory(),
        seconds_per_step=measured.seconds,
        steps=min((n for n in (training.steps, by_epochs) if n is not None), default=None),
        minutes=training.minutes,
        device=torch.cuda.get_device_name() if on_gpu else f"the CPU ({_format_threads()})",
    )


# Timing


def _affordable_rows(batch: Batch, model: nn.Module, device: str, flops: float) -> tuple[StepBatches, float]:
    """As many rows of a batch as the FLOPs limit allows, and the FLOPs of a step relative to theirs."""
    batch_flops = training_flops(batch, model.flops)  # type: ignore[arg-type]
    count = max(1, min(len(batch), int(len(batch) * FLOPS_LIMIT.get(device, 4e10) / batch_flops)))
    index = torch.linspace(0, len(batch) - 1, count).round().long()
    selected = _map_rows(batch, lambda x: x[index])
    selected_flops = training_flops(selected, model.flops)  # type: ignore[arg-type]
    return _as_step(selected, selected_flops), flops / selected_flops


def _doubled(step: StepBatches) -> StepBatches:
    """The same rows twice in one batch."""
    return _as_step(_map_rows(step.batches[0], lambda x: torch.cat([x, x])), 2 * step.flops)


def _map_rows(batch: Batch, function: Any) -> Batch:
    names = ["target", "target_lengths", "rows"]
    names += [] if batch.source is None else ["source", "source_lengths"]
    tensors = {name: function(getattr(batch, name)) for name in names}
    return replace(batch, **tensors, continues=False, tokens=-1, source_tokens=-1)


def _as_step(batch: Batch, flops: int) -> StepBatches:
    return StepBatches([batch], batch.tokens, batch.source_tokens, len(batch), flops)


def _fixed_and_growing(one: float, two: float) -> tuple[float, float]:
    """The fixed cost and the cost per batch, from measurements of a batch and of twice as many rows."""
    growing = min(one, max(two - one, one / 4))  # timings are noisy
    return one - growing, growing


def _time_steps(stepper: Stepper, step: StepBatches) -> tuple[float, float]:
    """Seconds of a step with these rows, and with twice as many."""
    sizes = (step, _doubled(step))
    stepper.step(1, step, 0.0)  # warm-up; creates the optimizer state
    best = [float("inf"), float("inf")]
    for number in range(2, 6):
        _synchronize(stepper.world)
        start = time.perf_counter()
        stepper.step(number, sizes[number % 2], 0.0)
        _synchronize(stepper.world)
        best[number % 2] = min(best[number % 2], time.perf_counter() - start)
    return best[0], best[1]


def _activation_bytes(stepper: Stepper, batch: Batch) -> int:
    """Bytes that the forward pass keeps for the backward pass, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in stepper.model.parameters()}
    saved: dict[int, int] = {}

    def record(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x), stepper.autocast():
        loss = stepper.module(batch.to(stepper.world.device), stepper.recipe.training.smoothing, None)
        del loss
    return sum(saved.values())


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


# Data


def _vocabulary_sizes(recipe: Recipe, data: TrainingData, exact: bool) -> tuple[int | None, int]:
    """The vocabulary sizes of training; if not all rows were read, the maximum that the recipe allows."""
    source, target = data.source_tokenizer, data.target_tokenizer
    sizes = (None if source is None else len(source)), len(target)
    # Ids of bytes follow those of words, so the size that was counted is used for word-characters too.
    if exact or recipe.tokenizer.kind in ("character", "word-characters"):
        return sizes
    rows, largest = get_task(recipe.task).rows(recipe), recipe.tokenizer.size
    source_size = None if source is None else len(source) if rows.sequences else largest
    return source_size, len(target) if rows.labels else largest


def count_rows(recipe: Recipe, data: TrainingData) -> dict[str, int]:
    """Return the number of rows of the training, validation and test sets."""
    limit, corpus = recipe.data.limit, data.corpus
    read = corpus.train.report.read
    truncated = read == SAMPLE_ROWS and (limit is None or limit > SAMPLE_ROWS)
    rows = {"training": _count_split(recipe, "train") if truncated else read}
    if limit is not None:
        rows["training"] = min(rows["training"], limit)
    if corpus.validation is not None:
        rows["validation"] = len(corpus.validation.targets)
    return rows | {name: _count_split(recipe, name) for name in corpus.test_names}


def _count_split(recipe: Recipe, split: str) -> int:
    """Rows of a split: from the manifest of a known corpus, else counted."""
    data = recipe.data
    is_cut = data.fold is not None or data.folds is not None or data.hold_out is not None
    corpus = None if data.corpus is None else corpora.find(data.corpus)
    if corpus is not None and not getattr(data, split, ()) and not is_cut and corpus.folds is None:
        count = corpus.row_count(split, data.source, data.target, data.version)
        if count is not None:
            return count
    rows = split_rows(data, split, get_task(recipe.task).rows(recipe))
    size = sum(path.stat().st_size for path in rows.files)
    with track(size, f"counting {split}", "bytes") as progress:
        return sum(len(block[0]) for block in rows.blocks(progress.advance))


def _first_row(recipe: Recipe) -> tuple[str, ...]:
    """The first readable training row."""
    rows = split_rows(recipe.data, "train", get_task(recipe.task).rows(recipe))
    return next((row for row in rows if all(text.strip() and not is_unreadable(text) for text in row)), ())


def _describe_data(recipe: Recipe) -> str:
    data = recipe.data
    name = data.corpus or f"{len(data.train)} file{'s' if len(data.train) > 1 else ''} of your own"
    pair = f"{data.source}-{data.target}"
    return f"{name} {pair}" if data.corpus and data.source and data.target and pair not in name else name


# Formatting


def _format_threads() -> str:
    n = torch.get_num_threads()
    return f"{n} thread{'s' if n > 1 else ''}"


def _format_bytes(n: int) -> str:
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def _format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes < 6000 else f"{minutes / 1440:,.0f} days"
