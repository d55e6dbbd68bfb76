"""The poster of lesson 9."""

import pytest

from regard.errors import OptionError
from regard.lessons.poster import Poster


def model(title, bleu, **scores):
    bucket = {"lines": 200, "bleu": bleu}
    by_length = [{**bucket, "shortest": 1, "longest": 9}, {**bucket, "shortest": 10, "longest": None}]
    return {"title": title, "bleu": bleu, "flops": 2.5e12, "by_length": by_length, **scores}


def log(**models):
    keys = ("command", "regard", "date", "device", "corpus", "source", "target")
    return {key: key for key in keys} | {
        "seed": 1, "steps": 1500, "train_lines": 10, "test_lines": 400, "models": models,
    }  # fmt: skip


def test_the_poster_has_every_model_and_score_and_a_dash_where_there_is_none():
    scores = {"alignment": {"aer": 0.25}, "faithfulness": {"tau_leave_one_out": {"value": -0.125}}}
    svg = Poster(log(none=model("no attention", 12.34), raw=model("raw scores", 20.0, **scores))).svg()
    for text in ("no attention", "raw scores", "12.3", "20.0", "≤ 9 to ≥ 10 words", "1,500 steps", "2.5"):
        assert text in svg
    assert ">25<" in svg and ">−0.12<" in svg
    assert svg.count(">–<") == 2  # alignment error and faithfulness of the model without attention


def test_a_log_without_models_is_refused():
    with pytest.raises(OptionError, match="no models"):
        Poster(log())
