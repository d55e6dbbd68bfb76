"""benchmarks/pack.py: parts of corpora for machines without network."""

import lzma

import pytest
from benchmarks import pack

from regard.errors import OptionError


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    folder = tmp_path / "corpora" / "pairs"
    (folder / "tok").mkdir(parents=True)
    (folder / "train.en.xz").write_bytes(lzma.compress(b"a\nb\nc\n"))
    (folder / "test.en").write_text("d\n")
    (folder / "tok" / "test.en").write_text("e\n")
    monkeypatch.setattr(pack, "corpus_folder", lambda name: tmp_path / "corpora" / name)
    return tmp_path / "copy"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_the_first_pairs_of_training_files_are_copied(corpus):
    assert pack.main([str(corpus), "pairs", "--pairs", "2"]) == 0
    assert files(corpus) == ["pairs/test.en", "pairs/tok/test.en", "pairs/train.en.xz"]
    assert lzma.decompress((corpus / "pairs" / "train.en.xz").read_bytes()) == b"a\nb\n"


def test_only_files_that_match_a_pattern_are_copied(corpus, capsys):
    assert pack.main([str(corpus), "pairs", "--files", "tok/*", "train.*"]) == 0
    assert files(corpus) == ["pairs/tok/test.en", "pairs/train.en.xz"]
    with pytest.raises(OptionError, match="--files: no file of pairs matches dev"):
        pack.main([str(corpus), "pairs", "--files", "dev*"])
