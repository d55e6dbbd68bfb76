"""Alignment error of the bundled translator: the stored figures, and the trial set from the command line.

Tests of benchmarks/translator/alignment.py.
"""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from benchmarks.translator.alignment import MODEL, RESULTS, neighbour_weights, options_of, selections, trial

from regard.models.default import as_model
from regard.pipelines.word_links import NEIGHBOUR_WEIGHT, LinkSelection

PAGE = Path(__file__).parent.parent / "docs" / "alignment.md"
GOLD = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[2] / "shared" / "data"))
HANSARDS = GOLD / "align-hansards-en-fr"


@pytest.fixture(scope="module")
def record():
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_selection_of_the_test_set_has_the_lowest_error_on_the_trial_set(record):
    names = [options_of(selection) for selection in selections()]
    errors = {name: record["trial"][name]["aer"] for name in names}
    assert errors[record["chosen"]] == min(errors.values())
    assert [name.rpartition(", ")[2] for name in record["test"]] == [record["chosen"], "(default)"]
    # The constant was chosen with an earlier version of the model; it is near the lowest error with this one,
    # without a threshold and with each.
    by_weight = {name: scores["aer"] for name, scores in record["trial"].items() if "neighbours" in name}
    for threshold in (None, 0.1, 0.15, 0.2):
        own = by_weight[f"neighbours of at least {NEIGHBOUR_WEIGHT:g}, threshold {threshold}"]
        assert own <= 0.3 + min(e for name, e in by_weight.items() if name.endswith(f"threshold {threshold}"))


def test_the_table_of_the_page_has_the_stored_figures(record):
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| `regard align(.*?)` \| ([\d.]+) \| \**([\d.]+|–)\** \|$", text, re.M)
    assert len(rows) == 12
    one = json.loads((RESULTS.parent / "alignment.json").read_text(encoding="utf-8"))["gold"]
    test = {
        record["chosen"]: record["test"][f"align-hansards-en-fr, {record['chosen']}"]["aer"],
        "--symmetrize none": 100 * one["align-hansards-en-fr, strongest"]["aer"],
        "--symmetrize none --mutual": 100 * one["align-hansards-en-fr, mutual"]["aer"],
    }
    for options, on_trial, on_test in rows:
        name = options.strip() or "(default)"
        assert on_trial == f"{record['trial'][name]['aer']:.1f}", name
        assert on_test == (f"{test[name]:.1f}" if name in test else "–"), name
    german = record["test"]["align-europarl-de-en, (default)"]
    figures = [f"{german[key]:.1f}" for key in ("aer", "precision", "recall")]
    assert f"| `regard align` | **{figures[0]}** | {figures[1]} | {figures[2]} |" in text


def test_the_trial_rows_by_hand_are_those_of_a_selection():
    torch.manual_seed(1)
    forward, backward = (torch.rand(6, 6, dtype=torch.float64).softmax(-1) for _ in range(2))
    ways = dict(neighbour_weights())
    for threshold in (None, 0.1, 0.15, 0.2):
        select = ways[f"neighbours of at least {NEIGHBOUR_WEIGHT:g}, threshold {threshold}"]
        assert select(4 * forward, 4 * backward) == LinkSelection(threshold).joined(4 * forward, 4 * backward)


@pytest.mark.skipif(not HANSARDS.is_dir(), reason="the Hansards gold is not there; set REGARD_DATA")
def test_the_trial_set_has_the_stored_error_by_the_command_and_by_the_script(record, run_regard, monkeypatch):
    files = [HANSARDS / f"dev.{language}.gz" for language in ("en", "fr")]
    for name in (record["chosen"], "(default)", "--symmetrize none --mutual", "--symmetrize grow-diag"):
        options = [] if name == "(default)" else name.split()
        gold = ["--gold", HANSARDS / "dev.talp.gz", "--json", "--model", MODEL]
        code, out, err = run_regard("align", "-i", *files, "--to", "fr", *gold, *options)
        assert code == 0, err
        assert 100 * json.loads(out)["aer"] == pytest.approx(record["trial"][name]["aer"], abs=0.3), name
    monkeypatch.setenv("REGARD_DATA", str(GOLD))
    best, rows = trial(as_model(MODEL, "align"))
    assert rows.keys() == record["trial"].keys()
    assert rows[record["chosen"]]["aer"] == pytest.approx(rows[options_of(best)]["aer"], abs=0.3)
