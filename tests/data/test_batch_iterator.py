"""Batches: every row once per epoch, little padding, determined by the seed, sharded by rank, resumable.

Covers batch.py, windows.py.
"""

import itertools
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batch import Batch
from regard.data.batch_iterator import Batches, _cut
from regard.data.chunk_encoder import EncodingSettings
from regard.data.datasets import load_corpus as load
from regard.data.prepare import prepare
from regard.data.readers import LinePairs, TextLines
from regard.data.tokenizer import BOS, EOS, PAD, Tokenizer
from regard.data.windows import Windows
from regard.errors import DataError, OptionError

WORDS = [f"w{i}" for i in range(50)]


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([" ".join(WORDS)], "word", 60)


@pytest.fixture(scope="module")
def prepared(home, tokenizer):
    draw = random.Random(5)
    lengths = [max(1, int(draw.gauss(12, 5))) for _ in range(2000)]
    source = [" ".join(draw.choices(WORDS, k=n)) for n in lengths]
    target = [" ".join(draw.choices(WORDS, k=max(1, n + draw.randint(-3, 3)))) for n in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(home / "cache"))
        return prepare(
            LinePairs(write(home / "a.s", source), write(home / "a.t", target)), tokenizer, tokenizer
        )


@pytest.fixture(scope="module")
def text(home, tokenizer):
    draw = random.Random(6)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(0, 20))) for _ in range(211)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(home / "cache"))
        return prepare(TextLines(write(home / "text", lines)), None, tokenizer)


@pytest.fixture(scope="module")
def varied(home):
    draw = random.Random(7)
    lines = [" ".join(draw.choices(["lower", "newest", "wider"], k=5)) for _ in range(100)]
    bpe = Tokenizer.train(lines, "bpe", 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(home / "cache"))
        rows = LinePairs(write(home / "v.s", lines), write(home / "v.t", lines[::-1]))
        return prepare(rows, bpe, bpe, EncodingSettings(dropout=0.2, variants=3))


def same(one, other):
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def equal(a, b):
    names = ("target", "target_lengths", "rows", "source", "source_lengths")
    return all(same(getattr(a, name), getattr(b, name)) for name in names) and a.continues == b.continues


def test_the_rows_of_a_batch_are_known_without_reading_it(prepared):
    batches = Batches(prepared, tokens=400, seed=3)
    for number, batch in enumerate(batches.once()):
        assert batches.rows_of(number).tolist() == batch.rows.tolist()


def test_an_epoch_has_every_prepared_row_once(prepared):
    batches = Batches(prepared, tokens=500, seed=1)
    seen = []
    for _ in range(batches.per_epoch()):
        batch = next(batches)
        for b, row in enumerate(batch.rows.tolist()):
            seen.append(row)
            length = int(batch.target_lengths[b])
            assert batch.target[b, 0] == BOS and batch.target[b, length] == EOS
            assert batch.target[b, 1 : 1 + length].tolist() == prepared.target(row).tolist()
            assert (batch.target[b, 1 + length :] == PAD).all()
            length = int(batch.source_lengths[b])
            assert batch.source[b, :length].tolist() == prepared.source(row).tolist()
            assert (batch.source[b, length:] == PAD).all()
        assert len(batch) * max(batch.source.shape[1], batch.target.shape[1]) <= 500
        assert batch.tokens == int(batch.target_lengths.sum()) and batch.source_tokens == int(
            batch.source_lengths.sum()
        )
        assert batch.target.dtype == batch.source.dtype == batch.rows.dtype == torch.int64
    assert sorted(seen) == list(range(2000))
    assert batches.epoch == 0
    next(batches)
    assert batches.epoch == 1


def test_the_reported_padding_is_the_padding_of_the_batches(prepared):
    batches = Batches(prepared, tokens=400, seed=1)
    positions = tokens = 0
    for batch in batches.once():
        positions += batch.target.numel() + batch.source.numel()
        tokens += batch.tokens + len(batch) + batch.source_tokens
    assert batches.padding == pytest.approx(1 - tokens / positions)
    assert 0 < batches.padding < 0.05


def test_batches_and_their_lengths_are_shuffled(prepared):
    batches = Batches(prepared, tokens=400, seed=1)
    first = [next(batches) for _ in range(batches.per_epoch())]
    widths = [batch.target.shape[1] for batch in first]
    assert abs(np.corrcoef(widths, range(len(widths)))[0, 1]) < 0.35  # not sorted by length
    second = [next(batches) for _ in range(batches.per_epoch())]
    shared = {frozenset(b.rows.tolist()) for b in first} & {frozenset(b.rows.tolist()) for b in second}
    assert len(shared) <= len(first) // 10  # the few longest rows always share a batch


def test_the_seed_determines_the_order(prepared):
    one, again, other = (Batches(prepared, tokens=400, seed=seed) for seed in (1, 1, 2))
    for _ in range(150):  # more than one epoch
        assert equal(next(one), next(again))
    assert not torch.equal(next(one).rows, next(other).rows)


@given(st.integers(0, 400), st.integers(0, 9))
@settings(max_examples=20)
def test_batches_restored_at_any_position_continue_identically(prepared, before, seed):
    batches = Batches(prepared, tokens=3000, seed=seed, max_sentences=60)
    for _ in range(before):
        next(batches)
    state = json.loads(json.dumps(batches.state()))
    fresh = Batches(prepared, tokens=3000, seed=seed, max_sentences=60)
    fresh.restore(state)
    for _ in range(5):
        assert equal(next(batches), next(fresh))
    assert batches.state() == fresh.state()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_take_the_batches_of_one_process_in_turn(prepared, world):
    alone = Batches(prepared, tokens=700, seed=1)
    ranks = [Batches(prepared, tokens=700, seed=1, rank=rank, world=world) for rank in range(world)]
    rounds = alone.per_epoch() // world
    for _ in range(rounds):
        for rank in ranks:
            assert equal(next(alone), next(rank))
    assert len({json.dumps(rank.state()) for rank in ranks}) == 1
    for rank in ranks:
        next(rank)
    assert [rank.epoch for rank in ranks] == [1] * world  # the remaining batches are dropped


def test_a_saved_position_works_with_another_number_of_ranks(prepared):
    two = [Batches(prepared, tokens=700, seed=1, rank=rank, world=2) for rank in range(2)]
    for _ in range(3):
        for rank in two:
            next(rank)
    one = Batches(prepared, tokens=700, seed=1)
    one.restore(two[0].state())
    for rank in two:
        assert equal(next(one), next(rank))


def test_a_single_pass_drops_nothing_and_keeps_the_position(prepared):
    ranks = [Batches(prepared, tokens=700, seed=1, rank=rank, world=3, shuffle=False) for rank in range(3)]
    state = ranks[0].state()
    rows = [row for rank in ranks for batch in rank.once() for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(2000))
    assert ranks[0].state() == state


def test_without_shuffling_every_epoch_has_the_same_order(prepared):
    batches = Batches(prepared, tokens=3000, seed=1, shuffle=False)
    first, second = ([next(batches).rows.tolist() for _ in range(batches.per_epoch())] for _ in range(2))
    assert first == second


def test_a_saved_position_of_other_data_or_settings_is_refused(prepared, text):
    state = Batches(prepared, tokens=700, seed=1).state()
    with pytest.raises(DataError, match="saved with tokens 700 and the batches now have 800"):
        Batches(prepared, tokens=800, seed=1).restore(state)
    with pytest.raises(DataError, match="saved with data"):
        Batches(text, tokens=700, seed=1).restore(state)


def test_a_row_longer_than_a_batch_is_named(prepared):
    longest = int(np.maximum(prepared.source_lengths, prepared.target_lengths + 1).max())
    Batches(prepared, tokens=longest, seed=1)
    with pytest.raises(
        DataError, match=f"row \\d+ has {longest} tokens, more than the {longest - 1} of a batch"
    ):
        Batches(prepared, tokens=longest - 1, seed=1)


def test_more_ranks_than_batches_is_refused(prepared):
    with pytest.raises(DataError, match="fewer than the 50 processes"):
        next(Batches(prepared, tokens=40000, seed=1, world=50))


@pytest.mark.parametrize(
    "wrong", [{"tokens": 1}, {"seed": -1}, {"max_sentences": 0}, {"rank": 2, "world": 2}]
)
def test_options_are_checked(prepared, wrong):
    with pytest.raises(OptionError):
        Batches(prepared, **{"tokens": 500, "seed": 1, **wrong})


def test_max_sentences_limits_the_rows_of_a_batch(prepared):
    assert max(len(batch) for batch in Batches(prepared, tokens=5000, seed=1, max_sentences=7).once()) == 7


def test_epochs_read_the_variants_in_turn(varied):
    batches = Batches(varied, tokens=300, seed=1)
    for epoch in range(4):
        for _ in range(batches.per_epoch()):
            batch = next(batches)
            assert batches.epoch == epoch
            row = int(batch.rows[0])
            expected = varied.target(row, epoch % 3).tolist()
            assert batch.target[0, 1 : 1 + len(expected)].tolist() == expected


def test_batches_of_a_text_have_no_source_and_no_empty_lines(text):
    rows = []
    for batch in Batches(text, tokens=100, seed=1).once():
        assert batch.source is None and batch.source_lengths is None and batch.source_tokens == 0
        rows += batch.rows.tolist()
    assert sorted(rows) == [i for i in range(text.rows) if len(text.target(i)) > 1]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=300),
    st.integers(50, 300),
    st.sampled_from([None, 1, 4]),
)
def test_batch_boundaries_are_as_late_as_the_limits_allow(widths, tokens, max_sentences):
    edges = _cut(np.asarray(widths), tokens, max_sentences).tolist()
    assert edges[0] == 0 and edges[-1] == len(widths) and edges == sorted(set(edges))
    for start, end in itertools.pairwise(edges):
        assert (end - start) * max(widths[start:end]) <= tokens and (
            max_sentences is None or end - start <= max_sentences
        )
        if end < len(widths):  # one more row would exceed the limit
            assert (end - start + 1) * max(widths[start : end + 1]) > tokens or end - start == max_sentences


def test_all_tensors_of_a_batch_move_to_the_device(prepared):
    batch = next(Batches(prepared, tokens=500, seed=1))
    moved = batch.to("meta")
    assert {moved.target.device.type, moved.source.device.type, moved.rows.device.type} == {"meta"}
    assert (moved.tokens, moved.source_tokens) == (batch.tokens, batch.source_tokens)
    by_hand = Batch(batch.target, batch.target_lengths, batch.rows)
    assert by_hand.tokens == batch.tokens and by_hand.source_tokens == 0 and by_hand.to("cpu").source is None


@pytest.mark.parametrize("length", [2, 7, 64])
@pytest.mark.parametrize("sentences", [1, 3, 16])
@pytest.mark.parametrize("world", [1, 2])
def test_a_stream_predicts_every_token_once_and_in_order(text, length, sentences, world):
    stream = text.arrays("target")[0]
    ranks = [
        Windows(text, length=length, sentences=sentences, seed=1, rank=rank, world=world)
        for rank in range(world)
    ]
    read = [[[] for _ in range(sentences)] for _ in range(world)]
    for r, rank in enumerate(ranks):
        for i, batch in enumerate(rank.once()):
            assert batch.continues == (i > 0)
            assert batch.target.shape[1] <= length + 1 and (batch.target_lengths > 0).all()
            for b in range(sentences):
                start, n = int(batch.rows[b]), int(batch.target_lengths[b])
                assert batch.target[b, 0] == (stream[start - 1] if start else BOS)
                read[r][b] += batch.target[b, 1 : n + 1].tolist()
                assert (batch.target[b, n + 1 :] == PAD).all()
    assert [token for rank in read for row in rank for token in row] == stream.tolist()
    assert 0 <= ranks[0].padding < 0.05


def test_crops_are_windows_of_the_text_at_random_positions(text):
    stream = text.arrays("target")[0]
    windows = Windows(text, length=10, sentences=8, seed=1, mode="crops")
    starts = []
    for _ in range(100):
        batch = next(windows)
        assert not batch.continues and batch.target.shape == (8, 11) and batch.tokens == 80
        for row, start in zip(batch.target.tolist(), batch.rows.tolist(), strict=True):
            assert row[1:] == stream[start : start + 10].tolist()
            assert row[0] == (stream[start - 1] if start else BOS)
            starts.append(start)
    assert windows.padding == 0 and windows.epoch > 0
    assert len(set(starts)) > 300 and min(starts) < 100 and max(starts) > len(stream) - 110


@pytest.mark.parametrize("mode", ["stream", "crops"])
@pytest.mark.parametrize("before", [0, 1, 20, 333])
def test_restored_windows_continue_identically(text, mode, before):
    windows = Windows(text, length=10, sentences=8, seed=1, mode=mode)
    for _ in range(before):
        next(windows)
    fresh = Windows(text, length=10, sentences=8, seed=1, mode=mode)
    fresh.restore(json.loads(json.dumps(windows.state())))
    for _ in range(5):
        assert equal(next(windows), next(fresh))


def test_ranks_take_crops_in_turn(text):
    alone = Windows(text, length=10, sentences=8, seed=1, mode="crops")
    ranks = [
        Windows(text, length=10, sentences=8, seed=1, mode="crops", rank=rank, world=2) for rank in range(2)
    ]
    for _ in range(5):
        for rank in ranks:
            assert equal(next(alone), next(rank))


def test_windows_check_their_options(text):
    with pytest.raises(OptionError, match="stream or crops, got 'lines'"):
        Windows(text, length=10, sentences=2, seed=1, mode="lines")
    with pytest.raises(OptionError, match=r"batch\.length must be at least 2"):
        Windows(text, length=1, sentences=2, seed=1)
    with pytest.raises(DataError, match="fewer than the 100000"):
        Windows(text, length=10, sentences=100_000, seed=1)
    with pytest.raises(DataError, match="saved with world 2"):
        Windows(text, length=10, sentences=2, seed=1).restore(
            Windows(text, length=10, sentences=2, seed=1, world=2).state()
        )


@pytest.mark.parametrize(
    ("corpus", "size", "limit", "tokens"),
    [
        ("multi30k", 8000, None, (1024, 4096, 8192)),
        pytest.param("europarl-en-de", 8000, 30_000, (2048, 4096), marks=pytest.mark.slow),
        ("tatoeba-sample", 2000, None, (4096,)),
    ],
)
def test_real_corpora_have_at_most_five_percent_padding(real_data, corpus, size, limit, tokens):
    data = SimpleNamespace(corpus=corpus, source="en", target="de", limit=limit)
    train = load(data, SimpleNamespace(size=size)).train
    for budget in tokens:
        batches = Batches(train, tokens=budget, seed=1)
        assert batches.padding <= 0.05, f"{corpus} with {budget}"


@pytest.mark.parametrize("multiple", [2, 4, 16])
def test_a_batch_rounded_up_to_the_multiple_is_within_the_budget(prepared, multiple):
    stream = Batches(prepared, tokens=400, seed=1, multiple=multiple)
    rows = []
    for batch in stream.once():
        width = max(batch.source.shape[1], batch.target.shape[1] - 1)
        assert len(batch) * -(-width // multiple) * multiple <= 400
        rows += batch.rows.tolist()
    assert sorted(rows) == list(range(prepared.rows))
    with pytest.raises(DataError, match="multiple"):
        stream.restore(Batches(prepared, tokens=400, seed=1).state())


def test_a_row_that_fits_only_without_rounding_is_not_rounded_up(prepared):
    widest = max(
        max(b.source.shape[1], b.target.shape[1]) for b in Batches(prepared, tokens=400, seed=1).once()
    )
    result = list(Batches(prepared, tokens=widest, seed=1, multiple=2 * widest).once())
    assert sum(map(len, result)) == prepared.rows
