"""The log is cut back on resumption, so that it is the log of a run that was never interrupted."""

import json

import pytest

from regard.errors import FolderError
from regard.training.log import Log


def test_each_event_is_a_line_of_json(tmp_path):
    with Log(tmp_path / "log.jsonl") as log:
        log.add("train", step=1, loss=2.5)
        log.add("validation", step=1, sample="für alle")
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "train", "step": 1, "loss": 2.5},
        {"event": "validation", "step": 1, "sample": "für alle"},
    ]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    with Log(tmp_path / "log.jsonl") as log:
        log.add("train", loss=float("nan"), norm=float("inf"))
    assert json.loads((tmp_path / "log.jsonl").read_text(encoding="utf-8")) == {"event": "train", "loss": None, "norm": None}


def test_going_on_drops_what_stands_behind_the_position(tmp_path):
    with Log(tmp_path / "log.jsonl") as log:
        log.add("train", step=1)
        position = log.sync()
        log.add("train", step=2)
    with Log(tmp_path / "log.jsonl", position) as log:
        log.add("train", step=3)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps == [1, 3]


def test_a_log_shorter_than_its_position_is_refused(tmp_path):
    with pytest.raises(FolderError, match="cut"):
        Log(tmp_path / "log.jsonl", 10)
