"""Choose `decoding.split_tokens`: above how many tokens is a text of several sentences split?

python -m benchmarks.translator.split build/translator/directions    # validation sets only, two minutes

BLEU of the bundled translator (int8, beam 4), all directions together, on Tatoeba's validation rows with
several sentences, and on lines of two and three rows that are joined at random. Texts up to the number of
tokens are translated whole, others sentence by sentence.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import sacrebleu

import regard
from regard.data.tokenizer import split_language
from regard.pipelines.sentence_split import sentences

MODEL, BEAM, SEED, JOINED = "tatoeba-en-de-fr", 4, 0, 100
LIMITS = (0, 12, 16, 20, 24, 32, 80)
Row = tuple[str, str]


def read_sets(path: Path, languages: tuple[str, ...]) -> dict[str, list[Row]]:
    """Rows with several sentences, and joined rows, of a validation file of a direction."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [(split_language(source, languages)[1], target) for source, target in rows]
    complete = [pair for pair in pairs if all(text.endswith((".", "!", "?")) for text in pair)]
    draw = random.Random(SEED)
    sets = {"several sentences": [pair for pair in pairs if len(sentences(pair[0])) > 1]}
    for count in (2, 3):
        drawn = [draw.sample(complete, count) for _ in range(JOINED)]
        sets[f"{count} rows joined"] = [
            (" ".join(s), " ".join(t)) for s, t in (zip(*d, strict=True) for d in drawn)
        ]
    return sets


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "directions", type=Path, help="folder of `benchmarks.translator.prepare --directions`"
    )
    folder = parser.parse_args(argv).directions
    model = regard.load(MODEL)
    engine, tokenizer = regard.fast(model, "int8"), model.source_tokenizer
    outputs: dict[str, dict[int, list[str]]] = {}
    references: dict[str, list[str]] = {}
    for direction in ("en-de", "de-en", "en-fr", "fr-en"):
        path = folder / f"tatoeba.{direction}.validation.tsv"
        for name, pairs in read_sets(path, tokenizer.languages).items():
            texts = [source for source, _ in pairs]
            parts = [[sentence.rstrip() for sentence in sentences(text)] for text in texts]
            given = [*texts, *(part for line in parts for part in line)]
            translated = map(str, regard.translate(given, engine, direction[3:], beam=BEAM))
            whole = [next(translated) for _ in texts]
            split = [" ".join(next(translated) for _ in line) for line in parts]
            counts = [len(ids) for ids in tokenizer.encode_batch(texts)]
            references.setdefault(name, []).extend(target for _, target in pairs)
            for limit in LIMITS:
                chosen = [w if n <= limit else s for w, s, n in zip(whole, split, counts, strict=True)]
                outputs.setdefault(name, {}).setdefault(limit, []).extend(chosen)
    print(f"| validation set | texts | {' | '.join(f'≤ {limit}' for limit in LIMITS)} |")
    print("|---" * (len(LIMITS) + 2) + "|")
    for name, by_limit in outputs.items():
        scores = (sacrebleu.corpus_bleu(texts, [references[name]]).score for texts in by_limit.values())
        print(f"| {name} | {len(references[name])} | {' | '.join(f'{score:.1f}' for score in scores)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
