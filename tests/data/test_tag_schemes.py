"""Conversion between spans and tags for every scheme."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tag_schemes import BIO, IO, IOBES, SCHEMES, Span, TagProblem, parse, scheme, scheme_of, spans
from regard.errors import DataError, OptionError

ANY_TAGS = st.lists(
    st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "creative-work"))]),
    max_size=9,
)


@st.composite
def random_spans(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Random non-overlapping spans, with and without words between them."""
    results, place = [], 0
    for gap, length, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from("AB")), max_size=5)
    ):
        results.append(Span(place + gap, place + gap + length, kind))
        place += gap + length
    return results, place + draw(st.integers(0, 2))


def test_each_scheme_writes_its_tags() -> None:
    result = [Span(0, 1, "LOC"), Span(2, 5, "PER")]
    assert BIO.tags(result, 6) == ["B-LOC", "O", "B-PER", "I-PER", "I-PER", "O"]
    assert IOBES.tags(result, 6) == ["S-LOC", "O", "B-PER", "I-PER", "E-PER", "O"]
    assert IO.tags(result, 6) == ["I-LOC", "O", "I-PER", "I-PER", "I-PER", "O"]


@pytest.mark.parametrize("name", ["bio", "iobes"])
def test_adjacent_spans_of_one_type_stay_separate(name: str) -> None:
    titles = [Span(0, 2, "title"), Span(2, 4, "title")]
    assert spans(SCHEMES[name].tags(titles, 4)) == titles
    assert spans(IO.tags(titles, 4)) == [Span(0, 4, "title")]  # IO cannot represent adjacent spans


@given(random_spans())
def test_spans_survive_conversion_to_tags(spans_and_length: tuple[list[Span], int]) -> None:
    result, length = spans_and_length
    for item in (BIO, IOBES):
        tags = item.tags(result, length)
        assert spans(tags) == result
        assert item.problems(tags) == []


@given(random_spans())
def test_every_scheme_converts_to_every_other(spans_and_length: tuple[list[Span], int]) -> None:
    result, length = spans_and_length
    bio = BIO.tags(result, length)
    assert BIO.convert(IOBES.convert(bio)) == bio
    assert IO.convert(bio) == IO.convert(IOBES.convert(bio))


@given(ANY_TAGS)
def test_repaired_tags_have_no_problems_and_the_same_spans(tags: list[str]) -> None:
    for item in (BIO, IOBES):
        repaired = item.repair(tags)
        assert item.problems(repaired) == []
        assert spans(repaired) == spans(tags)
        if not item.problems(tags):
            assert repaired == tags


@given(ANY_TAGS)
def test_spans_equal_those_of_seqeval(tags: list[str]) -> None:
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    assert [(span.type, span.start, span.stop - 1) for span in spans(tags)] == labeling.get_entities(tags)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["I-PER"], [TagProblem(0, "I-PER cannot begin a sentence in BIO")]),
        (
            ["O", "I-PER", "I-LOC"],
            [
                TagProblem(1, "I-PER cannot follow O in BIO"),
                TagProblem(2, "I-LOC cannot follow I-PER in BIO"),
            ],
        ),
        (["S-PER"], [TagProblem(0, "S-PER does not occur in BIO, which has B, I and O")]),
        (
            ["B-PER", "b-PER"],
            [TagProblem(1, "'b-PER' is not a tag; a tag is O, or B-, I-, E- or S- and a type, as B-PER")],
        ),
    ],
)
def test_violations_of_bio_are_reported_with_their_position(
    tags: list[str], expected: list[TagProblem]
) -> None:
    assert BIO.problems(tags) == expected


def test_violations_of_iobes_are_reported_with_their_position() -> None:
    assert [what for _, what in IOBES.problems(["B-PER", "O", "E-PER", "B-LOC"])] == [
        "O cannot follow B-PER in IOBES", "E-PER cannot follow O in IOBES",
        "B-LOC cannot end a sentence in IOBES"
    ]  # fmt: skip


def test_iob1_is_read_as_conlleval_reads_it() -> None:
    """The tags of CoNLL-2003 as published: a span begins with I, or with B after a span of its type."""
    assert BIO.repair(["I-ORG", "O", "I-PER", "I-PER", "B-PER"]) == ["B-ORG", "O", "B-PER", "I-PER", "B-PER"]


@pytest.mark.parametrize("tag", ["", "B", "B-", "-PER", "X-PER", "PER", "BI-PER", "o"])
def test_an_invalid_tag_is_refused(tag: str) -> None:
    with pytest.raises(DataError, match="is not a tag"):
        parse(tag)


def test_a_type_may_contain_dashes() -> None:
    assert parse("B-creative-work") == ("B", "creative-work")


def test_spans_that_overlap_are_refused() -> None:
    with pytest.raises(DataError, match="overlaps"):
        BIO.tags([Span(0, 2, "A"), Span(1, 3, "B")], 4)
    with pytest.raises(DataError, match="fit into 2 words"):
        BIO.tags([Span(0, 3, "A")], 2)


def test_the_scheme_is_detected_from_the_prefixes() -> None:
    assert scheme_of(["O", "B-A", "I-A"]) is BIO
    assert scheme_of(["O", "B-A", "E-A"]) is IOBES
    assert scheme_of(["O", "S-A"]) is IOBES
    assert scheme_of(["O", "I-A"]) is IO
    assert scheme("IOBES") is IOBES
    with pytest.raises(OptionError, match="bilou"):
        scheme("bilou")
