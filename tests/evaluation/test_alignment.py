"""Alignment error rate by hand and by definition, and the formats of gold alignments."""

import gzip
import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError, OptionError
from regard.evaluation.alignment import Gold, read_gold, score, validate_gold


def links(text):
    return frozenset(tuple(map(int, pair.split("-"))) for pair in text.split())


def gold(sure, possible=""):
    return Gold(links(sure), links(sure) | links(possible))


def test_precision_recall_and_error_rate_by_hand():
    # 5 predicted links: 0-0 and 1-1 are sure, 2-3 is possible, 3-2 and 4-4 are wrong.
    # 3 sure links, of which 2-2 is missed.
    scores = score([links("0-0 1-1 2-3 3-2"), links("4-4")], [gold("0-0 1-1 2-2", "2-3 5-5"), gold("")])
    assert scores.precision == pytest.approx(3 / 5)
    assert scores.recall == pytest.approx(2 / 3)
    assert scores.aer == pytest.approx(1 - (2 + 3) / (5 + 3))
    assert (scores.predicted, scores.sure, scores.possible, scores.sentences) == (5, 3, 5, 2)
    assert str(scores) == (
        "AER 0.3750, precision 0.6000, recall 0.6667\n2 sentences: 5 links predicted; gold has 3 sure and 2 "
        "further possible links"
    )


LINKS = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=10)


@given(st.lists(st.tuples(LINKS, LINKS, LINKS), min_size=1, max_size=4))
def test_scores_equal_the_definition_of_och_and_ney(sentences):
    results = [a for a, _, _ in sentences]
    expected = [Gold(s, s | p) for _, s, p in sentences]
    a = {(i, *link) for i, item in enumerate(results) for link in item}
    s = {(i, *link) for i, item in enumerate(expected) for link in item.sure}
    p = {(i, *link) for i, item in enumerate(expected) for link in item.possible}
    result = score(results, expected)
    if a or s:
        assert result.aer == pytest.approx(float(1 - Fraction(len(a & s) + len(a & p), len(a) + len(s))))
    if a:
        assert result.precision == pytest.approx(float(Fraction(len(a & p), len(a))))
    if s:
        assert result.recall == pytest.approx(float(Fraction(len(a & s), len(s))))
    assert score([g.sure for g in expected], expected).aer == 0
    if s == p and a and s and a & s:
        assert result.aer == pytest.approx(1 - 2 / (1 / result.precision + 1 / result.recall))  # one minus F1


def test_empty_gold_and_empty_predictions_have_no_error():
    assert score([frozenset()], [gold("")]).aer == 0
    assert score([links("0-0")], [gold("")]).aer == 1
    assert score([frozenset()], [gold("0-0")]).aer == 1


def test_links_and_gold_must_have_the_same_number_of_sentences():
    with pytest.raises(DataError, match="got links for 1 sentences and gold for 2"):
        score([frozenset()], [gold(""), gold("")])


EXPECTED = [gold("0-0 1-2", "1-1"), gold(""), gold("", "0-3")]


@pytest.mark.parametrize(
    "text",
    ["0-0 1-2 1?1\n\n0?3\n", "1-1 2-3 2p2\n\n1p4\n", "0001 1 1 S\n0001 2 3\n0001 2 2 P 0.5\n3 1 4 P\n"],
    ids=["pharaoh", "talp", "naacl"],
)
def test_all_formats_give_the_same_links(tmp_path, text):
    (tmp_path / "gold").write_text(text)
    (tmp_path / "gold.gz").write_bytes(gzip.compress(text.encode()))
    assert read_gold(tmp_path / "gold") == read_gold(tmp_path / "gold.gz") == EXPECTED
    flipped = read_gold(tmp_path / "gold", flip=True)
    assert flipped[0] == gold("0-0 2-1", "1-1") and flipped[2] == gold("", "3-0")


def test_base_sets_the_number_of_the_first_word(tmp_path):
    (tmp_path / "gold").write_text("1-1 2-3\n")
    assert read_gold(tmp_path / "gold", base=1) == [gold("0-0 1-2")]
    assert read_gold(tmp_path / "gold") == [gold("1-1 2-3")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n0-0 x\n", "line 2 of .* has 'x' instead of a link such as 0-0"),
        ("0-1 1p1\n", "a word number 0 although words are counted from 1"),
        ("0 1 1 S\n", "a link of sentence 0"),
        ("99999999 1 1 S\n", "a link of sentence 99999999"),
        ("0-0:S\n", "'0-0:S'"),
    ],
)
def test_invalid_gold_files_are_errors(tmp_path, text, message):
    (tmp_path / "gold").write_text(text)
    with pytest.raises(DataError, match=message):
        read_gold(tmp_path / "gold")


def test_an_invalid_base_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="base must be 0 or 1, .* got 2"):
        read_gold(tmp_path / "gold", base=2)


def test_gold_links_must_match_the_text_lengths():
    assert validate_gold(EXPECTED, [(2, 3), (1, 1), (1, 4), (5, 5)]) == [*EXPECTED, gold("")]
    with pytest.raises(
        DataError, match="gold link 0-3 of sentence 3, .* outside its 4 source and 1 target words; try flip"
    ):
        validate_gold(EXPECTED, [(2, 3), (1, 1), (4, 1)])
    with pytest.raises(DataError, match="3 sentences and the text 1"):
        validate_gold(EXPECTED, [(2, 3)])


@pytest.fixture
def corpora():
    folder = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / "align-hansards-en-fr").is_dir():
        pytest.skip("the gold alignments are not under REGARD_DATA")
    return folder


def lengths(*paths):
    """(source words, target words) of each sentence pair of two gzipped files."""
    texts = [gzip.decompress(path.read_bytes()).decode().splitlines() for path in paths]
    return [(len(s.split()), len(t.split())) for s, t in zip(*texts, strict=True)]


def count_sure(sentences):
    return sum(len(sentence.sure) for sentence in sentences)


def test_the_hansards_have_as_many_links_as_the_shared_task_reports(corpora):
    folder = corpora / "align-hansards-en-fr"
    for split, sure, possible in (("test", 4038, 13400), ("dev", 338, 1446)):
        by_sentence, by_link = (
            read_gold(folder / f"{split}.{name}.gz") for name in ("talp", "wa.nonullalign")
        )
        assert by_sentence == validate_gold(
            by_link, lengths(folder / f"{split}.en.gz", folder / f"{split}.fr.gz")
        )
        assert count_sure(by_sentence) == sure
        assert sum(len(g.possible - g.sure) for g in by_sentence) == possible


def test_the_europarl_links_match_their_texts_in_both_directions(corpora):
    folder = corpora / "align-europarl-de-en"
    german, english = folder / "test.de.gz", folder / "test.en.gz"
    links = read_gold(folder / "test.de-en.wa.gz")
    assert count_sure(validate_gold(links, lengths(german, english))) == 1232
    flipped = read_gold(folder / "test.de-en.wa.gz", flip=True)
    assert count_sure(validate_gold(flipped, lengths(english, german))) == 1232
    with pytest.raises(DataError, match="flip"):
        validate_gold(flipped, lengths(german, english))
