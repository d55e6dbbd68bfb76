"""Corpora by name: splits, directions, checksums, and errors for missing or changed files."""

import gzip
import json
import lzma
import shutil

import pytest

from regard.data import corpora
from regard.data.text_files import unpacked
from regard.errors import DataError

ROWS = {
    ("europarl-en-de", "train", "en", "de"): 1_123_463,
    ("europarl-en-fr", "validation", "fr", "en"): 1999,
    ("multi30k", "train", "en", "de"): 29_000,
    ("multi30k", "validation", "cs", "fr"): 1014,
    ("multi30k", "test_2017_mscoco", "de", "fr"): 461,
    ("wmt-newstest", "validation", "en", "de"): 3000,
    ("wmt-newstest", "test", "de", "en"): 2737,
    ("wmt-newstest", "test", "en", "fr"): 3003,
    ("wmt-newstest", "newsdiscusstest2015", "fr", "en"): 1500,
    ("wikitext-2", "train", None, None): 36_718,
    ("wikitext-2", "valid", None, None): 3760,
    ("sst2", "train", None, None): 6920,
    ("sst2", "test", None, None): 1821,
    ("trec-qc", "test", None, None): 500,
    ("sentence-polarity", "train", None, None): 10662,
    ("wnut17", "validation", None, None): 1009,
    ("broad-twitter", "train", None, None): 6338,
    ("broad-twitter", "validation", None, None): 1001,
    ("germeval2014-ner", "train", None, None): 2200,
    ("stsb-en-de-fr", "train", "fr", None): 1406,
    ("stsb-en-de-fr", "test", None, None): 1379,
}


def test_all_corpora_are_listed():
    assert corpora.names() == [
        "align-europarl-de-en", "align-hansards-en-fr", "broad-twitter", "cranfield", "europarl-en-de",
        "europarl-en-fr", "germeval2014-ner", "movielens-latest-small", "multi30k", "sentence-polarity",
        "sst2", "stsb-en-de-fr", "tatoeba-en-de", "tatoeba-en-fr", "tatoeba-sample", "tiny-shakespeare",
        "trec-qc", "wikitext-2", "wmt-newstest", "wnut17",
    ]  # fmt: skip


@pytest.mark.parametrize("name", corpora.names())
def test_the_manifest_names_source_and_licence(name):
    known = corpora.find(name)
    assert known.about and known.source and known.licence and known.cite
    assert "github.com/" in known.source or name == "tatoeba-sample"
    for facts in known._entry["files"].values():
        assert len(facts["text"]) == len(facts["packed"]) == 64
    for item in known._entry["sets"]:
        files = (
            item["files"].values()
            if "files" in item
            else [item[key] for key in ("table", "text", "csv") if key in item]
        )
        files = [*files, *(part["file"] for part in item.get("conll", []))]
        assert files
        assert set(files) <= set(known._entry["files"])
    assert set(known.roles.values()) <= set(known.splits)


@pytest.mark.parametrize(
    ("key", "count"), ROWS.items(), ids=lambda x: "-".join(map(str, x)) if isinstance(x, tuple) else ""
)
def test_splits_have_the_published_numbers_of_rows(real_data, key, count):
    name, split, source, target = key
    known = corpora.find(name)
    assert known.row_count(split, source, target) == count
    if count < 30_000:
        assert sum(1 for _ in known.rows(split, source, target)) == count


@pytest.mark.parametrize("name", [name for name in corpora.names() if not name.startswith("europarl")])
def test_downloaded_files_have_the_checksums_of_the_manifest(real_data, name):
    assert {finding.state for finding in corpora.find(name).check()} == {"as named"}


def test_a_parallel_corpus_can_be_read_in_either_direction(real_data):
    known = corpora.find("multi30k")
    there, back = (list(known.rows("val", *pair)) for pair in (("en", "de"), ("de", "en")))
    assert there == [row[::-1] for row in back]
    assert there[0] == (
        "A group of men are loading cotton onto a truck",
        "Eine Gruppe von Männern lädt Baumwolle auf einen Lastwagen",
    )
    assert (
        next(iter(known.rows("val", "en", "de", "tok")))[0]
        == "a group of men are loading cotton onto a truck"
    )


def test_the_bundled_sample_needs_no_download(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nowhere"))
    known = corpora.find("tatoeba-sample")
    assert known.present() and [finding.state for finding in known.check()] == ["as named"]
    parts = {split: list(known.rows(split)) for split in ("train", "validation", "test")}
    assert {split: len(rows) for split, rows in parts.items()} == {
        "train": 21_036,
        "validation": 444,
        "test": 449,
    }
    english = [{row[0] for row in rows} for rows in parts.values()]
    assert not english[0] & english[1] and not english[0] & english[2] and not english[1] & english[2]
    back = list(known.rows("test", "de", "en"))
    assert [row[::-1] for row in back] == parts["test"]  # the split does not depend on the direction


def test_without_official_splits_no_english_sentence_is_in_two_splits(real_data):
    known = corpora.find("tatoeba-en-fr")
    parts = [{row[0] for row in known.rows(split)} for split in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 116_830
    assert [{row[1] for row in known.rows("test", "fr", "en")}] == [parts[2]]


def test_tiny_shakespeare_is_split_at_nine_tenths(real_data):
    known = corpora.find("tiny-shakespeare")
    text = b"".join(unpacked(known.files("train")[0])).decode()
    assert len(text) == 1_115_394
    train, validation = ("\n".join(row[0] for row in known.rows(split)) for split in ("train", "validation"))
    assert train == text[:1_003_854]
    assert validation + "\n" == text[1_003_854:]


@pytest.fixture
def copied(real_data, tmp_path, monkeypatch):
    """A copy of wikitext-2 in its own data folder."""
    folder = tmp_path / "data" / "wikitext-2"
    shutil.copytree(real_data / "wikitext-2", folder)
    for path in [folder, *folder.iterdir()]:
        path.chmod(0o755)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    return folder


def test_a_file_with_another_compression_is_accepted(copied):
    valid = copied / "valid.txt.xz"
    (copied / "valid.txt.gz").write_bytes(gzip.compress(lzma.decompress(valid.read_bytes())))
    (copied / "test.txt").write_bytes(lzma.decompress((copied / "test.txt.xz").read_bytes()))
    valid.unlink()
    (copied / "test.txt.xz").unlink()
    known = corpora.find("wikitext-2")
    assert {finding.file: finding.state for finding in known.check()} == {
        "train.txt": "as named", "valid.txt": "same text", "test.txt": "as named",
    }  # fmt: skip
    assert known.present() and sum(1 for _ in known.rows("test")) == 4358


def test_missing_and_changed_files_are_reported(copied):
    (copied / "test.txt.xz").unlink()
    (copied / "valid.txt.xz").write_bytes(lzma.compress(b"something else\n"))
    known = corpora.find("wikitext-2")
    assert {finding.file: finding.state for finding in known.check()} == {
        "train.txt": "as named", "valid.txt": "differs", "test.txt": "missing",
    }  # fmt: skip
    assert not known.present()
    with pytest.raises(DataError, match=r"wikitext-2 lacks .*test\.txt \(or \.gz, \.xz\)"):
        known.rows("test")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("multi30k", ("trian", "en", "de"), "has no split 'trian'; it has train, val"),
        ("multi30k", ("train", "en", "it"), "no language 'it'; it has en, de, fr, cs"),
        ("multi30k", ("train", "en", "en"), "both 'en'"),
        ("multi30k", ("test_2017_flickr", "en", "cs"), "has no split test_2017_flickr for en and cs"),
        ("multi30k", ("train", "en", "de", "bpe"), "no version 'bpe'; it has tok"),
        ("multi30k", ("test_2018_flickr", "en", "de", "tok"), "of version tok"),
        ("wmt-newstest", ("train", "en", "de"), "has no split 'train'"),
        ("wmt-newstest", ("newstest2016", "en", "fr"), "has no split newstest2016 for en and fr"),
        ("europarl-en-de", ("train", "en", "fr"), "no language 'fr'"),
        ("wikitext-2", ("train", None, None, "raw"), "leave data.version out"),
    ],
)
def test_a_missing_split_or_language_is_an_error_of_one_sentence(name, arguments, message):
    with pytest.raises(DataError, match=message):
        corpora.find(name).rows(*arguments)


def test_the_error_for_an_unknown_name_suggests_the_nearest():
    with pytest.raises(DataError, match="did you mean multi30k"):
        corpora.find("multi-30k")
    with pytest.raises(DataError, match="`regard data` lists them"):
        corpora.find("zzz")


def test_the_error_for_an_absent_corpus_names_the_searched_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(
        DataError,
        match="the corpus multi30k is not in .*nowhere/multi30k; fetch it with `regard data get",
    ):
        corpora.find("multi30k").rows("train", "en", "de")
    monkeypatch.delenv("REGARD_DATA")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="multi30k is not in data/multi30k; .* set REGARD_DATA"):
        corpora.find("multi30k").rows("train", "en", "de")
    (tmp_path / "data" / "wikitext-2").mkdir(parents=True)
    (tmp_path / "data" / "wikitext-2" / "test.txt").write_text(" = a = \n")
    assert list(corpora.find("wikitext-2").rows("test")) == [(" = a = ",)]


def test_user_corpora_can_be_registered_and_removed(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.en").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "mine" / "a.de").write_text("eins\nzwei\n", encoding="utf-8")
    sets = [{"split": "train", "files": {"en": "a.en", "de": "a.de"}}]
    entry = {"task": "translate", "languages": ["en", "de"], "folder": "mine", "sets": sets}
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"mine": entry}), encoding="utf-8")
    assert corpora.add_corpora(manifest) == corpora.add_corpora(manifest) == ["mine"]
    known = corpora.find("mine")
    assert list(known.rows("train", "de", "en")) == [("eins", "one"), ("zwei", "two")]
    assert known.roles == {"train": "train"} and known.row_count("train") is None and known.check() == []
    corpora.remove_corpora("mine")
    assert "mine" not in corpora.names()
    monkeypatch.setenv("REGARD_CORPORA", str(manifest))
    assert "mine" in corpora.names()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            {"sst2": {"task": "classify", "languages": ["en"], "sets": [{"split": "a"}]}},
            "a corpus 'sst2' already",
        ),
        ({"mine": {"task": "classify", "sets": []}}, "has no 'languages'"),
        ("missing.json", "missing.json cannot be read"),
    ],
)
def test_an_invalid_manifest_is_refused(manifest, message):
    with pytest.raises(DataError, match=message):
        corpora.add_corpora(manifest)
    with pytest.raises(DataError, match="did not add a corpus 'sst2'"):
        corpora.remove_corpora("sst2")
