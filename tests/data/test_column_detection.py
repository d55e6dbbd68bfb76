"""Layout of user tables: separator, header, columns by name or number from 1, and reported guesses."""

import pytest

from regard.data.corpora import find
from regard.data.datasets import load_corpus as load
from regard.data.reader_choice import open_files, open_labelled
from regard.data.readers import Table
from regard.errors import DataError

TATOEBA = "Go.\tGeh.\tCC-BY 2.0 (France)\nHi.\tHallo!\tCC-BY 2.0 (France)\n"
TEXTS = [f"this is review number {i}, of a film" for i in range(12)]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("source", "target"), [(1, 2), ("1", "2"), (None, None), ("en", "de")])
def test_translation_columns_count_from_1_with_and_without_quotes(tmp_path, source, target):
    rows = open_files([write(tmp_path / "deu.tsv", TATOEBA)], source, target, True)
    assert list(rows) == [("Go.", "Geh."), ("Hi.", "Hallo!")]
    assert rows.notes()[0].startswith(
        "deu.tsv: 3 columns separated by tabs, no header; source = column 1, target = column 2"
    )


def test_a_single_file_is_a_table_with_any_suffix(tmp_path):
    assert next(iter(open_files([write(tmp_path / "deu.txt", TATOEBA)], 2, 1, True))) == ("Geh.", "Go.")


@pytest.mark.parametrize("number", [0, "0"])
def test_column_0_is_refused(tmp_path, number):
    path = write(tmp_path / "a.tsv", TATOEBA)
    with pytest.raises(DataError, match="there is no column 0: columns are counted from 1"):
        open_files([path], number, 1, True)
    with pytest.raises(DataError, match="there is no column 0: columns are counted from 1"):
        open_labelled(path, number, 1)


def test_a_name_that_is_no_language_and_not_in_the_header_is_refused(tmp_path):
    with pytest.raises(DataError, match="line 1 names no column 'english'; it has 'Go.', 'Geh.'"):
        open_files([write(tmp_path / "a.tsv", TATOEBA)], "english", "german", True)


@pytest.mark.parametrize(
    ("separator", "name"), [(",", "commas"), ("\t", "tabs"), (";", "semicolons"), ("|", "pipes")]
)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("header", ["", "Kommentar{}Note\n", "text{}label\n"])
def test_separator_and_header_are_detected(tmp_path, separator, name, ending, header):
    quote = '"' if separator == "," else ""
    body = "".join(f"{quote}{text}{quote}{separator}{i % 2}\n" for i, text in enumerate(TEXTS))
    rows = open_labelled(write(tmp_path / f"a.{ending}", header.format(separator) + body), None, None)
    assert list(rows) == [(text, str(i % 2)) for i, text in enumerate(TEXTS)]
    assert f"separated by {name}, {'a' if header else 'no'} header" in rows.notes()[0]


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("{label},{text}", (2, 1)),
        ("{i},{text},{label}", (2, 3)),
        ("{label},{i},{text}", (3, 1)),
        ("{text},{label}", (1, 2)),
    ],
)
def test_text_and_label_columns_are_detected_from_their_cells(tmp_path, line, columns):
    body = "".join(
        line.format(label="ab"[i % 2], text=f'"{text}"', i=i) + "\n" for i, text in enumerate(TEXTS)
    )
    rows = open_labelled(write(tmp_path / "a.csv", body), None, None)
    assert list(rows) == [(text, "ab"[i % 2]) for i, text in enumerate(TEXTS)]
    assert f"text = column {columns[0]}, label = column {columns[1]}" in rows.notes()[0]


def test_an_empty_cell_is_no_label(tmp_path):
    rows = "".join(f"{text},{'' if i % 3 else 'seen'},{'abc'[i % 3]}\n" for i, text in enumerate(TEXTS))
    path = write(tmp_path / "a.csv", "comment,checked,kind\n" + rows.replace(", of", " of"))
    assert {label for _, label in open_labelled(path, None, None)} == {"a", "b", "c"}


def test_json_that_is_no_table_is_refused(tmp_path):
    body = "".join(f'{{"text": "{text}", "label": "{i % 2}"}}\n' for i, text in enumerate(TEXTS))
    with pytest.raises(DataError, match=r"a\.json is JSON and not a table; .* end its name in \.jsonl"):
        open_labelled(write(tmp_path / "a.json", body), None, None)


def test_swapped_text_and_label_columns_are_refused(tmp_path):
    path = write(tmp_path / "a.tsv", "".join(f"{'ab'[i % 2]}\t{text}\n" for i, text in enumerate(TEXTS)))
    with pytest.raises(
        DataError, match="look swapped in .*12 different values in 12 rows.* set data.source=2 data.target=1"
    ):
        open_labelled(path, 1, 2)


def test_a_label_column_name_has_priority_over_a_number(tmp_path):
    path = write(tmp_path / "a.csv", "text,label,label_text\nfine,1,positive\n")
    assert list(open_labelled(path, None, None)) == [("fine", "positive")]
    path = write(tmp_path / "a.jsonl", '{"sentence": "fine", "label": 1, "label_text": "positive"}\n')
    assert list(open_labelled(path, None, None)) == [("fine", "positive")]


def test_unreadable_tables_are_errors_of_one_sentence(tmp_path):
    with pytest.raises(DataError, match="one column: no line is divided by tabs, commas, semicolons, pipes"):
        open_labelled(write(tmp_path / "a.csv", "only text\n" * 9), None, None)
    with pytest.raises(DataError, match="a.csv has no rows, at most a header"):
        load({"train": [str(write(tmp_path / "a.csv", "text,label\n"))]}, {"kind": "word"}, "classify")
    unique = write(
        tmp_path / "b.csv", "".join(f"{text.replace(',', '')},name {i}\n" for i, text in enumerate(TEXTS))
    )
    with pytest.raises(
        DataError, match="no column of .*b.csv looks like labels: column 2 has 12 different values in 12 rows"
    ):
        open_labelled(unique, None, None)


def test_an_empty_held_out_share_is_refused_before_training(tmp_path):
    path = write(tmp_path / "a.tsv", "fine\tgood\nawful\tbad\nhm\tgood\n")
    with pytest.raises(
        DataError,
        match=r"no row is left for validation: data.hold_out takes 0.1 of each class .* 3 rows in 2 cl",
    ):
        load({"train": [str(path)], "hold_out": 0.1}, {"kind": "word"}, "classify")


def test_too_little_data_gives_a_warning_with_row_counts(tmp_path):
    body = "".join(f"{text}\t{'ab'[i % 2]}\n" for i, text in enumerate(TEXTS * 5))
    corpus = load(
        {"train": [str(write(tmp_path / "a.tsv", body + "alone\tc\n"))], "hold_out": 0.2},
        {"kind": "word"},
        "classify",
    )
    output = "\n".join(corpus.warnings)
    assert "1 label has one training row (c); add rows" in output
    assert (
        "training rows for 3 labels are few: below about 100 each" in output
        and "validation rows are few" in output
    )
    assert corpus.notes == [
        "a.tsv: 2 columns separated by tabs, no header; text = column 1, label = column 2"
    ]
    pairs = load({"train": [str(write(tmp_path / "b.tsv", TATOEBA * 9))]}, {"kind": "word"})
    assert pairs.warnings == [
        "18 training pairs are few: below about 2,000 a translator overfits and translates nothing else; "
        "add pairs"
    ]


def test_labels_are_read_with_the_names_of_the_manifest(tmp_path):
    path = write(tmp_path / "a.tsv", "fine\t1\nawful\t0\nhm\t7\n")
    rows = Table(path, labels=(("0", "negative"), ("1", "positive")))
    assert list(rows) == [("fine", "positive"), ("awful", "negative"), ("hm", "7")]
    assert rows.layout() != Table(path).layout() and find("sst2").labels == {"0": "negative", "1": "positive"}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "id\ten\tde\n",
        "id\tEnglish\tGerman\n",
        "nr\tsource\ttarget\n",
        "id\ttext\ttranslation\n",
        "no\tx\ty\n",
    ],
)
def test_a_column_of_numbers_is_no_side_of_a_pair_if_there_are_two_others(tmp_path, header):
    body = "".join(f"{i}\tdog {i}\tHund {i}\n" for i in range(8))
    rows = open_files([write(tmp_path / "a.tsv", header + body)], None, None, True)
    assert next(iter(rows)) == ("dog 0", "Hund 0") and len(list(rows)) == 8
    numbers = write(tmp_path / "b.tsv", "".join(f"{i}\tnumber {i}\n" for i in range(8)))
    assert next(iter(open_files([numbers], None, None, True))) == ("0", "number 0")


@pytest.mark.parametrize("header", ["english,german", "English,German", "en,de", "text,translation"])
def test_names_of_languages_are_a_header(tmp_path, header):
    path = write(tmp_path / "a.csv", header + "\n" + "dog,Hund\n" * 5)
    assert list(open_files([path], None, None, True)) == [("dog", "Hund")] * 5
