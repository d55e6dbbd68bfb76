"""Fine-tuning: what a recipe takes from a model that was trained before, and its weights.

`model.pretrained` takes the encoder and its tokenizer; `training.start` takes a whole model folder of regard. Either way the recipe
is completed from the folder's config.json before anything is checked, and a run keeps a copy of the model in `start/`, so that
resuming does not need the folder any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.data.datasets import Given
from regard.data.subwords import Subwords
from regard.errors import FolderError, OptionError, RecipeError
from regard.files.atomic import write_folder
from regard.models import bert
from regard.models import folder as model_folder
from regard.models.model import Model
from regard.recipe.problems import show
from regard.recipe.schema import Data, Recipe, Tokenizer

MINILM = "minilm"
TASKS = {
    "translator": "translate", "language-model": "language", "classifier": "classify", "tagger": "tag", "embedder": "embed"
}  # fmt: skip
READING = ("classify", "tag", "embed")
ENCODER = ("source.", "encoder.")  # the parameters that model.pretrained takes
HEADS = {"classifier": ("head.",), "tagger": ("output.", "crf.")}  # those that belong to a set of labels
TRAINING_ONLY = {
    "recall",
    "constrain",
    "temperature",
}  # keys of a model that change its training alone, as all dropouts do


@dataclass(frozen=True)
class Described:
    """A model folder by its small files: what a recipe needs of it."""

    kind: str
    config: dict[str, Any]  # its `model:` section
    tokenizer: str  # the kind of its source tokenizer
    card: dict[str, Any]


def complete(raw: dict[str, Any], copy: Path | None = None) -> dict[str, Any]:
    """A recipe's raw mapping with what it takes from the model it starts from; a RecipeError names a key that contradicts it.

    `copy` is a run's own copy of that model, which is read instead of the folder that the recipe names.
    """
    key, name = named(raw)
    given = raw.get("model") or {}
    if name is None or not isinstance(given, dict):
        return raw
    source, task = f"{name} ({key})", raw.get("task", "translate")
    if key == "model.pretrained" and task not in READING:
        raise RecipeError(
            f"model.pretrained is for the tasks {', '.join(READING)}, and the task is {task}; to fine-tune a model of regard "
            "set training.start"
        )
    found = describe(key, name, copy)
    whole = key == "training.start"
    if whole and TASKS[found.kind] != task:
        raise RecipeError(
            f"{source} is a {found.kind}, and the task is {task}; set task: {TASKS[found.kind]}"
        )
    taken = _whole(found) if whole else _encoder(found, task, source)
    model = _merged(given, taken, "model", source)
    if task == "classify" and not whole:
        model.setdefault("pooling", "mean")
    return {
        **raw,
        "model": model,
        "tokenizer": _tokenizer(raw, found, source),
        "data": _data(raw, model, found, source),
    }


def named(raw: dict[str, Any]) -> tuple[str, str | None]:
    """The key that says what training starts from, and its value; None where training starts from scratch."""
    blocks = {key: raw.get(key) for key in ("model", "training")}
    value = lambda block, key: block.get(key) if isinstance(block, dict) else None  # noqa: E731
    pretrained, start = value(blocks["model"], "pretrained"), value(blocks["training"], "start")
    if isinstance(pretrained, str) and isinstance(start, str):
        raise RecipeError(
            "model.pretrained and training.start are both given, and training starts from one model; keep one"
        )
    if isinstance(start, str):
        return "training.start", start
    return "model.pretrained", pretrained if isinstance(pretrained, str) else None


def describe(key: str, name: str, copy: Path | None = None) -> Described:
    """A model by name or folder, without its weights. What cannot be fine-tuned is refused."""
    folder = copy or _folder(key, name)
    if _is_bert(key, folder):
        bert.refuse_pickle(folder)
        return Described("embedder", bert.model_config(folder), "wordpiece", {})
    folder = model_folder.model_in(folder)
    config = model_folder.read_config(folder)
    tokenizer, _ = model_folder.read_tokenizers(folder)
    card = model_folder.read_json(folder / "card.json") if (folder / "card.json").is_file() else {}
    return Described(config["kind"], config["model"], tokenizer.kind, card)


def _folder(key: str, name: str) -> Path:
    if name == MINILM and key == "model.pretrained":
        try:
            return bert.minilm_folder()
        except OptionError as error:
            raise OptionError(f"{key}={MINILM}: {error}") from None
    folder = Path(name)
    if not folder.is_dir():
        minilm = f", or {MINILM}" if key == "model.pretrained" else ""
        raise FolderError(f"{key}: there is no folder {name}; give the folder of a trained model{minilm}")
    return folder


def _is_bert(key: str, folder: Path) -> bool:
    """Whether a folder is a Hugging Face encoder that can be read; other Hugging Face models are refused."""
    if not (folder / "config.json").is_file():
        return False
    found = model_folder.read_json(folder / "config.json")
    if "model_type" not in found:
        return False
    if found["model_type"] != "bert":
        raise FolderError(
            f"{folder} is a Hugging Face {show(found['model_type'])} model, and model.pretrained reads BERT-like encoders "
            "(model_type bert) and model folders of regard; choose one of these"
        )
    if key == "training.start":
        raise FolderError(
            f"{folder} is a Hugging Face encoder, and training.start takes a model of regard; set model.pretrained"
        )
    return True


def _whole(found: Described) -> dict[str, Any]:
    """The model section of a folder that is fine-tuned as a whole; where its weights once came from does not matter."""
    config = {key: value for key, value in found.config.items() if key != "pretrained"}
    return config | ({"vectors": None, "freeze_vectors": False} if "vectors" in config else {})


def _encoder(found: Described, task: str, source: str) -> dict[str, Any]:
    """The keys of a model section that an encoder decides."""
    if found.config.get("encoder") is None:
        raise RecipeError(
            f"{source} is a {found.kind.replace('-', ' ')}, which has no encoder; choose a model that has one"
        )
    if found.tokenizer == "spelled":
        raise RecipeError(
            f"{source} reads words with their spelling, so its encoder belongs to that tagger; fine-tune it with training.start"
        )
    taken = {key: found.config[key] for key in ("dim", "scale_embeddings", "dropout", "encoder")}
    taken |= {"prepend_bos": found.config.get("prepend_bos", False), "vectors": None, "freeze_vectors": False}
    return taken | ({"characters": None, "subwords": found.tokenizer != "word"} if task == "tag" else {})


def _merged(given: dict[str, Any], taken: dict[str, Any], place: str, source: str) -> dict[str, Any]:
    """`taken` with what the recipe may add or change; what contradicts it is an error."""
    found = dict(taken)
    for key, value in given.items():
        known = taken.get(key)
        if key not in taken or "dropout" in key or key in TRAINING_ONLY:
            found[key] = value
        elif isinstance(value, dict) and isinstance(known, dict):
            found[key] = _merged(value, known, f"{place}.{key}", source)
        elif value != known and {"kind": value} != known:
            raise RecipeError(
                f"{place}.{key} is {show(value)}, and {source} has {show(known)}; leave {place}.{key} out "
                "(model={...} replaces the whole section of a recipe)"
            )
    return found


def _tokenizer(raw: dict[str, Any], found: Described, source: str) -> dict[str, Any]:
    """The tokenizer section; the tokenizer is the model's, so the recipe may not ask for another one."""
    given = raw.get("tokenizer")
    given = given if isinstance(given, dict) else {}
    default = Tokenizer().model_dump()
    trained = ((found.card.get("recipe") or {}).get("tokenizer")) or {}
    kinds = ("pretrained", found.tokenizer, trained.get("kind"))
    kept = {
        key: value for key, value in given.items() if key in ("dropout", "variants") or key not in default
    }
    for key, value in given.items():
        allowed = kinds if key == "kind" else (default.get(key), trained.get(key, default.get(key)))
        if key not in kept and value not in allowed:
            raise RecipeError(
                f"tokenizer.{key} is {show(value)}, and {source} brings its own tokenizer ({found.tokenizer}); leave it out "
                "(tokenizer={} replaces the whole section of a recipe)"
            )
    return {**kept, "kind": "pretrained"}


def _data(raw: dict[str, Any], model: dict[str, Any], found: Described, source: str) -> Any:
    """The data section, with max_length as in the training before and no larger than a learned position table allows."""
    data, encoder = raw.get("data", {}), model.get("encoder")
    if not isinstance(data, dict):
        return data
    usual = ((found.card.get("recipe") or {}).get("data") or {}).get("max_length", Data().max_length)
    if not isinstance(encoder, dict) or not str(encoder.get("position")).startswith("learned"):
        return {"max_length": usual, **data}
    room = encoder["max_positions"] - 1 - bool(model.get("prepend_bos"))  # EOS, and BOS where there is one
    given = data.get("max_length")
    if isinstance(given, int) and given > room and not model.get("characters"):
        raise RecipeError(
            f"data.max_length is {given}, and {source} reads {room} tokens; set data.max_length={room} or less"
        )
    return data if given is not None else {**data, "max_length": min(room, usual)}


@dataclass(frozen=True)
class Start:
    """The model that training starts from, with its weights."""

    key: str
    name: str
    model: Any

    @classmethod
    def of(cls, recipe: Recipe, copy: Path | None = None) -> Start | None:
        """By a recipe; None where training starts from scratch. `copy` is a run's own copy, which is read where it exists."""
        key, name = named(recipe.model_dump())
        if name is None:
            return None
        folder = copy if copy is not None and copy.is_dir() else _folder(key, name)
        return cls(key, name, bert.read(folder) if _is_bert(key, folder) else model_folder.load(folder))

    def save(self, folder: Path) -> None:
        """Keep a copy in a run."""
        model = self.model
        tokenizers = model.source_tokenizer, model.target_tokenizer
        write_folder(
            folder, lambda place: model_folder.save(place, model, model.config, *tokenizers, model.card)
        )

    def tokenizers(self, task: str) -> Given:
        """The source and the target tokenizer for the data; labels and tags of a pretrained encoder's task are new."""
        source, target = self.model.source_tokenizer, self.model.target_tokenizer
        if self.key == "training.start":
            return source, target
        inner = source.inner if isinstance(source, Subwords) else source
        if task == "tag":
            return inner if inner.kind == "word" else Subwords.over(inner), None
        return inner, inner if task == "embed" else None

    def fill(self, model: Model) -> set[str]:
        """Copy the weights into a model; the names of its parameters that have none here, and stay as they were drawn."""
        theirs = dict(self.model.named_parameters(remove_duplicate=False))
        mine = dict(model.named_parameters(remove_duplicate=False))
        taken = {name for name in mine if name in theirs and self._takes(name, model)}
        with torch.no_grad():
            for name in taken:
                if mine[name].shape != theirs[name].shape:
                    raise FolderError(
                        f"{name} of {self.name} ({self.key}) is {tuple(theirs[name].shape)}, and this model makes it "
                        f"{tuple(mine[name].shape)}; the folder has changed, so copy it again"
                    )
                mine[name].copy_(theirs[name])
        return {name for name, _ in model.named_parameters()} - taken

    def _takes(self, name: str, model: Model) -> bool:
        if self.key == "model.pretrained":
            return name.startswith(ENCODER)
        same = model.target_tokenizer == self.model.target_tokenizer
        return same or not name.startswith(HEADS.get(model.kind, ()))

    def line(self, model: Model, new: set[str]) -> str:
        """What was taken and what is new, for the log."""
        parts = sorted({name.split(".")[0] for name in new})
        labels = ""
        if self.key == "training.start" and parts:
            before, now = (len(each.target_tokenizer.entries) for each in (self.model, model))
            labels = f" (another label set: {now} labels, there {before})"
        return f"starting from {self.name}; " + (
            f"new weights: {', '.join(parts)}{labels}" if parts else "no weights are new"
        )
