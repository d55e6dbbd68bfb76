"""Texts in capitals, for models whose card says that they lower them."""

import json
from types import SimpleNamespace

import pytest

import regard
from regard.pipelines import stream
from regard.pipelines.capitals import in_capitals, lowers_capitals
from regard.pipelines.long_lines import LongLineSplitter
from regard.pipelines.text_form import as_read
from regard.serving.generation_service import GenerationService
from regard.serving.requests import TranslateRequest


@pytest.fixture(scope="module")
def model():
    return regard.load("tatoeba-en-de-fr")


def lower_capitals(texts, model, *constraints):
    """The texts as a model reads them, and which were in capitals."""
    read, forms = as_read(texts, model, *constraints)
    return read, [form.capitals for form in forms]


@pytest.mark.parametrize("decoding", ["beam", [4], {"lower_capitals": "false"}, {}, None])
def test_only_true_in_card_json_counts(decoding):
    assert not lowers_capitals(SimpleNamespace(card={"decoding": decoding}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WHERE IS THE STATION?", True),
        ("OÙ EST LA GARE ?", True),
        ("IT'S 5 PM", True),
        ("DIE STRAßE IST LANG", True),
        ("NATO", False),  # perhaps a name
        ("I SEE", True),
        ("A B C", False),
        ("I", False),
        ("Where is NATO?", False),
        ("12 34 56", False),
        ("12 APPLES", True),
        ("HELLO!", True),
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


TWO = "HELLO! I DO NOT KNOW WHERE TOM AND MARY ARE, AND I DO NOT CARE."  # 16 to 32 tokens


def test_a_line_in_capitals_is_split_like_the_same_line_in_lower_case_and_every_piece_is_lowered(
    model, run_regard
):
    split = LongLineSplitter(model, 80)
    short = "WHERE IS TOM? I HAVE NOT SEEN HIM."
    assert len(split([f">>de<< {short}"])[0]) == 1  # 27 tokens in capitals, 11 in lower case
    (pieces,) = split([f">>de<< {TWO}"])
    assert [(piece.text, piece.capitals) for piece in pieces] == [
        (">>de<< hello!", True),
        (f">>de<< {TWO[7:].lower()}", True),
    ]
    code, out, err = run_regard("translate", TWO, "--to", "de")
    parts = regard.translate(["hello!", TWO[7:].lower()], model, "de")
    assert code == 0 and out == f"{' '.join(parts).upper()}\n", err


def test_a_code_without_a_space_before_the_text_changes_nothing(model):
    assert regard.translate(">>de<<WHERE IS THE STATION?", model) == "WO IST DER BAHNHOF?"


def test_texts_with_a_prefix_or_required_words_are_read_as_they_are(model):
    text = "WHERE IS THE STATION?"
    for constraints, lowered in (
        (regard.Constraints(prefix=["W", ""]), [False, True]),
        (regard.Constraints(required=[[], ["BAHN"]]), [True, False]),
        (regard.Constraints(required=["BAHN"]), [False, False]),
        (regard.Constraints(prefix=["", ""], no_repeat=3), [True, True]),
    ):
        assert lower_capitals([text] * 2, model, constraints)[1] == lowered


def test_a_forbidden_word_is_forbidden_in_capitals_too(model):
    text = "WHERE IS THE STATION?"
    for word in ("BAHNHOF", "Bahnhof"):
        constraints = regard.Constraints(forbidden=[word])
        out = regard.translate(text, model, "de", constraints=constraints)
        assert "BAHNHOF" not in out and out.startswith("WO ") and out == out.upper()
        assert "BAHNHOF" not in "".join(stream(text, model, "de", constraints=constraints))
    assert "Bahnhof" in regard.translate(
        "Where is the station?", model, "de", constraints=regard.Constraints(forbidden=["BAHNHOF"])
    )


def test_the_server_answers_and_streams_a_line_in_capitals_as_the_command_translates_it(model):
    service = GenerationService(model, "t", workers=1)
    request = TranslateRequest(text=TWO, to="de", beam=1)
    (answer,) = service.answers(request, [TWO], [lambda: False])
    assert answer["text"] == answer["text"].upper()
    assert "".join(service.stream(request)) == answer["text"]
