"""Learn the trigram table of `regard.data.language_guess` from Tatoeba and measure it on held-out sentences.

python -m benchmarks.language_guesser            # measure the table of the package
python -m benchmarks.language_guesser --write    # learn it again first

Sentences of the test splits that also occur in training are left out of the measurement.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter

from benchmarks.peers import command
from regard.data import language_guess
from regard.data.datasets import split_rows
from regard.data.language_guess import TABLE, UNIT, guess_language, trigrams

LANGUAGES = ("de", "en", "fr")
SIZE = 4000  # trigrams kept
SMOOTHING, STEPS = 0.5, 25  # steps: the letters a to z


def sentences(split):
    """The distinct sentences of a split, as (language, text)."""
    pairs = set()
    for other in ("de", "fr"):
        for english, foreign in split_rows({"corpus": f"tatoeba-en-{other}"}, split, "translate"):
            pairs |= {("en", english), (other, foreign)}
    return pairs


def learn(training):
    """Write the table: the most useful trigrams, each with its log-probability in every language."""
    counts = {language: Counter() for language in LANGUAGES}
    for language, text in training:
        counts[language].update(trigrams(text))
    all_trigrams = set().union(*counts.values())
    totals = [counts[language].total() + SMOOTHING * len(all_trigrams) for language in LANGUAGES]

    def weights(trigram):
        logs = [
            math.log((counts[language][trigram] + SMOOTHING) / total)
            for language, total in zip(LANGUAGES, totals, strict=True)
        ]
        return [log - max(logs) for log in logs]

    def usefulness(trigram):
        """Frequency of a trigram, weighted by how far its best language is ahead of the others."""
        frequency = sum(counts[lang][trigram] / n for lang, n in zip(LANGUAGES, totals, strict=True))
        _, second, third = sorted(weights(trigram), reverse=True)
        return -frequency * (second + 0.3 * third)

    kept_trigrams = sorted(all_trigrams, key=lambda trigram: (-usefulness(trigram), trigram))[:SIZE]
    lines = [
        trigram + "".join(chr(ord("a") + min(STEPS, round(-weight / UNIT))) for weight in weights(trigram))
        for trigram in sorted(kept_trigrams)
    ]
    TABLE.write_text("\n".join([" ".join(LANGUAGES), *lines]) + "\n", encoding="utf-8")
    language_guess._table.cache_clear()


def report(test):
    """Print accuracy and the share of undecided sentences, by length and by language."""
    print(f"{TABLE.name}: {TABLE.stat().st_size} bytes; {len(test)} held-out sentences of Tatoeba")
    for name, rows in (
        ("all", test),
        ("up to 3 words", [row for row in test if len(row[1].split()) <= 3]),
        ("5 words and more", [row for row in test if len(row[1].split()) >= 5]),
        *((language, [row for row in test if row[0] == language]) for language in LANGUAGES),
    ):
        guesses = [(language, guess_language(text)) for language, text in rows]
        right = sum(language == guess for language, guess in guesses) / len(rows)
        undecided = sum(guess is None for _, guess in guesses) / len(rows)
        print(f"{name:18} {len(rows):6}  right {right:.2%}  undecided {undecided:.2%}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="learn the table again and write it into the package"
    )
    options = parser.parse_args()
    training = sentences("train")
    if options.write:
        learn(training)
    report(sorted(sentences("test") - training))


if __name__ == "__main__":
    command.run(main)
