"""Check a recipe: rules across its blocks, and a sentence for each key that the schema refuses.

A sentence names the key, its value and the fix. `check_recipe` has the rules across blocks. `explain_errors`
rewrites pydantic's errors: what is wrong with a key, what is allowed, and which key was probably meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from regard.data.tokenizer import check_languages
from regard.errors import OptionError, RecipeError
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.decoder import BahdanauOptions
from regard.recipe.schema import (
    Distillation,
    Recipe,
    all_keys,
    allowed_values,
    available_keys,
    blocks_of,
    choose_block,
    kind_of,
)
from regard.tasks import get_task

EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text (in quotes, if it looks like a number)",
    "list_type": "a list",
    "model_type": "a block of keys",
    "model_attributes_type": "a block of keys",
    "dict_type": "a block of keys",
    "string_pattern_mismatch": "a folder name: letters, digits, dots, dashes and underscores",
    "string_too_long": "at most 100 characters long",
}
LAYERS = ("model.encoder.layers", "model.decoder.layers")
HEADS = ("model.encoder.heads", "model.decoder.heads")
INNER = ("model.encoder.inner", "model.decoder.inner")
WIDTH = ("model.encoder.width", "model.decoder.width")
# Names of keys in other libraries, and names that occur in several blocks.
SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "learning_rate", "rate", "peak_lr", "max_lr"), ("optimizer.lr",)),
    **dict.fromkeys(("batch_size", "batchsize", "train_batch_size"), ("batch.tokens", "batch.sentences")),
    **dict.fromkeys(("max_tokens", "batch_tokens"), ("batch.tokens",)),
    **dict.fromkeys(
        ("accumulation", "accum", "gradient_accumulation", "gradient_accumulation_steps", "update_freq"),
        ("batch.accumulate",),
    ),
    **dict.fromkeys(
        ("epoch", "epochs", "num_epochs", "max_epochs", "num_train_epochs", "n_epochs"), ("training.epochs",)
    ),
    **dict.fromkeys(
        ("steps", "max_steps", "num_steps", "train_steps", "iterations", "updates", "max_iters"),
        ("training.steps",),
    ),
    **dict.fromkeys(
        ("warmup", "warmup_steps", "num_warmup_steps", "warm_up", "warmup_updates"), ("schedule.warmup",)
    ),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedule"), ("schedule.kind",)),
    **dict.fromkeys(("layers", "num_layers", "n_layers", "n_layer", "depth", "num_hidden_layers"), LAYERS),
    **dict.fromkeys(
        ("heads", "num_heads", "n_heads", "n_head", "nhead", "attention_heads", "num_attention_heads"), HEADS
    ),
    **dict.fromkeys(
        ("d_ff", "ff_size", "ffn_dim", "dim_feedforward", "intermediate_size", "hidden"), (*INNER, *WIDTH)
    ),
    **dict.fromkeys(("hidden_size", "hidden_dim"), ("model.dim", *WIDTH)),
    **dict.fromkeys(
        ("dim", "d_model", "dmodel", "model_dim", "emb_size", "embed_dim", "embedding_dim", "n_embd"),
        ("model.dim",),
    ),
    **dict.fromkeys(("dropout", "drop", "dropout_rate", "p_dropout"), ("model.dropout",)),
    **dict.fromkeys(("vocab", "vocab_size", "vocabulary", "vocabulary_size"), ("tokenizer.size",)),
    **dict.fromkeys(("label_smoothing", "smoothing"), ("training.smoothing",)),
    **dict.fromkeys(
        ("clip", "grad_clip", "clip_norm", "max_grad_norm", "gradient_clip_val"), ("optimizer.clip",)
    ),
    **dict.fromkeys(("beam", "beam_size", "num_beams"), ("decoding.beam",)),
    **dict.fromkeys(("early_stopping", "patience"), ("training.patience",)),
    **dict.fromkeys(
        ("max_len", "max_seq_length", "max_length", "block_size"), ("data.max_length", "batch.length")
    ),
    **dict.fromkeys(("fp16", "bf16", "amp", "dtype"), ("training.precision",)),
    **dict.fromkeys(
        ("eval_steps", "eval_every", "validation_every", "valid_freq"), ("training.validate_every",)
    ),
    **dict.fromkeys(("save_steps", "checkpoint_every", "save_freq"), ("training.save_every",)),
}


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
    for key, is_set in (
        ("tokenizer.kind", recipe.tokenizer.kind == "pretrained"),
        ("optimizer.head_lr", recipe.optimizer.head_lr),
    ):
        if is_set:
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
    if tokenizer.min_count > 1 and tokenizer.kind not in ("word", "word-characters"):
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
            f"choose a shorter one, such as schedule.warmup={training.steps // 10 or 1}"
        )
    if schedule.needs_steps and training.steps is None and training.epochs is None:
        yield (
            f"schedule.kind is {schedule.kind}, which depends on the length of the run, and only minutes "
            "limit it; set training.steps or training.epochs"
        )
    floor = getattr(schedule, "floor", 0.0)
    if floor > recipe.optimizer.lr:
        yield (f"schedule.floor is {floor:g}, above optimizer.lr {recipe.optimizer.lr:g}; choose a lower one")
    if recipe.optimizer.decay_embeddings and not recipe.optimizer.weight_decay:
        yield "optimizer.decay_embeddings is true and optimizer.weight_decay is 0; set weight_decay, as 0.1"
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


# Sentences for what the schema refuses


def recipe_error(problems: Sequence[str], where: str = "") -> RecipeError:
    """Return the error for the first problem, with the number of others."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return RecipeError(f"{where}{problems[0]}{more}")


def explain_errors(error: ValidationError, raw: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each wrong key of the recipe `raw`."""
    sentences: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        path, block = locate(detail["loc"], raw)
        sentences.setdefault(path, _sentence(path, block, detail, raw))
    return list(sentences.values())


def _sentence(path: str, block: type[BaseModel], detail: ErrorDetails, raw: Mapping[str, Any]) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, block, raw)
    if kind == "missing":
        place, _, key = path.rpartition(".")
        return f"{place} needs the key {key}: {block.model_fields[key].description}"
    if kind == "union_tag_invalid":
        names = _quoted_names(str(context.get("expected_tags", "")))
        tag = str(context["tag"])
        hint = did_you_mean(tag, names) or _kind_elsewhere(tag)
        return f"{path}.kind is {tag!r}, and must be {_choice(names)}{hint}"
    if kind in ("union_tag_not_found", "model_type", "model_attributes_type", "dict_type"):
        form = " with a kind" if kind == "union_tag_not_found" else ""
        return f"{path} is {show_value(value)}, and must be a block of keys{form}{_as_block(path, value)}"
    if kind == "literal_error":
        names = _quoted_names(str(context.get("expected", "")))
        hint = did_you_mean(str(value), names)
        return f"{path} is {show_value(value)}, and must be {_choice(names)}{hint}"
    if path.startswith(("data.train", "data.validation", "data.test")):
        return (
            f"{path} is {show_value(value)}, and must be a file name or a list of two names, "
            "source and target"
        )
    return f"{path} is {show_value(value)}, and must be {_expected(kind, context)}"


def _as_block(path: str, value: Any) -> str:
    """How a kind given without its block, as in `model.decoder=bahdanau`, is written."""
    return f": write {path}='{{kind: {value}}}'" if path in _places_of_kind(value) else ""


def _kind_elsewhere(kind: str) -> str:
    """'; bahdanau is a kind of model.decoder' for a kind in the wrong place."""
    places = _places_of_kind(kind)[:2]
    return f"; {kind} is a kind of {' and '.join(places)}" if places else ""


def _places_of_kind(kind: Any) -> list[str]:
    """The blocks that may have this kind, such as `model.decoder` for bahdanau."""
    return [
        path.removesuffix(".kind")
        for path, blocks in all_keys().items()
        if path.endswith(".kind")
        and any(kind in get_args(block.model_fields["kind"].annotation) for block in blocks)
    ]


def _expected(kind: str, context: dict[str, Any]) -> str:
    bounds = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than": ("less than", "lt"),
        "less_than_equal": ("at most", "le"),
    }
    if kind in bounds:
        relation, key = bounds[kind]
        limit = context[key]
        return f"{relation} {limit}" if isinstance(limit, int) else f"{relation} {limit:g}"
    if kind in ("too_short", "too_long"):
        return f"a list of {context.get('min_length', context.get('max_length'))}"
    return EXPECTED.get(kind, kind.replace("_", " "))


def _unknown_key(path: str, block: type[BaseModel], raw: Mapping[str, Any]) -> str:
    place, _, key = path.rpartition(".")
    where = place or "a recipe"
    if block is BahdanauOptions and key == "input_feeding":
        return (
            f"{path}: Bahdanau's context enters the recurrence already; "
            "leave input_feeding out, or choose kind: recurrent"
        )
    kinds = dict.fromkeys(str(kind_of(b)) for b in all_keys().get(path, ()))
    others = [kind for kind in kinds if kind != kind_of(block)]
    keys = ", ".join(name for name in block.model_fields if name != "kind")
    if others:
        kind, has = kind_of(block), f"{' and '.join(others)} {'has' if len(others) == 1 else 'have'} it"
        change = f"for another kind replace the block: {place}='{{kind: {kind}}}'"
        change = "the task chooses the kind" if place == "model" else change
        return f"{place} of kind {kind} has no key {key!r} ({has}); its keys are {keys}; {change}"
    similar = similar_keys(key, place, block, available_keys(raw))
    if similar:
        named = [f"{name}{_range(info)}" for name, info in similar.items()]
        return f"{where} has no key {key!r}; did you mean {' or '.join(named)}?"
    return f"{where} has no key {key!r}; its keys are {keys}"


def similar_keys(
    key: str, place: str, block: type[BaseModel], keys: Mapping[str, FieldInfo]
) -> dict[str, FieldInfo]:
    """Return up to three keys of this recipe that an unknown key may mean.

    In this order: the name in other libraries, a similar spelling in the same block, the same name in another
    block, a similar spelling anywhere.
    """
    known = [name for name in SYNONYMS.get(key.lower(), ()) if name in keys]
    similar = difflib.get_close_matches(key, list(block.model_fields), 1, 0.6)
    if similar and not known:
        return {f"{place}.{similar[0]}" if place else similar[0]: block.model_fields[similar[0]]}
    last_parts = {name: name.rpartition(".")[2] for name in sorted(keys, key=lambda name: name.count("."))}
    same = [name for name, last in last_parts.items() if last == key]
    similar_names = difflib.get_close_matches(key, set(last_parts.values()), 1, 0.8)
    meant = known or same or [name for name, last in last_parts.items() if last in similar_names]
    return {name: keys[name] for name in meant[:3]}


def _range(info: FieldInfo) -> str:
    """' (number > 0)': the allowed values of a key; nothing for a block."""
    return "" if blocks_of(info) else f" ({allowed_values(info.annotation, info.metadata)})"


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return '; did you mean …?' if one of the names is similar, else ''."""
    similar = difflib.get_close_matches(name, names, 1, 0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def show_value(value: Any) -> str:
    """Return a value as a recipe writes it, cut to 60 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "…"


def _quoted_names(expected: str) -> list[str]:
    """The names in pydantic's "'a', 'b' or 'c'"."""
    return expected.split("'")[1::2]


def _choice(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def locate(loc: Sequence[str | int], raw: Mapping[str, Any]) -> tuple[str, type[BaseModel]]:
    """Return the dotted path of pydantic's location and the block that has its last key.

    pydantic's location also contains the kinds that it chose; they are left out.
    """
    path, block, choices = "", Recipe, []
    for depth, key in enumerate(loc):
        if isinstance(key, int):
            path += f"[{key}]"
        elif choices and (chosen := [c for c in choices if kind_of(c) == key]):
            block, choices = chosen[0], []
        elif key in block.model_fields or key == loc[-1]:
            if key in ("str", "list[str]"):  # the two forms of a file list
                continue
            path += f".{key}" if path else key
            info = block.model_fields.get(key)
            inner = [] if info is None else blocks_of(info)
            choices = inner if len(inner) > 1 else []
            if info is not None and not choices and depth < len(loc) - 1:
                block = choose_block(info, raw.get(key, {}), raw) or block
    return path, block
