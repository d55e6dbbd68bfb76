"""MarianMT from Hugging Face: a post-norm Transformer with sinusoids, and two SentencePiece models over one vocabulary or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import BOS, PAD, Tokenizer
from regard.errors import FolderError
from regard.interchange.export.marian import Translating
from regard.interchange.export.marian_layout import ACTIVATIONS, halves, ordered, places
from regard.interchange.sentencepiece import SentencePieces
from regard.interchange.vocabulary import Renumbered, Rows, own_tokenizer
from regard.models.build import build
from regard.models.folder import read_json
from regard.models.schema import AutoregressiveBlock

NEVER = -1e9


def read(folder: Path) -> tuple[Any, dict[str, Rows]]:
    """The model, with config and tokenizers on it, and the rows of its vocabularies."""
    from transformers import MarianMTModel

    theirs: Any = MarianMTModel.from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True).eval()
    tokenizers, rows = _tokenizers(folder, theirs.config)
    config = _config(theirs.config)
    model: Any = build(config, len(tokenizers["source"]), len(tokenizers["target"]))
    with torch.no_grad():
        _fill(model, config, theirs, rows)
    model.config, model.source_tokenizer, model.target_tokenizer = (
        config,
        tokenizers["source"],
        tokenizers["target"],
    )
    return model.eval(), rows


def runner(folder: Path, rows: dict[str, Rows]) -> Renumbered:
    """The model in transformers, to compare with. Padding has a score there and none here."""
    from transformers import MarianConfig

    config: Any = MarianConfig.from_pretrained(str(folder))
    never = {config.pad_token_id, config.decoder_start_token_id}
    inner = Translating(
        folder, start=config.decoder_start_token_id, end=config.eos_token_id, never=sorted(never)
    )
    return Renumbered(inner, rows["source"], rows["target"])


def _config(theirs: Any) -> dict[str, Any]:
    activation = {name: ours for ours, name in ACTIVATIONS.items()} | {
        "silu": "swish",
        "gelu_pytorch_tanh": "gelu-tanh",
    }
    if theirs.activation_function not in activation:
        raise FolderError(
            f"this MarianMT has activation {theirs.activation_function!r}; regard has {', '.join(sorted(activation))}"
        )
    if theirs.d_model % 2:
        raise FolderError(f"this MarianMT has d_model {theirs.d_model}; sinusoids of regard need an even one")
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
    tie = (
        "none"
        if not theirs.tie_word_embeddings
        else "all"
        if theirs.share_encoder_decoder_embeddings
        else "target"
    )
    given = {
        "dim": theirs.d_model,
        "tie": tie,
        "scale_embeddings": theirs.scale_embedding,
        "output_bias": True,
        **sides,
    }
    return AutoregressiveBlock.model_validate(given | {"dropout": float(theirs.dropout)}).model_dump()


def _tokenizers(folder: Path, config: Any) -> tuple[dict[str, Tokenizer], dict[str, Rows]]:
    own = own_tokenizer(folder)
    if own is not None:
        target = own if config.share_encoder_decoder_embeddings else own_tokenizer(folder / "target") or own
        found = {"source": own, "target": target}
        return found, {side: Rows(list(range(len(tokenizer)))) for side, tokenizer in found.items()}
    shared = config.share_encoder_decoder_embeddings
    files = {"source": "vocab.json", "target": "vocab.json" if shared else "target_vocab.json"}
    found, rows = {}, {}
    for side, name in files.items():
        for file in (name, f"{side}.spm"):
            if not (folder / file).is_file():
                raise FolderError(
                    f"{folder} has no {file}, which MarianMT's tokenizer is made of; the folder is incomplete, so copy it again"
                )
        numbers: dict[str, int] = read_json(folder / name)
        rows[side] = _rows(numbers, config, side)
        names = {number: piece for piece, number in numbers.items()}
        pieces = [names.get(-1 if row is None else row, "") for row in rows[side].of]
        found[side] = SentencePieces(folder / f"{side}.spm").tokenizer(pieces, reads=side == "source")
    return found, rows


def _rows(numbers: dict[str, int], config: Any, side: str) -> Rows:
    codes = [piece for piece in numbers if piece.startswith(">>") and piece.endswith("<<")]
    if codes:
        raise FolderError(
            f"this model is told its target language by codes such as {codes[0]}, which regard has not; import one of a single pair"
        )
    size = config.vocab_size if side == "source" else config.decoder_vocab_size
    end, pad = config.eos_token_id, config.pad_token_id
    start = (
        config.decoder_start_token_id if side == "target" or config.share_encoder_decoder_embeddings else None
    )
    unknown = numbers.get("<unk>")
    rest = [number for number in range(size) if number not in (unknown, end, pad, start)]
    return Rows([None, unknown, start, end, *rest])


def _fill(model: Any, config: dict[str, Any], theirs: Any, rows: dict[str, Rows]) -> None:
    """Their weights in our order: channels by their sinusoids, words by our numbers."""
    state, order = theirs.state_dict(), halves(config["dim"]).argsort()
    ours = dict(model.named_parameters())
    words = {
        "source.table.weight": rows["source"],
        "target.table.weight": rows["target"],
        "output.words.weight": rows["target"],
    }
    for place in places(config):
        x = ordered(state[place.theirs], place.axis, order)
        ours[place.ours].copy_(words[place.ours].take(x) if place.ours in words else x)
    bias = model.output.words.bias
    bias.copy_(rows["target"].take(theirs.final_logits_bias[0]))
    bias[[PAD, BOS]] = NEVER
