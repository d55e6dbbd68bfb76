"""Tests of index.py, search.py, duplicates.py, label.py and document_options.py."""

import json

import pytest

from regard.cli import index
from regard.models.folder import save
from tests.search.small import TEXTS, embedder

pytest.importorskip("usearch")


def write_model(folder, **changes):
    model = embedder(**changes)
    save(folder, model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    return folder


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


@pytest.fixture
def made(run_regard, model, texts, tmp_path):
    assert run_regard("index", texts, "-o", tmp_path / "i", "-m", model)[0] == 0
    return tmp_path / "i"


def test_an_index_is_made_searched_added_to_and_taken_from(run_regard, made, model, texts, tmp_path):
    code, out, _ = run_regard("search", made, TEXTS[2], "-k", 2, "--by", "vectors")
    assert (
        code == 0 and out.splitlines()[0] == f"1.0000\t{texts}:3\t{TEXTS[2]}" and len(out.splitlines()) == 2
    )
    code, out, _ = run_regard("search", made, "moon", "--by", "bm25", "--json")
    assert code == 0 and [hit["text"] for hit in json.loads(out)["documents"]] == [TEXTS[1]]
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "the moon shines"}\n', encoding="utf-8")
    code, out, _ = run_regard("index", more, "--id", "id", "-o", made, "--add")
    assert code == 0 and "9 documents" in out
    code, out, _ = run_regard("search", made, "the moon shines", "-k", 1)
    assert code == 0 and out.split("\t")[1] == "new"
    assert run_regard("index", "-o", made, "--remove", "new")[1] == "1 removed, 8 documents left\n"
    assert (
        run_regard("index", "-o", made, "--compact")[1]
        == "1 removed document deleted from the disk, 8 documents left\n"
    )
    assert "8 documents, vectors of width 32" in run_regard("index", "-o", made)[1]
    assert "the moon shines" not in run_regard("search", made, "the moon shines")[1]


def test_adding_skips_documents_that_are_in_the_index(run_regard, made, texts):
    code, out, errors = run_regard("index", texts, "-o", made, "--add")
    assert code == 0 and "8 documents are already in the index" in errors and ": 8 documents" in out
    texts.write_text("another first line\n", encoding="utf-8")
    code, _, errors = run_regard("index", texts, "-o", made, "--add")
    assert code == 2 and "with another text; give it another id" in errors and errors.count("\n") == 1
    assert run_regard("index", texts, "-o", made, "--replace")[0] == 0
    assert (
        run_regard("search", made, "another first line", "--by", "bm25")[1].split("\t")[2]
        == "another first line\n"
    )


def test_an_interrupt_keeps_added_documents(run_regard, model, texts, tmp_path, monkeypatch):
    """Ctrl-C in the second chunk keeps the first; with --add the rest is added, without duplicates."""
    monkeypatch.setattr(index, "CHUNK", 3)
    real, calls = index._add, []

    def stops(*args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(index, "_add", stops)
    code, _, errors = run_regard("index", texts, "-o", tmp_path / "i", "-m", model)
    assert (
        code == 130
        and "stopped after 3 documents, which are kept; resume with: regard index" in errors
        and "--add" in errors
    )
    code, out, errors = run_regard("index", texts, "-o", tmp_path / "i", "--add")
    assert code == 0 and "3 documents are already in the index" in errors and ": 8 documents" in out


def test_questions_of_a_file_are_scored_by_judgements(run_regard, made, texts, tmp_path):
    (tmp_path / "q.txt").write_text("moon\nspeed\n", encoding="utf-8")
    (tmp_path / "qrels.txt").write_text(f"1 0 {texts}:2 1\n2 0 {texts}:1 1\n", encoding="utf-8")
    code, out, _ = run_regard(
        "search", made, "-i", tmp_path / "q.txt", "--relevant", tmp_path / "qrels.txt", "--by", "bm25"
    )
    assert code == 0 and out == "bm25: nDCG@10 0.5000, MAP 0.5000, recall@100 0.5000, 2 queries\n"


def test_duplicates_in_files_and_in_an_index(run_regard, model, texts, tmp_path):
    texts.write_text(f"{TEXTS[0]}\n{TEXTS[3]}\n{TEXTS[0]}\n", encoding="utf-8")
    code, out, errors = run_regard("duplicates", texts, "-m", model, "-t", 0.999)
    assert code == 0 and out == f"1.0\t{texts}:1\t{texts}:3\t{TEXTS[0]}\t{TEXTS[0]}\n"
    assert "1 pairs with cosine at least 0.999; 2 of 3 texts are in a pair" in errors
    run_regard("index", texts, "-o", tmp_path / "i", "-m", model)
    code, _, _ = run_regard(
        "duplicates", tmp_path / "i", "-t", 0.999, "--groups", "--json", "-o", tmp_path / "out.jsonl"
    )
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert code == 0 and [(row["group"], row["id"]) for row in records] == [
        (1, f"{texts}:1"),
        (1, f"{texts}:3"),
    ]


def test_labels_are_suggested_reviewed_and_accepted(run_regard, model, texts, tmp_path):
    (tmp_path / "few.tsv").write_text(
        f"label\ttext\nanimal\t{TEXTS[0]}\nthing\t{TEXTS[2]}\nthing\ta jet\n", encoding="utf-8"
    )
    review = tmp_path / "review.tsv"
    code, _, errors = run_regard(
        "label", texts, "-e", tmp_path / "few.tsv", "-m", model, "-o", review, "--neighbours", 3
    )
    assert code == 0 and "8 texts from 3 examples" in errors
    counts = [int(part.split(" ")[-1]) for part in errors.split("examples: ")[1].split(";")[0].split(", ")]
    assert sum(counts) == 8  # of the texts, without the example that is none of them
    rows = [line.split("\t") for line in review.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["label", "suggested", "confidence", "reviewed", "id", "text"] and len(rows) == 9
    given = {row[5]: row for row in rows[1:]}
    assert given[TEXTS[0]][:4] == ["animal", "animal", "1.0000", "x"]
    changed = ["bird" if row[5] == TEXTS[1] else row[0] for row in rows]
    review.write_text(
        "".join("\t".join([a, *row[1:]]) + "\n" for a, row in zip(changed, rows, strict=True)),
        encoding="utf-8",
    )
    reviewed = review.read_bytes()
    code, _, errors = run_regard("label", texts, "-e", tmp_path / "few.tsv", "-m", model, "-o", review)
    assert code == 2 and "has labels that were reviewed; add --examples" in errors
    assert review.read_bytes() == reviewed
    code, _, errors = run_regard(
        "label", texts, "-e", tmp_path / "few.tsv", "-e", review, "-m", model, "-o", tmp_path / "again.tsv"
    )
    assert code == 0 and "8 texts from 4 examples" in errors and "bird" in errors
    code, _, errors = run_regard("label", review, "--take", 1.0, "-o", tmp_path / "train.tsv")
    taken = (tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert code == 0 and taken[0] == "text\tlabel" and f"{TEXTS[1]}\tbird" in taken and len(taken) == 4


def test_wrong_input_is_an_error_of_one_sentence_and_exit_code_2(run_regard, made, model, texts, tmp_path):
    other = write_model(tmp_path / "other", seed=2)
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    for args, sentence in (
        (["index", texts], "name the folder of the index with -o"),
        (["index", texts, "-o", made, "-m", model], "already exists"),
        (["index", empty, "-o", tmp_path / "x", "-m", model], "is empty"),
        (["index", texts, "-o", tmp_path / "x", "-m", tmp_path / "none"], "there is no model"),
        (["index", texts, "-o", made, "--remove", "x"], "run one command after the other"),
        (["index", texts, "-o", made, "--compact"], "run one command after the other"),
        (["index", "-o", tmp_path / "x"], "there is no folder"),
        (["index", texts, "-o", made, "--add", "-m", other], "was built with another model"),
        (["search", made, "x", "-m", other], "was built with another model"),
        (["search", made, "x", "--by", "magic"], "--by must be one of hybrid, vectors, bm25, got 'magic'"),
        (["search", made, " "], "there is no query"),
        (["search", texts, "x"], "there is no folder"),
        (["duplicates", texts, "-m", model, "-o", tmp_path / "no" / "x"], "its folder does not exist"),
        (["label", texts, "-m", model], "give examples"),
        (
            ["embed", "-i", texts, "-m", "tweet-names"],
            "this tagger reads sentences that are split into words",
        ),
        (["label", texts, "--take", "0.5"], "line 1 of"),
    ):
        code, _, errors = run_regard(*args)
        assert (
            code == 2 and sentence in errors and errors.startswith("regard: ") and errors.count("\n") == 1
        ), (args, errors)
        assert not (tmp_path / "x").exists()
