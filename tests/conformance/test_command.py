"""python -m regard.conformance: exit codes, messages and reproductions.

Covers actions.py, backends.py, cases.py, draw_options.py, verdicts.py.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.conformance import CLASSES, case, check
from regard.conformance.__main__ import main

HERE = "tests.conformance.test_command"


def by_definition(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ value


def ignores_half_of_the_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None:
        mask = mask | (torch.arange(mask.shape[-1]) >= mask.shape[-1] // 2)
    return by_definition(query, key, value, mask)


def reads_contiguous_memory(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    key = torch.as_strided(key, key.shape, torch.empty(key.shape).stride())
    return by_definition(query, key, value, mask)


def always_says_no(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise NotImplementedError("no kernel for this call")


@pytest.mark.parametrize(
    ("name", "kind"), [("ignores_half_of_the_mask", "masks"), ("reads_contiguous_memory", "strides")]
)
def test_a_broken_function_exits_1_and_prints_a_reproduction_that_runs(name, kind, capsys):
    assert main(["--backend", f"{HERE}:{name}", "--class", kind, "--cases", "20"]) == 1
    shown = capsys.readouterr().out
    assert "0 silently wrong" not in shown
    lines = shown[shown.index("from regard.conformance") :].split("\n\n")[0]
    exec(lines, {})
    assert " wrong " in capsys.readouterr().out


def test_a_correct_function_exits_0(capsys):
    assert (
        main(["--backend", "regard.conformance.backends:torch_sdpa", "--class", "plain", "--cases", "20"])
        == 0
    )
    assert "20 pass    0 refused    0 unspecified    0 silently wrong" in capsys.readouterr().out


def test_a_row_without_keys_is_unspecified_and_no_error(capsys):
    assert main(["--backend", f"{HERE}:by_definition", "--class", "fully masked rows", "--cases", "5"]) == 0
    assert "0 pass    0 refused    5 unspecified    0 silently wrong" in capsys.readouterr().out


def test_an_exception_is_a_refusal_with_its_reason(capsys):
    assert main(["--backend", f"{HERE}:always_says_no", "--class", "plain", "--cases", "5"]) == 0
    shown = capsys.readouterr().out
    assert "0 pass    5 refused" in shown
    assert "no kernel for this call" in shown or "no option mask" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--backend", "no_such_module:attend"],
            "cannot import 'no_such_module:attend': No module named 'no_such_module'",
        ),
        (["--backend", f"{HERE}:no_such_function"], "cannot import"),
        (["--backend", "attend"], "a backend is named package.module:function, got 'attend'"),
        (["--backend", "math:pi"], "cannot read the arguments of 'math:pi'"),
        (
            ["--backend", f"{HERE}:by_definition", "--class", "strude"],
            "there is no class 'strude'; the classes are plain; ",
        ),
        (["--backend", f"{HERE}:by_definition", "--cases", "0"], "--cases must be at least 1, got 0"),
    ],
)
def test_a_wrong_command_line_exits_2_with_one_sentence(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_same_seed_draws_the_same_case_and_leaves_the_generator_alone():
    before = torch.random.get_rng_state()
    for name in CLASSES:
        first, second = case(name, 3), case(name, 3)
        assert str(first) == str(second) or "0x" in str(first)  # a lambda shows its address
        assert all(
            torch.equal(x.nan_to_num(), second.leaves[n].nan_to_num()) for n, x in first.leaves.items()
        )
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_verdict_names_what_is_off_and_by_how_much():
    outcomes = [check(case("masks", seed), ignores_half_of_the_mask) for seed in range(10)]
    wrong = [x for x in outcomes if x.verdict == "wrong"]
    assert wrong
    assert all("off by" in x.detail and x.error > 0 for x in wrong)


def test_the_example_on_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    example = next(x for x in page.split("```")[1::2] if "def attend" in x).removeprefix("python\n")
    (tmp_path / "mine.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    slow = ("compile", "export")
    assert (
        main(
            [
                "--backend",
                "mine:attend",
                "--cases",
                "3",
                *(x for n in CLASSES if n not in slow for x in ("--class", n)),
            ]
        )
        == 0
    )
    assert all(name in page for name in CLASSES)
