"""Tests of run.py and run_store.py: tokens, words, bytes, limits."""

import numpy as np
import pytest
import torch

from regard.data.tokenizer import Tokenizer
from regard.decoding.attention_weights import AttentionMaps
from regard.errors import OptionError
from regard.explorer.run import THUMBNAIL, Run, Side
from regard.explorer.run_store import RunStore
from regard.pipelines.token_words import Words
from regard.serving.http_errors import RequestError


def make_run(rows=3, columns=4, heads=2):
    weights = {
        "encoder.layers.0.attention.self": torch.rand(heads, columns, columns).softmax(-1),
        "decoder.layers.0.cross": torch.rand(heads, rows, columns).softmax(-1),
    }
    maps = AttentionMaps(["x"] * columns, ["y"] * rows, ["<s>"] * rows, weights)
    sides = {"source": Side.of(maps.source), "target": Side.of(maps.target), "inputs": Side.of(maps.inputs)}
    return Run("translate", "text", {"text": "y"}, sides, maps)


def test_every_token_belongs_to_a_word_or_is_special():
    tokenizer = Tokenizer.train(["walking dogs walk"] * 3, "bpe", 20)
    ids = [*tokenizer.encode("walking dogs"), 3]
    side = Side.of(tokenizer.tokens(ids), Words.of_tokens(tokenizer, ids))
    assert [(word["text"], word["special"]) for word in side.words] == [
        ("walking", False),
        ("dogs", False),
        ("</s>", True),
    ]
    assert sorted(t for word in side.words for t in word["tokens"]) == list(range(len(ids)))


def test_words_are_shifted_behind_a_first_token():
    tokenizer = Tokenizer.train(["a b"] * 3, "word", 20)
    tokens = ["<s>", *tokenizer.tokens([*tokenizer.encode("a b"), 3])]
    side = Side.of(tokens, Words.of_text(tokenizer, "a b"), first=1)
    assert [(word["text"], word["tokens"]) for word in side.words] == [
        ("<s>", [0]),
        ("a", [1]),
        ("b", [2]),
        ("</s>", [3]),
    ]


def test_heads_and_rows_are_exact_float32():
    run = make_run()
    weights = run.maps["decoder.layers.0.cross"]
    head = np.frombuffer(run.head(1, 1), "<f4").reshape(3, 4)
    assert np.array_equal(head, weights[1].numpy())
    mean = np.frombuffer(run.head(1, None), "<f4").reshape(3, 4)
    assert np.allclose(mean, weights.mean(0).numpy(), atol=1e-6)
    row = np.frombuffer(run.row(1, 2), "<f4").reshape(2, 4)
    assert np.array_equal(row, weights[:, 2].numpy())
    for call in (lambda: run.head(2, 0), lambda: run.head(0, 2), lambda: run.row(1, 3)):
        with pytest.raises(OptionError, match="there is no"):
            call()


def test_thumbnails_of_large_maps_are_pooled_and_keep_peaks():
    weights = torch.full((1, 200, 100), 1e-4)
    weights[0, 123, 45] = 0.5
    maps = AttentionMaps(["x"] * 100, ["y"] * 200, ["y"] * 200, {"decoder.layers.0.cross": weights})
    run = Run("translate", "", {}, {}, maps)
    (attention_map,) = run.describe("id")["maps"]
    assert attention_map["thumbnail"] == [THUMBNAIL, THUMBNAIL]
    cells = np.frombuffer(run.thumbnails(), np.uint8).reshape(THUMBNAIL, THUMBNAIL)
    assert cells.max() == 255 and np.argwhere(cells == 255).tolist() == [[123 * 40 // 200, 45 * 40 // 100]]


def test_the_entropy_of_uniform_attention_is_the_logarithm_of_its_keys():
    maps = AttentionMaps([], [], [], {"encoder.0.self": torch.full((1, 8, 8), 1 / 8)})
    run = Run("classify", "", {}, {}, maps)
    assert run.head_statistics()[0]["entropy"] == [3.0]


def test_the_oldest_runs_are_dropped_by_number_and_by_size():
    store = RunStore(max_runs=2)
    first, second = store.add(make_run()), store.add(make_run())
    store.get(first)  # now the second is the oldest
    third = store.add(make_run())
    assert len(store) == 2
    assert store.get(first) and store.get(third)
    with pytest.raises(RequestError, match="no longer kept"):
        store.get(second)
    size = make_run().bytes
    store = RunStore(max_bytes=2 * size)
    ids = [store.add(make_run()) for _ in range(3)]
    assert len(store) == 2 and store.get(ids[1]) and store.get(ids[2])
    with pytest.raises(RequestError, match="send less text"):
        RunStore(max_bytes=size - 1).add(make_run())


def test_the_distance_of_a_head_is_the_mean_distance_of_query_and_key():
    previous = torch.eye(5).roll(1, 0)[None]  # every query attends to the token before
    previous[0, 0] = torch.eye(5)[0]
    diagonal = torch.zeros(1, 3, 5)
    diagonal[0, [0, 1, 2], [0, 2, 4]] = 1.0  # three target tokens along five source tokens
    weights = {"encoder.0.self": previous, "decoder.0.cross": diagonal, "pooling": torch.full((1, 1, 5), 0.2)}
    maps = AttentionMaps(["x"] * 5, ["y"] * 3, ["y"] * 3, weights)
    figures = Run("translate", "", {}, {}, maps).head_statistics()
    assert [m["distance"] for m in figures] == [[0.8], [0.0], None]


def test_the_diversity_of_heads_equals_head_diversity():
    run = make_run(heads=3)
    result = run.diversity(1)
    expected = run.maps.head_diversity("decoder.layers.0.cross")
    assert result["divergence"] == expected.divergence and result["effectiveRank"] == expected.effective_rank
    assert len(result["pairs"]) == 3 and result["pairs"][0][0] == 0
