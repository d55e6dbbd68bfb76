"""Texts in capitals, for models whose card says that they lower them."""

import json

import pytest

import regard
from regard.pipelines import stream
from regard.pipelines.capitals import in_capitals, lower_capitals


@pytest.fixture(scope="module")
def model():
    return regard.load("tatoeba-en-de-fr")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WHERE IS THE STATION?", True),
        ("OÙ EST LA GARE ?", True),
        ("IT'S 5 PM", True),
        ("NATO", False),  # perhaps a name
        ("I SEE", True),
        ("A B C", False),
        ("I", False),
        ("Where is NATO?", False),
        ("12 34 56", False),
        ("", False),
    ],
)
def test_two_words_in_capitals_and_no_small_letter_are_a_text_in_capitals(text, expected):
    assert in_capitals(text) == expected


def test_only_models_whose_card_says_so_lower_capitals_and_the_language_token_stays(model):
    texts = [">>de<< WHERE IS TOM?", "WHERE IS TOM?", "Where is Tom?", "DE <<>> EN"]
    lowered = [">>de<< where is tom?", "where is tom?", "Where is Tom?", "de <<>> en"]
    assert lower_capitals(texts, model) == (lowered, [True, True, False, True])
    other = regard.load("tatoeba-en-de-bahdanau")
    assert lower_capitals(texts, other) == (texts, [False] * 4)


def test_a_translation_of_capitals_is_that_of_lower_case_in_capitals(model):
    capitals, small = regard.translate(["WHERE IS THE STATION?", "where is the station?"], model, "de")
    assert capitals == small.upper() == "WO IST DER BAHNHOF?"
    assert capitals.hypotheses[0].text == capitals and capitals.source_tokens == small.source_tokens
    assert "".join(stream("WHERE IS THE STATION?", model, "de")) == capitals


def test_the_words_of_an_alignment_and_of_a_picture_are_those_that_the_model_read(run_regard, tmp_path):
    picture = tmp_path / "station.svg"
    arguments = ["translate", "WHERE IS THE STATION?", "--to", "de"]
    code, out, err = run_regard(*arguments, "--picture", str(picture))
    assert (code, out) == (0, "WO IST DER BAHNHOF?\n"), err
    assert "station?" in picture.read_text(encoding="utf-8")
    lines = tmp_path / "lines.jsonl"
    code, _, err = run_regard(*arguments, "--align", "-o", str(lines))
    assert code == 0, err
    assert json.loads(lines.read_text(encoding="utf-8"))["translation"] == "WO IST DER BAHNHOF?"
