"""Words of a text and where they stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.word_splitter import WordSplitter, split_at_spaces


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada doesn't like it.", ["Ada", "doesn't", "like", "it", "."]),
        (
            "@ada_l: see https://example.org/a?b=c #maths!",
            ["@ada_l", ":", "see", "https://example.org/a?b=c", "#maths", "!"],
        ),
        ("3.5 e-mails (U.S.) 😀", ["3.5", "e-mails", "(", "U.S", ".", ")", "😀"]),
        ("", []),
        ("  \t\n", []),
        ("# @ a@b", ["#", "@", "a", "@b"]),
    ],
)
def test_a_text_is_cut_into_words_and_signs(text: str, words: list[str]) -> None:
    assert [word.text for word in WordSplitter()(text)] == words


@given(st.text(max_size=60))
def test_every_word_stands_where_it_says_and_nothing_but_spaces_is_left_out(text: str) -> None:
    for cut in (WordSplitter(), WordSplitter("@#"), split_at_spaces):
        words = cut(text)
        assert all(text[word.start : word.stop] == word.text for word in words)
        left = "".join(
            text[a:b]
            for a, b in zip(
                [0, *(w.stop for w in words)], [*(w.start for w in words), len(text)], strict=True
            )
        )
        assert not left.strip()


def test_signs_stand_apart_where_the_vocabulary_has_them_among_its_most_frequent() -> None:
    assert [word.text for word in WordSplitter.like({"@": 5, "#": 2000})("@ada #x")] == ["@", "ada", "#x"]
    assert [word.text for word in WordSplitter.like({"@": 5, "#": 9})("@ada #x")] == ["@", "ada", "#", "x"]
    assert [word.text for word in WordSplitter.like({})("@ada #x")] == ["@ada", "#x"]
