"""Tests of jobs.py and embed.py: texts come first, and the model is named with --model."""

import gc
import json

import numpy as np
import pytest

import regard as package
from regard.decoding.limits import Limits
from regard.models import catalog
from regard.models.folder import load, save
from tests import forked
from tests.decoding import model_folders
from tests.search.small import TEXTS, embedder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, write in (
        ("translate", model_folders.translator), ("align", model_folders.translator),
        ("generate", model_folders.language_model), ("classify", model_folders.classifier),
        ("tag", model_folders.tagger),
    ):  # fmt: skip
        write(folder / name)
    model = embedder()
    save(folder / "embed", model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    return folder


@pytest.fixture
def run(run_regard, monkeypatch):
    """`run_regard` without a default model."""
    monkeypatch.delenv("REGARD_MODEL", raising=False)
    return run_regard


TEXT = {
    "translate": ["hello world"], "classify": ["hello world"], "tag": ["ada met Babbage"],
    "embed": [TEXTS[0]],
    "generate": ["Tom", "--seed", "1"], "align": ["a b", "c d"],
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT)
def test_the_model_option_may_come_first_or_last_or_from_the_environment(name, place, run, monkeypatch):
    code, expected, _ = run(name, *TEXT[name], "--model", place / name)
    assert code == 0 and expected
    assert run(name, "-m", place / name, *TEXT[name])[:2] == (0, expected)
    monkeypatch.setenv("REGARD_MODEL", str(place / name))
    assert run(name, *TEXT[name])[:2] == (0, expected)


@pytest.mark.parametrize("name", TEXT)
def test_a_missing_model_is_an_error_of_one_sentence_with_the_fix(name, run, monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "BUNDLED", tmp_path)
    code, out, err = run(name, *TEXT[name])
    assert (code, out) == (2, "")
    assert err.startswith(
        f"regard: no model is named, and none is bundled yet to {name}; name a folder with --model"
    )
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", TEXT)
def test_the_old_order_is_refused_with_the_right_command(name, place, run):
    code, out, err = run(name, place / name, *TEXT[name])
    assert (code, out, err.count("\n")) == (2, "", 1)
    words = " ".join(f"'{word}'" if " " in word else word for word in TEXT[name])
    assert err.endswith(f"name the model with --model: regard {name} {words} --model {place / name}\n")


def test_the_old_order_with_files_is_refused_with_the_right_command(place, run, tmp_path):
    (tmp_path / "a").write_text("a b\n", encoding="utf-8")
    (tmp_path / "b").write_text("c d\n", encoding="utf-8")
    a, b = tmp_path / "a", tmp_path / "b"
    err = run("translate", place / "translate", "-i", a)[2]
    assert err.endswith(f": regard translate -i {a} --model {place / 'translate'}\n")
    err = run("align", place / "align", a, b)[2]
    right = ["align", "-i", str(a), str(b), "--model", str(place / "align")]
    assert err.endswith(f": regard {' '.join(right)}\n")
    assert run(*right)[0] == 0
    assert (
        f"files are named after -i: regard align -i {a} {b}" in run("align", a, b, "-m", place / "align")[2]
    )
    assert "a text is expected here" in run("translate", place / "classify", "-m", place / "translate")[2]


def test_two_texts_are_aligned_as_lines_of_two_files_are(place, run, tmp_path):
    (tmp_path / "a").write_text("a b\nb\n", encoding="utf-8")
    (tmp_path / "b").write_text("c d e\nf\n", encoding="utf-8")
    links = package.align(["a b", "b"], ["c d e", "f"], place / "align")
    lines = ["".join(f"{s}-{t} " for s, t in sorted(link)).strip() for link in links]
    assert run("align", "a b", "c d e", "-m", place / "align")[1].splitlines() == lines[:1]
    assert run("align", "-i", tmp_path / "a", tmp_path / "b", "-m", place / "align")[1].splitlines() == lines
    for given, message in (("a b", "got 1"), ("-i", "got 1")):
        words = [given, *([tmp_path / "a"] if given == "-i" else [])]
        code, _, err = run("align", *words, "-m", place / "align")
        assert code == 2 and message in err


@pytest.mark.parametrize(
    ("name", "given", "texts"),
    [
        ("align", "a b\tc d\n", ["a b", "c d"]),
        ("embed", f"{TEXTS[0]}\n", [TEXTS[0]]),
        ("translate", "hello world\n", ["hello world"]),
    ],
)
def test_standard_input_gives_what_the_texts_give(place, run, name, given, texts):
    done = forked.run(name, "--model", place / name, input=given)
    assert (done.returncode, done.stdout, done.stderr) == (0, run(name, *texts, "-m", place / name)[1], "")


def test_standard_input_without_a_tab_is_an_error_of_one_sentence(place):
    done = forked.run("align", "--model", place / "align", input="a\tb\na b\n")
    assert done.returncode == 2 and "line 2 of standard input has 0 tabs; put one between" in done.stderr


def test_to_is_checked_before_any_work(place, run, tmp_path):
    folder = tmp_path / "model"
    model_folders.translator(folder)
    card = json.loads((folder / "card.json").read_text())
    card["recipe"]["data"]["target"] = "de"
    (folder / "card.json").write_text(json.dumps(card))
    assert (
        run("translate", "hello", "-m", folder, "--to", "de")[:2]
        == run("translate", "hello", "-m", folder)[:2]
    )
    code, out, err = run("translate", "hello", "-m", folder, "--to", "fr", "-o", tmp_path / "o")
    assert (code, out) == (2, "") and "translates into 'de' only, got to='fr'" in err
    assert not (tmp_path / "o.progress").exists()


def test_several_prompts_lines_of_a_file_and_a_file_to_write_to(place, run, tmp_path):
    model = load(place / "generate")
    (tmp_path / "in.txt").write_text("Tom\nBob\n", encoding="utf-8")
    expected = package.generate(
        ["Tom", "Bob"], model, strategy=package.Sample(seed=0), limits=Limits(max_length=9)
    )
    more = ("--length", "9", "-m", place / "generate")
    assert run("generate", "-i", tmp_path / "in.txt", *more)[1].splitlines() == [
        f"{p.prompt}{p}" for p in expected
    ]
    assert run("generate", "Tom", "Bob", "-o", tmp_path / "o.jsonl", *more)[0] == 0
    records = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(record["prompt"], record["text"]) for record in records] == [
        (p.prompt, str(p)) for p in expected
    ]
    alone = [package.generate(text, model, beam=2, limits=Limits(max_length=9)) for text in ("Tom", "Bob")]
    assert run("generate", "Tom", "Bob", "--beam", "2", *more)[1].splitlines() == [
        f"{p.prompt}{p}" for p in alone
    ]


def test_vectors_are_those_of_the_python_call_in_every_form(place, run, tmp_path):
    lines, more = [*TEXTS, ""], ("-m", place / "embed")
    expected = package.embed(lines, place / "embed")
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert run("embed", "-i", tmp_path / "in.txt", *more, "-o", tmp_path / "v.npy")[0] == 0
    arrays = np.load(tmp_path / "v.npy")
    assert arrays.dtype == np.float32 and arrays.shape == expected.shape
    np.testing.assert_array_equal(arrays, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "v.npy"]
    table = [
        [float(cell) for cell in line.split("\t")] for line in run("embed", *TEXTS[:2], *more)[1].splitlines()
    ]
    np.testing.assert_allclose(table, expected[:2], atol=2e-6)
    record = json.loads(run("embed", TEXTS[0], "--json", *more)[1])
    assert record["text"] == TEXTS[0]
    np.testing.assert_allclose(record["embedding"], expected[0], atol=2e-6)
    (tmp_path / "in.csv").write_text("id;abstract\n1;the cat, that sat\n", encoding="utf-8")
    assert (
        run("embed", "-i", tmp_path / "in.csv", "--column", "Abstract", *more, "-o", tmp_path / "c.npy")[0]
        == 0
    )
    np.testing.assert_allclose(
        np.load(tmp_path / "c.npy"), package.embed(["the cat, that sat"], place / "embed"), atol=2e-6
    )
    (tmp_path / "none").write_bytes(b"")
    assert run("embed", "-i", tmp_path / "none", *more, "-o", tmp_path / "n.npy")[0] == 0
    assert np.load(tmp_path / "n.npy").shape == (0, 32)


def test_an_interrupted_embedding_job_resumes_to_identical_bytes(place, run, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.pipelines.input.CHUNK_LINES", 3)
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in TEXTS), encoding="utf-8")
    command = ("embed", "-i", tmp_path / "in.txt", "-m", place / "embed", "-o")
    assert run(*command, tmp_path / "uninterrupted.npy")[0] == 0
    work, calls = package.pipelines.embed_file.embed, []

    def stopping(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return work(*args, **options)

    monkeypatch.setattr("regard.pipelines.embed_file.embed", stopping)
    code, _, err = run(*command, tmp_path / "v.npy")
    assert code == 130 and "stopped after 3 lines" in err and not (tmp_path / "v.npy").exists()
    gc.collect()  # release the lock on the journal, as the end of a process would
    code, _, err = run(*command, tmp_path / "v.npy")
    assert code == 0 and "resuming after 3 lines" in err
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "uninterrupted.npy").read_bytes()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-o", "v.npz"], "name it .npy"),
        (["-o", "v.npy", "--json"], "leave out --json"),
        (["-o", "v.npy.gz"], "name it .npy alone"),
    ],
)
def test_invalid_input_to_embed_is_an_error_of_one_sentence(place, run, args, message):
    code, out, err = run("embed", "a", "-m", place / "embed", *args)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


TABLES = {
    "in.csv": "id;Text\n1;hello, world\n2;b\n",
    "in.tsv": "id\tText\n1\thello, world\n2\tb\n",
    "tabs.csv": 'id\tText\n1\t"hello, world"\n2\tb\n',
    "commas.csv": 'id,Text\n1,"hello, world"\n2,b\n',
    "pipes.txt": "id|Text\n1|hello, world\n2|b\n",
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("task", ["classify", "translate"])
def test_tables_are_read_as_training_reads_them(place, run, tmp_path, name, task):
    (tmp_path / name).write_text(TABLES[name], encoding="utf-8")
    expected = run(task, "hello, world", "b", "-m", place / task)[1]
    for column in ("text", "Text", "2"):
        code, out, err = run(task, "-i", tmp_path / name, "--column", column, "-m", place / task)
        assert (code, out) == (0, expected), err
    if not name.endswith(".txt"):  # .csv and .tsv are tables by default
        assert run(task, "-i", tmp_path / name, "-m", place / task)[1] == expected
        first, *rows = _table(run, task, place, tmp_path / name, tmp_path / "o.tsv")
        assert first[:2] == ["id", "Text"] and [row[:2] for row in rows] == [
            ["1", "hello, world"],
            ["2", "b"],
        ]
        assert [row[2] for row in rows] == [line.split("\t")[0] for line in expected.splitlines()]
    code, _, err = run(task, "-i", tmp_path / name, "--column", "none", "-m", place / task)
    assert code == 2 and "names no column 'none'; it has 'id', 'Text'" in err


def _table(run, task, place, given, output):
    assert run(task, "-i", given, "-m", place / task, "-o", output)[0] == 0
    return [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
