"""Every public constructor and function with one argument wrong: it works, or says so with an error of regard, and soon."""

from __future__ import annotations

import inspect
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError
from tests.decoding import folders

WRONG = {
    "None": None, "-1": -1, "0": 0, "1.5": 1.5, "True": True, "'x'": "x", "[]": [], "{}": {}, "object": object(), "2**70": 2**70,
    "nan": float("nan"), "path": Path("/nowhere/at/all"), "vector": torch.zeros(3),
    "integers": torch.zeros(2, 3, dtype=torch.int32),
    "complex": torch.zeros(1, 1, 4, 4, dtype=torch.complex64), "half": torch.zeros(7, 5, dtype=torch.float16), "inf": float("inf"),
}  # fmt: skip
SECONDS = 10
OPTIONS = ("energy", "mask", "bias", "normalize", "gate", "softcap", "dropout")
# Recipe, train, resume and build belong to regard.training, Batch to regard.data; errors and modules are no calls of a user.
LEFT_OUT = {"Recipe", "train", "resume", "build", "Batch", "huggingface"} | {
    name for name in regard.__all__ if name.endswith("Error")
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    make = {
        "translator": folders.translator,
        "language": folders.language_model,
        "classifier": folders.classifier,
    }
    return {name: regard.load(write(place / name)) for name, write in make.items()} | {"place": place}


def right(name, models):
    """Arguments with which the call works; those that are not named have defaults."""
    x = torch.randn(1, 2, 4, 8)
    qkv = {"query": x, "key": x, "value": x}
    translator, language, classifier = models["translator"], models["language"], models["classifier"]
    found = {
        "ALiBi": {"heads": 2}, "Additive": {"query_dim": 8}, "Bilinear": {"query_dim": 8}, "Convolution": {"dim": 4, "kernel": 3},
        "Batch": {"target": torch.zeros(1, 2), "target_lengths": torch.tensor([1]), "rows": torch.tensor([0])},
        "Classification": {"label": "x"}, "Dense": {"tensor": torch.ones(4, 4, dtype=torch.bool)}, "Dilated": {"step": 2},
        "Classifier": {k: getattr(classifier, k) for k in ("source", "encoder", "pooling", "head")},
        "Cost": {"parameters": 1, "operations": 1, "path_length": 1, "steps": 1, "parts": {}},
        "Documents": {"ids": torch.tensor([[0, 0, 1, 1]])}, "Ensemble": {"models": [translator]},
        "Embedder": {k: getattr(classifier, k) for k in ("source", "encoder", "pooling")},
        "Finding": {"holds": True, "violation": 0.0, "tolerance": 0.0, "trials": 1},
        "Hypothesis": {"tokens": [1], "log_p": 0.0, "score": 0.0, "ended": True}, "Index": {"folder": "/nowhere"},
        "LanguageModel": {k: getattr(language, k) for k in ("target", "decoder", "output")},
        "Learned": {"maxlen": 4, "dim": 8}, "MultiHead": {"dim": 8, "heads": 2}, "Packed": {"cu_seqlens": [0, 2, 4]},
        "Padding": {"lengths": [4]}, "Plan": {"kernel": "x", "why": "x"}, "Prefix": {"length": 2}, "Recurrence": {"dim": 8},
        "RelativeBuckets": {"heads": 2}, "RelativeVectors": {"dim": 8}, "Rotary": {"dim": 8}, "Sinusoidal": {"dim": 8},
        "SlicedMultiHead": {"dim": 8, "heads": 2}, "StaticCache": {"batch": 1, "heads": 2, "max_len": 4, "dim": 8},
        "Tagger": {"source": classifier.source, "characters": None, "encoder": classifier.encoder,
                   "output": nn.Linear(16, 3), "crf": None},
        "Tokenizer": {"text": translator.target_tokenizer.text}, "Translation": {"text": "x"},
        "Translator": {k: getattr(translator, k) for k in ("source", "encoder", "target", "decoder", "output")},
        "Window": {"left": 1}, "attend": qkv, "explain": qkv, "weights": {"query": x, "key": x}, "lookup": qkv,
        "align": {"sources": "ab", "targets": "a b", "model": translator},
        "classify": {"model": classifier, "texts": ["ab"]}, "cost": {"layer": regard.MultiHead(8, 2), "T": 4},
        "embed": {"model": classifier, "texts": ["ab"]}, "fast": {"model": translator},
        "generate": {"model": language, "texts": ["ab"], "max_length": 3},
        "is_equivariant": {"layer": regard.MultiHead(8, 2).double(), "dim": 8, "trials": 2},
        "is_separable": {"layer": nn.Linear(8, 8).double(), "dim": 8, "trials": 2},
        "load": {"folder": models["place"] / "language"},
        "look": {"model": translator, "sources": [[5, 6]], "targets": [[5, 6, 3]]},
        "scores": {"hypotheses": ["a b"], "references": ["a b"]}, "sentence_bleu": {"reference": ["a"], "hypothesis": ["a"]},
        "tag": {"model": None, "texts": ["a"]}, "translate": {"model": translator, "texts": ["ab"], "max_length": 3},
        "Recorded": {"call": None},
    }  # fmt: skip
    return found.get(name, {})


def parameters(name):
    found = inspect.signature(getattr(regard, name)).parameters.values()
    names = [p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return names + [
        option for option in OPTIONS if any(p.kind == p.VAR_KEYWORD for p in found) and option not in names
    ]


NAMES = [name for name in regard.__all__ if name not in LEFT_OUT]


class Slow(BaseException):
    pass


def within(seconds, call):
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
            found = getattr(regard, name)(**arguments)
            if name == "watch":
                with found:
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


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs alarms")
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_ends_in_an_error_of_regard(name, models, capfd):
    if name not in ("tag", "Index", "Recorded"):
        assert attempt(name, right(name, models)) is None
    problems = []
    for parameter in parameters(name):
        for shown, value in WRONG.items():
            arguments = right(name, models) | {parameter: value}
            told = within(SECONDS, lambda arguments=arguments: attempt(name, arguments))
            if told:
                problems.append(f"{name}({parameter}={shown}) {told}")
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems)
