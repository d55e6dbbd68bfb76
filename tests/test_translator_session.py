"""The steps of `benchmarks.translator`, which train the bundled translator: with a tiny model."""

import lzma
from itertools import islice

import pytest
from benchmarks.translator import diversify, prepare, session

import regard
from regard.data import corpora


@pytest.mark.slow
def test_every_step_runs_and_the_model_comes_back(tmp_path, monkeypatch):
    pairs = list(islice(corpora.find("tatoeba-sample").rows("train", "en", "de"), 600))
    for language in ("de", "fr"):  # the German sentences stand for both languages
        for corpus in ("tatoeba", "europarl"):
            for split, part in (
                ("train", pairs[:400]),
                ("validation", pairs[400:500]),
                ("test", pairs[500:]),
            ):
                prepare.write_pairs(tmp_path / "data", f"{corpus}-x", language, split, part)
    monkeypatch.setattr(session, "ROOT", tmp_path)
    session.check(tmp_path / "data")
    model = regard.load(tmp_path / "check" / "models" / "student")
    assert model.source_tokenizer.languages == ("de", "en", "fr")
    samples = (tmp_path / "check" / "work" / "directions" / "samples-2.train.tsv").read_text(encoding="utf-8")
    assert samples.startswith(">>en<< ")


def test_translations_become_targets_and_sources_and_samples_only_sources(tmp_path):
    (tmp_path / "tatoeba.en-de.train.tsv").write_text(">>de<< Hello.\tHallo.\n", encoding="utf-8")
    (tmp_path / "tatoeba.en-de.test.tsv").write_text(">>de<< Good day.\tGuten Tag.\n", encoding="utf-8")
    diversify.main(["sources", str(tmp_path), str(tmp_path)])
    assert (tmp_path / "sources.txt").read_text(encoding="utf-8").split("\n") == [
        ">>de<< Hello.", ">>fr<< Hello.", ">>en<< Hallo.", ""
    ]  # fmt: skip
    for name, texts in {
        "translations": ["Hallo!", "Bonjour.", "Hello!"],
        "samples-1": ["Na du.", "Salut.", "Good day!"],  # the last one is a test sentence
    }.items():
        with lzma.open(tmp_path / f"{name}.txt.xz", "wt", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in texts)
    diversify.main(["rows", str(tmp_path), str(tmp_path)])
    rows = {
        path.name.split(".")[0]: path.read_text(encoding="utf-8").splitlines()
        for path in tmp_path.glob("*.train.tsv")
        if not path.name.startswith("tatoeba")
    }
    assert rows == {
        "forward": [">>de<< Hello.\tHallo!", ">>fr<< Hello.\tBonjour.", ">>en<< Hallo.\tHello!"],
        "backward": [">>en<< Hallo!\tHello.", ">>en<< Bonjour.\tHello.", ">>de<< Hello!\tHallo."],
        "samples-1": [">>en<< Na du.\tHello.", ">>en<< Salut.\tHello."],
    }


def test_pieces_that_came_back_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(session.transfer, "PIECE", 4000)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(range(256)) * 40)
    session.transfer.pack(tmp_path / "model", tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) > 2
    session.transfer.unpack(tmp_path / "out", tmp_path / "joined")
    assert (tmp_path / "joined" / "model" / "weights").read_bytes() == bytes(range(256)) * 40
