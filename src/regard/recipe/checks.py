"""Whether the parts of a recipe fit together: each rule gives a sentence, and the whole list is weighed before any work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from regard.models.autoregressive import AutoregressiveOptions
from regard.recipe.schema import Cosine, InverseSqrt, Recipe
from regard.tasks import task_of


def check_recipe(recipe: Recipe) -> list[str]:
    """Everything that cannot work, one sentence each; empty when all is well."""
    return [
        *_task(recipe),
        *_start(recipe),
        *_data(recipe),
        *_words(recipe),
        *recipe.model.check(),
        *_course(recipe),
    ]


def _task(recipe: Recipe) -> Iterator[str]:
    task = task_of(recipe.task)
    if recipe.model.kind != task.model:
        yield f"model.kind is {recipe.model.kind}, and task {recipe.task} trains a model of kind {task.model}; leave model.kind out"
        return
    yield from task.fits(recipe)


def _start(recipe: Recipe) -> Iterator[str]:
    """What is for fine-tuning alone."""
    if recipe.training.start is not None or getattr(recipe.model, "pretrained", None) is not None:
        return
    for key, given in (
        ("tokenizer.kind", recipe.tokenizer.kind == "pretrained"),
        ("optimizer.head_lr", recipe.optimizer.head_lr),
    ):
        if given:
            yield f"{key} is given, and nothing pretrained is fine-tuned; set model.pretrained or training.start, or leave it out"
    if getattr(recipe.model, "subwords", False):
        yield "model.subwords is for taggers on a pretrained encoder; set model.pretrained, or leave it out"


def _data(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if data.corpus is None and not data.train:
        yield "data names neither a corpus nor train files; set data.corpus (`regard data` lists them) or data.train"
    if data.corpus is not None and data.train:
        yield f"data.corpus is {data.corpus} and data.train names files; keep one of them"
    if data.corpus is None and data.train and not data.validation and data.hold_out is None:
        yield "data.validation names no files; training files need validation files beside them, or data.hold_out, as 0.1"
    if data.validation and data.hold_out is not None:
        yield "data.hold_out cuts a validation set off the training rows, and data.validation names one; keep one of them"
    if data.test and data.folds is not None:
        yield "data.folds cuts a test set off the training rows, and data.test names one; keep one of them"
    if data.fold is not None and data.folds is not None and data.fold > data.folds:
        yield f"data.fold is {data.fold} and there are {data.folds} folds; take one of 1 to {data.folds}"
    if data.source is not None and data.source == data.target:
        yield f"data.source and data.target are both {data.source!r}; {recipe.task} needs two sides"
    for key in ("source", "target"):
        if re.fullmatch(r"0+|-\d+", getattr(data, key) or ""):
            yield f"data.{key} is {getattr(data, key)}, and columns are counted from 1; take 1 for the first column"
    for key in ("train", "validation", "test"):
        for entry in getattr(data, key):
            if isinstance(entry, list) and len(entry) != (1 if recipe.task == "language" else 2):
                wants = "one file" if recipe.task == "language" else "two files, source and target"
                yield f"data.{key} has an entry of {len(entry)} files, and each entry is {wants}"


def _words(recipe: Recipe) -> Iterator[str]:
    tokenizer, model = recipe.tokenizer, recipe.model
    if (
        isinstance(model, AutoregressiveOptions)
        and model.encoder is not None
        and model.tie == "all"
        and not tokenizer.joint
    ):
        yield (
            "model.tie is all and tokenizer.joint is false: separate vocabularies cannot share a matrix; "
            "set model.tie: target or tokenizer.joint: true"
        )
    if tokenizer.dropout and tokenizer.kind not in ("bpe", "byte-bpe", "pretrained"):
        yield f"tokenizer.dropout leaves out merges, and a {tokenizer.kind} tokenizer has none; set it to 0 or take kind: bpe"
    if tokenizer.min_count > 1 and tokenizer.kind not in ("word", "spelled"):
        yield f"tokenizer.min_count is about whole words, and tokenizer.kind is {tokenizer.kind}; take kind: word, or leave it out"
    if tokenizer.size < 5 and not tokenizer.load:
        yield f"tokenizer.size is {tokenizer.size}, and four tokens are special; take at least 5"
    if tokenizer.kind == "byte-bpe" and tokenizer.size < 260 and not tokenizer.load:
        yield f"tokenizer.size is {tokenizer.size}, smaller than the alphabet: byte-bpe needs 256 bytes and 4 special tokens, 260"


def _course(recipe: Recipe) -> Iterator[str]:
    training, schedule = recipe.training, recipe.schedule
    if training.agreement and recipe.batch.mode == "stream":
        yield "training.agreement reads every batch twice, and a stream is read in order with one state; set agreement to 0"
    if training.steps is None and training.epochs is None and training.minutes is None:
        yield "training.steps, epochs and minutes are all null, and training would never end; set one"
    if training.steps is not None and schedule.warmup > training.steps:
        yield f"schedule.warmup is {schedule.warmup}, longer than the {training.steps} steps of training; take a shorter one"
    if isinstance(schedule, Cosine) and training.steps is None and training.epochs is None:
        yield "schedule.kind is cosine, which ends with the run, and only minutes say when; set training.steps or training.epochs"
    floor = getattr(schedule, "floor", 0.0)
    if not isinstance(schedule, InverseSqrt) and floor > recipe.optimizer.lr:
        yield f"schedule.floor is {floor:g}, above optimizer.lr {recipe.optimizer.lr:g}; take a lower one"
    if training.average > training.keep:
        yield f"training.average is {training.average} and only training.keep {training.keep} checkpoints are kept; keep as many"
    if (
        recipe.batch.mode in ("crops", "stream")
        and recipe.batch.sentences is None
        and recipe.batch.tokens < recipe.batch.length
    ):
        yield f"batch.tokens {recipe.batch.tokens} is less than one window of batch.length {recipe.batch.length}; make it larger"
