"""Joey NMT: the model of its `build_model` with our weights, its Batch and its `search`."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.decode_peers.joey_weights import joey_tokens, same_epsilon
from benchmarks.decode_peers.systems import Batching, Sentences, cut, padded

SPECIALS = {"unk": 0, "pad": 1, "bos": 2, "eos": 3}  # Joey NMT's ids of them


class JoeyNMT(Batching):
    """Joey NMT has no key/value cache: each step recomputes all tokens.

    Its length penalty ranks hypotheses by log p / ((5 + n) / 6), close to log p / n of the others.
    """

    note = "ranks beams by log p / ((5 + length) / 6), the nearest to log p / length that it has"

    def __init__(self, folder: Path, precision: str, inputs: dict[str, Any]) -> None:
        import torch
        from joeynmt.batch import Batch
        from joeynmt.model import build_model
        from joeynmt.search import search

        self.Batch, self.search, self.special, self.version = (
            Batch,
            search,
            inputs["specials"],
            version("joeynmt"),
        )
        source, target = (_vocabulary(inputs[f"{side}_pieces"]) for side in ("source", "target"))
        if inputs["source_pieces"] == inputs["target_pieces"]:
            target = source
        self.model = build_model(_config(inputs["config"]), source, target).eval()
        loaded = self.model.load_state_dict(torch.load(folder / "joey.pt"), strict=False)
        unmatched = [name for name in loaded.missing_keys if not name.endswith("pe.pe")]  # sinusoids
        unmatched += loaded.unexpected_keys
        if unmatched:
            raise ValueError(f"weights that do not match the model: {', '.join(unmatched[:5])}")
        same_epsilon(self.model)

    def batch(self, sentences: Sentences, beam: int, limit: int) -> Sentences:
        import torch

        source = padded(sentences, self.special["pad"], self.special["eos"])
        pad, unk = (source == self.special[name] for name in ("pad", "unk"))
        source = source.masked_fill(pad, SPECIALS["pad"]).masked_fill(unk, SPECIALS["unk"])
        batch = self.Batch(
            src=source, src_length=(~pad).sum(1), src_prompt_mask=None, trg=None, trg_prompt_mask=None,
            indices=torch.arange(len(source)), device=torch.device("cpu"), pad_index=SPECIALS["pad"],
            eos_index=SPECIALS["eos"],
        )  # fmt: skip
        outputs, _, _ = self.search(self.model, batch, limit, beam, 1.0)
        our_ids = {SPECIALS[name]: self.special[name] for name in SPECIALS}
        return [
            [our_ids.get(token, token) for token in cut(tokens, SPECIALS["eos"])]
            for tokens in outputs.tolist()
        ]


def _vocabulary(pieces: list[str]) -> Any:
    from joeynmt.vocabulary import Vocabulary

    tokens = joey_tokens(pieces)
    names = {f"{name}_token": tokens[number] for name, number in SPECIALS.items()} | {
        "sep_token": None,
        "lang_tags": [],
    }
    ids = {f"{name}_id": number for name, number in SPECIALS.items()} | {"sep_id": None}
    return Vocabulary(tokens[len(SPECIALS) :], SimpleNamespace(**names, **ids))


def _config(config: dict[str, Any]) -> dict[str, Any]:
    sides = {}
    for side in ("encoder", "decoder"):
        spec = config[side]
        sides[side] = {
            "type": "transformer", "num_layers": spec["layers"], "num_heads": spec["heads"],
            "hidden_size": config["dim"], "ff_size": spec["inner"], "dropout": 0.0,
            "layer_norm": spec["norm"], "activation": spec["activation"],
            "embeddings": {
                "embedding_dim": config["dim"], "scale": config.get("scale_embeddings", True), "dropout": 0.0,
            },
        }  # fmt: skip
    tied = {"tied_embeddings": config["tie"] == "all", "tied_softmax": config["tie"] != "none"}
    initializers = {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "bias_initializer": "zeros",
    }
    return sides | tied | initializers
