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
from regard.decoding.limits import Limits
from regard.errors import FolderError, OptionError, RegardError
from regard.models.autoregressive import AutoregressiveOptions, log_probabilities
from regard.models.build import build
from regard.models.folder import load as load_model
from regard.models.folder import save
from regard.pipelines.input import Chunk, Row
from regard.pipelines.job import fingerprint, model_files
from regard.pipelines.translate import translate, translate_tokens
from regard.pipelines.translate_file import TranslateOptions, make_job
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


def drawn(words=7, frequent=12, vocab=VOCAB):
    rng = np.random.default_rng(3)
    best = rng.integers(4, vocab, (vocab, words)).astype(np.int32)
    return Shortlist(best, np.arange(10, 10 + frequent, dtype=np.int32), "a", "b", vocab)


def engine(shortlist, precision="float32", **changes) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)  # the same model every time
        model = small(**changes)
    reason = why_not(model, precision)
    if reason is not None:
        pytest.skip(reason)
    return Engine(model, precision, shortlist)


def key(result):
    return [[(h.tokens, h.log_p) for h in texts] for texts in result]


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
    """Model 1 as it is written down: expected counts c(e, f) after some rounds."""
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


@pytest.mark.parametrize(("cells", "at_once"), [(1 << 20, 1 << 20), (100, 20)])
def test_the_listed_tokens_are_those_of_ibm_model_1(pairs, cache, monkeypatch, cells, at_once):
    monkeypatch.setattr(ibm1, "CELLS", cells)  # blocks of a few target words
    monkeypatch.setattr(ibm1, "PAIRS", at_once)  # and chunks of a row or two
    data, (source, target) = prepared(pairs), pairs[1]
    result = ibm1.associate(data, source, target, best=3, frequent=2)
    rows = [(data.source(i).tolist(), data.target(i).tolist()) for i in range(data.rows)]
    often = np.bincount(np.concatenate([row[1] for row in rows]), minlength=len(target))
    assert sorted(often[result.frequent]) == sorted(often)[-2:]
    given = {UNK, EOS, *result.frequent.tolist()}
    counts = model_one(rows)
    for e in range(4, len(source)):
        scores = {f: c for (word, f), c in counts.items() if word == e and f not in given}
        listed = [f for f in result.best[e].tolist() if f != EOS]
        want = sorted(scores.values(), reverse=True)[:3]
        assert sorted((scores[f] for f in listed), reverse=True) == pytest.approx(want, rel=1e-5)
    assert target.encode("hund")[0] in result.best[source.encode("dog")[0]]


def test_a_sentence_allows_the_lists_of_its_tokens_and_frequent_tokens():
    best = np.full((30, 2), EOS, np.int32)
    best[5], best[6] = [20, 21], [21, 22]
    result = Shortlist(best, np.array([9], np.int32), "a", "b", 30).allowed([[5, 6, EOS], [7, EOS]])
    assert [words.tolist() for words in result] == [[UNK, EOS, 9, 20, 21, 22], [UNK, EOS, 9]]
    shared = Shortlist(
        best, np.array([9], np.int32), "a", "a", 30
    )  # one vocabulary: a word may stay as it is
    assert shared.allowed([[5, EOS]])[0].tolist() == [UNK, EOS, 5, 9, 20, 21]


@pytest.mark.parametrize("precision", PRECISIONS)
@torch.inference_mode()
def test_scores_outside_the_list_are_minus_infinity(precision):
    with_list, without = (
        engine(drawn(), precision, output_bias=True),
        engine(None, precision, output_bias=True),
    )
    source, lengths = padded(SENTENCES)
    first = torch.full((len(SENTENCES),), BOS)
    memory = with_list.encode(source, lengths)
    scores, _ = with_list.step(first, with_list.start(memory, first))
    full, _ = without.step(first, without.start(without.encode(source, lengths), first))
    listed = torch.zeros_like(scores, dtype=torch.bool)
    for row, words in enumerate(memory.allowed):
        listed[row, words] = True
    assert listed.sum(1).min() > 10 and listed.sum(1).max() < VOCAB
    assert torch.equal(scores, full.masked_fill(~listed, -torch.inf))
    for k in (1, 5, 1000):
        log_p, words, _ = with_list.best(first, with_list.start(memory, first), k)
        want, at = log_probabilities(scores.clone()).topk(min(k, VOCAB), -1)
        known = want > -torch.inf
        torch.testing.assert_close(log_p, want, atol=2e-6, rtol=0)
        assert torch.equal(words[known], at[known])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_list_of_all_tokens_changes_no_bit(precision):
    every = drawn(1, 0)
    every = Shortlist(every.best, np.arange(VOCAB, dtype=np.int32), "a", "b", VOCAB)
    outputs, want = (
        translate_tokens(engine(item, precision), SENTENCES, strategy=Beam(3)) for item in (every, None)
    )
    assert key(outputs) == key(want)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 4])
def test_neighbours_order_and_workers_change_no_bit(precision, beam, monkeypatch):
    listed = engine(drawn(), precision)
    alone = [translate_tokens(listed, [s], strategy=Beam(beam))[0] for s in MANY]
    assert key(translate_tokens(listed, MANY, strategy=Beam(beam))) == key(alone)
    assert key(translate_tokens(listed, MANY[::-1], strategy=Beam(beam)))[::-1] == key(alone)
    assert key(translate_tokens(listed, MANY, strategy=Beam(beam), limits=Limits(batch_tokens=40))) == key(
        alone
    )  # enter as others leave
    assert key(
        translate_tokens(listed, MANY, strategy=Beam(beam), limits=Limits(workers=3, batch_tokens=64))
    ) == key(alone)
    monkeypatch.setattr(shared_shortlists, "SIZE", 3)
    assert key(translate_tokens(listed, MANY, strategy=Beam(beam))) == key(alone)
    for given, texts in zip(MANY, alone, strict=True):
        (words,) = listed.shortlist.allowed([[*given, EOS]])
        assert all({*h.tokens} <= {*words.tolist()} for h in texts)
    assert key(translate_tokens(engine(None, precision), MANY, strategy=Beam(beam))) != key(alone)


@torch.inference_mode()
def test_matrices_of_finished_sentences_are_freed():
    listed = engine(drawn())
    source, lengths = padded(MANY)
    state = listed.start(listed.encode(source, lengths), torch.full((len(MANY),), BOS))
    assert len(state.shortlists._referenced) == 3
    assert len(state.reorder(torch.tensor([0, 1, 23, 0])).shortlists._referenced) == 2


@torch.inference_mode()
def test_prefix_and_required_tokens_are_allowed():
    listed = engine(drawn())
    source, lengths = padded(SENTENCES)
    first = torch.full((len(SENTENCES),), BOS)
    memory = listed.encode(source, lengths)
    outside = [int(np.setdiff1d(np.arange(4, VOCAB), words)[0]) for words in memory.allowed]
    memory.allow([[word] for word in outside])
    scores, _ = listed.step(first, listed.start(memory, first))
    assert torch.isfinite(scores[range(len(outside)), outside]).all()
    assert all(words.dtype == np.int32 and (np.diff(words) > 0).all() for words in memory.allowed)


def test_prefixes_and_required_words_need_not_be_listed():
    listed = engine(drawn())
    words = listed.shortlist.allowed([[*s, EOS] for s in MANY])
    outside = [np.setdiff1d(np.arange(4, VOCAB), word)[:2].tolist() for word in words]
    prompts = [pair if i % 2 else [] for i, pair in enumerate(outside)]  # every second sentence
    plain = key(translate_tokens(listed, MANY, strategy=Beam(2)))
    begun = translate_tokens(listed, MANY, strategy=Beam(2), constraints=TokenConstraints(prefixes=prompts))
    held = translate_tokens(
        listed,
        MANY,
        strategy=Beam(2),
        constraints=TokenConstraints(required=[[pair] if pair else [] for pair in prompts]),
    )
    for i, pair in enumerate(prompts):
        assert all(h.tokens[: len(pair)] == pair and np.isfinite(h.log_p) for h in begun[i])
        assert all(str(pair)[1:-1] in str(h.tokens) for h in held[i])
        if not pair:  # its neighbours' prefixes do not change a sentence
            assert [h.tokens for h in begun[i]] == [tokens for tokens, _ in plain[i]]
    alone = [
        translate_tokens(listed, [s], strategy=Beam(2), constraints=TokenConstraints(prefixes=[p]))[0]
        for s, p in zip(MANY, prompts, strict=True)
    ]
    assert [[h.tokens for h in texts] for texts in begun] == [[h.tokens for h in texts] for texts in alone]


# ------------------------------------------------------------------------------------------------ in a
# model's folder
@pytest.fixture
def folder(tmp_path, pairs, cache):
    """A Transformer of drawn weights, and a card that says what it was trained on."""
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
    want = ibm1.associate(prepared(pairs), source, target, 3, 2)
    assert np.array_equal(learned.best, want.best) and np.array_equal(learned.frequent, want.frequent)
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
    assert folder / FILE_NAME in model_files(folder)  # goes wherever the model goes
    settings = TranslateOptions(shortlist=True, output="-")
    assert json.loads(json.dumps(settings.about("x")))["shortlist"] is True
    lines = [source for source, _ in PAIRS]
    (data,) = make_job([folder], settings)(Chunk(0, [Row(text, text) for text in lines], ""))
    want = translate(lines, Engine(load_model(folder), "float32", load(folder)))
    assert data.decode().splitlines() == [str(text) for text in want]
    with pytest.raises(OptionError, match="a shortlist is for one model; leave out --with"):
        make_job([folder, folder], settings)


def test_a_shortlist_of_another_model_is_an_error(folder, pairs):
    shortlist_command.command(folder, None, 2, 1)
    loaded, model = load(folder), load_model(folder)
    other = Shortlist(loaded.best, loaded.frequent, "elsewhere", loaded.target, loaded.size)
    request = [lambda listed: listed.check(model)]
    if why_not(model) is None:  # only where the engine runs can a model be made with a list
        request.append(lambda listed: fast(model, shortlist=listed))
    for check in request:
        with pytest.raises(
            FolderError,
            match="made with another source tokenizer than the model.s; make one with `regard shortlist",
        ):
            check(other)
        with pytest.raises(
            FolderError, match=r"for 150 source and 150 target tokens, and the model has \d+ and \d+"
        ):
            check(drawn())
    loaded.check(model)


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:40], lambda data: b"", lambda data: data.replace(b'"1"', b'"9"')]
)
def test_a_damaged_shortlist_is_an_error(folder, spoil):
    shortlist_command.command(folder, None, 2, 1)
    (folder / FILE_NAME).write_bytes(spoil((folder / FILE_NAME).read_bytes()))
    with pytest.raises(FolderError, match=rf"{FILE_NAME} (cannot be read|is not a shortlist).*make it again"):
        load(folder)


def test_models_without_shortlist_support_are_errors(tmp_path):
    with pytest.raises(
        OptionError,
        match="a shortlist needs the C.. engine, which cannot run this model: it runs Transformers",
    ):
        fast(load_model(translator(tmp_path / "gru")), shortlist=drawn())
    with pytest.raises(OptionError, match="is a language model, and a shortlist needs source tokens"):
        shortlist_command.command(language_model(tmp_path / "language"), None, 2, 1)
    language: Any = small(language=True)
    with pytest.raises(OptionError, match="a shortlist is for translators"):
        drawn().check(language)
    if why_not(language) is None:
        with pytest.raises(OptionError, match="a shortlist is for translators"):
            Engine(language, "float32", drawn())
    model: Any = load_model(tmp_path / "gru")
    save(tmp_path / "bare", model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    with pytest.raises(RegardError, match="card does not name its training data; give the data with --data"):
        shortlist_command.command(tmp_path / "bare", None, 2, 1)
