"""Input checks warn about wrong files but not about bad translations."""

import gzip
import os
import random
from pathlib import Path

import pytest

from regard.evaluation.input_checks import input_warnings

WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def text(count=120, seed=0):
    """Random lines of 5 to 12 words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(5, 12))).capitalize() + "." for _ in range(count)]


def translated(lines, wrong=0.4, seed=1):
    """Simulated translations: each word is wrong with probability `wrong`."""
    rng = random.Random(seed)
    words = [
        [rng.choice(WORDS) if rng.random() < wrong else word for word in line.rstrip(".").split()]
        for line in lines
    ]
    return [" ".join(line).capitalize() + "." for line in words]


def warnings_of(hypotheses, *documents, tokenize="13a", lowercase=False):
    return input_warnings(hypotheses, documents, tokenize, lowercase)


REFERENCE = text()
HYPOTHESIS = translated(REFERENCE)


@pytest.mark.parametrize("wrong", [0.1, 0.4, 0.7, 0.9, 1.0])
def test_a_bad_translation_gives_no_warning(wrong):
    for seed in range(5):
        reference = text(seed=seed)
        assert warnings_of(translated(reference, wrong, seed), reference) == []


def test_a_constant_output_gives_no_warning():
    assert warnings_of([REFERENCE[7]] * len(REFERENCE), REFERENCE) == []
    rng = random.Random(3)
    assert warnings_of([rng.choice(REFERENCE[:20]) for _ in REFERENCE], REFERENCE) == []


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        (
            lambda h: [*h[1:], h[0]],
            "lines 1 to 119 of the hypothesis match the reference 1 line after their own",
        ),
        (
            lambda h: [*h[-2:], *h[:-2]],
            "match the reference 2 lines before their own; a line was lost or added near line ",
        ),
        (
            lambda h: [*h[:60], *h[61:], ""],
            "match the reference 1 line after their own; a line was lost or added near line 6",
        ),
    ],
)
def test_lines_shifted_by_a_few_are_detected(shift, message):
    result = warnings_of(shift(HYPOTHESIS), REFERENCE)
    assert message in result[-1]


@pytest.mark.parametrize("order", ["shuffled", "reversed", "far"])
def test_lines_in_another_order_are_detected(order):
    hypotheses = HYPOTHESIS[40:] + HYPOTHESIS[:40] if order == "far" else HYPOTHESIS[::-1]
    if order == "shuffled":
        random.Random(5).shuffle(hypotheses)
    (result,) = warnings_of(hypotheses, REFERENCE)
    assert "the hypothesis and the reference seem not to be in the same order" in result


def test_only_the_reference_that_is_out_of_order_is_named():
    (result,) = warnings_of(HYPOTHESIS, translated(REFERENCE, 0.2, seed=9), [*REFERENCE[1:], REFERENCE[0]])
    assert "match reference 2 1 line before" in result


def test_references_grouped_by_line_instead_of_by_file_are_detected():
    lines = REFERENCE[:3]
    by_document = [translated(lines, 0.2, seed) for seed in range(3)]
    by_line = [list(refs) for refs in zip(*by_document, strict=True)]
    assert warnings_of(lines, *by_document) == []
    assert "look transposed; give 3 documents of 3 lines" in warnings_of(lines, *by_line)[0]


def tokenised(lines):
    return [line.replace(".", " .").replace(",", " ,") for line in lines]


def test_tokenised_against_detokenised_text_is_detected_both_ways():
    (one,) = warnings_of(tokenised(HYPOTHESIS), REFERENCE)
    assert one.startswith(
        "the hypothesis looks tokenised (' .' and ' ,' with spaces) and the reference does not"
    )
    (other,) = warnings_of(HYPOTHESIS, tokenised(REFERENCE))
    assert other.startswith("the reference looks tokenised")


def test_an_unsuitable_tokenisation_is_detected():
    both = tokenised(HYPOTHESIS), tokenised(REFERENCE)
    assert warnings_of(*both, tokenize="none") == []
    assert "13a tokenises them again" in warnings_of(*both)[0]
    assert "counts 'end.' as one word" in warnings_of(HYPOTHESIS, REFERENCE, tokenize="none")[0]


def test_french_spaces_before_question_marks_are_plain_text():
    french = [line.replace(".", " ?") if i % 2 else line for i, line in enumerate(HYPOTHESIS)]
    assert warnings_of(french, REFERENCE) == []


@pytest.mark.parametrize(
    ("mark", "corrupt"),
    [
        ("'@@' of BPE", lambda line: line[:2] + "@@ " + line[2:]),
        ("'▁' of SentencePiece", lambda line: "▁" + line.replace(" ", " ▁")),
        ("'##' of WordPiece", lambda line: line[:2] + " ##" + line[2:]),
        ("a tokeniser's escapes", lambda line: line + " &apos;s"),
        ("a tokeniser's escapes", lambda line: line.replace(" ", " @-@ ", 1)),
    ],
)
def test_tokeniser_marks_are_detected_on_either_side(mark, corrupt):
    assert any(
        f"the hypothesis has {mark}" in s or f"the subword mark {mark}" in s
        for s in warnings_of([*map(corrupt, HYPOTHESIS)], REFERENCE)
    )
    assert any(
        s.startswith("the reference has") and mark in s
        for s in warnings_of(HYPOTHESIS, [*map(corrupt, REFERENCE)])
    )


def test_lowercased_against_cased_text_is_detected_unless_case_is_ignored():
    lowercased = [line.lower() for line in HYPOTHESIS]
    assert warnings_of(lowercased, REFERENCE) == [
        "the hypothesis is in lower case and the reference is not; restore the case or score both with "
        "lowercase"
    ]
    assert (
        "the reference is in lower case" in warnings_of(HYPOTHESIS, [line.lower() for line in REFERENCE])[0]
    )
    assert warnings_of(lowercased, REFERENCE, lowercase=True) == []


def test_empty_lines_are_counted():
    assert warnings_of(["", " ", *HYPOTHESIS[2:]], REFERENCE) == [
        "2 of 120 lines of the hypothesis are empty"
    ]
    assert (
        warnings_of(HYPOTHESIS, REFERENCE, ["", *REFERENCE[1:]])[0]
        == "1 of 120 lines of reference 2 is empty"
    )


def test_a_hypothesis_equal_to_its_reference_is_detected():
    assert warnings_of(REFERENCE, REFERENCE) == [
        "120 of 120 lines of the hypothesis equal the reference; check that the files are different"
    ]


def test_chinese_lines_are_compared_by_characters():
    rng = random.Random(2)
    signs = [chr(0x4E00 + i) for i in range(300)]
    reference = ["".join(rng.choices(signs, k=rng.randint(8, 15))) for _ in range(60)]
    hypotheses = ["".join(rng.choice(signs) if rng.random() < 0.3 else s for s in line) for line in reference]
    assert warnings_of(hypotheses, reference) == []
    assert "1 line after their own" in warnings_of([*hypotheses[1:], hypotheses[0]], reference)[0]


def test_real_sentences_give_no_warning_unless_tokenised_or_lowercased():
    folder = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[3] / "shared" / "data")) / "multi30k"
    if not folder.is_dir():
        pytest.skip("Multi30k is not under REGARD_DATA")
    plain, tokenised_lowercase = (
        gzip.decompress((folder / name).read_bytes()).decode().rstrip("\n").split("\n")
        for name in ("test_2016_flickr.de.gz", "tok/test_2016_flickr.lc.norm.tok.de.gz")
    )
    vocabulary = [word for line in plain for word in line.split()]
    for wrong in (0.2, 0.6, 1.0):
        rng = random.Random(0)
        hypotheses = [
            " ".join(rng.choice(vocabulary) if rng.random() < wrong else word for word in line.split())
            for line in plain
        ]
        assert warnings_of(hypotheses, plain) == []
    result = warnings_of(tokenised_lowercase, plain)
    assert any("the hypothesis looks tokenised" in warning for warning in result)
    assert any("lower case" in warning for warning in result)
