"""Symbols that a vocabulary lacks, such as emoji: copied at the ends of a text, left out inside."""

import json

import pytest

import regard
from regard.data.tokenizer import Tokenizer
from regard.pipelines import stream, text_warnings
from regard.pipelines.text_form import PLAIN, Form, as_read, is_symbol, split_form, unknown_symbols
from regard.serving.generation_service import GenerationService
from regard.serving.requests import TranslateRequest

HEART = "\u2764\ufe0f"
FAMILY = "👨\u200d👩\u200d👧"
SYMBOLS = {c for c in f"🙂🏻🎉☀→÷™🇩🇪{HEART}{FAMILY}" if is_symbol(c)}


@pytest.fixture(scope="module")
def model():
    return regard.load("tatoeba-en-de-fr")


@pytest.fixture(autouse=True)
def nothing_printed_yet(monkeypatch):
    monkeypatch.setattr(text_warnings, "_unknown", set())


@pytest.mark.parametrize(
    ("text", "core", "form"),
    [
        ("I see", "I see", PLAIN),
        ("  I see ", "  I see ", PLAIN),
        ("I see 🙂", "I see", Form(after=" 🙂")),
        ("I see. 🙂🏻  🎉 ", "I see.", Form(after=" 🙂🏻  🎉")),
        ("I see™", "I see", Form(after="™")),
        (f"\u00a0{HEART} I see", "I see", Form(before=f"{HEART} ")),
        (f"{FAMILY} we see 🇩🇪", "we see", Form(before=f"{FAMILY} ", after=" 🇩🇪")),
        ("→ next page", "next page", Form(before="→ ")),
        ("🙂", "", Form(before="🙂")),
        (" 🙂 🎉 ", "", Form(before="🙂 🎉")),
        (f"sun {HEART} and moon", "sun and moon", Form(left_out="".join(sorted(HEART)))),
        ("Tom🙂said 🎉, no.", "Tom said, no.", Form(left_out="🎉🙂")),
        ("I see 🙂.", "I see.", Form(left_out="🙂")),
        ("oui 🙂 !", "oui !", Form(left_out="🙂")),
        ("6 ÷ 2 → 3", "6 ÷ 2 → 3", PLAIN),
        ("", "", PLAIN),
        ("   ", "   ", PLAIN),
    ],
)
def test_symbols_at_the_ends_are_split_off_and_those_inside_left_out(text, core, form):
    assert split_form(text, SYMBOLS, lowers=False) == (core, form)
    assert form.write(core).replace(" ", "") == "".join(
        c for c in text if c not in form.left_out and not c.isspace()
    )


def test_letters_digits_and_punctuation_are_no_symbols():
    assert not any(map(is_symbol, "\ufffdaß9½²①€§«—…~^``\n\u00a0語שع"))


def test_what_the_vocabulary_knows_is_no_unknown_symbol(model):
    assert unknown_symbols(["🙂 5 € 20 °C +1"], model.source_tokenizer) == {"🙂"}
    assert unknown_symbols(["🙂"], Tokenizer.train(["a b"], "byte-bpe", 300)) == set()


@pytest.mark.parametrize(
    ("text", "plain", "expected"),
    [
        ("I love you 🙂", "I love you", "{} 🙂"),
        (f"{HEART} I love you. 🎉", "I love you.", HEART + " {} 🎉"),
        ("I'm tired 😴.", "I'm tired.", "{}"),
        ("GOOD MORNING 🙂", "good morning", None),
        ("🙂 🎉", "", "🙂 🎉"),
    ],
)
def test_a_translation_has_the_symbols_of_its_text(model, text, plain, expected):
    translation, of_plain = regard.translate([text, plain], model, "de", beam=1)
    assert translation == (f"{of_plain.upper()} 🙂" if expected is None else expected.format(of_plain))
    assert translation.hypotheses == [] or translation.hypotheses[0].text == translation
    assert "".join(stream(text, model, "de")) == translation
    assert regard.translate(f">>de<< {text}", model, beam=1) == translation


def test_a_text_with_a_prefix_or_required_words_is_read_as_it_is(model):
    for constraints in (regard.Constraints(prefix="Ich"), regard.Constraints(required=["Ich"])):
        assert as_read(["I see 🙂"], model, constraints) == (["I see 🙂"], [PLAIN])


def test_lines_say_what_is_left_out_and_nothing_of_what_is_copied(model, capsys):
    regard.translate(["I see 🙂", "Is it\u2600 hot?", "漢 is a character."], model, "de")
    assert capsys.readouterr().err == (
        "regard: the model does not know '\u2600'; inside a text they are left out\n"
        "regard: the model does not know '漢'; its output may be wrong there\n"
    )


IN_CAPITALS = "HELLO! I DO NOT KNOW WHERE TOM AND MARY ARE, AND I DO NOT CARE."  # in two pieces
LINES = ["🙂", "I love you 🙂", "", f"🎉 {IN_CAPITALS} 🎉", "I love you", IN_CAPITALS]


def check_forms(translations):
    symbols, love, nothing, capitals, plain, plain_capitals = translations
    assert (symbols, nothing) == ("🙂", "")
    assert love == f"{plain} 🙂"
    assert capitals == f"🎉 {plain_capitals} 🎉" and plain_capitals.startswith("HALLO")


def test_lines_of_a_file_and_their_alignments(run_regard, tmp_path):
    source, output = tmp_path / "lines.txt", tmp_path / "lines.jsonl"
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    arguments = ["translate", "-i", str(source), "--to", "de", "--beam", "1"]
    code, out, err = run_regard(*arguments)
    assert code == 0, err
    check_forms(out.removesuffix("\n").split("\n"))
    code, _, err = run_regard(*arguments, "--align", "-o", str(output))
    assert code == 0, err
    rows = [json.loads(row) for row in output.read_text(encoding="utf-8").splitlines()]
    check_forms([row["translation"] for row in rows])
    assert [bool(row["alignment"]) for row in rows] == [False, True, False, True, True, True]
    assert rows[1]["alignment"] == rows[4]["alignment"]


def test_answers_and_streams_of_the_server(model):
    service, answers, streams = GenerationService(model, "t", workers=1), [], []
    for line in LINES:
        request = TranslateRequest(text=line, to="de", beam=1)
        (answer,) = service.answers(request, [line], [lambda: False])
        answers.append(answer["text"])
        streams.append("".join(service.stream(request)))
    check_forms(answers)
    check_forms(streams)
