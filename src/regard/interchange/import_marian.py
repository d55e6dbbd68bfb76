"""Import a MarianMT from Hugging Face: a post-norm Transformer with sinusoidal positions, and SentencePiece
models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import BOS, PAD, Tokenizer
from regard.errors import FolderError
from regard.interchange.export.compare import Comparison, require_equal
from regard.interchange.export.marian import MarianRunner
from regard.interchange.export.marian_layout import ACTIVATIONS, channel_order, reorder, weight_names
from regard.interchange.importer import IMPORTERS
from regard.interchange.sentencepiece import SentencePieceModel
from regard.interchange.token_mapping import MappedRunner, TokenMapping, exported_tokenizer
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.models.folder import read_json

NEVER = -1e9  # bias of PAD and BOS, which regard never generates


@IMPORTERS.add("marian")
def import_marian(folder: Path) -> tuple[Any, Comparison]:
    """Return the translator and how its outputs compare with those of transformers."""
    model, mappings = read(folder)
    return model, require_equal(model, _runner(folder, mappings), "regard")


def read(folder: Path) -> tuple[Any, dict[str, TokenMapping]]:
    """Return the model, with config and tokenizers, and the mappings of its source and target vocabulary."""
    from transformers import MarianMTModel

    theirs: Any = MarianMTModel.from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True).eval()
    tokenizers, mappings = _tokenizers(folder, theirs.config)
    config = _config(theirs.config)
    model: Any = build(config, len(tokenizers["source"]), len(tokenizers["target"]))
    with torch.no_grad():
        _copy_weights(model, config, theirs, mappings)
    model.config = config
    model.source_tokenizer, model.target_tokenizer = tokenizers["source"], tokenizers["target"]
    return model.eval(), mappings


def _runner(folder: Path, mappings: dict[str, TokenMapping]) -> MappedRunner:
    """Return the model in transformers, without the padding token, which regard never generates."""
    from transformers import MarianConfig

    config: Any = MarianConfig.from_pretrained(str(folder))
    start = config.decoder_start_token_id
    suppressed = sorted({config.pad_token_id, start})
    runner = MarianRunner(folder, start=start, end=config.eos_token_id, suppressed=suppressed)
    return MappedRunner(runner, mappings["source"], mappings["target"])


def _config(theirs: Any) -> dict[str, Any]:
    """Return the `model:` block for a MarianConfig."""
    activation = {name: ours for ours, name in ACTIVATIONS.items()} | {
        "silu": "swish",
        "gelu_pytorch_tanh": "gelu-tanh",
    }
    if theirs.activation_function not in activation:
        raise FolderError(
            f"this MarianMT has activation {theirs.activation_function!r}, and regard supports "
            f"{', '.join(sorted(activation))}; import another model"
        )
    if theirs.d_model % 2:
        raise FolderError(
            f"this MarianMT has d_model {theirs.d_model}, and regard's sinusoidal positions need an even "
            "one; "
            "import another model"
        )
    sides = {
        side: {
            "kind": "transformer",
            "layers": getattr(theirs, f"{side}_layers"),
            "heads": getattr(theirs, f"{side}_attention_heads"),
            "inner": getattr(theirs, f"{side}_ffn_dim"),
            "activation": activation[theirs.activation_function],
            "attention_dropout": float(theirs.attention_dropout),
            "inner_dropout": float(theirs.activation_dropout),
        }
        for side in ("encoder", "decoder")
    }
    tie = "none"
    if theirs.tie_word_embeddings:
        tie = "all" if theirs.share_encoder_decoder_embeddings else "target"
    given = {
        "dim": theirs.d_model,
        "tie": tie,
        "scale_embeddings": theirs.scale_embedding,
        "output_bias": True,
        **sides,
    }
    return AutoregressiveOptions.model_validate(given | {"dropout": float(theirs.dropout)}).model_dump()


def _tokenizers(folder: Path, config: Any) -> tuple[dict[str, Tokenizer], dict[str, TokenMapping]]:
    """Return the source and target tokenizers and the mappings of their ids."""
    shared, own = config.share_encoder_decoder_embeddings, exported_tokenizer(folder)
    if own is not None:
        target = own if shared else exported_tokenizer(folder / "target") or own
        sides = {"source": own, "target": target}
        return sides, {side: TokenMapping(list(range(len(tokenizer)))) for side, tokenizer in sides.items()}
    files = {"source": "vocab.json", "target": "vocab.json" if shared else "target_vocab.json"}
    tokenizers, mappings = {}, {}
    for side, name in files.items():
        for file in (name, f"{side}.spm"):
            if not (folder / file).is_file():
                raise FolderError(
                    f"{folder} has no {file}, which MarianMT's tokenizer needs; the folder is incomplete, "
                    "so copy it again"
                )
        vocabulary: dict[str, int] = read_json(folder / name)
        mappings[side] = _mapping(vocabulary, config, side)
        names = {i: token for token, i in vocabulary.items()}
        tokens = [names.get(-1 if i is None else i, "") for i in mappings[side].ids]
        model = SentencePieceModel(folder / f"{side}.spm")
        tokenizers[side] = model.tokenizer(tokens, is_source=side == "source")
    return tokenizers, mappings


def _mapping(vocabulary: dict[str, int], config: Any, side: str) -> TokenMapping:
    codes = [piece for piece in vocabulary if piece.startswith(">>") and piece.endswith("<<")]
    if codes:
        raise FolderError(
            f"this model selects its target language by codes such as {codes[0]}, which regard does not "
            "support; "
            "import a model of a single language pair"
        )
    size = config.vocab_size if side == "source" else config.decoder_vocab_size
    end, pad = config.eos_token_id, config.pad_token_id
    starts = side == "target" or config.share_encoder_decoder_embeddings
    start = config.decoder_start_token_id if starts else None
    unknown = vocabulary.get("<unk>")
    rest = [i for i in range(size) if i not in (unknown, end, pad, start)]
    return TokenMapping([None, unknown, start, end, *rest])


def _copy_weights(model: Any, config: dict[str, Any], theirs: Any, mappings: dict[str, TokenMapping]) -> None:
    """Copy the weights, with channels in the order of our sinusoids and tokens in the order of our ids."""
    state, order = theirs.state_dict(), channel_order(config["dim"]).argsort()
    ours = dict(model.named_parameters())
    by_token = {
        "source.table.weight": mappings["source"],
        "target.table.weight": mappings["target"],
        "output.projection.weight": mappings["target"],
    }
    for name in weight_names(config):
        x = reorder(state[name.theirs], name.channel_axis, order)
        ours[name.ours].copy_(by_token[name.ours].take(x) if name.ours in by_token else x)
    bias = model.output.projection.bias
    bias.copy_(mappings["target"].take(theirs.final_logits_bias[0]))
    bias[[PAD, BOS]] = NEVER
