"""Complete a recipe that fine-tunes a pretrained model with the keys that the model determines.

`model.pretrained` takes the encoder and its tokenizer, `training.start` a complete model folder of regard.
Both are read from config.json before the recipe is validated; `training/pretrained.py` loads the weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import FolderError, OptionError, RecipeError
from regard.models import bert
from regard.models import folder as model_folder
from regard.recipe.checks import show_value
from regard.recipe.schema import Data, TokenizerOptions
from regard.tasks import TASKS, Task, get_task

MINILM = "minilm"
# Keys of a model block that affect training alone, as all dropouts do; a recipe may change them.
TRAINING_ONLY = {"recall", "constrain", "temperature"}


@dataclass(frozen=True)
class PretrainedConfig:
    """What a recipe needs to know of a pretrained model."""

    kind: str
    model: dict[str, Any]  # its `model:` block
    tokenizer: str  # kind of its source tokenizer
    card: dict[str, Any]

    def trained_with(self, block: str) -> dict[str, Any]:
        """Return a block of the recipe that the model was trained with; {} if unknown."""
        return (self.card.get("recipe") or {}).get(block) or {}


def complete_from_pretrained(raw: dict[str, Any], copy: Path | None = None) -> dict[str, Any]:
    """Return a recipe's raw mapping with the keys that its pretrained model determines.

    A key that contradicts the model is a RecipeError. `copy` is a run's copy of the model, which is read
    instead of the folder that the recipe names.
    """
    key, name = pretrained_key(raw)
    model_block = raw.get("model") or {}
    task_name = raw.get("task", "translate")
    task_exists = isinstance(task_name, str) and task_name in TASKS
    if name is None or not isinstance(model_block, dict) or not task_exists:
        return raw
    source, task = f"{name} ({key})", get_task(task_name)
    if key == "model.pretrained" and not task.uses_pretrained_encoder:
        tasks = ", ".join(sorted(t for t, cls in TASKS.items() if cls.uses_pretrained_encoder))
        raise RecipeError(
            f"model.pretrained is for the tasks {tasks}, and the task is {task.name}; "
            "to fine-tune a model of regard set training.start"
        )
    config = read_pretrained_config(key, name, copy)
    if key == "training.start":
        _check_task(config, task, source)
        determined = _model_keys(config)
    else:
        determined = _encoder_keys(config, task, source)
    model = _merge(model_block, determined, "model", source)
    if key == "model.pretrained":
        model = {**task.pretrained_defaults(), **model}
    return {
        **raw,
        "model": model,
        "tokenizer": _tokenizer_block(raw, config, source),
        "data": _data_block(raw, model, config, source),
    }


def pretrained_key(raw: dict[str, Any]) -> tuple[str, str | None]:
    """Return the key that names a pretrained model and its value; None if training starts from scratch."""

    def value(block: str, key: str) -> Any:
        inner = raw.get(block)
        return inner.get(key) if isinstance(inner, dict) else None

    pretrained, start = value("model", "pretrained"), value("training", "start")
    if isinstance(pretrained, str) and isinstance(start, str):
        raise RecipeError(
            "model.pretrained and training.start are both given, and training starts from one model; keep one"
        )
    if isinstance(start, str):
        return "training.start", start
    return "model.pretrained", pretrained if isinstance(pretrained, str) else None


def read_pretrained_config(key: str, name: str, copy: Path | None = None) -> PretrainedConfig:
    """Read the configuration of a pretrained model by name or folder, without its weights."""
    folder = copy or pretrained_folder(key, name)
    if is_bert(key, folder):
        bert.refuse_pickle(folder)
        return PretrainedConfig("embedder", bert.model_config(folder), "wordpiece", {})
    folder = model_folder.model_in(folder)
    config = model_folder.read_config(folder)
    tokenizer, _ = model_folder.read_tokenizers(folder)
    card = model_folder.read_json(folder / "card.json") if (folder / "card.json").is_file() else {}
    return PretrainedConfig(config["kind"], config["model"], tokenizer.kind, card)


def pretrained_folder(key: str, name: str) -> Path:
    """Return the folder of a pretrained model by name or path."""
    if name == MINILM and key == "model.pretrained":
        try:
            return bert.minilm_folder()
        except OptionError as error:
            raise OptionError(f"{key}={MINILM}: {error}") from None
    folder = Path(name)
    if not folder.is_dir():
        minilm = f", or {MINILM}" if key == "model.pretrained" else ""
        raise FolderError(
            f"{key}: there is no folder {os.path.normpath(name)}; give the folder of a trained model{minilm}"
        )
    return folder


def is_bert(key: str, folder: Path) -> bool:
    """True if a folder is a Hugging Face BERT encoder; other Hugging Face models are a FolderError."""
    if not (folder / "config.json").is_file():
        return False
    config = model_folder.read_json(folder / "config.json")
    if "model_type" not in config:
        return False
    if config["model_type"] != "bert":
        raise FolderError(
            f"{folder} is a Hugging Face {show_value(config['model_type'])} model, and model.pretrained "
            "reads BERT-like encoders (model_type bert) and model folders of regard; choose one of these"
        )
    if key == "training.start":
        raise FolderError(
            f"{folder} is a Hugging Face encoder, and training.start takes a model of regard; "
            "set model.pretrained"
        )
    return True


def _check_task(config: PretrainedConfig, task: Task, source: str) -> None:
    """Refuse training.start with a model of another task."""
    if config.kind != task.model_kind:
        fitting = next((name for name, cls in TASKS.items() if cls.model_kind == config.kind), None)
        fix = f"set task: {fitting}" if fitting else "choose another model"
        raise RecipeError(f"{source} is a {config.kind}, and the task is {task.name}; {fix}")


def _model_keys(config: PretrainedConfig) -> dict[str, Any]:
    """The model block of a folder for training.start, without what its own training started from."""
    model = {key: value for key, value in config.model.items() if key != "pretrained"}
    return model | ({"vectors": None, "freeze_vectors": False} if "vectors" in model else {})


def _encoder_keys(config: PretrainedConfig, task: Task, source: str) -> dict[str, Any]:
    """The keys of a model block that a pretrained encoder determines."""
    if config.model.get("encoder") is None:
        raise RecipeError(
            f"{source} is a {config.kind.replace('-', ' ')}, which has no encoder; "
            "choose a model that has one"
        )
    if config.tokenizer == "word-characters":
        raise RecipeError(
            f"{source} reads words with their characters, so its encoder belongs to that tagger; "
            "fine-tune it with training.start"
        )
    keys = {key: config.model[key] for key in ("dim", "scale_embeddings", "dropout", "encoder")}
    keys |= {"prepend_bos": config.model.get("prepend_bos", False), "vectors": None, "freeze_vectors": False}
    return keys | task.pretrained_keys(config.tokenizer)


def _merge(block: dict[str, Any], determined: dict[str, Any], place: str, source: str) -> dict[str, Any]:
    """`determined` with what the recipe may add or change; a contradiction is an error."""
    merged = dict(determined)
    for key, value in block.items():
        fixed = determined.get(key)
        if key not in determined or "dropout" in key or key in TRAINING_ONLY:
            merged[key] = value
        elif isinstance(value, dict) and isinstance(fixed, dict):
            merged[key] = _merge(value, fixed, f"{place}.{key}", source)
        elif value != fixed and {"kind": value} != fixed:
            raise RecipeError(
                f"{place}.{key} is {show_value(value)}, and {source} has {show_value(fixed)}; "
                f"leave {place}.{key} out (model={{...}} replaces the whole block of a recipe)"
            )
    return merged


def _tokenizer_block(raw: dict[str, Any], config: PretrainedConfig, source: str) -> dict[str, Any]:
    """The tokenizer block; the tokenizer is the model's, so the recipe may not name another one."""
    block = raw.get("tokenizer")
    block = block if isinstance(block, dict) else {}
    default, trained = TokenizerOptions().model_dump(), config.trained_with("tokenizer")
    kinds = ("pretrained", config.tokenizer, trained.get("kind"))
    merged = {k: v for k, v in block.items() if k in ("dropout", "variants") or k not in default}
    for key, value in block.items():
        allowed = kinds if key == "kind" else (default.get(key), trained.get(key, default.get(key)))
        if key not in merged and value not in allowed:
            raise RecipeError(
                f"tokenizer.{key} is {show_value(value)}, and {source} brings its own tokenizer "
                f"({config.tokenizer}); leave it out (tokenizer={{}} replaces the whole block of a recipe)"
            )
    return {**merged, "kind": "pretrained"}


def _data_block(raw: dict[str, Any], model: dict[str, Any], config: PretrainedConfig, source: str) -> Any:
    """The data block, with max_length as before and within the learned positions of the encoder."""
    data, encoder = raw.get("data", {}), model.get("encoder")
    if not isinstance(data, dict):
        return data
    usual = config.trained_with("data").get("max_length", Data().max_length)
    if not isinstance(encoder, dict) or not str(encoder.get("position")).startswith("learned"):
        return {"max_length": usual, **data}
    positions = encoder["max_positions"] - 1 - bool(model.get("prepend_bos"))  # without EOS and BOS
    max_length = data.get("max_length")
    if isinstance(max_length, int) and max_length > positions and not model.get("characters"):
        raise RecipeError(
            f"data.max_length is {max_length}, and {source} reads {positions} tokens; "
            f"set data.max_length={positions} or less"
        )
    return data if max_length is not None else {**data, "max_length": min(positions, usual)}
