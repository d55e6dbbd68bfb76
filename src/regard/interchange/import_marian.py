"""Import a MarianMT from Hugging Face, such as Helsinki-NLP/opus-mt-en-de.

It is a post-norm Transformer with sinusoidal positions and SentencePiece tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.position import Sinusoidal
from regard.data.tokenizer import BOS, PAD
from regard.errors import FolderError
from regard.interchange.export.compare import RuntimeComparison, require_equal
from regard.interchange.export.marian import MarianRunner
from regard.interchange.export.marian_layout import ACTIVATIONS, channel_order, reorder, weight_names
from regard.interchange.generation_settings import GenerationSettings
from regard.interchange.importer import IMPORTERS
from regard.interchange.marian_tokenizers import read_tokenizers
from regard.interchange.token_mapping import MappedRunner, TokenMapping
from regard.interchange.transformers_model import load_transformers
from regard.models.build import build
from regard.models.config import complete
from regard.models.folder import read_json

NEVER = -1e9  # bias of tokens that are never generated
POSITIONS = 1024  # of the comparison, at least
MAX_POSITION_ERROR = 1e-4  # of a value of a stored table
# Options of old configurations that transformers ignores, with the value that it computes.
FIXED = {
    "normalize_before": False,
    "add_final_layer_norm": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
}


@IMPORTERS.add("marian")
def import_marian(folder: Path) -> tuple[Any, RuntimeComparison]:
    """Return the translator and how its outputs compare with those of transformers."""
    model, mappings = read(folder)
    special = SpecialTokens.read(folder, len(mappings["target"].ids))
    runner = MarianRunner(folder, start=special.start, end=special.end, suppressed=special.suppressed)
    _extend_positions(runner.model)
    mapped = MappedRunner(runner, mappings["source"], mappings["target"])
    return model, require_equal(model, mapped, "regard")


def read(folder: Path) -> tuple[Any, dict[str, TokenMapping]]:
    """Return the model, with config and tokenizers, and the mappings of its source and target vocabulary."""
    from transformers import MarianMTModel

    _check_fixed(folder / "config.json")
    theirs = load_transformers(MarianMTModel, folder)
    _check_positions(folder, theirs)
    rows = {
        side: len(getattr(theirs.model, part).embed_tokens.weight)
        for side, part in (("source", "encoder"), ("target", "decoder"))
    }
    special = SpecialTokens.read(folder, rows["target"])
    tokenizers, mappings = read_tokenizers(
        folder, rows, start=special.start, end=special.end, pad=special.pad
    )
    config = _config(folder, theirs, _tie(theirs, mappings))
    model: Any = build(config, len(tokenizers["source"]), len(tokenizers["target"]))
    with torch.no_grad():
        _copy_weights(model, config, theirs, mappings)
        _suppress(model.output.projection.bias, special, mappings["target"])
    model.config = config
    model.source_tokenizer, model.target_tokenizer = tokenizers["source"], tokenizers["target"]
    languages = {} if tokenizers["source"].languages else {"languages": _languages(folder)}
    model.card = special.options.card() | languages
    return model.eval(), mappings


def _languages(folder: Path) -> dict[str, str]:
    """Return the source and target language in tokenizer_config.json, as far as it has them."""
    path = folder / "tokenizer_config.json"
    given = read_json(path) if path.is_file() else {}
    return {side: given[f"{side}_lang"] for side in ("source", "target") if given.get(f"{side}_lang")}


def _check_fixed(path: Path) -> None:
    """Raise FolderError if config.json asks for something that transformers' MarianMT does not compute."""
    given = read_json(path)
    for key, value in FIXED.items():
        if given.get(key, value) is not value:
            raise FolderError(
                f"{path} has {key} {given[key]!r}, and MarianMT in transformers computes {value}, so its "
                "outputs would be wrong; import another model"
            )


def _check_positions(folder: Path, theirs: Any) -> None:
    """Raise FolderError if the folder has a table of positions that are not sinusoidal."""
    if theirs.config.d_model % 2:
        raise FolderError(
            f"{folder / 'config.json'} has d_model {theirs.config.d_model}, and regard's sinusoidal "
            "positions need an even one; import another model"
        )
    for part in (theirs.model.encoder, theirs.model.decoder):
        table = part.embed_positions.weight
        if not (table - _sinusoids(*table.shape)).abs().max() < MAX_POSITION_ERROR:
            raise FolderError(
                f"the weights in {folder} have a table of positions that are not sinusoidal, and regard "
                "imports sinusoidal positions; import another model"
            )


def _extend_positions(theirs: Any) -> None:
    """Add positions after the last one: regard has no last position, and transformers fails behind it."""
    for part in (theirs.model.encoder, theirs.model.decoder):
        table = part.embed_positions.weight
        if len(table) < POSITIONS:
            longer = torch.cat([table, _sinusoids(POSITIONS, table.shape[1])[len(table) :]])
            part.embed_positions.weight = nn.Parameter(longer, requires_grad=False)


def _sinusoids(positions: int, dim: int) -> Tensor:
    """Return the sinusoidal positions with MarianMT's order of channels."""
    return Sinusoidal(dim).table(positions)[:, channel_order(dim)]


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a MarianMT, the tokens that it never generates, and its generation options."""

    start: int
    end: int
    pad: int | None
    suppressed: list[int]
    options: GenerationSettings

    @classmethod
    def read(cls, folder: Path, rows: int) -> SpecialTokens:
        """Read the special tokens of a folder whose decoder has this many rows of embeddings."""
        from transformers import MarianConfig

        defaults, keys = MarianConfig(), ("pad_token_id", "eos_token_id", "decoder_start_token_id")
        options = GenerationSettings.read(folder, {key: getattr(defaults, key) for key in keys})
        if options.values.get("forced_bos_token_id") is not None:
            raise FolderError(
                f"{folder} has forced_bos_token_id in its generation options, which regard does not support; "
                "import another model"
            )
        start, end = options.token("decoder_start_token_id", rows), options.token("eos_token_id", rows)
        has_pad = options.values.get("pad_token_id") not in (None, -1)
        pad = options.token("pad_token_id", rows) if has_pad else None
        suppressed = options.excluded(rows) | ({pad} if pad is not None else set())
        return cls(start, end, pad, sorted(suppressed - {end}), options)


def _tie(theirs: Any, mappings: dict[str, TokenMapping]) -> str:
    """Return which tables are equal: the tables decide, because config.json has two keys for it."""
    source, target = theirs.model.encoder.embed_tokens.weight, theirs.model.decoder.embed_tokens.weight
    if not torch.equal(target, theirs.lm_head.weight):
        return "none"
    return "all" if mappings["source"] == mappings["target"] and torch.equal(source, target) else "target"


def _config(folder: Path, theirs: Any, tie: str) -> dict[str, Any]:
    """Return the `model:` block for a MarianConfig."""
    config = theirs.config
    activation = {name: ours for ours, name in ACTIVATIONS.items()} | {
        "silu": "swish",
        "gelu_pytorch_tanh": "gelu-tanh",
    }
    if config.activation_function not in activation:
        raise FolderError(
            f"{folder / 'config.json'} has activation_function {config.activation_function!r}, and regard "
            f"supports {', '.join(sorted(activation))}; import another model"
        )
    sides = {
        side: {
            "kind": "transformer",
            "layers": getattr(config, f"{side}_layers"),
            "heads": getattr(config, f"{side}_attention_heads"),
            "inner": getattr(config, f"{side}_ffn_dim"),
            "activation": activation[config.activation_function],
            "attention_dropout": float(config.attention_dropout),
            "inner_dropout": float(config.activation_dropout),
        }
        for side in ("encoder", "decoder")
    }
    given = {
        "dim": config.d_model,
        "tie": tie,
        "scale_embeddings": config.scale_embedding,
        "output_bias": True,
        "dropout": float(config.dropout),
        **sides,
    }
    return complete(folder / "config.json", "translator", given)


def _copy_weights(model: Any, config: dict[str, Any], theirs: Any, mappings: dict[str, TokenMapping]) -> None:
    """Copy the weights, with channels in the order of our sinusoids and tokens in the order of our ids."""
    state, order = theirs.state_dict(), channel_order(config["dim"]).argsort()
    state["model.shared.weight"] = state["model.decoder.embed_tokens.weight"]
    ours = dict(model.named_parameters())
    by_token = {
        "source.table.weight": mappings["source"],
        "target.table.weight": mappings["target"],
        "output.projection.weight": mappings["target"],
    }
    for name in weight_names(config):
        x = reorder(state[name.theirs], name.channel_axis, order)
        ours[name.ours].copy_(by_token[name.ours].take(x) if name.ours in by_token else x)
    model.output.projection.bias.copy_(mappings["target"].take(theirs.final_logits_bias[0]))


def _suppress(bias: Tensor, special: SpecialTokens, mapping: TokenMapping) -> None:
    """Give a bias of NEVER to the tokens that are never generated."""
    never = [ours for ours, i in enumerate(mapping.ids) if i in special.suppressed]
    bias[[PAD, BOS, *never]] = NEVER
