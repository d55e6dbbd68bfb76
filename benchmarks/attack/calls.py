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
TRAINING = ("Batch", "Recipe", "build", "resume", "train")  # called more often: they take complete recipes
BLOCKS = {"train": "recipe", "build": "model"}  # arguments that are mappings, changed inside as well


def run(plan: Plan) -> list[Outcome]:
    numbers = plan.numbers(QUICK if plan.quick else CALLS)
    with (
        attacking("wrong calls", "calls", len(numbers), "calls") as (outcome, progress),
        quiet_folder(plan),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        models = make_models(plan.folder)
        for number in numbers:
            name, arguments, description = draw_call(plan.draw("calls", number), models)
            problem = within(SECONDS, lambda name=name, arguments=arguments: attempt(name, arguments))
            outcome.count += 1
            progress.advance()
            if problem:
                outcome.failed(number, f"{name}({description}) {problem}", plan.seed)
    return [outcome]


def draw_call(draw: random.Random, models: dict) -> tuple[str, dict, str]:
    """Draw a wrong call: the function, its arguments, and which of them are wrong."""
    function = draw.choice(TRAINING if draw.random() < 0.2 else NAMES)
    arguments, descriptions = right(function, models), []
    block = BLOCKS.get(function)
    if block and draw.random() < 0.6:
        arguments[block] = copy.deepcopy(arguments[block])
        descriptions.append(replace_value(draw, arguments[block], block))
    else:
        names = parameters(function)
        for parameter in draw.sample(names, min(len(names), draw.choice((1, 1, 2, 3)))):
            value = draw.choice(list(WRONG))
            arguments[parameter] = WRONG[value]
            descriptions.append(f"{parameter}={value}")
    return function, arguments, ", ".join(descriptions)


def replace_value(draw: random.Random, block: dict, path: str) -> str:
    """Replace one value of a nested mapping, at any depth, or add a key; return what was changed."""
    keys = list(block)
    key = draw.choice(keys) if keys and draw.random() < 0.9 else "surprise"
    inner = block.get(key)
    if isinstance(inner, dict) and inner and draw.random() < 0.8:
        return replace_value(draw, inner, f"{path}.{key}")
    # An empty block is valid: all of its keys have defaults.
    value = draw.choice([name for name in WRONG if name != "{}"])
    block[key] = WRONG[value]
    return f"{path}.{key}={value}"


@contextlib.contextmanager
def quiet_folder(plan: Plan):
    """Redirect standard output to a file, and work in a folder where calls may create runs."""
    previous = os.getcwd()
    os.chdir(plan.folder)
    try:
        with (
            (plan.folder / "printed.txt").open("w", encoding="utf-8") as file,
            contextlib.redirect_stdout(file),
        ):
            yield
    finally:
        os.chdir(previous)
