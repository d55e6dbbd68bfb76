"""Import a GPT-2 from Hugging Face: byte-level BPE, learned positions, pre-norm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer
from regard.errors import FolderError
from regard.interchange.export.compare import RuntimeComparison, require_equal
from regard.interchange.export.gpt2 import ACTIVATIONS, Gpt2Runner
from regard.interchange.generation_settings import GenerationSettings
from regard.interchange.importer import IMPORTERS
from regard.interchange.token_mapping import MappedRunner, TokenMapping, exported_tokenizer
from regard.interchange.transformers_model import load_transformers
from regard.models.build import build
from regard.models.config import complete

NEVER = -1e9  # bias of the tokens that GPT-2 does not have
EPSILON = 1e-5


@IMPORTERS.add("gpt2")
def import_gpt2(folder: Path) -> tuple[Any, RuntimeComparison]:
    """Return the language model and how its outputs compare with those of transformers."""
    model, mapping = read(folder)
    end = mapping.ids[EOS]
    assert end is not None
    suppressed = _suppressed(GenerationSettings.read(folder, {}), mapping)
    runner = MappedRunner(Gpt2Runner(folder, end=end, suppressed=suppressed), mapping, mapping)
    return model, require_equal(model, runner, "regard")


def read(folder: Path) -> tuple[Any, TokenMapping]:
    """Return the model, with config and tokenizers, and the mapping of its vocabulary."""
    from transformers import GPT2LMHeadModel

    theirs, options = load_transformers(GPT2LMHeadModel, folder), GenerationSettings.read(folder, {})
    tokenizer, mapping = _tokenizer(folder, theirs.config)
    config = _config(folder, theirs.config)
    model: Any = build(config, None, len(mapping.ids))
    with torch.no_grad():
        _copy_weights(model, theirs, mapping)
        never = [ours for ours, i in enumerate(mapping.ids) if i in _suppressed(options, mapping)]
        model.output.projection.bias[never] = NEVER
    model.config, model.source_tokenizer, model.target_tokenizer = config, tokenizer, tokenizer
    model.card = options.card()
    return model.eval(), mapping


def _suppressed(options: GenerationSettings, mapping: TokenMapping) -> list[int]:
    """Return GPT-2's ids of the tokens that are never generated."""
    known = [i for i in mapping.ids if i is not None]
    return sorted(options.excluded(max(known) + 1) - {mapping.ids[EOS]})


def _config(folder: Path, theirs: Any) -> dict[str, Any]:
    """Return the `model:` block for a GPT2Config."""
    for key, value in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if getattr(theirs, key) != value:
            raise FolderError(
                f"this GPT-2 has {key} {getattr(theirs, key)}, which regard does not support; only {value} "
                "is imported"
            )
    if theirs.layer_norm_epsilon != EPSILON:
        raise FolderError(
            f"this GPT-2 has layer_norm_epsilon {theirs.layer_norm_epsilon}, and regard's layer norm has "
            f"{EPSILON}; import another model"
        )
    activation = {name: ours for ours, name in ACTIVATIONS.items()} | {
        "gelu_pytorch_tanh": "gelu-tanh",
        "swish": "swish",
    }
    if theirs.activation_function not in activation:
        raise FolderError(
            f"this GPT-2 has activation {theirs.activation_function!r}, and regard supports "
            f"{', '.join(sorted(activation))}; import another model"
        )
    decoder = {
        "kind": "transformer",
        "layers": theirs.n_layer,
        "heads": theirs.n_head,
        "inner": theirs.n_inner or 4 * theirs.n_embd,
        "norm": "pre",
        "activation": activation[theirs.activation_function],
        "position": "learned",
        "max_positions": theirs.n_positions,
        "attention_dropout": float(theirs.attn_pdrop),
    }
    tie = "target" if theirs.tie_word_embeddings else "none"
    given = {
        "dim": theirs.n_embd,
        "tie": tie,
        "scale_embeddings": False,
        "dropout": float(theirs.resid_pdrop),
        "decoder": decoder,
    }
    return complete(folder / "config.json", "language-model", given)


def _tokenizer(folder: Path, config: Any) -> tuple[Tokenizer, TokenMapping]:
    """Return the tokenizer with our four special tokens first, and the mapping of its ids."""
    own = exported_tokenizer(folder)
    if own is not None:
        return own, TokenMapping(list(range(config.vocab_size)))
    from transformers import AutoTokenizer

    present = {path.name for path in folder.iterdir()}
    try:
        if not ("tokenizer.json" in present or {"vocab.json", "merges.txt"} <= present):
            raise FileNotFoundError
        definition = json.loads(AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError):
        raise FolderError(
            f"{folder} has no tokenizer that transformers can load; copy tokenizer.json, or vocab.json and "
            "merges.txt, to it"
        ) from None
    if definition["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(definition["pre_tokenizer"]):
        raise FolderError(f"the tokenizer of {folder} is not GPT-2's byte-level BPE; only that is imported")
    added = [token["content"] for token in definition["added_tokens"] if not token.get("special")]
    if added:
        raise FolderError(
            f"the tokenizer of {folder} has the additional token {min(added)!r} (added_tokens), which regard "
            "does not support; import another model"
        )
    end = config.eos_token_id if isinstance(config.eos_token_id, int) else None
    names = {i: token for token, i in definition["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in definition["added_tokens"]}
    if end is None or end not in names:
        raise FolderError(
            f"{folder} has eos_token_id {config.eos_token_id}, which is not one of its tokens; correct its "
            "config.json"
        )
    rest = [i for i in range(config.vocab_size) if i != end]
    # An id without a token can be generated but not occur in text; no text spells a name with spaces.
    tokens = [*SPECIALS, *(names.get(i, f"< row {i} >") for i in rest)]
    definition["model"] |= {"vocab": {token: i for i, token in enumerate(tokens)}, "unk_token": SPECIALS[UNK]}
    definition |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer(json.dumps(definition)), TokenMapping([None, None, end, end, *rest])


def _copy_weights(model: Any, theirs: Any, mapping: TokenMapping) -> None:
    body, dim = theirs.transformer, theirs.config.n_embd
    model.target.table.weight.copy_(mapping.take(body.wte.weight))
    model.output.projection.weight.copy_(mapping.take(theirs.lm_head.weight))
    missing = [i for i, row in enumerate(mapping.ids) if row is None or i in (PAD, BOS)]
    model.output.projection.bias[missing] = NEVER
    model.decoder.position.weight.copy_(body.wpe.weight)
    _copy(model.decoder.norm, body.ln_f.weight, body.ln_f.bias)
    for ours, block in zip(model.decoder.layers, body.h, strict=True):
        weights = block.attn.c_attn.weight.T.split(dim)  # GPT-2 stores (in, out)
        biases = block.attn.c_attn.bias.split(dim)
        projections = (ours.attention.Wq, ours.attention.Wk, ours.attention.Wv)
        for projection, weight, bias in zip(projections, weights, biases, strict=True):
            _copy(projection, weight, bias)
        _copy(ours.attention.Wo, block.attn.c_proj.weight.T, block.attn.c_proj.bias)
        _copy(ours.feed.W1, block.mlp.c_fc.weight.T, block.mlp.c_fc.bias)
        _copy(ours.feed.W2, block.mlp.c_proj.weight.T, block.mlp.c_proj.bias)
        _copy(ours.around_attention.norm, block.ln_1.weight, block.ln_1.bias)
        _copy(ours.around_feed.norm, block.ln_2.weight, block.ln_2.bias)


def _copy(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
