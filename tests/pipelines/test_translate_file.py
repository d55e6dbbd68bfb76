"""Tests of translate_file.py and translation_formats.py: output formats of a chunk, and resuming.

Covers attention_file.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints
from regard.decoding.sampling import Sample
from regard.errors import FolderError, OptionError
from regard.pipelines import input as source_module
from regard.pipelines.input import Chunk, Field, Row, Source
from regard.pipelines.job import Outputs, fingerprint, open_output, run_job
from regard.pipelines.translate import translate
from regard.pipelines.translate_file import TranslateOptions, make_job
from tests.decoding.model_folders import language_model, translator

LINES = ["Tom is here.", "", "hello world", "   ", "b", "cats do not like dogs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return translator(tmp_path_factory.mktemp("models") / "translator")


def chunk(*texts):
    return Chunk(0, [Row(text, text) for text in texts], "")


def written(folder, settings, *texts):
    return [data.decode() for data in make_job([folder], settings)(chunk(*texts))]


def plain(folder, texts, **options):
    return translate(texts, make_job([folder], TranslateOptions()).model, **options)


def test_lines_are_translated_in_order_and_empty_ones_stay(folder):
    expected = [
        str(result) if text.strip() else "" for text, result in zip(LINES, plain(folder, LINES), strict=True)
    ]
    assert written(folder, TranslateOptions(output="-"), *LINES) == [
        "".join(f"{line}\n" for line in expected)
    ]
    assert len(set(expected)) == 5


def test_nbest_lists_have_the_format_of_moses(folder):
    (text,) = written(folder, TranslateOptions(output="-", nbest=2, strategy=Beam(3)), *LINES)
    result = plain(folder, LINES, beam=3, nbest=2)
    rows = [line.split(" ||| ") for line in text.splitlines()]
    assert [int(row[0]) for row in rows] == [0, 0, 1, 2, 2, 3, 4, 4, 5, 5]
    assert [row[1] for row in rows if row[0] == "2"] == [h.text for h in result[2].hypotheses]
    assert [float(row[2]) for row in rows if row[0] == "2"] == [
        round(h.score, 4) for h in result[2].hypotheses
    ]
    assert rows[2][1:] == ["", "0.0000"]


def test_long_lines_are_translated_sentence_by_sentence(folder):
    sentences = [
        "Tom is here and there.",
        "I like cats.",
        "Do you?",
    ]  # 22 + 12 + 7 characters, and 40 at most
    expected = plain(folder, sentences)
    assert written(folder, TranslateOptions(output="-"), "  ".join(sentences)) == ["  ".join(expected) + "\n"]
    assert written(folder, TranslateOptions(output="-", split=False), "  ".join(sentences)) == [
        plain(folder, ["  ".join(sentences)])[0] + "\n"
    ]


def test_a_model_of_single_sentences_splits_lines_of_several_sentences(folder):
    """`split_tokens` of its card; a prefix is one of the whole line, and --no-split keeps all lines whole."""
    two = "I like cats. Do you?"  # 20 tokens, and the model takes 40

    def texts(line, **options):
        job = make_job([folder], TranslateOptions(output="-", **options))
        job.model.card = job.model.card | {"decoding": {"split_tokens": 10}}
        return [str(t) for t in job.translate(chunk(line))[0].translations]

    assert texts(two) == [str(t) for t in plain(folder, ["I like cats.", "Do you?"])]
    assert texts("Tom is here and there.") == [str(plain(folder, ["Tom is here and there."])[0])]
    whole = [str(plain(folder, [two])[0])]
    assert texts(two, split=False) == whole
    assert len(texts(two, constraints=Constraints(prefix="a"))) == 1


def test_alignments_of_a_split_line_count_over_its_pieces(folder):
    sentences = ["Tom is here and there.", "I like cats.", "Do you?"]
    settings = TranslateOptions(output="-", align=True)
    parts = [line.split("\t") for line in written(folder, settings, *sentences)[0].splitlines()]
    full, links = written(folder, settings, " ".join(sentences))[0].strip().split("\t")
    expected, before = [], [0, 0]
    for sentence, (text, result) in zip(sentences, parts, strict=True):
        expected += [
            tuple(int(n) + b for n, b in zip(pair.split("-"), before, strict=True)) for pair in result.split()
        ]
        before = [before[0] + len(sentence.split()), before[1] + len(text.split())]
    assert full == " ".join(text for text, _ in parts)
    assert {tuple(map(int, pair.split("-"))) for pair in links.split()} == set(expected)


def test_json_lines_keep_their_fields_and_gain_a_translation(folder, tmp_path):
    rows = [{"id": 1, "text": "hello world"}, {"text": "b\n\nTom", "odd": "\ud83d"}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n", encoding="utf-8")
    settings = TranslateOptions(output=str(tmp_path / "out.jsonl"), output_format="json", field="text")
    run_job(
        Source((path,), layout=Field("text")),
        Outputs([open_output(Path(settings.output))], {}),
        make_job([folder], settings),
        3,
    )
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    one, two, three = plain(folder, ["hello world", "b", "Tom"])
    assert records[0] == {
        "id": 1,
        "text": "hello world",
        "translation": one,
        "score": round(one.hypotheses[0].score, 4),
    }
    assert (records[1]["translation"], records[1]["odd"]) == (f"{two}\n\n{three}", "\ud83d")
    assert records[2]["translation"] == ""


@pytest.mark.parametrize("name", ["seen.jsonl", "seen.npz"])
def test_attention_of_every_hypothesis_is_written_to_a_second_file(folder, tmp_path, name):
    settings = TranslateOptions(
        output=str(tmp_path / "o"), attention_file=str(tmp_path / name), nbest=2, strategy=Beam(2)
    )
    source = Source(texts=("hello world", "", "Tom is here and there. I like cats. Do you?"))
    run_job(
        source,
        Outputs([open_output(Path(path)) for path in settings.paths], {}),
        make_job([folder], settings),
        3,
    )
    if name.endswith("npz"):
        with np.load(tmp_path / name) as arrays:
            keys = {key.rsplit("/", 1)[0] for key in arrays.files}
            weights = [arrays[key] for key in arrays.files if not key.endswith("/text")]
    else:
        records = [json.loads(line) for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        keys = {f"{record['line']}/{record['hypothesis']}" for record in records}
        weights = [np.array(w) for record in records for w in record["weights"].values()]
    assert keys == {f"{line}/{rank}" for line in ("0", "2.0", "2.1", "2.2") for rank in (0, 1)}
    for w in weights:
        np.testing.assert_allclose(w.sum(-1), 1, atol=1e-4)


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_the_size_of_chunks_changes_nothing(folder, tmp_path, monkeypatch, pieces):
    settings = TranslateOptions(
        output=str(tmp_path / "o"), strategy=Beam(2), alignment_file=str(tmp_path / "a"), align=True
    )
    full = [data.decode() for data in make_job([folder], settings)(chunk(*LINES))]
    monkeypatch.setattr(source_module, "CHUNK_LINES", pieces)
    run_job(
        Source(texts=tuple(LINES)),
        Outputs([open_output(Path(p)) for p in settings.paths], {}),
        make_job([folder], settings),
        6,
    )
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in ("o", "a")] == full


def test_resuming_with_another_input_is_an_error(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "CHUNK_LINES", 2)
    settings = TranslateOptions(output=str(tmp_path / "o"))
    work = make_job([folder], settings)

    def stopped(chunk):
        if chunk.first:
            raise KeyboardInterrupt
        return work(chunk)

    outputs = Outputs([open_output(tmp_path / "o")], {})
    with pytest.raises(KeyboardInterrupt):
        run_job(Source(texts=tuple(LINES)), outputs, stopped, 6)
    outputs._journal._file.close()
    again = Outputs([open_output(tmp_path / "o")], {})
    with pytest.raises(
        OptionError, match=r"the first 2 lines are not those that .*o was started with; .*--restart"
    ):
        run_job(Source(texts=("other", *LINES[1:])), again, work, 6)
    again._journal._file.close()
    run_job(Source(texts=tuple(LINES)), Outputs([open_output(tmp_path / "o")], {}), work, 6)
    assert [(tmp_path / "o").read_text(encoding="utf-8")] == written(folder, settings, *LINES)


def test_constraints_reach_the_search(folder):
    settings = TranslateOptions(output="-", constraints=Constraints(prefix="abc"), strategy=Beam(4))
    assert all(
        line.startswith("abc") for line in written(folder, settings, "b", "hello world")[0].splitlines()
    )
    settings = TranslateOptions(output="-", constraints=Constraints(required=["xyz"]), strategy=Beam(4))
    assert all("xyz" in line for line in written(folder, settings, "b", "hello world")[0].splitlines())
    first = written(folder, TranslateOptions(output="-"), "b")[0][0]
    assert (
        first
        not in written(folder, TranslateOptions(output="-", constraints=Constraints(forbidden=[first])), "b")[
            0
        ]
    )


def test_samples_of_a_line_do_not_depend_on_its_neighbours(folder):
    settings = TranslateOptions(output="-", strategy=Sample(seed=3, temperature=1.5, count=3), nbest=3)

    def texts(*lines):
        return [line.split(" ||| ")[1] for line in written(folder, settings, *lines)[0].splitlines()]

    alone = texts("hello world")
    assert len(set(alone)) > 1
    assert texts("b", "hello world")[3:] == alone
    settings = replace(settings, strategy=Sample(seed=4, temperature=1.5, count=3))
    assert texts("hello world") != alone


def test_ensembles_translate_and_wrong_models_are_errors(folder, tmp_path):
    other = translator(tmp_path / "other", seed=5)
    both = make_job([folder, other], TranslateOptions(output="-"))
    assert both(chunk("hello world")) == make_job([other, folder], TranslateOptions(output="-"))(
        chunk("hello world")
    )
    with pytest.raises(OptionError, match="leave out --with"):
        make_job([folder, other], TranslateOptions(output="-", align=True))
    with pytest.raises(FolderError, match="is a language model"):
        make_job([language_model(tmp_path / "lm")], TranslateOptions())
    with pytest.raises(OptionError, match="nbest 2"):
        make_job([folder], TranslateOptions(nbest=2))
    assert fingerprint([folder]) != fingerprint([other])
