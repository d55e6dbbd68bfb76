"""Splitting text into words with their positions."""

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
def test_a_text_is_split_into_words_and_punctuation(text: str, words: list[str]) -> None:
    assert [word.text for word in WordSplitter()(text)] == words


@given(st.text(max_size=60))
def test_word_positions_are_right_and_only_spaces_are_left_out(text: str) -> None:
    for split in (WordSplitter(), WordSplitter("@#"), split_at_spaces):
        words = split(text)
        assert all(text[word.start : word.stop] == word.text for word in words)
        rest = "".join(
            text[a:b]
            for a, b in zip(
                [0, *(word.stop for word in words)], [*(word.start for word in words), len(text)], strict=True
            )
        )
        assert not rest.strip()


def test_at_and_hash_signs_are_split_off_if_they_are_frequent_in_the_vocabulary() -> None:
    assert [word.text for word in WordSplitter.like({"@": 5, "#": 2000})("@ada #x")] == ["@", "ada", "#x"]
    assert [word.text for word in WordSplitter.like({"@": 5, "#": 9})("@ada #x")] == ["@", "ada", "#", "x"]
    assert [word.text for word in WordSplitter.like({})("@ada #x")] == ["@ada", "#x"]
