"""Tampered models, taggers and indexes, one edit each, for tests and `benchmarks/attack/folders.py`."""

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
    source, target = (
        Tokenizer.train(["Ada saw Ulm"], "word-characters", 40),
        Tokenizer.train(["B-PER O B-LOC"], "word", 40),
    )
    config = TaggerOptions.model_validate(
        {"dim": 16, "characters": {"dim": 4, "width": 4}, "encoder": {"kind": "embedding"}}
    ).model_dump()
    folders.save(path, build(config, len(source), len(target)), config, source, target, {})


def change(path, edit):
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors")
    (path / "checksums.json").unlink(missing_ok=True)


def at(keys, value):
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


def text(name, content):
    return lambda path: (path / name).write_text(content)


def as_folder(name):
    def edit(path):
        (path / name).unlink()
        (path / name).mkdir()

    return edit


def cut(name, left):
    return lambda path: os.truncate(path / name, left)


def header(content):
    """A safetensors file with this header."""
    data = content.encode()
    return lambda path: (path / "model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)


def tensors(edit):
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
    return tensors(lambda stored: stored.update({f"{name or sorted(stored)[0]}.scale": torch.ones(shape)}))


nested: dict = {"kind": "causal"}
for _ in range(60):
    nested = {"kind": "not", "of": nested}

TAMPERINGS = {
    "dim is a text": at("model.dim", "128"),
    "dim is a list": at("model.dim", [16]),
    "dim 0": at("model.dim", 0),
    "dim -1": at("model.dim", -1),
    "dim 1.5": at("model.dim", 1.5),
    "dim true": at("model.dim", True),
    "dim null": at("model.dim", None),
    "dim 15": at("model.dim", 15),
    "dim 2**70": at("model.dim", 2**70),
    "dim NaN": at("model.dim", float("nan")),
    "heads 0": at("model.decoder.heads", 0),
    "heads 3": at("model.decoder.heads", 3),
    "heads 2**40": at("model.decoder.heads", 2**40),
    "a million layers": at("model.decoder.layers", 10**6),
    "a million layers of the encoder": at("model.encoder.layers", 10**6),
    "no layers": at("model.encoder.layers", 0),
    "dropout 2": at("model.dropout", 2),
    "dropout Infinity": at("model.dropout", float("inf")),
    "an unknown key": at("model.surprise", 1),
    "an unknown kind of decoder": at("model.decoder.kind", "mamba"),
    "a decoder's kind that is a list": at("model.decoder.kind", []),
    "an unknown position": at("model.decoder.position", "nowhere"),
    "an unknown activation": at("model.encoder.activation", "none"),
    "an unknown mask": at("model.encoder.mask", {"kind": "star"}),
    "a mask without its width": at("model.encoder.mask", {"kind": "centered"}),
    "nested masks": at("model.encoder.mask", nested),
    "ten thousand masks": at("model.encoder.mask", {"kind": "and", "of": [{"kind": "causal"}] * 10_000}),
    "another kind of decoder": at("model.decoder", {"kind": "bahdanau"}),
    "no decoder block": at("model.decoder", 7),
    "an encoder missing": at("model.encoder", None),
    "the model is a list": at("model", []),
    "the model is null": at("model", None),
    "another kind": at("kind", "classifier"),
    "an unknown kind": at("kind", "oracle"),
    "a kind that is a block": at("kind", {}),
    "no kind": at("kind", ...),
    "no model": at("model", ...),
    "no vocabulary": at("target_vocabulary", ...),
    "a vocabulary of text": at("target_vocabulary", "40"),
    "a vocabulary of 10**12": at("target_vocabulary", 10**12),
    "a vocabulary of -1": at("source_vocabulary", -1),
    "no source vocabulary": at("source_vocabulary", None),
    "format 2": at("format", 2),
    "format is a list": at("format", [1]),
    "tie is unknown": at("model.tie", "some"),
    "inner is larger": at("model.decoder.inner", 128),
    "a table of positions": at("model.decoder.position", "learned"),
    "scales of a float table": scales_of("target.table.weight", 40),
    "scales of a number": scales_of("target.table.weight", ()),
    "scales of nothing": scales_of("target.other", 3),
    "scales of scales": scales_of("target.table.weight.scale", 3),
    "config.json is deep": text("config.json", DEEP),
    "config.json is deep in model": text("config.json", '{"model":' * 100_000 + "1" + "}" * 100_000),
    "config.json is empty": text("config.json", ""),
    "config.json is a number": text("config.json", "7"),
    "config.json has a huge number": text("config.json", '{"format": ' + "9" * 10_000 + "}"),
    "config.json is no UTF-8": lambda path: (path / "config.json").write_bytes(b"\xff\xfe{}"),
    "config.json is a folder": as_folder("config.json"),
    "model.safetensors is a folder": as_folder("model.safetensors"),
    "tokenizer.json is a folder": as_folder("tokenizer.json"),
    "card.json is deep": text("card.json", DEEP),
    "card.json is a list": text("card.json", "[]"),
    "checksums.json is a folder": as_folder("checksums.json"),
    "checksums.json is a list": text("checksums.json", "[1]"),
    "checksums.json is deep": text("checksums.json", DEEP),
    "tokenizer.json is deep": text("tokenizer.json", DEEP),
    "tokenizer.json is deep inside": text("tokenizer.json", '{"word_characters":' + DEEP + "}"),
    "tokenizer.json is an object": text("tokenizer.json", "{}"),
    "tokenizer.json has word characters and is empty": text("tokenizer.json", '{"word_characters":{}}'),
    "weights cut at the end": cut("model.safetensors", 2000),
    "weights cut in the header": cut("model.safetensors", 20),
    "weights of no bytes": cut("model.safetensors", 0),
    "a header of 2**60 bytes": lambda path: (path / "model.safetensors").write_bytes(
        (2**60).to_bytes(8, "little") + b"{}"
    ),
    "a header of no JSON": header("{nonsense"),
    "a header that points outside": header('{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
    "a header with shape 2**60": header(f'{{"a":{{"dtype":"F32","shape":[{2**60}],"data_offsets":[0,0]}}}}'),
    "a header without tensors": header("{}"),
    "a tensor of another name": tensors(rename),
    "a tensor of another shape": tensors(reshape),
    "a tensor of integers": tensors(integers),
}  # fmt: skip

READERS = {
    "no source vocabulary": at("source_vocabulary", None),
    "characters wider than dim": at("model.characters.width", 16),
    "characters without width": at("model.characters", {"width": None}),
    "a kernel of 2**62": at("model.characters.kernel", 2**62),
    "an unknown encoder": at("model.encoder", {"kind": "ear"}),
    "crf is a text": at("model.crf", "yes"),
    "recall is negative": at("model.recall", -1.0),
    "a smaller vocabulary": at("source_vocabulary", 10),
    "tags of another model": lambda path: Tokenizer.train(["a b"], "word", 40).save(path / "target.json"),
    "target.json is missing": lambda path: (path / "target.json").unlink(),
}


def top(**entries):
    def edit(path):
        record = json.loads((path / "index.json").read_text())
        (path / "index.json").write_text(json.dumps(record | entries))

    return edit


def array(name, make):
    return lambda path: np.save(path / "part-000001" / name, make(np.load(path / "part-000001" / name)))


PART = {"name": "part-000001", "first": 0, "count": 30}
INDEXES = {
    "made is a list": top(made=[]),
    "made lacks its width": top(made={"model": "m", "fingerprint": "f"}),
    "width is a text": top(made={"model": "m", "fingerprint": "f", "width": "16"}),
    "width is another": top(made={"model": "m", "fingerprint": "f", "width": 8}),
    "next is a text": top(next="30"),
    "next is more": top(next=31),
    "written is null": top(written=None),
    "parts is a block": top(parts={}),
    "a part is a number": top(parts=[1]),
    "a part without count": top(parts=[{"name": "part-000001", "first": 0}]),
    "a part elsewhere": top(parts=[PART | {"name": "../../secret"}]),
    "a part that is missing": top(parts=[PART | {"name": "part-000009"}]),
    "a part that begins late": top(parts=[PART | {"first": 5}]),
    "a part of -1": top(parts=[PART | {"count": -1}]),
    "a part of fewer": top(parts=[PART | {"count": 29}], next=29),
    "a graph elsewhere": top(graph="/etc"),
    "a graph that is missing": top(graph="graph-000009"),
    "removed is a text": top(removed="1"),
    "removed is not there": top(removed=[99]),
    "removed is in disorder": top(removed=[3, 2]),
    "index.json is deep": text("index.json", DEEP),
    "offsets fall": array("offsets.npy", lambda x: x[::-1]),
    "offsets are floats": array("offsets.npy", lambda x: x.astype(float)),
    "vectors are integers": array("vectors.npy", lambda x: x.astype(np.int32)),
    "lengths are few": array("words/lengths.npy", lambda x: x[:3]),
    "words name other documents": array("words/documents.npy", lambda x: x + 1000),
    "starts fall": array("words/starts.npy", lambda x: x[::-1]),
    "vectors of no bytes": cut("part-000001/vectors.npy", 0),
    "words cut": cut("part-000001/words/words.npy", 50),
    "a document is a number": text("part-000001/documents.jsonl", "7\n" * 1000),
    "a document of numbers": text("part-000001/documents.jsonl", "[1, 2]\n" * 1000),
    "a document is deep": text("part-000001/documents.jsonl", DEEP),
    "vectors.npy is a folder": as_folder("part-000001/vectors.npy"),
    "the graph is nonsense": text("graph-000001/graph.usearch", "nonsense"),
    "the graph is empty": cut("graph-000001/graph.usearch", 0),
}
