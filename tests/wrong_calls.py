"""Calls of the public names with wrong arguments: what is tried, and what is wrong with how a call ends.

Used by `tests/test_wrong_calls.py`, one wrong argument at a time, and by `benchmarks/attack/calls.py`,
several drawn at random.
"""

from __future__ import annotations

import inspect
import signal
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

import regard
from regard.errors import RegardError
from tests.decoding import model_folders
from tests.training import tiny

WRONG = {
    "None": None, "-1": -1, "0": 0, "1.5": 1.5, "True": True, "'x'": "x", "[]": [], "{}": {},
    "object": object(), "2**70": 2**70, "nan": float("nan"), "path": Path("/nowhere/at/all"),
    "vector": torch.zeros(3), "integers": torch.zeros(2, 3, dtype=torch.int32),
    "complex": torch.zeros(1, 1, 4, 4, dtype=torch.complex64),
    "half": torch.zeros(7, 5, dtype=torch.float16), "inf": float("inf"), "surrogate": "a \ud800",
}  # fmt: skip
SECONDS = 20
OPTIONS = ("energy", "mask", "bias", "normalize", "gate", "softcap", "dropout")
# Errors and modules are not called by a user.
AT_THE_TOP = {name: regard for name in regard.__all__ if name != "huggingface" and not name.endswith("Error")}
OTHERS = {
    name: import_module(f"regard.{package}")
    for package, names in {
        "attention": (
            "Bias Channel Cosine Dense Diagonal Dilated Distance Documents Dot Energy Entmax Hard Learned "
            "Mask Match Normalizer Packed Plan Prefix Raw Recorded RelativeBuckets RelativeVectors Seen "
            "Sigmoid"
        ),
        "data": "Batch",
        "decoding": "Hypothesis attention_maps",
        "evaluation": "Cost PropertyResult cost is_equivariant is_separable sentence_bleu translation_scores",
        "layers": "Convolution Recurrence SlicedMultiHead StaticCache",
        "models": "Classifier Embedder LanguageModel Tagger Translator",
        "pipelines": "Classification Translation",
        "search": "Index",
    }.items()
    for name in names.split()
}
HOMES = AT_THE_TOP | OTHERS
NAMES = list(HOMES)
# Their right arguments need more than is made here. train and resume get folders that they refuse, so that
# few calls train.
FAILING = ("tag", "Index", "Recorded", "train", "resume")


def make_models(place):
    """Tiny models by name, the folder they are in, and a finished run."""
    make = {
        "translator": model_folders.translator,
        "language": model_folders.language_model,
        "classifier": model_folders.classifier,
    }
    loaded = {name: regard.load(write(place / name)) for name, write in make.items()}
    recipe = tiny.recipe(
        place, training__steps=1, training__validate_every=1, training__save_every=1, schedule__warmup=1
    )
    regard.train(recipe, folder=place / "run", quiet=True)
    return loaded | {"place": place, "recipe": recipe}


def right(name, models):
    """Arguments with which the call works; those that are not named have defaults."""
    x = torch.randn(1, 2, 4, 8)
    qkv = {"query": x, "key": x, "value": x}
    translator, language, classifier = models["translator"], models["language"], models["classifier"]
    result = {
        "ALiBi": {"heads": 2}, "Additive": {"query_dim": 8}, "Bilinear": {"query_dim": 8},
        "Convolution": {"dim": 4, "kernel": 3},
        "Batch": {"target": torch.zeros(1, 2, dtype=torch.long), "target_lengths": torch.tensor([1]),
                  "rows": torch.tensor([0])},
        "Classification": {"label": "x"}, "Dense": {"tensor": torch.ones(4, 4, dtype=torch.bool)},
        "Dilated": {"step": 2},
        "Classifier": {k: getattr(classifier, k) for k in ("source", "encoder", "pooling", "head")},
        "Cost": {"parameters": 1, "operations": 1, "path_length": 1, "steps": 1, "parts": {}},
        "Documents": {"ids": torch.tensor([[0, 0, 1, 1]])}, "Ensemble": {"models": [translator]},
        "Embedder": {k: getattr(classifier, k) for k in ("source", "encoder", "pooling")},
        "PropertyResult": {"holds": True, "violation": 0.0, "tolerance": 0.0, "trials": 1},
        "Hypothesis": {"tokens": [1], "log_p": 0.0, "score": 0.0, "ended": True},
        "Index": {"folder": "/nowhere"},
        "LanguageModel": {k: getattr(language, k) for k in ("target", "decoder", "output")},
        "Learned": {"maxlen": 4, "dim": 8}, "MultiHead": {"dim": 8, "heads": 2},
        "Packed": {"cu_seqlens": [0, 2, 4]}, "Padding": {"lengths": [4]},
        "Plan": {"kernel": "x", "why": "x"}, "Prefix": {"length": 2}, "Recurrence": {"dim": 8},
        "RelativeBuckets": {"heads": 2}, "RelativeVectors": {"dim": 8}, "Rotary": {"dim": 8},
        "Sinusoidal": {"dim": 8}, "SlicedMultiHead": {"dim": 8, "heads": 2},
        "StaticCache": {"batch": 1, "heads": 2, "max_len": 4, "dim": 8},
        "Tagger": {"source": classifier.source, "characters": None, "encoder": classifier.encoder,
                   "output": nn.Linear(16, 3), "crf": None},
        "Tokenizer": {"text": translator.target_tokenizer.text}, "Translation": {"text": "x"},
        "Translator": {
            k: getattr(translator, k) for k in ("source", "encoder", "target", "decoder", "output")
        },
        "Window": {"left": 1}, "attend": qkv, "explain": qkv, "weights": {"query": x, "key": x},
        "lookup": qkv,
        "align": {"sources": "ab", "targets": "a b", "model": translator},
        "classify": {"model": classifier, "texts": ["ab"]}, "cost": {"layer": regard.MultiHead(8, 2), "T": 4},
        "embed": {"model": classifier, "texts": ["ab"]}, "fast": {"model": translator},
        "generate": {"model": language, "texts": ["ab"], "limits": regard.Limits(max_length=3)},
        "is_equivariant": {"layer": regard.MultiHead(8, 2).double(), "dim": 8, "trials": 2},
        "is_separable": {"layer": nn.Linear(8, 8).double(), "dim": 8, "trials": 2},
        "load": {"folder": models["place"] / "language"},
        "attention_maps": {"model": translator, "sources": [[5, 6]], "targets": [[5, 6, 3]]},
        "translation_scores": {"hypotheses": ["a b"], "references": ["a b"]},
        "sentence_bleu": {"reference": ["a"], "hypothesis": ["a"]},
        "tag": {"model": None, "texts": ["a"]},
        "translate": {"model": translator, "texts": ["ab"], "limits": regard.Limits(max_length=3)},
        "Recorded": {"call": None}, "build": {"model": {"dim": 8}, "source_vocab": 10, "target_vocab": 10},
        "resume": {"folder": models["place"] / "none", "quiet": True},
        "train": {"recipe": models["recipe"], "folder": models["place"] / "run", "quiet": True},
    }  # fmt: skip
    return result.get(name, {})


def parameters(name):
    result = inspect.signature(getattr(HOMES[name], name)).parameters.values()
    names = [p.name for p in result if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return names + [
        option for option in OPTIONS if any(p.kind == p.VAR_KEYWORD for p in result) and option not in names
    ]


class Slow(BaseException):
    """A call took too long; not an Exception, so that the call does not catch it."""


def within(seconds, call):
    """Return the result of a call; raise Slow in it after some seconds."""

    def ring(*_):
        raise Slow

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        return call()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(name, arguments):
    """What is wrong with how the call ends, or None."""
    try:
        with torch.random.fork_rng(devices=[]):
            result = getattr(HOMES[name], name)(**arguments)
            if name == "watch":
                with result:
                    pass
    except RegardError as error:
        return None if str(error) and "\n" not in str(error).strip() else f"says {str(error)!r}"
    except Slow:
        return f"takes more than {SECONDS} s"
    except TypeError as error:
        missing = "argument" in str(error) and ("missing" in str(error) or "unexpected keyword" in str(error))
        return None if missing else f"TypeError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None
