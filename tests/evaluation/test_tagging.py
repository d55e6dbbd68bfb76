"""Tagging scores against seqeval, and user mentions."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tag_schemes import IOBES, Span
from regard.errors import DataError
from regard.evaluation.tagging import SpanScore, drop_mentions, join_mentions, tagging_scores

ANY = ["O", "O", *(f"{letter}-{kind}" for letter in "BI" for kind in ("PER", "LOC", "group"))]
ANY_IOBES = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "LOC"))]


def random_tags(tags: list[str]) -> st.SearchStrategy[list[tuple[list[str], list[str]]]]:
    """Gold and predicted tags of random sentences, some equal, some ill-formed."""
    sentence = st.lists(
        st.tuples(st.sampled_from(tags), st.sampled_from([*tags, None, None])), min_size=1, max_size=7
    )
    return st.lists(
        sentence.map(lambda rows: ([a for a, _ in rows], [a if b is None else b for a, b in rows])),
        min_size=1,
        max_size=6,
    )


@pytest.mark.parametrize("tags", [ANY, ANY_IOBES])
@given(data=st.data())
def test_all_scores_equal_seqevals(tags: list[str], data: st.DataObject) -> None:
    metrics = pytest.importorskip("seqeval.metrics")
    gold, result = map(list, zip(*data.draw(random_tags(tags)), strict=True))
    ours = tagging_scores(gold, result)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval warns about divisions by zero
        for name in ("precision", "recall", "f1"):
            theirs = getattr(metrics, f"{name}_score")
            assert getattr(ours, name) == pytest.approx(theirs(gold, result))
            if ours.types:
                assert ours.macro[name] == pytest.approx(theirs(gold, result, average="macro"))
        assert ours.accuracy == pytest.approx(metrics.accuracy_score(gold, result))
        report = metrics.classification_report(gold, result, output_dict=True) if ours.types else {}
    for kind, score in ours.types.items():
        assert (score.precision, score.recall, score.f1, score.gold) == pytest.approx(
            [report[kind][name] for name in ("precision", "recall", "f1-score", "support")]
        )


def test_a_span_counts_only_if_it_is_complete() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert tagging_scores(gold, gold).f1 == 1
    assert tagging_scores(gold, [["B-PER", "O", "O", "B-LOC"]]).types["PER"] == SpanScore(
        gold=1, predicted=1, correct=0
    )
    assert tagging_scores(gold, [["B-LOC", "I-LOC", "O", "B-LOC"]]).micro == SpanScore(
        gold=2, predicted=2, correct=1
    )


def test_adjacent_spans_are_not_merged() -> None:
    score = tagging_scores([["B-X", "B-X"]], [["B-X", "I-X"]]).micro
    assert (score.gold, score.predicted, score.correct) == (2, 1, 0)


def test_gold_and_predicted_tags_may_use_different_schemes() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert tagging_scores(gold, [IOBES.convert(gold[0])]).f1 == 1


def test_no_spans_score_zero() -> None:
    scores = tagging_scores([["O"]], [["O"]])
    assert (scores.precision, scores.recall, scores.f1, scores.macro["f1"]) == (0, 0, 0, 0)
    assert scores.accuracy == 1


def test_sentences_that_do_not_match_are_named() -> None:
    with pytest.raises(DataError, match="sentence 2 has 2 gold tags and 1 predicted tags"):
        tagging_scores([["O"], ["O", "O"]], [["O"], ["O"]])
    with pytest.raises(DataError, match="1 gold sentences but 2"):
        tagging_scores([["O"]], [["O"], ["O"]])


def test_mentions_are_counted_in_three_ways() -> None:
    words = [["@", "ada", "saw", "Bob", "@"]]
    gold = [["B-PER", "B-PER", "O", "B-PER", "O"]]
    result = [["B-PER", "O", "O", "B-PER", "O"]]
    scores = tagging_scores(gold, result, words)
    assert scores.micro == SpanScore(gold=3, predicted=2, correct=2)
    assert scores.views['"@ name" as one'] == SpanScore(gold=2, predicted=2, correct=1)
    assert scores.views["without mentions"] == SpanScore(gold=1, predicted=1, correct=1)
    assert not tagging_scores(gold, result, [["x"] * 5]).views


def test_a_mention_is_joined_only_with_its_own_name() -> None:
    words = ["@", "a", "b", "@", "c"]
    spans = [Span(0, 1, "PER"), Span(1, 2, "PER"), Span(2, 3, "PER"), Span(3, 4, "PER"), Span(4, 5, "ORG")]
    assert join_mentions(words, spans) == [
        Span(0, 2, "PER"),
        Span(2, 3, "PER"),
        Span(3, 4, "PER"),
        Span(4, 5, "ORG"),
    ]
    assert drop_mentions(words, spans) == [Span(2, 3, "PER")]


def test_the_table_has_a_line_for_each_type_and_both_means() -> None:
    text = str(tagging_scores([["B-PER", "O", "B-creative-work"]], [["B-PER", "O", "O"]]))
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["PER", "creative-work", "all", "macro"]
    assert lines[1].split() == ["PER", "100.00", "100.00", "100.00", "1", "1"]
    assert lines[3].split() == ["all", "(micro)", "100.00", "50.00", "66.67", "2", "1"]
    assert lines[4].split() == ["macro", "mean", "50.00", "50.00", "50.00"]
