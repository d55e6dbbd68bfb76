"""The lecture's sentence BLEU with its worked example, compared with sacreBLEU; corpus BLEU."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.errors import DataError, OptionError
from regard.evaluation.bleu import bleu_metric, brevity_penalty, corpus_bleu, ngrams, precision, sentence_bleu

HELLO = "hello world hello".split()
REFERENCE = "hello world how do you do".split()
HYPOTHESIS = "hello world how do going".split()


def test_ngram_frequencies_of_the_lecture():
    assert ngrams(HELLO, 1) == {("hello",): 2, ("world",): 1}
    assert ngrams(HELLO, 2) == {("hello", "world"): 1, ("world", "hello"): 1}
    assert ngrams(HELLO, 4) == {}


def test_precisions_of_the_lecture_are_clipped():
    assert precision("hello world".split(), "hello hello".split(), 1) == 1 / 2
    assert [precision(REFERENCE, HYPOTHESIS, n) for n in (1, 2, 3, 4)] == [4 / 5, 3 / 4, 2 / 3, 1 / 2]


def test_the_worked_example_of_the_lecture():
    assert brevity_penalty(REFERENCE, HYPOTHESIS) == pytest.approx(math.exp(-1 / 5), abs=1e-15)
    result = sentence_bleu(REFERENCE, HYPOTHESIS)
    assert result == pytest.approx(math.exp(-1 / 5) * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4), abs=1e-15)
    assert round(result, 3) == 0.548
    assert round(result, 4) == 0.5475


def test_bleu_is_zero_without_a_matching_four_gram():
    assert sentence_bleu(REFERENCE, "hello world how going do you".split()) == 0  # three in a row, not four
    assert sentence_bleu(REFERENCE, REFERENCE[:3]) == 0  # too short to have one
    assert sentence_bleu(REFERENCE, []) == sentence_bleu([], REFERENCE) == sentence_bleu([], []) == 0
    assert sentence_bleu(REFERENCE, REFERENCE) == 1


def test_only_short_hypotheses_are_penalised():
    assert brevity_penalty(REFERENCE, REFERENCE + HELLO) == 1
    assert brevity_penalty(REFERENCE, HELLO) == pytest.approx(math.exp(-3 / 3), abs=1e-15)
    assert brevity_penalty(REFERENCE, []) == 0


sentences = st.lists(st.sampled_from("a b c d e".split()), max_size=14)


@given(sentences, sentences)
@example(REFERENCE, HYPOTHESIS)
@example(REFERENCE, [])
@example(list("aaaaa"), list("aaaa"))
def test_sacrebleu_without_smoothing_and_tokenisation_agrees(reference, hypothesis):
    from sacrebleu.metrics.bleu import BLEU

    theirs = BLEU(tokenize="none", smooth_method="none", effective_order=False, force=True)
    expected = theirs.sentence_score(" ".join(hypothesis), [" ".join(reference)]).score / 100
    assert sentence_bleu(reference, hypothesis) == pytest.approx(expected, abs=1e-12)


def test_tokens_need_not_be_words():
    assert sentence_bleu([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) == 1
    with pytest.raises(OptionError, match="got the text 'hello world'; split it first"):
        sentence_bleu("hello world", "hello world".split())
    with pytest.raises(OptionError, match="n must be an integer of at least 1, got 0"):
        ngrams(HELLO, 0)


def test_corpus_bleu_sums_counts_before_dividing():
    references, hypotheses = [REFERENCE, list("abcdefgh")], [HYPOTHESIS, list("abcdefxh")]
    matches = [
        sum((ngrams(r, n) & ngrams(h, n)).total() for r, h in zip(references, hypotheses, strict=True))
        for n in (1, 2, 3, 4)
    ]
    totals = [sum(ngrams(h, n).total() for h in hypotheses) for n in (1, 2, 3, 4)]
    precisions = [m / n for m, n in zip(matches, totals, strict=True)]
    expected = math.exp(1 - 14 / 13) * math.prod(precisions) ** (1 / 4)
    lines = [[" ".join(s) for s in side] for side in (hypotheses, references)]
    assert corpus_bleu(*lines, tokenize="none") == pytest.approx(100 * expected, abs=1e-9)
    # The hypothesis equals the second reference.
    assert corpus_bleu(lines[0], [lines[1], lines[0]], tokenize="none") == pytest.approx(100)


def test_corpus_bleu_depends_on_tokenisation_and_case():
    hypotheses, references = (
        ["The cat sat on the mat .", "Yes , it did ."],
        ["The cat sat on the mat.", "Yes, it did."],
    )
    assert corpus_bleu(hypotheses, references) == pytest.approx(100)
    assert corpus_bleu(hypotheses, references, tokenize="none") < 60
    uppercase = [line.upper() for line in hypotheses]
    assert corpus_bleu(uppercase, references) < 30
    assert corpus_bleu(uppercase, references, lowercase=True) == pytest.approx(100)


def test_unequal_line_counts_name_both():
    with pytest.raises(
        DataError, match="the hypothesis has 2 lines but the reference has 3; give one line for each sentence"
    ):
        corpus_bleu(["a", "b"], ["a", "b", "c"])
    with pytest.raises(DataError, match="has 2 lines but reference 2 has 1"):
        corpus_bleu(["a", "b"], [["a", "b"], ["c"]])
    with pytest.raises(DataError, match="the last 1 of the reference are empty: remove them"):
        corpus_bleu(["a", "b"], ["a", "b", " "])


def test_references_by_sentence_instead_of_by_document_are_caught():
    with pytest.raises(DataError, match="look transposed: 3 lists of 2 for 3 hypotheses"):
        corpus_bleu(["a", "b", "c"], [["a", "a"], ["b", "b"], ["c", "c"]])


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ("a text", ["a text"], "hypotheses must be a list of lines, got one text 'a text'"),
        (["a"], "a", "references must be a list of lines or of several such lists, got 'a'"),
        (["a"], [], "references must be a list"),
        ([], ["a"], "no hypotheses"),
        (["a", None], ["a", "b"], "line 2 of hypotheses must be text, got None"),
        (["a", "b"], [["a", 3]], "line 2 of reference 1 must be text, got 3"),
    ],
)
def test_invalid_input_is_an_error(hypotheses, references, message):
    with pytest.raises(DataError, match=message):
        corpus_bleu(hypotheses, references)


def test_an_unknown_tokenisation_names_the_nearest():
    with pytest.raises(OptionError, match=r"got '13'; did you mean 13a\?"):
        bleu_metric("13")
