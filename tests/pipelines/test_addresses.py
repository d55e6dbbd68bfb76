"""E-mail and web addresses of a text are found, and those of its translation are corrected."""

import pytest

import regard
from regard.pipelines import stream
from regard.pipelines.addresses import LONGEST, addresses, copy_addresses

MAIL, LINK = "anna.schmidt@example.org", "https://www.example.com/help?id=7"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Write to {MAIL}.", (MAIL,)),
        (f"See {LINK}, or {MAIL}!", (LINK, MAIL)),
        ("It is on www.example.org/books.", ("www.example.org/books",)),
        ("(example.de)", ("example.de",)),
        ("Version 3.5 costs 2.50 €, e.g. today.", ()),
        ("No.", ()),
        ("x" * LONGEST + "@example.org", ()),
    ],
)
def test_addresses_are_found_without_the_marks_beside_them(text, found):
    assert addresses(text) == found


@pytest.mark.parametrize(
    ("translation", "expected", "corrected"),
    [
        ("Schreib an anna.schmid@exampel.org.", (MAIL,), f"Schreib an {MAIL}."),
        ("Siehe «https://www.examle.com/hilfe?id=7».", (LINK,), f"Siehe «{LINK}»."),
        ("a@b.com und c@d.org", ("c@d.org", "a@b.com"), "a@b.com und c@d.org"),  # the most alike
        ("Das kostet 2.50 €.", (MAIL,), "Das kostet 2.50 €."),
        ("Siehe www.other.net.", (MAIL,), "Siehe www.other.net."),  # like no address
        (f"{MAIL} {MAIL}x", (MAIL,), f"{MAIL} {MAIL}x"),  # an address is used once
        ("", (MAIL,), ""),
    ],
)
def test_words_that_are_like_an_address_become_it(translation, expected, corrected):
    assert "".join(copy_addresses([translation], expected)) == corrected
    assert "".join(copy_addresses(list(translation), expected)) == corrected  # in pieces of a character


def test_a_piece_is_held_back_until_its_word_ends():
    pieces = copy_addresses(["Ja ", "an", "na.schmidt@", "example.or", "g! Ja"], (MAIL,))
    assert list(pieces) == ["Ja", " ", f"{MAIL}!", " ", "Ja"]


def test_translations_and_streams_have_the_addresses_of_their_text():
    model = regard.load("tatoeba-en-de-fr")
    texts = [f"Write to {MAIL}.", f"The book is on {LINK}."]
    for text, address in zip(texts, (MAIL, LINK), strict=True):
        translation = regard.translate(text, model, "de", beam=1)
        assert address in translation
        assert "".join(stream(text, model, "de")) == translation
