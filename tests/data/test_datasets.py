"""Loading the data of a recipe in one call, and its errors."""

import itertools
import json
import random
from types import SimpleNamespace as Section

import pytest

from regard.data import train_tokenizers as module
from regard.data.datasets import load_corpus as load
from regard.data.datasets import load_split
from regard.data.readers import LinePairs
from regard.data.tokenizer import EOS, Tokenizer
from regard.data.train_tokenizers import load_tokenizers, text_sample
from regard.errors import DataError, OptionError

SAMPLE = Section(corpus="tatoeba-sample", source="en", target="de", limit=2000)
SMALL = Section(kind="bpe", size=500)


def test_a_corpus_by_name_gives_tokenizers_splits_and_checksums():
    corpus = load(SAMPLE, SMALL)
    assert corpus.train.rows == 2000 and corpus.train.paired
    assert corpus.source_tokenizer is corpus.target_tokenizer and len(corpus.target_tokenizer) == 500
    assert (
        corpus.validation is not None
        and len(corpus.validation.sources) == len(corpus.validation.targets) == 444
    )
    assert corpus.validation.prepared.rows == 444
    row = corpus.validation.prepared.target(3)
    assert row[-1] == EOS and corpus.target_tokenizer.decode(row) == corpus.validation.targets[3]
    assert corpus.test_names == ["test"] and len(corpus.test().targets) == 449
    assert (
        list(corpus.checksums) == ["samples/tatoeba-sample.tsv.xz"] and len(*corpus.checksums.values()) == 64
    )
    assert corpus.warnings == []


def test_a_corpus_can_be_reversed_with_separate_vocabularies():
    corpus = load(
        {"corpus": "tatoeba-sample", "source": "de", "target": "en", "limit": 2000},
        {"size": 400, "joint": False},
    )
    assert corpus.source_tokenizer != corpus.target_tokenizer
    assert corpus.validation.sources[0].startswith("Darf ich") and corpus.validation.targets[0] == "May I go?"
    assert "ä" in corpus.source_tokenizer.vocabulary and "ä" not in corpus.target_tokenizer.vocabulary


def test_a_second_call_uses_the_cache(cache):
    first = load(SAMPLE, SMALL)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.*")}
    again = load(SAMPLE, SMALL)
    assert again.train.checksum == first.train.checksum and again.target_tokenizer == first.target_tokenizer
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.*")} == before


def test_bpe_dropout_applies_to_training_data_only():
    corpus = load(SAMPLE, Section(size=500, dropout=0.1, variants=3), seed=5)
    assert corpus.train.variants == 3 and corpus.validation.prepared.variants == 1
    assert (
        load(SAMPLE, Section(size=500, dropout=0.1, variants=3), seed=6).train.checksum
        != corpus.train.checksum
    )


@pytest.fixture
def files(tmp_path):
    draw = random.Random(8)
    for part, count in (("train", 300), ("dev", 20), ("test", 10)):
        for language, words in (("en", "a cat sees the dog"), ("de", "eine Katze sieht den Hund")):
            lines = [" ".join(draw.choices(words.split(), k=draw.randint(1, 6))) for _ in range(count)]
            (tmp_path / f"{part}.{language}").write_text(
                "".join(line + "\n" for line in lines), encoding="utf-8"
            )
    return tmp_path


def user_section(files, **more):
    parts = {
        role: [str(files / f"{part}.en"), str(files / f"{part}.de")]
        for role, part in (("train", "train"), ("validation", "dev"))
    }
    return Section(source="en", target="de", **parts, **more)


def test_user_files_give_train_validation_and_test_sets(files):
    corpus = load(
        user_section(files, test=[str(files / "test.en"), str(files / "test.de")]), Section(size=60)
    )
    assert (corpus.train.rows, len(corpus.validation.sources), len(corpus.test().sources)) == (300, 20, 10)
    assert corpus.test_names == ["test"]
    assert corpus.name.endswith("train.en") and len(corpus.checksums) == 4


def test_user_files_can_be_tested_on_a_named_corpus(files):
    corpus = load(user_section(files, test=["tatoeba-sample:test"]), Section(size=60))
    assert len(corpus.test().sources) == 449


def test_validation_data_is_optional(files):
    section = user_section(files)
    section.validation = []
    corpus = load(section, Section(size=60))
    assert corpus.validation is None and corpus.test_names == []


def test_the_validation_texts_include_rows_that_are_not_encoded(files):
    (files / "dev.en").write_bytes(b"a cat\n\nbad \xff\n" + b"dog " * 50 + b"\n")
    (files / "dev.de").write_text("eine Katze\nx\ny\nz\n", encoding="utf-8")
    corpus = load(user_section(files, max_length=20), Section(size=60))
    split = corpus.validation
    assert split.sources == ["a cat", "", "", "dog " * 50] and split.targets == ["eine Katze", "x", "y", "z"]
    assert split.prepared.rows == 1 and split.prepared.lines.tolist() == [0]
    assert corpus.warnings[0].startswith("validation: 1 of 4 rows")


def test_a_language_model_has_targets_only(files):
    section = Section(train=[str(files / "train.en")], validation=str(files / "dev.en"))
    corpus = load(section, Section(kind="word", size=20), task="language")
    assert corpus.source_tokenizer is None and not corpus.train.paired
    assert corpus.validation.sources == [] and len(corpus.validation.targets) == 20
    assert len(corpus.target_tokenizer) == 4 + 5


def test_one_split_can_be_loaded_with_existing_tokenizers(files):
    tokenizer = Tokenizer.train(["a cat sees the dog eine Katze sieht den Hund"], "word", 20)
    split = load_split(user_section(files), "validation", tokenizer, tokenizer)
    assert len(split.sources) == 20 and split.prepared.rows == 20 and split.name == "validation"


def test_tokenizers_are_loaded_from_a_file_or_a_folder(files, tmp_path):
    one, two = (Tokenizer.train(["a b c"], "word", size) for size in (6, 7))
    one.save(tmp_path / "joint" / "tokenizer.json")
    one.save(tmp_path / "apart" / "source.json")
    two.save(tmp_path / "apart" / "target.json")
    assert load_tokenizers(tmp_path / "joint", True) == (one, one)
    assert load_tokenizers(tmp_path / "joint" / "tokenizer.json", False) == (None, one)
    assert load_tokenizers(tmp_path / "apart", True) == (one, two)
    corpus = load(user_section(files), Section(load=str(tmp_path / "apart")))
    assert (corpus.source_tokenizer, corpus.target_tokenizer) == (one, two)
    with pytest.raises(DataError, match="neither tokenizer.json nor source.json"):
        load_tokenizers(tmp_path, True)


def test_a_vocabulary_learns_from_evenly_spaced_rows(tmp_path, monkeypatch):
    for name in "st":
        (tmp_path / name).write_text("".join(f"{name}{i}\n" for i in range(10_000)), encoding="utf-8")
    monkeypatch.setattr(module, "SAMPLE_ROWS", 1000)
    (source, target), read = text_sample(LinePairs(tmp_path / "s", tmp_path / "t"), None)
    assert read == 10_000 and 250 < len(source) <= 500
    numbers = [int(text[1:]) for text in source]
    assert {b - a for a, b in itertools.pairwise(numbers)} == {32} and numbers[0] == 0
    assert [text[1:] for text in target] == [text[1:] for text in source]
    monkeypatch.setattr(module, "SAMPLE_CHARACTERS", 2000)
    assert sum(map(len, text_sample(LinePairs(tmp_path / "s", tmp_path / "t"), None)[0][0])) <= 1000


@pytest.mark.parametrize(
    ("data", "tokenizer", "task", "message"),
    [
        ({}, {}, "translate", "names no corpus and no files for train"),
        ({"corpus": "tatoeba-sample"}, {}, "language", "is for task translate, not language"),
        (
            {"corpus": "tatoeba-sample"},
            {},
            "sing",
            "one of translate, language, classify, tag, embed, got 'sing'",
        ),
        ({"corpus": "tatoeba-sample"}, {"kind": "bbpe"}, "translate", "tokenizer.kind is one of"),
        (
            {"corpus": "tatoeba-sample"},
            {"kind": "word", "dropout": 0.1},
            "translate",
            "tokenizer.dropout is for the kinds bpe",
        ),
        ({"corpus": "tatoeba-sample"}, {"size": 30}, "translate", "vocabulary of 30 cannot hold the"),
        ({"corpus": "tatoeba-sample", "max_length": 0}, {}, "translate", "max_length must be at least 1"),
        ({"corpus": "tatoeba-sample", "maxlength": 9}, {}, "translate", "data has no setting 'maxlength'"),
        ({"corpus": "tatoeba-smaple"}, {}, "translate", "did you mean tatoeba-sample"),
        (
            {"train": ["no.en", "no.de"], "source": "en", "target": "de"},
            {},
            "translate",
            "there is no file no.en",
        ),
        ({"corpus": "tatoeba-sample", "test": ["no.tsv"]}, {}, "translate", "there is no file no.tsv"),
        (
            {"corpus": "tatoeba-sample"},
            {"load": "nowhere.json"},
            "translate",
            "there is no tokenizer file nowhere.json",
        ),
    ],
)
def test_wrong_options_are_errors_of_one_sentence_and_leave_no_files(data, tokenizer, task, message, cache):
    with pytest.raises((DataError, OptionError), match=message) as caught:
        load(data, tokenizer, task)
    assert "\n" not in str(caught.value)
    assert not list(cache.rglob("*.npy")) and not list(cache.rglob("tokenizer.json"))


def test_a_file_that_differs_from_the_manifest_is_reported(real_data, tmp_path, monkeypatch):
    folder = tmp_path / "data" / "tiny-shakespeare"
    folder.mkdir(parents=True)
    (folder / "input.txt").write_text("To be,\nor not to be.\n" * 40, encoding="utf-8")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    corpus = load({"corpus": "tiny-shakespeare"}, {"kind": "character"}, "language")
    assert "input.txt differs from the file in the manifest" in corpus.warnings[0]


def test_wikitext_has_the_published_counts(real_data):
    corpus = load({"corpus": "wikitext-2"}, {"kind": "word", "size": 50_000}, "language")
    counts = [
        int(part.target_lengths.sum())
        for part in (corpus.train, corpus.validation.prepared, corpus.test().prepared)
    ]
    assert counts == [2_088_628, 217_646, 245_569]
    assert (
        len(corpus.target_tokenizer) == 33_278 + 3
    )  # the published number has <eos>; PAD, UNK and BOS are ours
    assert corpus.train.report.unknown == corpus.validation.prepared.report.unknown == 0
    assert json.dumps(vars(corpus.train.report))
