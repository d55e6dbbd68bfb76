"""Wrong calls of the public names: one to three arguments replaced by invalid ones, and damaged recipes."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import warnings

from tests.wrong_calls import NAMES, SECONDS, WRONG, attempt, make_models, parameters, right, within

from benchmarks.attack.outcome import Outcome, Plan, attacking

CALLS, QUICK = 2400, 120
TRAINING = ("Batch", "Recipe", "build", "resume", "train")  # asked more often: they take whole recipes
BLOCKS = {"train": "recipe", "build": "model"}  # arguments that are mappings, changed inside as well


def run(plan: Plan) -> list[Outcome]:
    numbers = plan.numbers(QUICK if plan.quick else CALLS)
    with (
        attacking("wrong calls", "calls", len(numbers), "calls") as (outcome, progress),
        silent(plan),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        models = make_models(plan.place)
        for number in numbers:
            name, arguments, shown = drawn(plan.draw("calls", number), models)
            problem = within(SECONDS, lambda name=name, arguments=arguments: attempt(name, arguments))
            outcome.count += 1
            progress.advance()
            if problem:
                outcome.failed(number, f"{name}({shown}) {problem}", plan.seed)
    return [outcome]


def drawn(draw: random.Random, models: dict) -> tuple[str, dict, str]:
    """A call: its name, its arguments, and a description of what is wrong with them."""
    name = draw.choice(TRAINING if draw.random() < 0.2 else NAMES)
    arguments, shown = right(name, models), []
    block = BLOCKS.get(name)
    if block and draw.random() < 0.6:
        arguments[block] = copy.deepcopy(arguments[block])
        shown.append(spoil(draw, arguments[block], block))
    else:
        names = parameters(name)
        for parameter in draw.sample(names, min(len(names), draw.choice((1, 1, 2, 3)))):
            value = draw.choice(list(WRONG))
            arguments[parameter] = WRONG[value]
            shown.append(f"{parameter}={value}")
    return name, arguments, ", ".join(shown)


def spoil(draw: random.Random, block: dict, path: str) -> str:
    """Replace one value of a nested mapping, at any depth, or add a key; return what was changed."""
    keys = list(block)
    key = draw.choice(keys) if keys and draw.random() < 0.9 else "surprise"
    inner = block.get(key)
    if isinstance(inner, dict) and inner and draw.random() < 0.8:
        return spoil(draw, inner, f"{path}.{key}")
    # An empty block is right: it has its defaults.
    value = draw.choice([name for name in WRONG if name != "{}"])
    block[key] = WRONG[value]
    return f"{path}.{key}={value}"


@contextlib.contextmanager
def silent(plan: Plan):
    """Without what training prints, in a folder where runs without a name may be made."""
    before = os.getcwd()
    os.chdir(plan.place)
    try:
        with (
            (plan.place / "printed.txt").open("w", encoding="utf-8") as file,
            contextlib.redirect_stdout(file),
        ):
            yield
    finally:
        os.chdir(before)
