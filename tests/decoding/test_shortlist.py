"""Tests of shortlist.py, shared_shortlists.py and ibm1.py: what a shortlist contains and how the engine uses
it.

Covers cli/shortlist.py.
"""

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from regard.cli import shortlist as shortlist_command
from regard.data.prepare import prepare
from regard.data.reader_choice import open_files
from regard.data.tokenizer import BOS, EOS, UNK, Tokenizer
from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.engine import Engine, fast, ibm1, shared_shortlists, why_not
from regard.decoding.engine.shortlist import FILE_NAME, Shortlist, load
from regard.errors import FolderError, OptionError, RegardError
from regard.models.autoregressive import AutoregressiveOptions, log_probabilities
from regard.models.build import build
from regard.models.folder import load as load_model
from regard.models.folder import save
from regard.pipelines.input import Chunk, Row
from regard.pipelines.job import fingerprint, model_files
from regard.pipelines.translate import translate, translate_tokens
from regard.pipelines.translate_file import TranslateOptions, make_job
from tests.decoding.batch_checks import assert_batches_change_nothing, tokens_and_scores
from tests.decoding.model_folders import language_model, translator
from tests.decoding.test_cpp_engine import SENTENCES, VOCAB, padded, small

PRECISIONS = ["float32", "int8", "bfloat16"]
MANY = [[4 + (7 * i + j) % 140 for j in range(1 + 5 * i % 17)] for i in range(24)]
PAIRS = [
    ("the house is small", "das haus ist klein"),
    ("the house is big", "das haus ist groß"),
    ("a small house", "ein kleines haus"),
    ("a man is here", "ein mann ist da"),
    ("the man is small", "der mann ist klein"),
    ("a dog is here", "ein hund ist da"),
    ("the dog", "der hund"),
]


def random_shortlist(per_token=7, frequent=12, vocab=VOCAB):
    rng = np.random.default_rng(3)
    best = rng.integers(4, vocab, (vocab, per_token)).astype(np.int32)
    return Shortlist(best, np.arange(10, 10 + frequent, dtype=np.int32), "a", "b", vocab)


def engine(shortlist, precision="float32", **changes) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)  # the same model every time
        model = small(**changes)
    reason = why_not(model, precision)
    if reason is not None:
        pytest.skip(reason)
    return Engine(model, precision, shortlist)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A corpus in two files, and its tokenizers."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, column in zip(("s.en", "s.de"), zip(*PAIRS, strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in column), encoding="utf-8")
    tokenizers = [Tokenizer.train(column, "word", 100) for column in zip(*PAIRS, strict=True)]
    return folder, tokenizers


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(pairs):
    folder, tokenizers = pairs
    return prepare(open_files([folder / "s.en", folder / "s.de"], None, None, True), *tokenizers)


def model_one(rows, rounds=2):
    """IBM Model 1 by its definition: expected counts c(e, f) after `rounds` of EM."""
    t, count = defaultdict(lambda: 1.0), {}
    for _ in range(rounds):
        count = defaultdict(float)
        for source, target in rows:
            for f in target:
                total = sum(t[e, f] for e in source)
                for e in source:
                    count[e, f] += t[e, f] / total
        sums = defaultdict(float)
        for (e, _), c in count.items():
            sums[e] += c
        t = defaultdict(float, {(e, f): c / sums[e] for (e, f), c in count.items()})
    return count


@pytest.mark.parametrize(("cells", "pairs_per_chunk"), [(1 << 20, 1 << 20), (100, 20)])
def test_the_listed_tokens_are_those_of_ibm_model_1(pairs, cache, monkeypatch, cells, pairs_per_chunk):
    monkeypatch.setattr(ibm1, "CELLS", cells)  # blocks of a few target tokens
    monkeypatch.setattr(ibm1, "PAIRS", pairs_per_chunk)  # chunks of one or two rows
    data, (source, target) = prepared(pairs), pairs[1]
    result = ibm1.associate(data, source, target, best=3, frequent=2)
    rows = [(data.source(i).tolist(), data.target(i).tolist()) for i in range(data.rows)]
    frequency = np.bincount(np.concatenate([row[1] for row in rows]), minlength=len(target))
    assert sorted(frequency[result.frequent]) == sorted(frequency)[-2:]
    always_allowed = {UNK, EOS, *result.frequent.tolist()}
    counts = model_one(rows)
    for e in range(4, len(source)):
        scores = {
            f: c for (source_token, f), c in counts.items() if source_token == e and f not in always_allowed
        }
        listed = [f for f in result.best[e].tolist() if f != EOS]
        expected = sorted(scores.values(), reverse=True)[:3]
        assert sorted((scores[f] for f in listed), reverse=True) == pytest.approx(expected, rel=1e-5)
    assert target.encode("hund")[0] in result.best[source.encode("dog")[0]]


def test_a_sentence_allows_the_lists_of_its_tokens_and_frequent_tokens():
    best = np.full((30, 2), EOS, np.int32)
    best[5], best[6] = [20, 21], [21, 22]
    result = Shortlist(best, np.array([9], np.int32), "a", "b", 30).allowed([[5, 6, EOS], [7, EOS]])
    assert [allowed.tolist() for allowed in result] == [[UNK, EOS, 9, 20, 21, 22], [UNK, EOS, 9]]
    shared = Shortlist(best, np.array([9], np.int32), "a", "a", 30)  # shared vocabulary: source tokens too
    assert shared.allowed([[5, EOS]])[0].tolist() == [UNK, EOS, 5, 9, 20, 21]


@pytest.mark.parametrize("precision", PRECISIONS)
@torch.inference_mode()
def test_scores_outside_the_list_are_minus_infinity(precision):
    with_list, without = (
        engine(random_shortlist(), precision, output_bias=True),
        engine(None, precision, output_bias=True),
    )
    source, lengths = padded(SENTENCES)
    first = torch.full((len(SENTENCES),), BOS)
    memory = with_list.encode(source, lengths)
    scores, _ = with_list.step(first, with_list.start(memory, first))
    full, _ = without.step(first, without.start(without.encode(source, lengths), first))
    listed = torch.zeros_like(scores, dtype=torch.bool)
    for row, tokens in enumerate(memory.allowed):
        listed[row, tokens] = True
    assert listed.sum(1).min() > 10 and listed.sum(1).max() < VOCAB
    assert torch.equal(scores, full.masked_fill(~listed, -torch.inf))
    for k in (1, 5, 1000):
        log_p, tokens, _ = with_list.best(first, with_list.start(memory, first), k)
        expected, expected_tokens = log_probabilities(scores.clone()).topk(min(k, VOCAB), -1)
        finite = expected > -torch.inf
        torch.testing.assert_close(log_p, expected, atol=2e-6, rtol=0)
        assert torch.equal(tokens[finite], expected_tokens[finite])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_list_of_all_tokens_changes_no_bit(precision):
    every = random_shortlist(1, 0)
    every = Shortlist(every.best, np.arange(VOCAB, dtype=np.int32), "a", "b", VOCAB)
    outputs, expected = (
        translate_tokens(engine(shortlist, precision), SENTENCES, strategy=Beam(3))
        for shortlist in (every, None)
    )
    assert tokens_and_scores(outputs) == tokens_and_scores(expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 4])
def test_neighbours_order_and_workers_change_no_bit(precision, beam, monkeypatch):
    listed = engine(random_shortlist(), precision)
    alone = assert_batches_change_nothing(listed, MANY, beam)
    monkeypatch.setattr(shared_shortlists, "SIZE", 3)
    assert tokens_and_scores(translate_tokens(listed, MANY, strategy=Beam(beam))) == tokens_and_scores(alone)
    for given, texts in zip(MANY, alone, strict=True):
        (allowed,) = listed.shortlist.allowed([[*given, EOS]])
        assert all({*h.tokens} <= {*allowed.tolist()} for h in texts)
    assert tokens_and_scores(
        translate_tokens(engine(None, precision), MANY, strategy=Beam(beam))
    ) != tokens_and_scores(alone)


@torch.inference_mode()
def test_matrices_of_finished_sentences_are_freed():
    listed = engine(random_shortlist())
    source, lengths = padded(MANY)
    state = listed.start(listed.encode(source, lengths), torch.full((len(MANY),), BOS))
    assert len(state.shortlists._referenced) == 3
    assert len(state.reorder(torch.tensor([0, 1, 23, 0])).shortlists._referenced) == 2


@torch.inference_mode()
def test_prefix_and_required_tokens_are_allowed():
    listed = engine(random_shortlist())
    source, lengths = padded(SENTENCES)
    first = torch.full((len(SENTENCES),), BOS)
    memory = listed.encode(source, lengths)
    outside = [int(np.setdiff1d(np.arange(4, VOCAB), allowed)[0]) for allowed in memory.allowed]
    memory.allow([[token] for token in outside])
    scores, _ = listed.step(first, listed.start(memory, first))
    assert torch.isfinite(scores[range(len(outside)), outside]).all()
    assert all(allowed.dtype == np.int32 and (np.diff(allowed) > 0).all() for allowed in memory.allowed)


def test_prefixes_and_required_tokens_need_not_be_listed():
    listed = engine(random_shortlist())
    allowed = listed.shortlist.allowed([[*s, EOS] for s in MANY])
    outside = [
        np.setdiff1d(np.arange(4, VOCAB), tokens_of_sentence)[:2].tolist() for tokens_of_sentence in allowed
    ]
    prompts = [pair if i % 2 else [] for i, pair in enumerate(outside)]  # every second sentence
    plain = tokens_and_scores(translate_tokens(listed, MANY, strategy=Beam(2)))
    with_prefix = translate_tokens(
        listed, MANY, strategy=Beam(2), constraints=TokenConstraints(prefixes=prompts)
    )
    with_required = translate_tokens(
        listed,
        MANY,
        strategy=Beam(2),
        constraints=TokenConstraints(required=[[pair] if pair else [] for pair in prompts]),
    )
    for i, pair in enumerate(prompts):
        assert all(h.tokens[: len(pair)] == pair and np.isfinite(h.log_p) for h in with_prefix[i])
        assert all(str(pair)[1:-1] in str(h.tokens) for h in with_required[i])
        if not pair:  # prefixes of other sentences have no effect
            assert [h.tokens for h in with_prefix[i]] == [tokens for tokens, _ in plain[i]]
    alone = [
        translate_tokens(listed, [s], strategy=Beam(2), constraints=TokenConstraints(prefixes=[p]))[0]
        for s, p in zip(MANY, prompts, strict=True)
    ]
    assert [[h.tokens for h in texts] for texts in with_prefix] == [
        [h.tokens for h in texts] for texts in alone
    ]


# In a model folder.
@pytest.fixture
def folder(tmp_path, pairs, cache):
    """A Transformer with random weights, and a card that names its training data."""
    section = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32}
    config = AutoregressiveOptions.model_validate(
        {"dim": 32, "encoder": section, "decoder": section, "tie": "none", "dropout": 0.0}
    ).model_dump()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build(config, len(pairs[1][0]), len(pairs[1][1]))
    data = {
        "train": [str(pairs[0] / "s.en"), str(pairs[0] / "s.de")],
        "source": "en",
        "target": "de",
        "max_length": 20,
    }
    save(tmp_path / "model", model, config, pairs[1][0], pairs[1][1], {"recipe": {"data": data}})
    return tmp_path / "model"


def test_the_command_learns_from_the_training_data_or_given_files(folder, pairs, capsys):
    shortlist_command.command(folder, None, 3, 2)
    source, target = pairs[1]
    assert (
        f"{folder / FILE_NAME}: 3 target tokens for each of {len(source)} source tokens, 2 for all"
        in capsys.readouterr().out
    )
    learned = load(folder)
    expected = ibm1.associate(prepared(pairs), source, target, 3, 2)
    assert np.array_equal(learned.best, expected.best) and np.array_equal(learned.frequent, expected.frequent)
    shortlist_command.command(folder, [str(pairs[0] / "s.en"), str(pairs[0] / "s.en")], 3, 2)
    assert not np.array_equal(load(folder).best, learned.best)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_job_uses_the_shortlist_and_notices_changes(folder, pairs):
    if why_not(load_model(folder)) is not None:
        pytest.skip("no engine here")
    with pytest.raises(FolderError, match=f"has no shortlist; make one with `regard shortlist {folder}`"):
        make_job([folder], TranslateOptions(shortlist=True))
    before = fingerprint([folder])
    shortlist_command.command(folder, None, 2, 1)
    assert fingerprint([folder]) == before != fingerprint([folder], shortlist=True)
    assert folder / FILE_NAME in model_files(folder)  # copied with the model
    settings = TranslateOptions(shortlist=True, output="-")
    assert json.loads(json.dumps(settings.about("x")))["shortlist"] is True
    lines = [source for source, _ in PAIRS]
    (data,) = make_job([folder], settings)(Chunk(0, [Row(text, text) for text in lines], ""))
    expected = translate(lines, Engine(load_model(folder), "float32", load(folder)))
    assert data.decode().splitlines() == [str(text) for text in expected]
    with pytest.raises(OptionError, match="a shortlist is for one model; leave out --with"):
        make_job([folder, folder], settings)


def test_a_shortlist_of_another_model_is_an_error(folder, pairs):
    shortlist_command.command(folder, None, 2, 1)
    loaded, model = load(folder), load_model(folder)
    other = Shortlist(loaded.best, loaded.frequent, "elsewhere", loaded.target, loaded.size)
    checks = [lambda listed: listed.check(model)]
    if why_not(model) is None:  # `fast` needs the engine
        checks.append(lambda listed: fast(model, shortlist=listed))
    for check in checks:
        with pytest.raises(
            FolderError,
            match="made with another source tokenizer than the model.s; make one with `regard shortlist",
        ):
            check(other)
        with pytest.raises(
            FolderError, match=r"for 150 source and 150 target tokens, and the model has \d+ and \d+"
        ):
            check(random_shortlist())
    loaded.check(model)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:40], lambda data: b"", lambda data: data.replace(b'"1"', b'"9"')]
)
def test_a_damaged_shortlist_is_an_error(folder, damage):
    shortlist_command.command(folder, None, 2, 1)
    (folder / FILE_NAME).write_bytes(damage((folder / FILE_NAME).read_bytes()))
    with pytest.raises(FolderError, match=rf"{FILE_NAME} (cannot be read|is not a shortlist).*make it again"):
        load(folder)


def test_models_without_shortlist_support_are_errors(tmp_path):
    with pytest.raises(
        OptionError,
        match="a shortlist needs the C.. engine, which cannot run this model: it runs Transformers",
    ):
        fast(load_model(translator(tmp_path / "gru")), shortlist=random_shortlist())
    with pytest.raises(OptionError, match="is a language model, and a shortlist needs source tokens"):
        shortlist_command.command(language_model(tmp_path / "language"), None, 2, 1)
    language: Any = small(language=True)
    with pytest.raises(OptionError, match="a shortlist is for translators"):
        random_shortlist().check(language)
    if why_not(language) is None:
        with pytest.raises(OptionError, match="a shortlist is for translators"):
            Engine(language, "float32", random_shortlist())
    model: Any = load_model(tmp_path / "gru")
    save(tmp_path / "bare", model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    with pytest.raises(RegardError, match="card does not name its training data; give the data with --data"):
        shortlist_command.command(tmp_path / "bare", None, 2, 1)
