"""BM25 is the formula, also when documents come in parts."""

import math

import numpy as np
import pytest

from regard.errors import OptionError
from regard.search.bm25 import Bm25, Postings, words_of

TEXTS = ["the cat sat", "the the dog", "cat, Cat; CAT dog bird fish", ""]


def test_scores_are_the_formula_worked_by_hand():
    """N = 4, mean length 3; `cat` is in 2 of 4, `bird` in 1: documents 0 (length 3) and 2 (length 6)."""
    found = Bm25([Postings.of(TEXTS)], k1=1.2, b=0.75).scores("cat bird")
    idf = lambda n: math.log(1 + (4 - n + 0.5) / (n + 0.5))  # noqa: E731
    part = lambda tf, length: tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / 3))  # noqa: E731
    assert found == pytest.approx([idf(2) * part(1, 3), 0, idf(2) * part(3, 6) + idf(1) * part(1, 6), 0])


def test_a_word_that_is_asked_twice_counts_twice():
    bm25 = Bm25([Postings.of(TEXTS)])
    assert bm25.scores("dog dog") == pytest.approx(2 * bm25.scores("dog"))


def test_parts_score_as_one(tmp_path):
    whole = Bm25([Postings.of(TEXTS)])
    parts = [Postings.of(TEXTS[:1]), Postings.of(TEXTS[1:])]
    for i, part in enumerate(parts):
        (tmp_path / str(i)).mkdir()
        part.save(tmp_path / str(i))
    again = Bm25([Postings.load(tmp_path / "0"), Postings.load(tmp_path / "1")])
    for query in ("cat", "the dog", "bird the", "unheard of", ""):
        np.testing.assert_allclose(again.scores(query), whole.scores(query))


def test_removed_documents_count_nowhere():
    texts = [*TEXTS, "cat bird", "a very long text about the cat and the bird"]
    parts = [Postings.of(texts[:2]), Postings.of(texts[2:])]
    found = Bm25(parts, np.array([0, 5]))
    kept = Bm25([Postings.of([text for i, text in enumerate(texts) if i not in (0, 5)])])
    assert found.size == 4
    for query in ("cat", "the dog", "bird the", "unheard of"):
        scores = found.scores(query)
        assert scores[0] == scores[5] == 0
        np.testing.assert_allclose(np.delete(scores, [0, 5]), kept.scores(query))
    assert Bm25(parts, np.arange(6)).scores("cat").tolist() == [0] * 6
    assert Bm25([]).scores("cat").tolist() == []


def test_words_are_letters_and_digits_of_any_script():
    assert words_of("Über-Flow, x2 Größe 日本!") == ["über", "flow", "x2", "größe", "日本"]


@pytest.mark.parametrize(("k1", "b"), [(-1, 0.5), (1.2, 1.5), (float("nan"), 0.5)])
def test_settings_that_cannot_be_are_refused(k1, b):
    with pytest.raises(OptionError, match="k1 of at least 0 and b between 0 and 1"):
        Bm25([], k1=k1, b=b)
