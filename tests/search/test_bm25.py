"""BM25 follows its formula, also over several segments and with removed documents."""

import math

import numpy as np
import pytest

from regard.errors import OptionError
from regard.search.bm25 import Bm25, Postings, tokenize

TEXTS = ["the cat sat", "the the dog", "cat, Cat; CAT dog bird fish", ""]


def test_scores_match_the_formula_worked_by_hand():
    """N = 4, mean length 3; `cat` is in 2 of 4, `bird` in 1: documents 0 (length 3) and 2 (length 6)."""
    scores = Bm25([Postings.build(TEXTS)], k1=1.2, b=0.75).scores("cat bird")
    idf = lambda n: math.log(1 + (4 - n + 0.5) / (n + 0.5))  # noqa: E731
    gain = lambda tf, length: tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / 3))  # noqa: E731
    assert scores == pytest.approx([idf(2) * gain(1, 3), 0, idf(2) * gain(3, 6) + idf(1) * gain(1, 6), 0])


def test_a_word_repeated_in_the_query_counts_twice():
    bm25 = Bm25([Postings.build(TEXTS)])
    assert bm25.scores("dog dog") == pytest.approx(2 * bm25.scores("dog"))


def test_several_segments_score_like_one(tmp_path):
    single = Bm25([Postings.build(TEXTS)])
    segments = [Postings.build(TEXTS[:1]), Postings.build(TEXTS[1:])]
    for i, segment in enumerate(segments):
        (tmp_path / str(i)).mkdir()
        segment.save(tmp_path / str(i))
    loaded = Bm25([Postings.load(tmp_path / "0"), Postings.load(tmp_path / "1")])
    for query in ("cat", "the dog", "bird the", "unheard of", ""):
        np.testing.assert_allclose(loaded.scores(query), single.scores(query))


def test_removed_documents_score_zero_and_do_not_change_the_statistics():
    texts = [*TEXTS, "cat bird", "a very long text about the cat and the bird"]
    segments = [Postings.build(texts[:2]), Postings.build(texts[2:])]
    with_removed = Bm25(segments, np.array([0, 5]))
    rebuilt = Bm25([Postings.build([text for i, text in enumerate(texts) if i not in (0, 5)])])
    assert with_removed.size == 4
    for query in ("cat", "the dog", "bird the", "unheard of"):
        scores = with_removed.scores(query)
        assert scores[0] == scores[5] == 0
        np.testing.assert_allclose(np.delete(scores, [0, 5]), rebuilt.scores(query))
    assert Bm25(segments, np.arange(6)).scores("cat").tolist() == [0] * 6
    assert Bm25([]).scores("cat").tolist() == []


def test_tokens_are_letters_and_digits_of_any_script():
    assert tokenize("Über-Flow, x2 Größe 日本!") == ["über", "flow", "x2", "größe", "日本"]


@pytest.mark.parametrize(("k1", "b"), [(-1, 0.5), (1.2, 1.5), (float("nan"), 0.5)])
def test_invalid_k1_and_b_are_errors(k1, b):
    with pytest.raises(OptionError, match="k1 of at least 0 and b between 0 and 1"):
        Bm25([], k1=k1, b=b)
