"""Import a MarianMT from Hugging Face, such as Helsinki-NLP/opus-mt-en-de.

It is a post-norm Transformer with sinusoidal positions and SentencePiece tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizer import BOS, PAD
from regard.errors import FolderError
from regard.interchange.export.compare import RuntimeComparison, require_equal
from regard.interchange.export.marian import MarianRunner
from regard.interchange.export.marian_layout import ACTIVATIONS, channel_order, reorder, weight_names
from regard.interchange.importer import IMPORTERS
from regard.interchange.marian_tokenizers import read_tokenizers
from regard.interchange.token_mapping import MappedRunner, TokenMapping
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.models.folder import read_json

NEVER = -1e9  # bias of tokens that are never generated
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
    runner = _runner(folder, MarianGeneration.read(folder), mappings)
    return model, require_equal(model, runner, "regard")


def read(folder: Path) -> tuple[Any, dict[str, TokenMapping]]:
    """Return the model, with config and tokenizers, and the mappings of its source and target vocabulary."""
    _check_fixed(folder / "config.json")
    theirs, generation = _load(folder), MarianGeneration.read(folder)
    rows = {
        side: len(getattr(theirs.model, part).embed_tokens.weight)
        for side, part in (("source", "encoder"), ("target", "decoder"))
    }
    tokenizers, mappings = read_tokenizers(
        folder, rows, start=generation.start, end=generation.end, pad=generation.pad
    )
    config = _config(folder, theirs, _tie(theirs, mappings))
    model: Any = build(config, len(tokenizers["source"]), len(tokenizers["target"]))
    with torch.no_grad():
        _copy_weights(model, config, theirs, mappings)
        _suppress(model.output.projection.bias, generation, mappings["target"])
    model.config = config
    model.source_tokenizer, model.target_tokenizer = tokenizers["source"], tokenizers["target"]
    languages = {} if tokenizers["source"].languages else {"languages": _languages(folder)}
    model.card = {"beam": generation.beam, **languages}
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


def _load(folder: Path) -> Any:
    """Return the model in transformers; weights that do not fit config.json raise FolderError."""
    from transformers import MarianMTModel

    try:
        loaded: Any = MarianMTModel.from_pretrained(
            str(folder), dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # of many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FolderError(
            f"transformers cannot load {folder} as a MarianMT ({reason}); copy the folder again"
        ) from None
    theirs, report = loaded
    additional = [name for name in report["unexpected_keys"] if ".layers." in name or "norm" in name]
    for problem, names in (("lack", report["missing_keys"]), ("have an additional", additional)):
        if names:
            raise FolderError(
                f"the weights in {folder} {problem} {min(names)}, so they do not belong to its config.json; "
                "copy the folder again"
            )
    return theirs.eval()


@dataclass(frozen=True)
class MarianGeneration:
    """How a MarianMT is used: its special tokens and the options of its generation."""

    start: int
    end: int
    pad: int
    suppressed: list[int]  # never generated
    beam: int

    @classmethod
    def read(cls, folder: Path) -> MarianGeneration:
        """From generation_config.json or, in old folders, config.json."""
        from transformers import MarianConfig

        path, defaults = folder / "generation_config.json", MarianConfig()
        options: dict[str, Any] = {
            key: getattr(defaults, key) for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
        }
        options |= read_json(folder / "config.json") | (read_json(path) if path.is_file() else {})
        if options.get("forced_bos_token_id") is not None:
            raise FolderError(
                f"{folder} has forced_bos_token_id in its generation options, which regard does not support; "
                "import another model"
            )
        words = [*(options.get("bad_words_ids") or []), *([i] for i in options.get("suppress_tokens") or [])]
        if any(len(word) != 1 for word in words):
            raise FolderError(
                f"{folder} excludes a sequence of tokens from its output (bad_words_ids), and regard can "
                "exclude single tokens; import another model"
            )
        ends = options["eos_token_id"]
        if isinstance(ends, list) and len(ends) != 1:
            raise FolderError(
                f"{folder} has the end tokens {ends} (eos_token_id), and regard has one; import another model"
            )
        end = ends[0] if isinstance(ends, list) else ends
        start, pad = options["decoder_start_token_id"], options["pad_token_id"]
        suppressed = {pad, start, *(word[0] for word in words)} - {end}
        return cls(start, end, pad, sorted(suppressed), options.get("num_beams") or 1)


def _runner(folder: Path, generation: MarianGeneration, mappings: dict[str, TokenMapping]) -> MappedRunner:
    runner = MarianRunner(
        folder, start=generation.start, end=generation.end, suppressed=generation.suppressed
    )
    return MappedRunner(runner, mappings["source"], mappings["target"])


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
    if config.d_model % 2:
        raise FolderError(
            f"{folder / 'config.json'} has d_model {config.d_model}, and regard's sinusoidal positions need "
            "an even one; import another model"
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
    return AutoregressiveOptions.model_validate(given).model_dump()


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


def _suppress(bias: Tensor, generation: MarianGeneration, mapping: TokenMapping) -> None:
    """Give a bias of NEVER to the tokens that are never generated."""
    never = [ours for ours, i in enumerate(mapping.ids) if i in generation.suppressed]
    bias[[PAD, BOS, *never]] = NEVER
