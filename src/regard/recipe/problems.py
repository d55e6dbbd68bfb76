"""What is wrong with a recipe, in a sentence: the key, its place, its value and what is allowed or was perhaps meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from regard.errors import RecipeError
from regard.models.decoder import BahdanauOptions
from regard.recipe.keys import allowed_values, available, classes, everywhere, kind_of
from regard.recipe.schema import Recipe

KINDS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "finite_number": "a finite number",
    "bool_type": "true or false", "string_type": "text (in quotes, where it looks like a number)", "list_type": "a list",
    "model_type": "a block of keys", "model_attributes_type": "a block of keys", "dict_type": "a block of keys",
    "string_pattern_mismatch": "a folder's name: letters, digits, dots, dashes and underscores",
    "string_too_long": "at most 100 letters long",
}  # fmt: skip

LAYERS, HEADS = (
    ("model.encoder.layers", "model.decoder.layers"),
    ("model.encoder.heads", "model.decoder.heads"),
)
INNER, WIDTH = ("model.encoder.inner", "model.decoder.inner"), ("model.encoder.width", "model.decoder.width")
# What other libraries call a key, and keys whose name stands in several blocks.
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


def stop(problems: Sequence[str], where: str = "") -> None:
    """Raise the first problem, and say how many more there are; nothing when there are none."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecipeError(f"{where}{problems[0]}{more}") from None


def sentences(error: ValidationError, raw: Mapping[str, Any]) -> list[str]:
    """One sentence for each key that is wrong in the recipe `raw`."""
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        path, block = locate(detail["loc"])
        found.setdefault(path, _sentence(path, block, detail, raw))
    return list(found.values())


def _sentence(path: str, block: type[BaseModel], detail: ErrorDetails, raw: Mapping[str, Any]) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        return _unknown(path, block, raw)
    if kind == "missing":
        place, _, key = path.rpartition(".")
        return f"{place} needs the key {key}: {block.model_fields[key].description}"
    if kind == "union_tag_invalid":
        names = _words(str(context.get("expected_tags", "")))
        tag = str(context["tag"])
        return f"{path}.kind is {tag!r}, and must be {_choice(names)}{closest(tag, names) or _kind_elsewhere(tag)}"
    if kind in ("union_tag_not_found", "model_type", "model_attributes_type", "dict_type"):
        what = " with a kind" if kind == "union_tag_not_found" else ""
        return f"{path} is {show(value)}, and must be a block of keys{what}{_as_block(path, value)}"
    if kind == "literal_error":
        names = _words(str(context.get("expected", "")))
        return f"{path} is {show(value)}, and must be {_choice(names)}{closest(str(value), names)}"
    if path.startswith(("data.train", "data.validation", "data.test")):
        return f"{path} is {show(value)}, and must be a file's name or a list of two names, source and target"
    return f"{path} is {show(value)}, and must be {_allowed(kind, context)}"


def _as_block(path: str, value: Any) -> str:
    """How a kind that stands alone, as `model.decoder=bahdanau`, is written."""
    return f": write {path}='{{kind: {value}}}'" if path in _places_of_kind(value) else ""


def _kind_elsewhere(kind: str) -> str:
    """'; bahdanau is a kind of model.decoder' for a kind in the wrong place."""
    places = _places_of_kind(kind)[:2]
    return f"; {kind} is a kind of {' and '.join(places)}" if places else ""


def _places_of_kind(kind: Any) -> list[str]:
    """The blocks that may have this kind, as `model.decoder` for bahdanau."""
    return [
        path.removesuffix(".kind")
        for path, blocks in everywhere().items()
        if path.endswith(".kind")
        and any(kind in get_args(each.model_fields["kind"].annotation) for each in blocks)
    ]


def _allowed(kind: str, context: dict[str, Any]) -> str:
    bounds = {
        "greater_than_equal": ("at least", "ge"), "greater_than": ("more than", "gt"), "less_than": ("less than", "lt"),
        "less_than_equal": ("at most", "le"),
    }  # fmt: skip
    if kind in bounds:
        word, key = bounds[kind]
        return f"{word} {context[key]}" if isinstance(context[key], int) else f"{word} {context[key]:g}"
    if kind in ("too_short", "too_long"):
        return f"a list of {context.get('min_length', context.get('max_length'))}"
    return KINDS.get(kind, kind.replace("_", " "))


def _unknown(path: str, block: type[BaseModel], raw: Mapping[str, Any]) -> str:
    place, _, key = path.rpartition(".")
    where = place or "a recipe"
    if block is BahdanauOptions and key == "input_feeding":
        return f"{path}: Bahdanau's context enters the recurrence already; leave input_feeding out, or take kind: recurrent"
    others = [str(kind_of(each)) for each in everywhere().get(path, ()) if kind_of(each) != kind_of(block)]
    own = ", ".join(name for name in block.model_fields if name != "kind")
    if others:
        kind, has = kind_of(block), f"{' and '.join(others)} {'has' if len(others) == 1 else 'have'} it"
        change = f"for another kind replace the block: {place}='{{kind: {kind}}}'"
        change = "the task chooses the kind" if place == "model" else change
        return f"{place} of kind {kind} has no key {key!r} ({has}); its keys are {own}; {change}"
    homes = suggestions(key, place, block, available(raw))
    if homes:
        named = [f"{home}{_range(info)}" for home, info in homes.items()]
        return f"{where} has no key {key!r}; did you mean {' or '.join(named)}?"
    return f"{where} has no key {key!r}; its keys are {own}"


def suggestions(
    key: str, place: str, block: type[BaseModel], keys: Mapping[str, FieldInfo]
) -> dict[str, FieldInfo]:
    """Up to three keys of this recipe that an unknown one may mean: what other libraries call so, a near spelling in the same
    block, the same name in another block, a near spelling anywhere.
    """
    known = [home for home in SYNONYMS.get(key.lower(), ()) if home in keys]
    near = difflib.get_close_matches(key, list(block.model_fields), 1, 0.6)
    if near and not known:
        return {f"{place}.{near[0]}" if place else near[0]: block.model_fields[near[0]]}
    homes = {home: home.rpartition(".")[2] for home in sorted(keys, key=lambda home: home.count("."))}
    same = [home for home, name in homes.items() if name == key]
    spelled = difflib.get_close_matches(key, set(homes.values()), 1, 0.8)
    found = known or same or [home for home, name in homes.items() if name in spelled]
    return {home: keys[home] for home in found[:3]}


def _range(info: FieldInfo) -> str:
    """' (number > 0)': what a key may be; nothing for a block."""
    return "" if any(classes(info.annotation)) else f" ({allowed_values(info.annotation, info.metadata)})"


def closest(word: str, names: Sequence[str]) -> str:
    """'; did you mean …?' when a name is near."""
    near = difflib.get_close_matches(word, names, 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def show(value: Any) -> str:
    """A value as the user wrote it, cut to a line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "…"


def _words(expected: str) -> list[str]:
    """The names in pydantic's "'a', 'b' or 'c'"."""
    return expected.split("'")[1::2]


def _choice(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def locate(loc: Sequence[str | int]) -> tuple[str, type[BaseModel]]:
    """The dotted place of pydantic's location, which also names the kinds it chose, and the block the last key is in."""
    path, block, choices = "", Recipe, []
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif choices and (chosen := [c for c in choices if kind_of(c) == part]):
            block, choices = chosen[0], []
        elif part in block.model_fields or part == loc[-1]:
            if part in ("str", "list[str]"):  # the two forms of a file list
                continue
            path += f".{part}" if path else part
            found = list(classes(block.model_fields[part].annotation)) if part in block.model_fields else []
            if len(found) == 1:
                block = found[0] if part != loc[-1] else block
            choices = found if len(found) > 1 else []
    return path, block
