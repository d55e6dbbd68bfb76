"""Choose decoding settings on the validation set: `benchmarks.recipes --choose KEY=VALUE,VALUE,…`."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.decoding.beam import Beam
from regard.errors import OptionError
from regard.files.atomic import write_file

Setting = dict[str, str]  # values by key of the recipe

OPTIONS = {  # keys that can be chosen: option of `regard evaluate`, type, argument of Beam
    "decoding.beam": ("--beam", int, "size"),
    "decoding.length_penalty": ("--length-penalty", float, "length_penalty"),
}


def parse_settings(choices: Sequence[str]) -> list[Setting]:
    """The settings to compare: all combinations of the values of each KEY=VALUE,VALUE,…; [] without any."""
    values: dict[str, list[str]] = {}
    for choice in choices:
        key, _, listed = choice.partition("=")
        if key not in OPTIONS:
            raise OptionError(f"--choose takes {' or '.join(OPTIONS)}, got {key!r}")
        if key in values:
            raise OptionError(f"--choose {key} is given twice; write one list of values")
        values[key] = list(dict.fromkeys(listed.split(",")))
        for value in values[key]:
            _check(key, value)
    combinations = itertools.product(*values.values()) if values else ()
    return [dict(zip(values, combination, strict=True)) for combination in combinations]


def _check(key: str, value: str) -> None:
    _, kind, argument = OPTIONS[key]
    try:
        number = kind(value)
    except ValueError:
        raise OptionError(f"--choose {key}: {value!r} is not a number; write KEY=VALUE,VALUE,…") from None
    Beam(**{argument: number})  # raises OptionError if it is out of range


def label(setting: Setting) -> str:
    """The setting as overrides of a recipe."""
    return " ".join(f"{key}={value}" for key, value in setting.items())


def evaluate_options(setting: Setting) -> list[str]:
    """The setting as options of `regard evaluate`."""
    return [word for key, value in setting.items() for word in (OPTIONS[key][0], value)]


def choose(settings: Sequence[Setting], scores: dict[str, dict[str, float]], figure: str) -> dict[str, Any]:
    """The setting with the best mean score over the runs; of equal ones the first.

    `scores`: for each run, the validation score by the label of a setting.
    """
    means = {
        label(setting): statistics.mean(by_label[label(setting)] for by_label in scores.values())
        for setting in settings
    }
    best = max(settings, key=lambda setting: means[label(setting)])
    return {"chosen": best, "figure": figure, "means": means, "runs": scores}


def read_choice(path: Path, settings: Sequence[Setting]) -> dict[str, Any] | None:
    """The choice of an earlier command; None before. Raise OptionError if it was among other settings."""
    if not path.is_file():
        return None
    choice = json.loads(path.read_text(encoding="utf-8"))
    if list(choice["means"]) != [label(setting) for setting in settings]:
        raise OptionError(
            f"{path} has a choice among {', '.join(choice['means'])}; "
            "give the same --choose, or another --out"
        )
    return choice


def write_choice(path: Path, choice: dict[str, Any]) -> None:
    write_file(path, json.dumps(choice, indent=1) + "\n")


def choice_text(choice: dict[str, Any]) -> str:
    """One line: the chosen setting and the mean of each."""
    means = ", ".join(f"{name} {mean:.2f}" for name, mean in choice["means"].items())
    figure, runs = choice["figure"], len(choice["runs"])
    return f"{label(choice['chosen'])} chosen on the validation set; mean {figure} of {runs} runs: {means}"
