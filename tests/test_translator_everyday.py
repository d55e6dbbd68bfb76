"""Tests of benchmarks/translator/everyday.py: rows as people type them, and tokens for more characters."""

import random
import re

import pytest
from benchmarks.translator import everyday

import regard

PAIRS = [
    ("Tom has two dogs.", "Tom hat zwei Hunde."),
    ("I saw your dogs in Boston.", "Ich habe in Boston deine Hunde gesehen."),
    ("The dogs aren't here.", "Die Hunde sind nicht hier."),
    ("Where are the cats?", "Wo sind die Katzen?"),
    ("My cats like Tom.", "Meine Katzen mögen Tom."),
    ("I like Tom and Boston.", "Ich mag Tom und Boston."),
    ("We sold our cats.", "Wir verkauften unsere Katzen."),
    ("Our dogs like cats.", "Unsere Hunde mögen Katzen."),
    ("All cats sleep.", "Alle Katzen schlafen."),
    ("You know dogs.", "Du kennst Hunde."),
]


@pytest.mark.parametrize(
    ("way", "source", "expected"),
    [
        ("lower case", "Where is Tom?", "where is tom?"),
        ("no full stop", "Where is Tom?", "Where is Tom"),
        ("both", "Où est Tom ?", "où est tom"),
        ("no apostrophes", "I'm hungry.", "im hungry"),
        ("other quotes", 'I\'m "Tom".', "I’m “Tom”."),
        ("other quotes", "« Je l’ai dit. »", '"Je l\'ai dit."'),
    ],
)
def test_a_source_is_written_in_another_way_and_its_translation_stays(way, source, expected):
    assert everyday.WAYS[way](source, "Wie es war.") == (expected, "Wie es war.")


def test_capitals_stay_capitals():
    assert everyday.capitals("My street.", "Meine Straße.") == ("MY STREET.", "MEINE STRASSE.")


def test_names_and_numbers_change_on_both_sides():
    names = everyday.shared_names(PAIRS)
    assert names == ["Boston", "Tom"]
    draw = random.Random(1)
    changed = everyday.with_other_names("I saw Tom 3 times.", "Ich sah Tom 3 Mal.", draw, ["Rita"])
    assert re.fullmatch(r"I saw Rita (\d+) times\.", changed[0])
    assert changed[1] == changed[0].replace("I saw", "Ich sah").replace("times", "Mal")
    assert everyday.with_figures(*PAIRS[0], ("en", "de")) == ("Tom has 2 dogs.", "Tom hat 2 Hunde.")
    assert everyday.with_figures("I saw two.", "Ich sah vier.", ("en", "de")) == (
        "I saw two.",
        "Ich sah vier.",
    )


def test_every_frame_has_the_same_gaps_in_three_languages():
    for frame in everyday.FRAMES:
        gaps = [sorted(re.findall(r"{(\w+)}", text)) for text in frame]
        assert gaps[0] == gaps[1] == gaps[2] and gaps[0]
    names = {gap for frame in everyday.FRAMES for gap in re.findall(r"{(\w+)}", frame[0])}
    draw = random.Random(1)
    for _ in range(200):
        source, target = everyday.filled_frame(draw, ["Rita"], ("fr", "en"))
        assert source and target  # what fills a gap may have braces: "Press the key }."
        assert names.isdisjoint(re.findall(r"{(\w+)}", source + target))


def test_single_words_are_those_that_occur_together():
    assert ("cats", "Katzen") in everyday.single_words(PAIRS)


def test_rows_are_the_same_each_time_and_none_is_of_a_test_set(tmp_path):
    written = []
    for direction in everyday.DIRECTIONS:
        second = direction.split("-")[1]
        for name, rows in (
            ("tatoeba.train", PAIRS),
            ("europarl.train", PAIRS),
            ("tatoeba.validation", [("cats", "Ein Test.")]),
            ("tatoeba.test", [("I like Rita and Boston.", "Ich mag Rita und Boston.")]),
        ):
            corpus, split = name.split(".")
            path = tmp_path / f"{corpus}.{direction}.{split}.tsv"
            path.write_text("".join(f">>{second}<< {a}\t{b}\n" for a, b in rows), encoding="utf-8")
    for _ in range(2):
        everyday.write_rows(tmp_path, seed=1, count=60)
        written.append((tmp_path / "everyday.en-de.train.tsv").read_text(encoding="utf-8"))
    assert written[0] == written[1]
    rows = everyday.read_rows(tmp_path / "everyday.en-de.train.tsv")
    assert len(rows) == 2 * len(PAIRS) + 60
    sources = [source.lower() for source, _ in rows]
    assert "dogs" in sources and "cats" not in sources and "i like rita and boston" not in sources


def test_a_model_gets_tokens_for_more_characters_and_translates_as_before(tmp_path):
    model = regard.load("tatoeba-en-de-fr")
    everyday.add_characters(model, tmp_path / "start", "⌘&")  # it knows the second
    larger = regard.load(tmp_path / "start")
    assert len(larger.source_tokenizer) == len(model.source_tokenizer) + 1
    assert larger.source_tokenizer.decode(larger.source_tokenizer.encode("Press ⌘.")) == "Press ⌘."
    texts = ["Where is the station?", "I like cats & dogs."]
    assert regard.translate(texts, larger, to="de") == regard.translate(texts, model, to="de")
