"""What a recipe would cost, before it is paid: parameters, FLOPs, memory and time, from a sample of its own data.

A few thousand rows are read and prepared, the model is built, and one or two real steps are timed on this device. Where
a whole batch would take long, part of it is timed and scaled by its FLOPs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import torch
from torch import nn

from regard.data import corpora
from regard.data.batches import Batch
from regard.data.datasets import load_corpus, split_rows
from regard.data.row_formats import row_format_of
from regard.data.tokenizer import SPECIALS
from regard.files.progress import track
from regard.models.build import build
from regard.recipe.loading import Recipe, load_recipe
from regard.recipe.start import Start
from regard.tasks import task_of
from regard.training import optimizer, rng_state
from regard.training.datasets import Datasets
from regard.training.distributed import LossOf, World, pick_device
from regard.training.ema import Ema
from regard.training.step import Stepper
from regard.training.step_iterator import StepBatches, StepIterator
from regard.training.trainer import check, surroundings

SAMPLE = 10_000  # rows that are looked at
LOOKED = 8  # batches that FLOPs and tokens are averaged over
BUDGET = {"cpu": 4e10, "cuda": 2e13}  # FLOPs of a timed step: about a second


@dataclass(frozen=True)
class Estimate:
    """Sizes in numbers and bytes, costs in FLOPs and seconds."""

    name: str
    data: str
    rows: dict[str, int]  # by split
    whole: bool  # all training rows were looked at, so the vocabulary is the one that training would have
    vocabulary: tuple[int | None, int]
    parameters: dict[str, int]  # by part
    answers: str | None  # what a target is called where it is no text: labels, tags
    predicts: str  # what is learned from: target tokens, rows, tags
    notes: list[str]  # how files are read
    warnings: list[str]
    first_row: tuple[str, ...]
    flops_per_token: float  # of training, for one of these
    tokens_per_step: float
    padding: float
    memory: dict[str, int]
    seconds_per_step: float
    steps: int | None  # None: only the clock decides
    minutes: float | None
    device: str

    @property
    def seconds(self) -> float:
        """Of training, without validation."""
        found = [] if self.steps is None else [self.steps * self.seconds_per_step]
        return min(found + ([] if self.minutes is None else [60 * self.minutes]))

    @property
    def flops(self) -> float:
        """Of the whole training."""
        return self.seconds / self.seconds_per_step * self.tokens_per_step * self.flops_per_token

    def __str__(self) -> str:
        steps, parts, memory = self.seconds / self.seconds_per_step, self.parameters, self.memory
        lines = {
            "recipe": self.name,
            "data": f"{self.data}: " + ", ".join(f"{n:,} {split}" for split, n in self.rows.items()),
            **({"columns": "\n            ".join(self.notes)} if self.notes else {}),
            "first row": " → ".join(text if len(text) <= 80 else f"{text[:79]}…" for text in self.first_row),
            "vocabulary": self._words(),
            "parameters": f"{sum(parts.values()):,}: "
            + ", ".join(f"{part} {n:,}" for part, n in parts.items()),
            "batch": f"{self.tokens_per_step:,.0f} {self.predicts} a step"
            + (
                f", {self.padding:.1%} of the places padding" if self.whole else ""
            ),  # a sample fills batches less well
            "FLOPs": f"{self.flops_per_token:.2e} to train on one of the {self.predicts}, {self.flops:.2e} in all",
            "memory": f"{_size(sum(memory.values()))}: "
            + ", ".join(f"{part} {_size(n)}" for part, n in memory.items()),
            "time": f"about {_duration(self.seconds)} for {steps:,.0f} steps of {self.seconds_per_step:.3g} s on {self.device}; "
            "validation comes on top",
        }
        return "\n".join(
            [
                *(f"{name:<11} {text}" for name, text in lines.items()),
                *(f"warning: {each}" for each in self.warnings),
            ]
        )

    def _words(self) -> str:
        source, target = self.vocabulary
        if self.answers:
            return f"{source:,} tokens, {target - len(SPECIALS):,} {self.answers}"
        words = f"{target:,}" if source in (None, target) else f"{source:,} source and {target:,} target"
        return f"{words} tokens" + ("" if self.whole else f", by the recipe and the first {SAMPLE:,} rows")


def estimate(
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe, overrides: Iterable[str] = ()
) -> Estimate:
    """Look at a recipe without training: everything is checked that `train` checks before its first step."""
    settled = load_recipe(recipe, overrides)
    world = World(pick_device(settled.training.device))
    limit = min(settled.data.limit or SAMPLE, SAMPLE)
    sample = settled.data.model_copy(update={"limit": limit})
    check(settled, world)
    with surroundings(settled, world, None):
        rng_state.seed(settled.seed)
        start = Start.of(settled)
        given = None if start is None else start.tokenizers(settled.task)
        material = Datasets(
            load_corpus(sample, settled.tokenizer, task=settled.task, seed=settled.seed, given=given)
        )
        rows = count_rows(settled, material)
        whole = rows["training"] <= limit or settled.tokenizer.load is not None or start is not None
        vocabulary = _vocabulary(settled, material, whole)
        model = build(settled.model.model_dump(), *vocabulary).to(world.device).train()
        model.source_tokenizer, model.target_tokenizer = material.source_tokenizer, material.target_tokenizer
        return _looked(settled, world, material, model, rows, whole, vocabulary)


def _looked(
    recipe: Recipe,
    world: World,
    material: Datasets,
    model: Any,
    rows: dict[str, int],
    whole: bool,
    vocabulary: tuple[int | None, int],
) -> Estimate:
    stream = material.stream(recipe, world)
    feed = StepIterator(stream, world, recipe.batch.accumulate, model.flops)
    padding, per_epoch = (
        stream.padding,
        feed.steps(1.0) * rows["training"] / material.corpus.train.report.read,
    )
    portions = [feed.next() for _ in range(LOOKED)]
    tokens, flops = (sum(getattr(p, key) for p in portions) / LOOKED for key in ("tokens", "flops"))
    near = min(portions, key=lambda p: abs(p.flops - flops))
    part, share = _affordable(near.batches[0], model, world.device.type, flops)
    stepper = _stepper(recipe, world, model)
    activations = _fixed_and_growing(*(_activations(stepper, p.batches[0]) for p in (part, _doubled(part))))
    seconds = _fixed_and_growing(*_timed(stepper, part))
    training = recipe.training
    known = [
        n
        for n in (training.steps, None if training.epochs is None else round(training.epochs * per_epoch))
        if n is not None
    ]
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    memory = {"weights": sum(sizes), "gradients": sum(sizes), "optimizer": 2 * sum(sizes)}
    if training.ema:
        memory["mean of weights"] = sum(sizes)
    memory["activations"] = round(activations[0] + activations[1] * share / recipe.batch.accumulate)
    return Estimate(
        name=recipe.name,
        data=_data(recipe),
        rows=rows,
        whole=whole,
        vocabulary=vocabulary,
        parameters=model.parameters_by_part(),
        answers={"classify": "labels", "tag": "tags"}.get(recipe.task),
        predicts=task_of(recipe.task).predicts,
        notes=material.corpus.notes,
        warnings=material.corpus.warnings if whole else [],  # of a sample they might be wrong
        first_row=_first_row(recipe),
        flops_per_token=flops / tokens,
        tokens_per_step=tokens,
        padding=padding,
        memory=memory,
        seconds_per_step=seconds[0] + seconds[1] * share,
        steps=min(known, default=None),
        minutes=training.minutes,
        device=torch.cuda.get_device_name() if world.device.type == "cuda" else f"the CPU ({_threads()})",
    )


def _affordable(batch: Batch, model: Any, device: str, flops: float) -> tuple[StepBatches, float]:
    """As many rows of a batch as may be timed, and how many times a step of `flops` is more than they are."""
    count = max(1, min(len(batch), int(len(batch) * BUDGET.get(device, 4e10) / _cost(batch, model))))
    pick = torch.linspace(0, len(batch) - 1, count).round().long()
    names = ("target", "target_lengths", "rows") + (
        () if batch.source is None else ("source", "source_lengths")
    )
    cut = {name: getattr(batch, name)[pick] for name in names}
    part = replace(batch, **cut, continues=False, tokens=-1, source_tokens=-1)
    own = _cost(part, model)
    return StepBatches([part], part.tokens, part.source_tokens, len(part), own, False), flops / own


def _cost(batch: Batch, model: Any) -> int:
    """FLOPs of training on a batch."""
    targets = batch.target_lengths.tolist()
    sources = [0] * len(targets) if batch.source_lengths is None else batch.source_lengths.tolist()
    return 3 * sum(map(model.flops, sources, targets))


def _stepper(recipe: Recipe, world: World, model: nn.Module) -> Stepper:
    ema = Ema(model, recipe.training.ema) if recipe.training.ema else None
    return Stepper(model, LossOf(model), optimizer.make(model, recipe.optimizer), recipe, world, ema)


def _doubled(portion: StepBatches) -> StepBatches:
    """The same rows twice in one batch."""
    batch = portion.batches[0]
    names = ("target", "target_lengths", "rows") + (
        () if batch.source is None else ("source", "source_lengths")
    )
    twice = replace(
        batch, **{n: torch.cat([getattr(batch, n)] * 2) for n in names}, tokens=-1, source_tokens=-1
    )
    return StepBatches([twice], twice.tokens, twice.source_tokens, len(twice), 2 * portion.flops, False)


def _fixed_and_growing(one: float, two: float) -> tuple[float, float]:
    """What does not depend on the number of rows, and what grows with it, from a measure of a batch and of its double."""
    growing = min(one, max(two - one, one / 4))  # a clock is not exact
    return one - growing, growing


def _timed(stepper: Stepper, portion: StepBatches) -> tuple[float, float]:
    """Seconds of a step with these rows, and with twice as many."""
    sizes = (portion, _doubled(portion))
    stepper.step(1, portion, 0.0)  # the first makes Adam's means and warms up
    best = [float("inf"), float("inf")]
    for number in range(2, 6):
        _wait(stepper.world)
        start = time.perf_counter()
        stepper.step(number, sizes[number % 2], 0.0)
        _wait(stepper.world)
        best[number % 2] = min(best[number % 2], time.perf_counter() - start)
    return best[0], best[1]


def _activations(stepper: Stepper, batch: Batch) -> int:
    """Bytes that the forward pass keeps for the backward pass; each block of memory once, the weights not."""
    own = {p.untyped_storage().data_ptr() for p in stepper.model.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), stepper.autocast():
        loss = stepper.module(batch.to(stepper.world.device), stepper.recipe.training.smoothing, None)
        del loss
    return sum(kept.values())


def _wait(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def _vocabulary(recipe: Recipe, material: Datasets, whole: bool) -> tuple[int | None, int]:
    """The sizes training would have; where the text was not read to its end, the most the recipe allows."""
    source, target = material.source_tokenizer, material.target_tokenizer
    found = (None if source is None else len(source)), len(target)
    if whole or recipe.tokenizer.kind in (
        "character",
        "spelled",
    ):  # where letters begin is part of what the tokens mean
        return found
    labels = row_format_of(recipe.task).labels
    return (None if source is None else recipe.tokenizer.size), len(
        target
    ) if labels else recipe.tokenizer.size


def count_rows(recipe: Recipe, material: Datasets) -> dict[str, int]:
    """Rows of the training set (as many as the recipe takes of them), of the validation set and of the test sets."""
    data, corpus = recipe.data, material.corpus
    read = corpus.train.report.read
    cut = read == SAMPLE and (data.limit is None or data.limit > SAMPLE)
    found = {"training": _rows(recipe, "train") if cut else read}
    if data.limit is not None:
        found["training"] = min(found["training"], data.limit)
    if corpus.validation is not None:
        found["validation"] = len(corpus.validation.targets)
    return found | {name: _rows(recipe, name) for name in corpus.test_names}


def _rows(recipe: Recipe, split: str) -> int:
    """Rows of a part, as the manifest of a known corpus has them, or counted in files of one's own."""
    data = recipe.data
    cut = data.fold is not None or data.folds is not None or data.hold_out is not None
    if (
        data.corpus is not None
        and not getattr(data, split, ())
        and not cut
        and corpora.find(data.corpus).folds is None
    ):
        return corpora.find(data.corpus).row_count(split, data.source, data.target, data.version)
    rows = split_rows(data, split, recipe.task)
    with track(sum(path.stat().st_size for path in rows.files), f"counting {split}", "bytes") as progress:
        return sum(len(block[0]) for block in rows.blocks(progress.advance))


def _first_row(recipe: Recipe) -> tuple[str, ...]:
    """The first training row that can be read, as it is read."""
    rows = split_rows(recipe.data, "train", recipe.task)
    return next((row for row in rows if all(text.strip() and text[0] != "\udcff" for text in row)), ())


def _data(recipe: Recipe) -> str:
    data = recipe.data
    name = data.corpus or f"{len(data.train)} file{'s' if len(data.train) > 1 else ''} of your own"
    pair = f"{data.source}-{data.target}"
    return f"{name} {pair}" if data.corpus and data.source and data.target and pair not in name else name


def _threads() -> str:
    n = torch.get_num_threads()
    return f"{n} thread{'s' if n > 1 else ''}"


def _size(n: int) -> str:
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes < 6000 else f"{minutes / 1440:,.0f} days"
