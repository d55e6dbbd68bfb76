"""The steps of `benchmarks.translator`, which train the bundled translator: with a tiny model."""

from itertools import islice

import pytest
from benchmarks.translator import prepare, session

import regard
from regard.data import corpora


@pytest.mark.slow
def test_every_step_runs_and_the_model_comes_back(tmp_path, monkeypatch):
    pairs = list(islice(corpora.find("tatoeba-sample").rows("train", "en", "de"), 600))
    for language in ("de", "fr"):  # the German sentences stand for both languages
        for corpus in ("tatoeba", "europarl"):
            for split in ("train", "validation", "test"):
                prepare.write_pairs(tmp_path / "data", f"{corpus}-x", language, split, pairs)
    monkeypatch.setattr(session, "ROOT", tmp_path)
    session.check(tmp_path / "data")
    model = regard.load(tmp_path / "check" / "models" / "student")
    assert model.source_tokenizer.languages == ("de", "en", "fr")
    assert (tmp_path / "check" / "work" / "distilled.tsv").read_text(encoding="utf-8").startswith(">>de<< ")


def test_pieces_that_came_back_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(session.transfer, "PIECE", 4000)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(range(256)) * 40)
    session.transfer.pack(tmp_path / "model", tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) > 2
    session.transfer.unpack(tmp_path / "out", tmp_path / "joined")
    assert (tmp_path / "joined" / "model" / "weights").read_bytes() == bytes(range(256)) * 40
