"""Tests of sentence_split.py and long_lines.py: long lines are split and joined without loss."""

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.pipelines.sentence_split import join, pieces, sentences


def by_characters(texts):
    return [len(text) for text in texts]


def work(text):
    """Characters given to the tokenizer, and function calls, while a text is split."""
    characters = calls = 0

    def count_tokens(texts):
        nonlocal characters
        characters += sum(map(len, texts))
        return by_characters(texts)

    def count_calls(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        pieces(text, count_tokens, 40)
    finally:
        sys.setprofile(None)
    return characters + calls


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ('Mr. Smith said: "Stop!" Then he left.', ['Mr. Smith said: "Stop!" ', "Then he left."]),
        ("Am 3. Mai kam z. B. Dr. Who. Er blieb.", ["Am 3. Mai kam z. B. Dr. Who. ", "Er blieb."]),
        ('"Why?" he asked. It was 1999. So.', ['"Why?" he asked. ', "It was 1999. ", "So."]),
        ("Wait... what? Yes…  No.", ["Wait... what? ", "Yes…  ", "No."]),
        ("3.14 and a.b are whole.", ["3.14 and a.b are whole."]),
        ("你好。我是谁？“好。”走", ["你好。", "我是谁？", "“好。”", "走"]),
        ("", []),
    ],
)
def test_sentences_end_at_punctuation_but_not_after_abbreviations(text, result):
    assert sentences(text) == result


@given(st.text(alphabet=st.sampled_from('aB .!?,;"”。、\n\u00a0…1é😀')), st.integers(1, 12))
@example("." * 500, 3)
def test_the_pieces_of_any_line_join_to_the_line_and_respect_the_limit(text, limit):
    result = pieces(text, by_characters, limit)
    assert "".join(piece.text + piece.gap for piece in result) == text
    assert all(len(piece.text) <= limit for piece in result)


def test_a_long_sentence_is_split_at_clauses_then_words_then_characters():
    texts = [piece.text for piece in pieces("One two, three four. abcdefghij", by_characters, 11)]
    assert texts == ["One two,", "three four.", "abcdefghij"]
    assert [piece.text for piece in pieces("One two three", by_characters, 8)] == ["One two", "three"]
    assert [piece.text for piece in pieces("abcdefgh", by_characters, 4)] == ["abcd", "efgh"]


def test_parts_that_fit_into_one_piece_stay_together():
    result = pieces("a " * 1000, lambda texts: [len(text.split()) for text in texts], 10)
    assert [len(piece.text.split()) for piece in result] == [10] * 100


def test_joining_keeps_the_spaces_of_the_source():
    parts = pieces("One.  Two.\u00a0Three.", by_characters, 6)
    assert join(parts, ["Eins.", "Zwei.", "Drei."]) == "Eins.  Zwei.\u00a0Drei."


def test_a_space_is_added_if_only_the_target_script_has_spaces():
    parts = pieces("你好。再见。", by_characters, 3)
    assert join(parts, ["Hello.", "Goodbye."]) == "Hello. Goodbye."
    assert join(parts, ["今日は。", "さようなら。"]) == "今日は。さようなら。"


@pytest.mark.parametrize("unit", [".", "a", "a, ", '..." ', " ", '"', ".a", "。", "A. "])
def test_the_work_to_split_a_line_is_not_quadratic(unit):
    text = (unit * 100_000)[:100_000]
    assert "".join(piece.text + piece.gap for piece in pieces(text, by_characters, 40)) == text
    # 8 times the text: halving it repeatedly takes n log n, about 10 times the work; n² would be 64 times.
    assert work(text) <= 12 * work(text[:12_500])


@pytest.mark.parametrize("character", [".", "a", '"', " ", "。"])
def test_a_line_of_a_million_equal_characters_is_one_sentence(character):
    """Work inside regular expressions cannot be counted; a quadratic one would take many minutes here."""
    text = character * 1_000_000
    assert sentences(text) == [text]


def test_lines_of_a_text_are_separate_pieces():
    parts = pieces("\n one\ntwo. three\n\nFour.\n", by_characters, 100)
    assert [piece.text for piece in parts] == ["", "one", "two. three", "Four."]
    assert join(parts, ["", "eins", "zwei. drei", "Vier."]) == "\n eins\nzwei. drei\n\nVier."
