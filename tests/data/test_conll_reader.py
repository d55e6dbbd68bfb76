"""CoNLL files, valid and invalid."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data.conll_reader import Conll, Parser, one_word
from regard.errors import DataError, OptionError

PLAIN = "Ada\tB-PER\nLovelace\tI-PER\nsleeps\tO\n\n#nice\tO\nday\tO\n"


def write(folder: Path, text: str, name: str = "a.conll") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_sentence_is_its_words_and_its_tags(tmp_path: Path) -> None:
    assert list(Conll(write(tmp_path, PLAIN))) == [
        ("Ada Lovelace sleeps", "B-PER I-PER O"),
        ("#nice day", "O O"),
    ]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed_files_are_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.conll.gz"
    path.write_bytes(pack(PLAIN.encode()))
    assert len(list(Conll(path))) == 2


def test_columns_may_be_separated_by_spaces(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- -X- O\n\nEU NNP  I-NP B-ORG\nrejects VBZ I-VP O\n\n\n\nPeter NNP I-NP B-PER\n"
    assert list(Conll(write(tmp_path, text))) == [("EU rejects", "B-ORG O"), ("Peter", "B-PER")]


def test_germeval_has_four_columns_and_a_comment_before_each_sentence(tmp_path: Path) -> None:
    text = "#\thttp://example.org\t[2009]\t\n1\tSchartau\tB-PER\tO\n2\tsagte\tO\tO\n\n#\thttp://example.org\t[2010]\t\n1\tNRW\tB-LOC\tO\n"
    path = write(tmp_path, text)
    assert list(Conll(path, (2, 3))) == [("Schartau sagte", "B-PER O"), ("NRW", "B-LOC")]
    assert list(Conll(path, (2, 4))) == [("Schartau sagte", "O O"), ("NRW", "O")]


def test_a_hashtag_is_a_word_and_a_comment_is_not(tmp_path: Path) -> None:
    text = "# sent_id = 1\n#fun\tO\n#\tO\nParis\tB-LOC\n"
    assert list(Conll(write(tmp_path, text))) == [("#fun # Paris", "O O B-LOC")]


def test_words_with_spaces_or_without_characters_stay_one_word(tmp_path: Path) -> None:
    assert list(Conll(write(tmp_path, "New York\tB-LOC\n\tO\n\u2003\tO\nx \tO\n"))) == [
        ("New_York _ _ x", "B-LOC O O O")
    ]
    assert one_word("plain") == "plain"


def test_tags_are_converted_to_another_scheme(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    assert next(iter(Conll(path, scheme="iobes")))[1] == "B-PER E-PER O"
    assert next(iter(Conll(path, scheme="io")))[1] == "I-PER I-PER O"
    with pytest.raises(OptionError, match="bilou"):
        Conll(path, scheme="bilou")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a\tO\nb\n",
            r"line 2 of .*a.conll has 1 column and the lines before have 2, so column 2 is missing",
        ),
        (
            "a\tO\nb\tO\tO\n",
            "line 2 of .* has 3 columns and the lines before have 2, so column 3 is one too many",
        ),
        ("a O\n\nb c O\n", "line 3 of .* use tabs where words contain spaces"),
        (
            "a\tO\n\nb\tI-X\n\nc\tB-X\n",
            r"line 3, column 2 of .*: I-X cannot begin a sentence in BIO; fix it, or set data.repair",
        ),
        ("a\tB_X\n", r"line 1, column 2 of .*: 'B_X' is not a tag; a tag is O, or"),
        ("a\t\n", r"line 1, column 2 of .*: '' is not a tag"),
    ],
)
def test_malformed_rows_are_errors_with_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        list(Conll(write(tmp_path, text)))
    assert "\n" not in str(error.value)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1 of .* has 2 columns and the tag should be in column 4"):
        list(Conll(write(tmp_path, PLAIN), (1, 4)))
    with pytest.raises(OptionError, match="data.source is a column counted from 1"):
        Conll(tmp_path / "a", (0, 2))


def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"a\tO\n\xff\tO\n")
    with pytest.raises(DataError, match="line 2 of .* is not UTF-8"):
        list(Conll(path))


def test_malformed_gold_tags_are_repaired_as_conlleval_does_on_request(tmp_path: Path) -> None:
    path = write(tmp_path, "a\tI-X\nb\tI-Y\nc\tB-Y\n\nd\tO\ne\tI-X\n")
    broken = Conll(path)
    assert [output.split(" of ")[0] for output in broken.problems()] == [
        "line 1, column 2",
        "line 2, column 2",
        "line 6, column 2",
    ]
    assert list(Conll(path, repair=True)) == [("a b c", "B-X B-Y B-Y"), ("d e", "O B-X")]


def test_an_invalid_tag_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2, column 2 .* 'PER' is not a tag"):
        list(Conll(write(tmp_path, "a\tB-X\nb\tPER\n"), repair=True))


def test_a_row_knows_its_line_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    assert Conll(path, (1, 2)).place(1, 1) == f"{path} line 5, column 2"


def test_sentences_are_written_unchanged_with_one_more_column() -> None:
    for text in ("a\tx\tO\nb\ty\tB-P\n\n", "a x O\nb y B-P\n\n"):
        sentence = next(Parser("text").sentences(iter(text.split("\n"))))
        assert sentence.text() == text
        between = text[1]
        assert (
            sentence.text(["B-Q", "O"])
            == f"a{between}x{between}O{between}B-Q\nb{between}y{between}B-P{between}O\n\n"
        )


def test_files_of_words_need_no_tags() -> None:
    result = list(Parser("text", tag=None).sentences(iter(["# a comment", "#tag", "b", "", "c"])))
    assert [sentence.words() for sentence in result] == [["#tag", "b"], ["c"]]


@pytest.mark.parametrize(
    ("corpus", "file", "columns", "sentences", "words", "entities"),
    [
        ("wnut17", "train.conll.gz", (1, 2), 3394, 62730, 1975),
        ("wnut17", "test.conll.gz", (1, 2), 1287, 23394, 1079),
        ("broad-twitter", "h.conll.gz", (1, 2), 2001, 29480, 3368),
        ("germeval2014-ner", "NER-de-dev.tsv.gz", (2, 3), 2200, 41653, 2674),
    ],
)
def test_the_corpora_have_their_published_numbers_of_sentences_words_and_entities(
    real_data: Path,
    corpus: str,
    file: str,
    columns: tuple[int, int],
    sentences: int,
    words: int,
    entities: int,
) -> None:
    rows = list(Conll(real_data / corpus / file, columns))
    assert len(rows) == sentences
    assert (
        sum(len(text.split(" ")) for text, _ in rows)
        == sum(len(tags.split(" ")) for _, tags in rows)
        == words
    )
    assert sum(tags.count("B-") for _, tags in rows) == entities
