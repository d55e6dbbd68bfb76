"""Tests of exports.py: pictures of one head, and all weights."""

import io
import xml.dom.minidom

import numpy as np
import pytest

from regard.errors import OptionError
from regard.explorer.explored_model import ExploredModel
from regard.explorer.exports import export
from regard.explorer.run_job import Job


@pytest.fixture(scope="module")
def run(model):
    return ExploredModel(model, "toy").run(Job("the red <b>dog</b>"))


def test_pictures_show_words_or_tokens(run):
    last = len(run.names) - 1
    words, tokens = (export(run, last, None, level, "svg").decode() for level in ("words", "tokens"))
    xml.dom.minidom.parseString(words)
    assert "<b>" not in words and "cross-attention, layer 2, mean of 2 heads" in words
    assert words != tokens
    page = export(run, 0, 1, "words", "html").decode()
    assert page.startswith("<!doctype html>") and "<script" not in page and "layer 1, head 2" in page
    pytest.importorskip("matplotlib")
    assert export(run, 0, 0, "words", "pdf").startswith(b"%PDF")


def test_npz_holds_all_weights_and_tokens(run):
    arrays = np.load(io.BytesIO(export(run, 0, None, "words", "npz")))
    assert set(run.names) < set(arrays) and list(arrays["tokens.source"])[:2] == ["the", "red"]
    assert np.array_equal(arrays[run.names[0]], run.map(0).numpy())


@pytest.mark.parametrize(
    ("index", "head", "level", "kind", "message"),
    [
        (99, None, "words", "svg", "no attention map 99"),
        (0, 9, "words", "svg", "no head 9"),
        (0, 0, "letters", "svg", "words or tokens"),
        (0, 0, "words", "gif", "no export as 'gif'"),
    ],
)
def test_wrong_exports_are_errors_of_one_sentence(run, index, head, level, kind, message):
    with pytest.raises(OptionError, match=message):
        export(run, index, head, level, kind)
