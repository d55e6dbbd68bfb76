"""Tests of tag.py: text, CoNLL and JSON, interruptions, wrong input.

Covers pipelines/tag.py, pipelines/tag_file.py.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import tag as command
from regard.data.conll_reader import Conll
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError, FolderError, OptionError, RegardError
from regard.models.build import build
from regard.models.folder import load, save
from regard.models.tagger import Tagger, TaggerOptions
from regard.pipelines import input as reading
from regard.pipelines.tag import Entity, tag
from regard.pipelines.tag_file import TagJob
from tests.decoding.model_folders import translator

NAMES, PLACES = ("Ada", "Bob", "Cyd"), ("Ulm", "Rom")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger that knows names of persons and places, and nothing else."""
    path = tmp_path_factory.mktemp("models") / "tagger"
    rows = [
        (f"{name} Lee went to {place} .", "B-PER I-PER O O B-LOC O") for name in NAMES for place in PLACES
    ]
    source = Tokenizer.train([text for text, _ in rows], "word-characters", 100, lowercase=True)
    target = Tokenizer.train([tags for _, tags in rows], "word", 100)
    given = {
        "kind": "tagger",
        "dim": 16,
        "dropout": 0.0,
        "characters": {"dim": 4, "width": 4},
        "encoder": {"kind": "embedding"},
    }
    config = TaggerOptions.model_validate(given).model_dump()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: Any = build(config, len(source), len(target))
    vocabulary, tags = source.vocabulary, target.entries
    with torch.no_grad():  # a table instead of training: each word's vector is the scores of its tags
        for p in model.parameters():
            p.zero_()
        for word, name in (
            ("ada", "B-PER"),
            ("bob", "B-PER"),
            ("cyd", "B-PER"),
            ("lee", "I-PER"),
            ("ulm", "B-LOC"),
            ("rom", "B-LOC"),
        ):
            model.source.table.weight[vocabulary[word], tags.index(name)] = 5.0
        model.output.weight[: len(tags), : len(tags)] = torch.eye(len(tags))
        model.output.bias[tags.index("O")] = 1.0
    save(path, model, config, source, target, {})
    return path


@pytest.fixture
def regard(run_command: Run) -> Run:
    return partial(run_command, command.command)


def test_a_tagger_is_loaded_from_its_folder(folder: Path) -> None:
    model = load(folder)
    assert isinstance(model, Tagger)
    assert model.tag([["Ada", "Lee", "saw", "Ulm"]]) == [["B-PER", "I-PER", "O", "B-LOC"]]


def test_spans_of_a_text_are_marked(folder: Path, regard: Run) -> None:
    assert (
        regard("Yesterday Ada  Lee (of Ulm) left.", "--model", folder)[1]
        == "Yesterday [PER Ada  Lee] (of [LOC Ulm]) left.\n"
    )
    assert regard("nothing here", "--model", folder)[1] == "nothing here\n"


def test_the_function_splits_texts_as_the_command_does(folder: Path, regard: Run) -> None:
    model, text = load(folder), "Yesterday Ada  Lee (of Ulm) left."
    tagged, words, empty = tag([text, ["Ada", "Lee", "saw", "Ulm"], ""], model)
    assert (
        tagged == [Entity("Ada  Lee", "PER", 10, 18), Entity("Ulm", "LOC", 23, 26)]
        and text[10:18] == tagged[0].text
    )
    assert words == [Entity("Ada Lee", "PER", 0, 2), Entity("Ulm", "LOC", 3, 4)] and words.tags == [
        "B-PER",
        "I-PER",
        "O",
        "B-LOC",
    ]
    assert (
        f"{tagged}\n" == regard(text, "--model", folder)[1]
        and str(words) == "[PER Ada Lee] saw [LOC Ulm]"
        and empty == []
    )
    assert (
        repr(words[1:]) == "[Entity(text='Ulm', label='LOC', start=3, end=4)]"
        and str(words[1]) == "Ulm (LOC)"
    )
    long = tag(["Ada " * 2500], model)[0]
    assert len(long) == 2500 and long[-1].start == 4 * 2499
    for wrong in (None, 3, [1], [None], [["Ada", 1]]):
        with pytest.raises(OptionError, match="list of"):
            tag(wrong, model)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="takes a tagger"):
        tag(["Ada"], object())


def test_adjacent_names_stay_separate(folder: Path, regard: Run) -> None:
    assert regard("Ada Bob Lee", "--model", folder)[1] == "[PER Ada] [PER Bob Lee]\n"


def test_json_has_the_position_of_every_span(folder: Path, regard: Run) -> None:
    text = "Hé, Ada Lee: Rom!"
    record = json.loads(regard("--json", text, "--model", folder)[1])
    assert record["spans"] == [
        {"start": 4, "end": 11, "type": "PER", "text": "Ada Lee"}, {"start": 13, "end": 16, "type": "LOC",
        "text": "Rom"}
    ]  # fmt: skip
    assert all(text[span["start"] : span["end"]] == span["text"] for span in record["spans"])


def test_conll_gets_one_more_column_and_keeps_the_rest(folder: Path, regard: Run, tmp_path: Path) -> None:
    given = "# about\n1\tAda\tO\n2\tLee\tO\n\n\n1\tgo\tO\n2\tUlm\tO"
    (tmp_path / "in.tsv").write_text(given, encoding="utf-8")
    code, out, _ = regard(
        "-i", tmp_path / "in.tsv", "--conll", "--column", 2, "-o", tmp_path / "out.conll", "--model", folder
    )
    assert (code, out) == (0, "")
    expected = "# about\n1\tAda\tO\tB-PER\n2\tLee\tO\tI-PER\n\n\n1\tgo\tO\tO\n2\tUlm\tO\tB-LOC\n\n"
    assert (tmp_path / "out.conll").read_text(encoding="utf-8") == expected


def test_written_conll_can_be_read_as_gold(folder: Path, regard: Run, tmp_path: Path) -> None:
    path = tmp_path / "words.conll.gz"
    path.write_bytes(gzip.compress(b"-DOCSTART- O\n\nAda O\nLee O\n\n#x O\nRom O\n"))
    regard("-i", path, "-o", tmp_path / "out.conll.gz", "--model", folder)
    assert list(Conll(tmp_path / "out.conll.gz", (1, 3))) == [
        ("Ada Lee", "B-PER I-PER"),
        ("#x Rom", "O B-LOC"),
    ]


def test_text_becomes_conll_in_the_requested_scheme(folder: Path, regard: Run) -> None:
    assert (
        regard("--to-conll", "--scheme", "iobes", "Ada Lee, Ulm", "--model", folder)[1]
        == "Ada\tB-PER\nLee\tE-PER\n,\tO\nUlm\tS-LOC\n\n"
    )


def test_a_field_of_json_lines_is_read_and_the_rest_is_kept(
    folder: Path, regard: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 7, "text": "to Ulm"}\n', encoding="utf-8")
    record = json.loads(regard("-i", tmp_path / "a.jsonl", "--json", "--model", folder)[1])
    assert record == {
        "id": 7,
        "text": "to Ulm",
        "spans": [{"start": 3, "end": 6, "type": "LOC", "text": "Ulm"}],
    }


def test_conll_as_json_has_words_and_tags(folder: Path, regard: Run, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("to\nUlm\n", encoding="utf-8")
    record = json.loads(regard("-i", tmp_path / "a.conll", "--json", "--model", folder)[1])
    assert record["words"] == ["to", "Ulm"]
    assert record["tags"] == ["O", "B-LOC"]
    assert record["spans"] == [{"start": 1, "end": 2, "type": "LOC", "text": "Ulm"}]


def test_spaced_text_is_split_at_spaces_only(folder: Path, regard: Run) -> None:
    assert regard("--spaced", "--to-conll", "Ulm. isn't", "--model", folder)[1] == "Ulm.\tO\nisn't\tO\n\n"


def test_a_terminal_gets_colours(folder: Path, regard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.cli.weight_matrix.shows_color", lambda stream: True)
    assert (
        regard("Ulm Ada", "--model", folder)[1]
        == "\x1b[1;4;36mUlm\x1b[0m\x1b[36m LOC\x1b[0m \x1b[1;4;33mAda\x1b[0m\x1b[33m PER\x1b[0m\n"
    )


def test_an_interrupted_job_resumes_between_sentences(
    folder: Path, regard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", 4)
    given = "".join(f"Ada\nw{i}\nUlm\n\n" for i in range(30))
    (tmp_path / "in.conll").write_text(given, encoding="utf-8")
    regard("-i", tmp_path / "in.conll", "-o", tmp_path / "uninterrupted.conll", "--model", folder)
    calls, real = [0], TagJob.__call__

    def stopping(self: TagJob, chunk: Any) -> list[bytes]:
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return real(self, chunk)

    monkeypatch.setattr(TagJob, "__call__", stopping)
    code, _, output = regard("-i", tmp_path / "in.conll", "-o", tmp_path / "out.conll", "--model", folder)
    assert code == 130
    assert "stopped after 12 lines, which are kept" in output
    assert not (tmp_path / "out.conll").exists()
    monkeypatch.setattr(TagJob, "__call__", real)
    _, _, output = regard("-i", tmp_path / "in.conll", "-o", tmp_path / "out.conll", "--model", folder)
    assert "resuming after 12 lines" in output
    assert (tmp_path / "out.conll").read_bytes() == (tmp_path / "uninterrupted.conll").read_bytes()


def test_a_line_of_many_thousand_words_is_tagged_in_parts(folder: Path, regard: Run) -> None:
    text = " ".join(["Ada Lee"] * 2500)
    assert regard(text, "--model", folder)[1] == " ".join(["[PER Ada Lee]"] * 2500) + "\n"


@pytest.mark.parametrize(
    ("given", "args", "kind", "message"),
    [
        (
            "a\tO\nb\n",
            ("--conll",),
            DataError,
            r"line 2 of .* has 1 column and the lines before have 2, so column 2 is missing",
        ),
        (
            "a\tO\n",
            ("--conll", "--column", 3),
            DataError,
            "line 1 of .* has 2 columns and the word should be in column 3",
        ),
        ("a\n", ("--conll", "--field", "x"), OptionError, "give one of them"),
        ("a\n", ("--conll", "--spaced"), OptionError, "leave it out"),
        ("a\n", ("--column", 2), OptionError, "--column is for CoNLL input"),
        ("a\n", ("--json", "--to-conll"), OptionError, "--json and --to-conll exclude each other"),
        ("a\n", ("--json", "--scheme", "bilou"), OptionError, "one of bio, iobes, io, got 'bilou'"),
        ("a\n", ("--scheme", "bio"), OptionError, "--scheme is for CoNLL and JSON output"),
        ("a\n", ("--field", "x"), DataError, "line 1 of .* is not a JSON object"),
    ],
)
def test_invalid_input_is_an_error_of_one_sentence(
    folder: Path,
    regard: Run,
    tmp_path: Path,
    given: str,
    args: tuple[Any, ...],
    kind: type[RegardError],
    message: str,
) -> None:
    (tmp_path / "a.txt").write_text(given, encoding="utf-8")
    with pytest.raises(kind, match=message) as error:
        regard("-i", tmp_path / "a.txt", *args, "--model", folder)
    assert "\n" not in str(error.value)


def test_another_kind_of_model_is_named(tmp_path: Path, regard: Run) -> None:
    with pytest.raises(FolderError, match="is a translator, and tagging takes a tagger"):
        regard("a", "--model", translator(tmp_path / "model"))


def test_a_file_cannot_be_both_input_and_output(folder: Path, regard: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    with pytest.raises(OptionError, match="is both input and output"):
        regard("-i", tmp_path / "a.txt", "-o", tmp_path / "a.txt", "--model", folder)
