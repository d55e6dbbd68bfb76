"""Language identification by characters."""

import pytest

from regard.data.datasets import split_rows
from regard.data.language_guess import TABLE, guess_language, guess_language_of, guessed_languages, trigrams


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where is the station?", "en"),
        ("Wo ist der Bahnhof?", "de"),
        ("Où est la gare ?", "fr"),
        ("ICH WEISS ES NICHT", "de"),
        ("Don't you know it?", "en"),
        ("Je ne sais pas.", "fr"),
        ("", None),
        ("1865 – 42!", None),
        ("東京", None),
    ],
)
def test_the_language_is_guessed_or_none(text, language):
    assert guess_language(text) == language


def test_languages_of_bundled_sentences_are_guessed():
    """English and German of the bundled sample, which is from Tatoeba like the training data of the table."""
    rows = [
        row
        for _, row in zip(
            range(500), split_rows({"corpus": "tatoeba-sample"}, "test", "translate"), strict=False
        )
    ]
    correct = sum((guess_language(en) == "en") + (guess_language(de) == "de") for en, de in rows)
    assert correct >= 0.98 * 2 * len(rows)


def test_the_language_of_several_texts_is_guessed_together():
    assert guess_language_of(["Tom", "?", "Wir haben keine Zeit."]) == "de" and guess_language_of([]) is None


def test_the_table_is_small_and_complete():
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    assert TABLE.stat().st_size <= 50_000 and tuple(lines[0].split()) == guessed_languages() == (
        "de",
        "en",
        "fr",
    )
    assert all(len(line) == 6 and "a" in line[3:] for line in lines[1:])
    assert trigrams("Ein Ei") == [" ei", "ein", "in ", "n e", " ei", "ei "]
