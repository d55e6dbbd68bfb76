"""All functions that take texts take them from any iterable, once, and as any kind of string.

Covers arguments.py, with test_wrong_calls.py.
"""

import enum

import pytest

import regard
from regard.errors import OptionError

TEXTS = ["Hello.", "Where is the station?"]
FUNCTIONS = {
    "translate": lambda texts: regard.translate(texts, to="de"),
    "translate, all": lambda texts: regard.translate(texts, to="de", nbest=2, beam=2),
    "classify": lambda texts: [vars(c) for c in regard.classify(texts)],
    "tag": lambda texts: [t.words for t in regard.tag(texts)],
    "generate": lambda texts: [str(g) for g in regard.generate(texts, limits=regard.Limits(max_length=5))],
    "embed": lambda texts: regard.embed(texts, "tatoeba-en-de-fr").tolist(),
}


class Greeting(str, enum.Enum):  # noqa: UP042  (a StrEnum's __str__ is the value)
    HELLO = TEXTS[0]
    STATION = TEXTS[1]


class Loud(str):
    def __str__(self):
        return self.upper()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_texts_are_read_from_any_iterable_and_kind_of_string(name, tmp_path):
    call, file = FUNCTIONS[name], tmp_path / "texts.txt"
    expected = call(TEXTS)
    assert len(expected) == 2
    assert call(tuple(TEXTS)) == expected
    assert call(text for text in TEXTS) == expected
    assert call(map(str, TEXTS)) == expected
    assert call(dict.fromkeys(TEXTS)) == expected
    assert call(list(Greeting)) == expected
    assert call([Loud(text) for text in TEXTS]) == expected
    file.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    with file.open(encoding="utf-8") as lines:
        assert call(line.rstrip("\n") for line in lines) == expected


def test_align_takes_iterators():
    sources, targets = ["A cat.", "A dog."], ["Eine Katze.", "Ein Hund."]
    expected = [str(a) for a in regard.align(sources, targets, "tatoeba-en-de-fr")]
    assert [str(a) for a in regard.align(iter(sources), iter(targets), "tatoeba-en-de-fr")] == expected


def test_the_target_language_may_be_a_member_of_an_enum():
    class Language(str, enum.Enum):  # noqa: UP042
        GERMAN = "de"

    assert regard.translate(TEXTS, to=Language.GERMAN) == regard.translate(TEXTS, to="de")


@pytest.mark.parametrize(
    ("function", "model"),
    [
        ("translate", "film-reviews"),
        ("translate", "tweet-names"),
        ("translate", "shakespeare-small"),
        ("generate", "tweet-names"),
        ("generate", "film-reviews"),
        ("generate", "tatoeba-en-de-fr"),
        ("classify", "tweet-names"),
        ("tag", "film-reviews"),
        ("classify", "shakespeare-small"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_a_sentence(function, model):
    with pytest.raises(OptionError):
        getattr(regard, function)("Hello.", model)
