"""GPT-2 from Hugging Face: byte-level BPE, learned positions, pre-norm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer
from regard.errors import FolderError
from regard.interchange.export.gpt2 import ACTIVATIONS, Generating
from regard.interchange.vocabulary import Renumbered, Rows, own_tokenizer
from regard.models.build import build
from regard.models.schema import AutoregressiveBlock

NEVER = -1e9  # bias of the words GPT-2 has not got: they are never written
EPSILON = 1e-5


def read(folder: Path) -> tuple[Any, dict[str, Rows]]:
    """The model, with config and tokenizers on it, and the rows of its vocabulary."""
    from transformers import GPT2LMHeadModel

    theirs: Any = GPT2LMHeadModel.from_pretrained(
        str(folder), dtype=torch.float32, use_safetensors=True
    ).eval()
    tokenizer, rows = _tokenizer(folder, theirs.config)
    config = _config(theirs.config)
    model: Any = build(config, None, len(rows.of))
    with torch.no_grad():
        _fill(model, theirs, rows)
    model.config, model.source_tokenizer, model.target_tokenizer = config, tokenizer, tokenizer
    return model.eval(), {"target": rows}


def runner(folder: Path, rows: dict[str, Rows]) -> Renumbered:
    """The model in transformers, to compare with."""
    end = rows["target"].of[EOS]
    assert end is not None
    return Renumbered(Generating(folder, end=end), rows["target"], rows["target"])


def _config(theirs: Any) -> dict[str, Any]:
    for key, value in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if getattr(theirs, key) != value:
            raise FolderError(
                f"this GPT-2 has {key} {getattr(theirs, key)}, which regard's models have not; only {value} is imported"
            )
    if theirs.layer_norm_epsilon != EPSILON:
        raise FolderError(
            f"this GPT-2 has layer_norm_epsilon {theirs.layer_norm_epsilon} and regard's layer norm has {EPSILON}"
        )
    activation = {name: ours for ours, name in ACTIVATIONS.items()} | {
        "gelu_pytorch_tanh": "gelu-tanh",
        "swish": "swish",
    }
    if theirs.activation_function not in activation:
        raise FolderError(
            f"this GPT-2 has activation {theirs.activation_function!r}; regard has {', '.join(sorted(activation))}"
        )
    decoder = {
        "kind": "transformer", "layers": theirs.n_layer, "heads": theirs.n_head, "inner": theirs.n_inner or 4 * theirs.n_embd,
        "norm": "pre", "activation": activation[theirs.activation_function], "position": "learned",
        "max_positions": theirs.n_positions, "attention_dropout": float(theirs.attn_pdrop),
    }  # fmt: skip
    tie = "target" if theirs.tie_word_embeddings else "none"
    given = {
        "dim": theirs.n_embd,
        "tie": tie,
        "scale_embeddings": False,
        "dropout": float(theirs.resid_pdrop),
        "decoder": decoder,
    }
    return AutoregressiveBlock.model_validate(given).model_dump()


def _tokenizer(folder: Path, config: Any) -> tuple[Tokenizer, Rows]:
    """The vocabulary with our four special numbers in front, and which row of theirs each number is."""
    own = own_tokenizer(folder)
    if own is not None:
        return own, Rows(list(range(config.vocab_size)))
    from transformers import AutoTokenizer

    try:
        found = json.loads(AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError):
        raise FolderError(
            f"{folder} has no tokenizer that transformers can load; copy vocab.json and merges.txt to it"
        ) from None
    if found["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(found["pre_tokenizer"]):
        raise FolderError(f"the tokenizer of {folder} is not GPT-2's byte-level BPE; only that is imported")
    end = config.eos_token_id if isinstance(config.eos_token_id, int) else None
    names = {number: piece for piece, number in found["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in found["added_tokens"]}
    if end is None or end not in names:
        raise FolderError(
            f"{folder} has eos_token_id {config.eos_token_id}, which is not one of its tokens; correct its config.json"
        )
    rest = [number for number in range(config.vocab_size) if number != end]
    # A row without a name can be written by the model and never read; the space keeps text from spelling its name.
    pieces = [*SPECIALS, *(names.get(number, f"< row {number} >") for number in rest)]
    found["model"] |= {"vocab": {piece: i for i, piece in enumerate(pieces)}, "unk_token": SPECIALS[UNK]}
    found |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer(json.dumps(found)), Rows([None, None, end, end, *rest])


def _fill(model: Any, theirs: Any, rows: Rows) -> None:
    body, dim = theirs.transformer, theirs.config.n_embd
    model.target.table.weight.copy_(rows.take(body.wte.weight))
    model.output.words.weight.copy_(rows.take(theirs.lm_head.weight))
    model.output.words.bias[[i for i, row in enumerate(rows.of) if row is None or i in (PAD, BOS)]] = NEVER
    model.decoder.position.weight.copy_(body.wpe.weight)
    _copy(model.decoder.norm, body.ln_f.weight, body.ln_f.bias)
    for ours, block in zip(model.decoder.layers, body.h, strict=True):
        maps, biases = (
            block.attn.c_attn.weight.T.split(dim),
            block.attn.c_attn.bias.split(dim),
        )  # theirs are (in, out)
        for part, weight, bias in zip(
            (ours.attention.Wq, ours.attention.Wk, ours.attention.Wv), maps, biases, strict=True
        ):
            _copy(part, weight, bias)
        _copy(ours.attention.Wo, block.attn.c_proj.weight.T, block.attn.c_proj.bias)
        _copy(ours.feed.W1, block.mlp.c_fc.weight.T, block.mlp.c_fc.bias)
        _copy(ours.feed.W2, block.mlp.c_proj.weight.T, block.mlp.c_proj.bias)
        _copy(ours.around_attention.norm, block.ln_1.weight, block.ln_1.bias)
        _copy(ours.around_feed.norm, block.ln_2.weight, block.ln_2.bias)


def _copy(part: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    part.weight.copy_(weight)
    part.bias.copy_(bias)
