"""Edits that damage models, taggers and indexes, for tests and `benchmarks/attack/folders.py`."""

from __future__ import annotations

import json
import os

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from regard.data.tokenizer import Tokenizer
from regard.models import folder as folders
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.models.tagger import TaggerOptions
from tests.models.small import LAYER

DEEP = "[" * 100_000 + "]" * 100_000
BLOCK = {"kind": "transformer", **LAYER}


def save(path):
    tokenizer = Tokenizer.train(["ein kleiner Hund", "a small dog"], "character", 40)
    config = AutoregressiveOptions.model_validate(
        {"dim": 16, "encoder": BLOCK, "decoder": BLOCK}
    ).model_dump()
    model = build(config, len(tokenizer), len(tokenizer))
    folders.save(path, model, config, tokenizer, tokenizer, {"name": "small"})


def save_tagger(path):
    source = Tokenizer.train(["Ada saw Ulm"], "word-characters", 40)
    target = Tokenizer.train(["B-PER O B-LOC"], "word", 40)
    config = TaggerOptions.model_validate(
        {"dim": 16, "characters": {"dim": 4, "width": 4}, "encoder": {"kind": "embedding"}}
    ).model_dump()
    folders.save(path, build(config, len(source), len(target)), config, source, target, {})


def change(path, edit):
    """Edit the tensors of a model folder and delete its checksums."""
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors")
    (path / "checksums.json").unlink(missing_ok=True)


def set_config(keys, value):
    """Set one key of config.json, or delete it if the value is `...`."""

    def edit(path):
        config = json.loads((path / "config.json").read_text())
        *inner, last = keys.split(".")
        block = config
        for key in inner:
            block = block[key]
        if value is ...:
            del block[last]
        else:
            block[last] = value
        (path / "config.json").write_text(json.dumps(config))

    return edit


def replace_text(name, content):
    return lambda path: (path / name).write_text(content)


def replace_by_folder(name):
    def edit(path):
        (path / name).unlink()
        (path / name).mkdir()

    return edit


def truncate(name, size):
    return lambda path: os.truncate(path / name, size)


def replace_header(content):
    """A safetensors file with this header."""
    data = content.encode()
    return lambda path: (path / "model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)


def edit_tensors(edit):
    return lambda path: change(path, edit)


def rename(tensors):
    tensors["other"] = tensors.pop(sorted(tensors)[0])


def reshape(tensors):
    name = sorted(tensors)[0]
    tensors[name] = torch.zeros(3, 3)


def integers(tensors):
    name = sorted(tensors)[0]
    tensors[name] = tensors[name].to(torch.int32)


def scales_of(name, shape):
    """Add scales for a tensor that is not int8 or does not exist."""
    return edit_tensors(
        lambda stored: stored.update({f"{name or sorted(stored)[0]}.scale": torch.ones(shape)})
    )


nested: dict = {"kind": "causal"}
for _ in range(60):
    nested = {"kind": "not", "of": nested}

TAMPERINGS = {
    "dim is a string": set_config("model.dim", "128"),
    "dim is a list": set_config("model.dim", [16]),
    "dim 0": set_config("model.dim", 0),
    "dim -1": set_config("model.dim", -1),
    "dim 1.5": set_config("model.dim", 1.5),
    "dim true": set_config("model.dim", True),
    "dim null": set_config("model.dim", None),
    "dim 15": set_config("model.dim", 15),
    "dim 2**70": set_config("model.dim", 2**70),
    "dim NaN": set_config("model.dim", float("nan")),
    "heads 0": set_config("model.decoder.heads", 0),
    "heads 3": set_config("model.decoder.heads", 3),
    "heads 2**40": set_config("model.decoder.heads", 2**40),
    "a million layers": set_config("model.decoder.layers", 10**6),
    "a million layers of the encoder": set_config("model.encoder.layers", 10**6),
    "no layers": set_config("model.encoder.layers", 0),
    "dropout 2": set_config("model.dropout", 2),
    "dropout Infinity": set_config("model.dropout", float("inf")),
    "an unknown key": set_config("model.surprise", 1),
    "an unknown kind of decoder": set_config("model.decoder.kind", "mamba"),
    "a decoder's kind that is a list": set_config("model.decoder.kind", []),
    "an unknown position": set_config("model.decoder.position", "nowhere"),
    "an unknown activation": set_config("model.encoder.activation", "none"),
    "an unknown mask": set_config("model.encoder.mask", {"kind": "star"}),
    "a mask without its width": set_config("model.encoder.mask", {"kind": "centered"}),
    "nested masks": set_config("model.encoder.mask", nested),
    "ten thousand masks": set_config(
        "model.encoder.mask", {"kind": "and", "of": [{"kind": "causal"}] * 10_000}
    ),
    "another kind of decoder": set_config("model.decoder", {"kind": "bahdanau"}),
    "a number as the decoder": set_config("model.decoder", 7),
    "no encoder": set_config("model.encoder", None),
    "the model is a list": set_config("model", []),
    "the model is null": set_config("model", None),
    "another kind": set_config("kind", "classifier"),
    "an unknown kind": set_config("kind", "oracle"),
    "a kind that is an object": set_config("kind", {}),
    "no kind": set_config("kind", ...),
    "no model": set_config("model", ...),
    "no vocabulary": set_config("target_vocabulary", ...),
    "a vocabulary that is a string": set_config("target_vocabulary", "40"),
    "a vocabulary of 10**12": set_config("target_vocabulary", 10**12),
    "a vocabulary of -1": set_config("source_vocabulary", -1),
    "no source vocabulary": set_config("source_vocabulary", None),
    "format 2": set_config("format", 2),
    "format is a list": set_config("format", [1]),
    "tie is unknown": set_config("model.tie", "some"),
    "inner is larger": set_config("model.decoder.inner", 128),
    "learned positions without their weights": set_config("model.decoder.position", "learned"),
    "scales of a float table": scales_of("target.table.weight", 40),
    "a scalar as scales": scales_of("target.table.weight", ()),
    "scales of a missing tensor": scales_of("target.other", 3),
    "scales of scales": scales_of("target.table.weight.scale", 3),
    "deeply nested config.json": replace_text("config.json", DEEP),
    "deeply nested model in config.json": replace_text(
        "config.json", '{"model":' * 100_000 + "1" + "}" * 100_000
    ),
    "config.json is empty": replace_text("config.json", ""),
    "config.json is a number": replace_text("config.json", "7"),
    "config.json has a huge number": replace_text("config.json", '{"format": ' + "9" * 10_000 + "}"),
    "config.json is not UTF-8": lambda path: (path / "config.json").write_bytes(b"\xff\xfe{}"),
    "config.json is a folder": replace_by_folder("config.json"),
    "model.safetensors is a folder": replace_by_folder("model.safetensors"),
    "tokenizer.json is a folder": replace_by_folder("tokenizer.json"),
    "deeply nested card.json": replace_text("card.json", DEEP),
    "card.json is a list": replace_text("card.json", "[]"),
    "checksums.json is a folder": replace_by_folder("checksums.json"),
    "checksums.json is a list": replace_text("checksums.json", "[1]"),
    "checksums.json is deeply nested": replace_text("checksums.json", DEEP),
    "deeply nested tokenizer.json": replace_text("tokenizer.json", DEEP),
    "deeply nested word characters": replace_text("tokenizer.json", '{"word_characters":' + DEEP + "}"),
    "tokenizer.json is an object": replace_text("tokenizer.json", "{}"),
    "tokenizer.json has empty word characters": replace_text("tokenizer.json", '{"word_characters":{}}'),
    "truncated weights": truncate("model.safetensors", 2000),
    "weights truncated in the header": truncate("model.safetensors", 20),
    "empty weights": truncate("model.safetensors", 0),
    "a header of 2**60 bytes": lambda path: (path / "model.safetensors").write_bytes(
        (2**60).to_bytes(8, "little") + b"{}"
    ),
    "a header that is not JSON": replace_header("{nonsense"),
    "a header that points outside": replace_header('{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
    "a header with shape 2**60": replace_header(
        f'{{"a":{{"dtype":"F32","shape":[{2**60}],"data_offsets":[0,0]}}}}'
    ),
    "a header without tensors": replace_header("{}"),
    "a tensor of another name": edit_tensors(rename),
    "a tensor of another shape": edit_tensors(reshape),
    "a tensor of integers": edit_tensors(integers),
}  # fmt: skip

TAGGER_TAMPERINGS = {
    "no source vocabulary": set_config("source_vocabulary", None),
    "characters wider than dim": set_config("model.characters.width", 16),
    "characters without width": set_config("model.characters", {"width": None}),
    "a kernel of 2**62": set_config("model.characters.kernel", 2**62),
    "an unknown encoder": set_config("model.encoder", {"kind": "ear"}),
    "crf is a string": set_config("model.crf", "yes"),
    "recall is negative": set_config("model.recall", -1.0),
    "a smaller vocabulary": set_config("source_vocabulary", 10),
    "tags of another model": lambda path: Tokenizer.train(["a b"], "word", 40).save(path / "target.json"),
    "target.json is missing": lambda path: (path / "target.json").unlink(),
}


def set_index(**entries):
    def edit(path):
        record = json.loads((path / "index.json").read_text())
        (path / "index.json").write_text(json.dumps(record | entries))

    return edit


def edit_array(name, make):
    return lambda path: np.save(path / "part-000001" / name, make(np.load(path / "part-000001" / name)))


PART = {"name": "part-000001", "first": 0, "count": 30}
INDEX_TAMPERINGS = {
    "made is a list": set_index(made=[]),
    "made lacks its width": set_index(made={"model": "m", "fingerprint": "f"}),
    "width is a string": set_index(made={"model": "m", "fingerprint": "f", "width": "16"}),
    "another width": set_index(made={"model": "m", "fingerprint": "f", "width": 8}),
    "next is a string": set_index(next="30"),
    "next is too large": set_index(next=31),
    "written is null": set_index(written=None),
    "parts is an object": set_index(parts={}),
    "a part is a number": set_index(parts=[1]),
    "a part without count": set_index(parts=[{"name": "part-000001", "first": 0}]),
    "a part outside the folder": set_index(parts=[PART | {"name": "../../secret"}]),
    "a part that is missing": set_index(parts=[PART | {"name": "part-000009"}]),
    "a part that does not begin at 0": set_index(parts=[PART | {"first": 5}]),
    "a part with a count of -1": set_index(parts=[PART | {"count": -1}]),
    "a part with a count that is too small": set_index(parts=[PART | {"count": 29}], next=29),
    "a graph outside the folder": set_index(graph="/etc"),
    "a graph that is missing": set_index(graph="graph-000009"),
    "removed is a string": set_index(removed="1"),
    "a removed document that does not exist": set_index(removed=[99]),
    "removed documents out of order": set_index(removed=[3, 2]),
    "deeply nested index.json": replace_text("index.json", DEEP),
    "decreasing offsets": edit_array("offsets.npy", lambda x: x[::-1]),
    "float offsets": edit_array("offsets.npy", lambda x: x.astype(float)),
    "integer vectors": edit_array("vectors.npy", lambda x: x.astype(np.int32)),
    "too few lengths": edit_array("words/lengths.npy", lambda x: x[:3]),
    "words of documents that do not exist": edit_array("words/documents.npy", lambda x: x + 1000),
    "decreasing starts": edit_array("words/starts.npy", lambda x: x[::-1]),
    "empty vectors": truncate("part-000001/vectors.npy", 0),
    "truncated words": truncate("part-000001/words/words.npy", 50),
    "a document is a number": replace_text("part-000001/documents.jsonl", "7\n" * 1000),
    "a document that is a list of numbers": replace_text("part-000001/documents.jsonl", "[1, 2]\n" * 1000),
    "a deeply nested document": replace_text("part-000001/documents.jsonl", DEEP),
    "vectors.npy is a folder": replace_by_folder("part-000001/vectors.npy"),
    "the graph is nonsense": replace_text("graph-000001/graph.usearch", "nonsense"),
    "the graph is empty": truncate("graph-000001/graph.usearch", 0),
}
