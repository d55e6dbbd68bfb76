"""Every public class and function with one wrong argument works, or raises an error of regard, quickly."""

from __future__ import annotations

import signal

import pytest

from tests import wrong_calls
from tests.wrong_calls import FAILING, NAMES, SECONDS, WRONG, attempt, parameters, right, within


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return wrong_calls.make_models(tmp_path_factory.mktemp("models"))


SLOW = ("train", "Recipe")  # many arguments; `make soak` tries them too


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs alarms")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in NAMES]
)
def test_a_wrong_argument_ends_in_an_error_of_regard(name, models, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)  # a run whose folder is not given is made in runs/
    if name not in FAILING:
        assert attempt(name, right(name, models)) is None
    problems = []
    for parameter in parameters(name):
        for shown, value in WRONG.items():
            arguments = right(name, models) | {parameter: value}
            outcome = within(SECONDS, lambda arguments=arguments: attempt(name, arguments))
            if outcome:
                problems.append(f"{name}({parameter}={shown}) {outcome}")
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems)
