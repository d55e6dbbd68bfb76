"""Lines on standard error about texts that a model was not made for."""

import pytest

import regard
from regard.data.tokenizer import Tokenizer
from regard.pipelines import text_warnings
from regard.pipelines.translate import stream
from tests.decoding.small_models import language_model, translator


@pytest.fixture(autouse=True)
def nothing_printed_yet(monkeypatch):
    monkeypatch.setattr(text_warnings, "_unknown", set())
    monkeypatch.setattr(text_warnings, "_long", set())


def test_a_character_that_the_vocabulary_lacks_is_named_once(capsys):
    model = translator()
    regard.translate(["the cat ¿ <", "the dog"], model)
    line = capsys.readouterr().err
    assert line == "regard: the model does not know '<' '¿'; its output may be wrong there\n"
    assert list(stream("the cat <", model)) is not None
    regard.translate("the\tcat ¿ >", model)  # a tab is read as a space
    assert capsys.readouterr().err == line.replace("'<' '¿'", "'>'")


def test_many_characters_are_counted(capsys):
    text_warnings.warn_of_unknown_characters(["the cat", "0123456789"], translator().source_tokenizer)
    assert "'0' '1' '2' '3' '4' '5' '6' '7' and 2 more;" in capsys.readouterr().err


def test_generation_and_classification_name_unknown_characters(capsys):
    regard.generate("the €", language_model())
    assert "'€'" in capsys.readouterr().err
    regard.classify("a gripping story 😀", "film-reviews")
    assert "'😀'" in capsys.readouterr().err


def test_texts_of_known_characters_and_bytes_get_no_line(capsys):
    text_warnings.warn_of_unknown_characters(["😀"], Tokenizer.train(["a b"], "byte-bpe", 300))
    regard.translate("the cat", translator())
    assert capsys.readouterr().err == ""


def test_a_text_longer_than_those_of_the_training_is_reported_once(capsys):
    model = translator()
    model.card = {"recipe": {"data": {"max_length": 5}}}
    regard.translate(["the cat", "the cat sees the dog and the dog sees the cat"], model)
    line = capsys.readouterr().err
    assert "tokens and the model was trained on at most 5, so parts may be missing" in line
    regard.translate("the cat sees the dog and the dog sees the cat", model)
    assert capsys.readouterr().err == ""


def test_a_paragraph_for_a_model_of_single_sentences_is_reported_once(capsys):
    model = translator()
    model.card = {"decoding": {"split_tokens": 5}}
    regard.translate("the cat sees the dog. the dog sees the cat", model)
    assert "several" not in capsys.readouterr().err  # a lowercase letter begins no sentence
    capital = "the cat sees the dog. 1 dog sees the cat."
    regard.translate([capital, capital], model)
    assert "several sentences and the model was trained on single ones" in capsys.readouterr().err
    regard.translate(capital, model)
    assert "several sentences" not in capsys.readouterr().err


def test_the_pieces_of_a_long_line_get_no_line(run_regard, capfd):
    text = "I am tired. " * 30
    code, _, err = run_regard("translate", text, "--to", "de", "--beam", "1")
    assert (code, err) == (0, "")
    regard.translate(text, "tatoeba-en-de-fr", to="de", beam=1)
    assert "at most 80" in capfd.readouterr().err
