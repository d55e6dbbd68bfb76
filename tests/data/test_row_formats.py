"""Rows of each task: labels, tags and scores, and errors with line and column."""

import numpy as np
import pytest

from regard.data.batch_iterator import Batches
from regard.data.datasets import load_corpus as load
from regard.data.datasets import load_split, split_rows
from regard.errors import DataError, OptionError


def table(tmp_path, rows, name="train.tsv"):
    path = tmp_path / name
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


GOOD = [("a good film", "positive"), ("a bad film", "negative"), ("not good at all", "rather negative")]
WORDS = {"kind": "word", "size": 100}


def test_a_label_is_one_entry_of_its_vocabulary_with_any_spelling(tmp_path):
    corpus = load({"train": [table(tmp_path, GOOD)]}, {**WORDS, "lowercase": True}, "classify")
    assert corpus.target_tokenizer.entries == ("negative", "positive", "rather negative")
    assert (
        corpus.target_tokenizer.kind == "label" and corpus.target_tokenizer.decode([6]) == "rather negative"
    )
    assert [corpus.train.target(row).tolist() for row in range(3)] == [[5, 3], [4, 3], [6, 3]]
    assert corpus.source_tokenizer is not None and "positive" not in corpus.source_tokenizer.vocabulary


def test_the_task_defines_what_a_batch_counts(tmp_path):
    corpus = load({"train": [table(tmp_path, GOOD)]}, WORDS, "classify")
    assert next(Batches(corpus.train, tokens=100, seed=1)).tokens == 6
    assert next(Batches(corpus.train, tokens=100, seed=1, count=len)).tokens == 3


def test_an_unknown_label_is_named_with_its_line_and_column(tmp_path):
    data = {"train": [table(tmp_path, GOOD)]}
    corpus = load(data, WORDS, "classify")
    test = table(tmp_path, [("fine", "positive"), ("hm", "neutral")], "test.tsv")
    with pytest.raises(
        DataError,
        match=r"test.tsv line 2, column 2: the label 'neutral' is not one of the training labels \(negative",
    ):
        load_split({"test": [test]}, "test", corpus.source_tokenizer, corpus.target_tokenizer, "classify")
    with pytest.raises(DataError, match="line 2, column 2"):
        load({**data, "test": [test]}, WORDS, "classify")


def test_a_single_class_is_an_error(tmp_path):
    with pytest.raises(
        DataError,
        match="every row of .*train.tsv has the label 'x', and a classifier needs at least two labels",
    ):
        load({"train": [table(tmp_path, [("a", "x"), ("b", "x")])]}, WORDS, "classify")


def test_a_label_whose_rows_were_all_dropped_is_named(tmp_path):
    rows = [*GOOD[:2], ("far too long a text to be kept", "long")]
    with pytest.raises(DataError, match=r"the label 'long' has no examples .* 1 over max_length"):
        load({"train": [table(tmp_path, rows)], "max_length": 4}, WORDS, "classify")


def test_words_seen_once_are_unk_in_training_too(tmp_path):
    corpus = load({"train": [table(tmp_path, GOOD)]}, {**WORDS, "min_count": 2}, "classify")
    assert corpus.source_tokenizer is not None and corpus.source_tokenizer.entries == ("a", "film", "good")
    assert np.count_nonzero(corpus.train.arrays("source")[0] == 1) == 4


def test_every_word_has_its_tag(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("New\tB-LOC\nYork\tI-LOC\n\nhm\tO\n", encoding="utf-8")
    corpus = load({"train": [str(path)]}, WORDS, "tag")
    assert sorted(corpus.target_tokenizer.entries) == ["B-LOC", "I-LOC", "O"]
    assert corpus.train.target(0).tolist()[-1] == 3 and len(corpus.train.target(0)) == 3
    with pytest.raises(DataError, match=r"a column of a CoNLL file is a number, counted from 1, got 'word'"):
        load({"train": [str(path)], "source": "word", "target": "2"}, WORDS, "tag")


def test_labels_are_renamed_and_merged_in_every_split(tmp_path):
    data = {"train": [table(tmp_path, GOOD)], "labels": {"rather negative": "negative"}}
    corpus = load(data, WORDS, "classify")
    assert corpus.target_tokenizer.entries == ("negative", "positive")
    data["test"] = [table(tmp_path, [("so so", "rather negative")], "test.tsv")]
    assert load_split(data, "test", corpus.source_tokenizer, corpus.target_tokenizer, "classify").targets == [
        "negative"
    ]


def test_spaces_around_labels_make_no_new_label(tmp_path):
    rows = [("fine", " good"), ("bad", "bad"), ("well", "good "), ("awful", "bad\u00a0")]
    corpus = load({"train": [table(tmp_path, rows)], "labels": {"bad": "poor"}}, WORDS, "classify")
    assert corpus.target_tokenizer.entries == ("good", "poor")


def test_a_file_without_usable_rows_is_an_error_that_names_what_to_do(tmp_path):
    (tmp_path / "a.csv").write_bytes("text,label\ncaf\xe9,x\nth\xe9,y\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"2 not UTF-8 .* iconv -f WINDOWS-1252 -t UTF-8 .*a\.csv"):
        load({"train": [str(tmp_path / "a.csv")]}, WORDS, "classify")
    (tmp_path / "a.conll").write_text("New\tB-LOC\nYork\tI-LOC\n" * 50, encoding="utf-8")
    with pytest.raises(DataError, match=r"1 over max_length.* an empty line ends a sentence"):
        load({"train": [str(tmp_path / "a.conll")], "max_length": 50}, WORDS, "tag")


def test_span_types_are_renamed_and_adjacent_spans_stay_two(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(
        "Ada\tB-person\nLee\tI-person\nAcme\tB-group\nACM\tB-creative-work\nhm\tO\n", encoding="utf-8"
    )
    names = {"person": "PER", "group": "ORG", "creative-work": "ORG"}
    rows = split_rows({"train": [str(path)], "labels": names}, "train", "tag")
    assert next(iter(rows)) == ("Ada Lee Acme ACM hm", "B-PER I-PER B-ORG B-ORG O")


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        ({"great": "very positive"}, "classify", "renames 'great' to 'very positive', and no"),
        ({"a": "b"}, "translate", "rows of task translate have none"),
    ],
)
def test_labels_that_no_row_has_are_an_error(labels, task, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        load({"train": [table(tmp_path, GOOD)], "labels": labels}, {"kind": "word", "size": 100}, task)


def test_paraphrase_pairs_share_one_vocabulary_and_have_scores(real_data):
    corpus = load({"corpus": "stsb-en-de-fr", "source": "de"}, {"kind": "word"}, "embed")
    assert corpus.source_tokenizer == corpus.target_tokenizer and corpus.train.rows == 1406
    assert (
        corpus.validation is not None
        and len(corpus.validation.scores) == len(corpus.validation.sources) == 1500
    )
    assert corpus.validation.sources[0].startswith("Ein ")


def test_bpe_dropout_varies_the_texts_and_never_their_labels(tmp_path):
    tokenizer = {"kind": "bpe", "size": 60, "dropout": 0.5, "variants": 3}
    corpus = load({"train": [table(tmp_path, GOOD * 4)]}, tokenizer, "classify")
    assert corpus.train.variants == 3
    texts, labels = (
        [corpus.train.arrays(side, variant)[0].tolist() for variant in range(3)]
        for side in ("source", "target")
    )
    assert texts[0] != texts[1] and labels[0] == labels[1] == labels[2]
