"""Keyword-like signals: recordings made by a script, for models that read sequences of numbers.

    python -m regard.data.keyword_signals signals

A recording has 64 frames of 8 channels of noise, and two to five words of 8 frames, each a tone that moves
through the channels. The targets are its first word (.labels), a tag for each frame (.tags) and all words in
order (.text). The same seed gives the same files. Recipes for the three tasks are written beside them:

    regard train signals/classify.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import OptionError, RegardError
from regard.files.atomic import write_file

FRAMES, CHANNELS = 64, 8  # of a recording
LENGTH = 8  # frames of a word
# The channel of the tone in each frame of a word.
WORDS = {
    "rise": (0, 1, 2, 3, 4, 5, 6, 7),
    "fall": (7, 6, 5, 4, 3, 2, 1, 0),
    "hill": (1, 3, 5, 7, 7, 5, 3, 1),
    "valley": (6, 4, 2, 0, 0, 2, 4, 6),
}
SPLITS = {"train": 3000, "validation": 500, "test": 1000}
LOUDNESS, NOISE = 1.5, 0.7  # mean amplitude of a word, standard deviation of the noise
RECIPES = Path(__file__).parent / "samples" / "signals"


def recordings(count: int, seed: int) -> tuple[NDArray[np.float32], list[list[str]], list[list[str]]]:
    """Recordings (count, 64, 8), the words of each in order, and the tags of its frames."""
    draw = np.random.default_rng(seed)
    x = NOISE * draw.standard_normal((count, FRAMES, CHANNELS))
    names, words, tags = list(WORDS), [], []
    for row in range(count):
        spoken = [names[i] for i in draw.integers(0, len(names), draw.integers(2, 6))]
        gaps = draw.multinomial(FRAMES - LENGTH * len(spoken), [1 / (len(spoken) + 1)] * (len(spoken) + 1))
        frame_tags, start = ["O"] * FRAMES, 0
        for word, gap in zip(spoken, gaps, strict=False):
            start += gap
            loudness = LOUDNESS * draw.uniform(0.7, 1.3)
            x[row, np.arange(start, start + LENGTH), WORDS[word]] += loudness
            frame_tags[start : start + LENGTH] = [f"B-{word}", *[f"I-{word}"] * (LENGTH - 1)]
            start += LENGTH
        words.append(spoken)
        tags.append(frame_tags)
    return x.astype(np.float32), words, tags


def make_signals(folder: str | Path, seed: int = 1) -> Path:
    """Write training, validation and test recordings, their targets, recipes and two single recordings."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (split, count) in enumerate(SPLITS.items()):
        x, words, tags = recordings(count, 10 * seed + number)
        np.save(folder / f"{split}.npy", x)
        targets = {"labels": [spoken[0] for spoken in words], "tags": list(map(" ".join, tags))}
        targets["text"] = list(map(" ".join, words))
        for name, lines in targets.items():
            write_file(folder / f"{split}.{name}", "".join(f"{line}\n" for line in lines))
    for recipe in sorted(RECIPES.glob("*.yaml")):
        write_file(folder / recipe.name, recipe.read_bytes())
    x, _, _ = recordings(2, 10 * seed + len(SPLITS))
    np.save(folder / "a.npy", x[0])
    header = ",".join(f"channel {i}" for i in range(CHANNELS))
    np.savetxt(folder / "b.csv", x[1], fmt="%.4f", delimiter=",", header=header, comments="")
    return folder


def main(arguments: list[str]) -> None:
    is_option = any(argument.startswith("-") for argument in arguments)
    wrong_seed = len(arguments) == 2 and not arguments[1].isdecimal()
    if len(arguments) not in (1, 2) or is_option or wrong_seed:
        raise OptionError("usage: python -m regard.data.keyword_signals FOLDER [SEED]")
    folder = make_signals(arguments[0], *map(int, arguments[1:]))
    print(f"{folder}: {', '.join(f'{count:,} {split}' for split, count in SPLITS.items())} recordings")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RegardError as error:
        sys.exit(f"regard: {error}")
