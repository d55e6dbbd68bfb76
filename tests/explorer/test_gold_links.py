"""Tests of gold_links.py: gold files, and the alignment error rate of one head."""

import pytest
import torch

from regard.decoding.attention_weights import AttentionMaps
from regard.errors import DataError, OptionError
from regard.explorer.gold_links import GoldPair, read_gold_pairs, score_links
from regard.explorer.run import Run, Side
from regard.pipelines.token_words import Words

CROSS, SELF = "decoder.layers.0.cross", "encoder.layers.0.attention.self"


@pytest.fixture
def run():
    """Two heads between "ein Hund" and "a do|g": the first aligns word by word, the second reverses."""
    source, target = ["ein", "Hund", "</s>"], ["a", "do", "g", "</s>"]
    first = torch.tensor([[0.9, 0.1, 0], [0.1, 0.6, 0.3], [0.3, 0.6, 0.1], [0, 0, 1]])
    weights = torch.stack([first, first[[1, 0, 0, 3]]])
    maps = AttentionMaps(source, target, ["<s>", "a", "do", "g"], {CROSS: weights, SELF: torch.ones(1, 3, 3)})
    words = Words(["a", "dog"], torch.tensor([[1.0, 0], [0, 1], [0, 1]]))
    sides = {"source": Side.of(source), "target": Side.of(target, words), "inputs": Side.of(maps.inputs)}
    return Run("translate", "ein Hund", {}, sides, maps)


def test_a_head_is_scored_against_sure_and_possible_links(run):
    result = score_links(run, 0, 0, "0-0 1?1")
    assert result["predicted"] == [(0, 0), (1, 1)] and result["sure"] == [(0, 0)]
    assert (result["aer"], result["precision"], result["recall"]) == (0.0, 1.0, 1.0)
    reversed_head = score_links(run, 0, 1, "0-0 1-1")
    assert reversed_head["predicted"] == [(0, 1), (1, 0)] and reversed_head["aer"] == 1.0
    assert score_links(run, 0, None, "")["sure"] == []


def test_links_outside_the_sentence_are_errors_of_one_sentence(run):
    for links, message in (("0-9", "outside"), ("zero", "instead of a link"), ("9999999999-0", "outside")):
        with pytest.raises(DataError, match=message):
            score_links(run, 0, 0, links)
    with pytest.raises(OptionError, match="choose a cross-attention"):
        score_links(run, 1, 0, "0-0")
    with pytest.raises(OptionError, match="no head 7"):
        score_links(run, 0, 7, "0-0")


def test_a_gold_file_has_three_fields(tmp_path):
    path = tmp_path / "gold.tsv"
    path.write_text("ein Hund\ta dog\t0-0 1-1\n\n", encoding="utf-8")
    assert read_gold_pairs(path) == [GoldPair("ein Hund", "a dog", "0-0 1-1")]
    for text, message in (
        ("ein Hund\ta dog\n", "line 1 .* has 2 fields"),
        ("ein\ta\t0-1\n", "outside"),
        ("ein\ta\t0:0\n", "instead of a link"),
        ("\n", "no sentence"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            read_gold_pairs(path)
