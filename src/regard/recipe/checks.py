"""Rules across the blocks of a recipe: each yields one sentence with the key, its value and the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator

from regard.data.tokenizer import check_languages
from regard.errors import OptionError
from regard.models.autoregressive import AutoregressiveOptions
from regard.recipe.schema import Distillation, Recipe
from regard.tasks import get_task


def check_recipe(recipe: Recipe) -> list[str]:
    """Return a sentence for everything that cannot work; empty if the recipe is valid."""
    return [
        *_check_task(recipe),
        *_check_fine_tuning(recipe),
        *_check_data(recipe),
        *_check_tokenizer(recipe),
        *recipe.model.check(),
        *_check_training(recipe),
        *_check_distillation(recipe),
    ]


def _check_task(recipe: Recipe) -> Iterator[str]:
    task = get_task(recipe.task)
    if recipe.model.kind != task.model_block:
        yield (
            f"model.kind is {recipe.model.kind}, and task {recipe.task} trains a {task.model_kind}; "
            "leave model.kind out"
        )
        return
    yield from task.validate(recipe)


def _check_fine_tuning(recipe: Recipe) -> Iterator[str]:
    """Keys that are for fine-tuning only."""
    if recipe.training.start is not None or getattr(recipe.model, "pretrained", None) is not None:
        return
    for key, given in (
        ("tokenizer.kind", recipe.tokenizer.kind == "pretrained"),
        ("optimizer.head_lr", recipe.optimizer.head_lr),
    ):
        if given:
            yield (
                f"{key} is given, and no pretrained model is fine-tuned; "
                "set model.pretrained or training.start, or leave it out"
            )
    if getattr(recipe.model, "subwords", False):
        yield ("model.subwords is for taggers on a pretrained encoder; set model.pretrained, or leave it out")


def _check_data(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if data.corpus is None and not data.train:
        yield (
            "data names neither a corpus nor train files; "
            "set data.corpus (`regard data` lists them) or data.train"
        )
    if data.corpus is not None and data.train:
        yield f"data.corpus is {data.corpus} and data.train names files; keep one of them"
    if data.corpus is None and data.train and not data.validation and data.hold_out is None:
        yield (
            "data.validation names no files; training files need validation files, or data.hold_out, as 0.1"
        )
    if data.validation and data.hold_out is not None:
        yield (
            "data.hold_out takes validation rows from the training rows, and data.validation names files; "
            "keep one of them"
        )
    if data.test and data.folds is not None:
        yield "data.folds takes test rows from the training rows, and data.test names files; keep one of them"
    if data.fold is not None and data.folds is not None and data.fold > data.folds:
        yield f"data.fold is {data.fold} and there are {data.folds} folds; choose 1 to {data.folds}"
    if data.source is not None and data.source == data.target:
        yield f"data.source and data.target are both {data.source!r}; {recipe.task} needs two sides"
    for key in ("source", "target"):
        if re.fullmatch(r"0+|-\d+", getattr(data, key) or ""):
            yield (
                f"data.{key} is {getattr(data, key)}, and columns are counted from 1; "
                "use 1 for the first column"
            )
    yield from _check_file_lists(recipe)


def _check_file_lists(recipe: Recipe) -> Iterator[str]:
    sides = len(get_task(recipe.task).row_format.columns)
    expected = "one file" if sides == 1 else "two files, source and target"
    for key in ("train", "validation", "test"):
        for entry in getattr(recipe.data, key):
            if isinstance(entry, list) and len(entry) != sides:
                yield f"data.{key} has an entry of {len(entry)} files, and each entry is {expected}"


def _check_tokenizer(recipe: Recipe) -> Iterator[str]:
    tokenizer, model = recipe.tokenizer, recipe.model
    tied = isinstance(model, AutoregressiveOptions) and model.encoder is not None and model.tie == "all"
    if tied and not tokenizer.joint:
        yield (
            "model.tie is all and tokenizer.joint is false: separate vocabularies cannot share a matrix; "
            "set model.tie: target or tokenizer.joint: true"
        )
    if tokenizer.dropout and tokenizer.kind not in ("bpe", "byte-bpe", "pretrained"):
        yield (
            f"tokenizer.dropout skips merges, and a {tokenizer.kind} tokenizer has none; "
            "set it to 0 or choose kind: bpe"
        )
    if tokenizer.min_count > 1 and tokenizer.kind not in ("word", "spelled"):
        yield (
            f"tokenizer.min_count is about words, and tokenizer.kind is {tokenizer.kind}; "
            "choose kind: word, or leave it out"
        )
    try:
        check_languages(tokenizer.languages)
    except OptionError as error:
        yield f"tokenizer.languages: {error}"
    if tokenizer.size < 5 and not tokenizer.load:
        yield f"tokenizer.size is {tokenizer.size}, and four tokens are special; set at least 5"
    if tokenizer.kind == "byte-bpe" and tokenizer.size < 260 and not tokenizer.load:
        yield (
            f"tokenizer.size is {tokenizer.size}, smaller than the alphabet of byte-bpe: "
            "256 bytes and 4 special tokens; set at least 260"
        )


def _check_training(recipe: Recipe) -> Iterator[str]:
    training, schedule, batch = recipe.training, recipe.schedule, recipe.batch
    if training.agreement and batch.mode == "stream":
        yield (
            "training.agreement computes every batch twice, and a stream continues one state; "
            "set agreement to 0"
        )
    if training.steps is None and training.epochs is None and training.minutes is None:
        yield "training.steps, epochs and minutes are all null, and training would never end; set one"
    if training.steps is not None and schedule.warmup > training.steps:
        yield (
            f"schedule.warmup is {schedule.warmup}, longer than the {training.steps} steps of training; "
            "choose a shorter one"
        )
    if schedule.needs_steps and training.steps is None and training.epochs is None:
        yield (
            f"schedule.kind is {schedule.kind}, which depends on the length of the run, and only minutes "
            "limit it; set training.steps or training.epochs"
        )
    floor = getattr(schedule, "floor", 0.0)
    if floor > recipe.optimizer.lr:
        yield (f"schedule.floor is {floor:g}, above optimizer.lr {recipe.optimizer.lr:g}; choose a lower one")
    if training.average > training.keep:
        yield (
            f"training.average is {training.average} and only training.keep {training.keep} checkpoints "
            "are kept; keep as many"
        )
    windows = batch.mode in ("crops", "stream") and batch.sentences is None
    if windows and batch.tokens < batch.length:
        yield (
            f"batch.tokens {batch.tokens} is less than one window of batch.length {batch.length}; "
            "make it larger"
        )


def _check_distillation(recipe: Recipe) -> Iterator[str]:
    distillation = recipe.distillation
    if distillation.teacher is not None:
        if recipe.task != "translate":
            yield (
                f"distillation.teacher is given, and the task is {recipe.task}; "
                "only translators are distilled, so leave it out"
            )
        return
    default = Distillation()
    for key in Distillation.model_fields:
        if getattr(distillation, key) != getattr(default, key):
            yield (
                f"distillation.{key} is given, and there is no teacher; set distillation.teacher, "
                "or use `regard distill TEACHER RECIPE`"
            )
            return
