"""The bundled sample: reproducible from the full corpus, and small."""

from pathlib import Path

from regard.data import corpora
from regard.data.readers import Table
from regard.data.tatoeba_sample import short_pairs

FOLDER = Path(corpora.__file__).parent / "samples"


def test_the_rule_applied_to_the_full_corpus_gives_the_sample(real_data):
    full = Table(real_data / "tatoeba-en-de" / "tatoeba-en-de.tsv.gz")
    assert short_pairs(full) == list(Table(FOLDER / "tatoeba-sample.tsv.xz"))


def test_the_rule_selects_the_expected_rows():
    rows = [
        ("Go now please.", "Geh jetzt bitte."), ("Go now please.", "Geht jetzt bitte."), ("Hi.", "Hallo!"),
        ("He has 3 cats.", "Er hat drei Katzen."),
        ("One two three four five six seven eight.", "Eins zwei drei."),
    ]  # fmt: skip
    assert short_pairs(rows) == [("Go now please.", "Geh jetzt bitte.")]


def test_the_sample_is_small_and_names_its_source():
    assert (FOLDER / "tatoeba-sample.tsv.xz").stat().st_size < 400_000
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert (
        "CC BY 2.0" in text and "tatoeba.org" in text and "manythings.org/anki" in text and "21,929" in text
    )
