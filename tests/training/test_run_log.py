"""The log is truncated on resuming, so that it equals the log of an uninterrupted run."""

import json

import pytest

from regard.training.run_log import RunLog, read_log


def test_each_event_is_a_line_of_json(tmp_path):
    with RunLog(tmp_path / "log.jsonl") as log:
        log.add("train", step=1, loss=2.5)
        log.add("validation", step=1, sample="für alle")
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "train", "step": 1, "loss": 2.5},
        {"event": "validation", "step": 1, "sample": "für alle"},
    ]


def test_non_finite_numbers_become_null(tmp_path):
    with RunLog(tmp_path / "log.jsonl") as log:
        log.add("train", loss=float("nan"), norm=float("inf"))
    assert json.loads((tmp_path / "log.jsonl").read_text(encoding="utf-8")) == {
        "event": "train",
        "loss": None,
        "norm": None,
    }


def test_resuming_truncates_the_log_to_the_position(tmp_path):
    with RunLog(tmp_path / "log.jsonl") as log:
        log.add("train", step=1)
        position = log.sync()
        log.add("train", step=2)
    with RunLog(tmp_path / "log.jsonl", position) as log:
        log.add("train", step=3)
    assert steps_in(tmp_path / "log.jsonl") == [1, 3]


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("damage", "remaining"),
    [
        (lambda path, content: path.unlink(), []),
        (lambda path, content: path.write_bytes(content[:-5]), [1, 2]),
        (lambda path, content: path.write_bytes(b""), []),
        (lambda path, content: path.write_bytes(content.replace(b'"step": 1', b'"step": oops')), [2, 3]),
        (lambda path, content: path.write_bytes(content + b'{"event": "train", "step": 4}\n' * 3), [1, 2, 3]),
        (
            lambda path, content: path.write_bytes(
                content.splitlines(True)[0] + b'{"event": "train", "step": 9}\n' * 9
            ),
            [1],
        ),
        (
            lambda path, content: path.write_bytes(b"[" * 100_000 + b"]" * 100_000 + b"\n" + content),
            [1, 2, 3],
        ),
    ],
    ids=[
        "deleted",
        "truncated in a line",
        "emptied",
        "edited",
        "longer",
        "other lines",
        "a deeply nested line",
    ],
)
def test_a_damaged_log_keeps_its_complete_lines_up_to_the_checkpoint(tmp_path, damage, remaining):
    path, messages = tmp_path / "log.jsonl", []
    with RunLog(path) as log:
        for step in (1, 2, 3):
            log.add("train", step=step)
        position = log.sync()
    damage(path, path.read_bytes())
    with RunLog(path, position, 3, messages.append) as log:
        log.add("train", step=4)
        assert log.position == path.stat().st_size
    assert steps_in(path) == [*remaining, 4]
    assert len(messages) <= 1 and (messages or remaining == [1, 2, 3])
    assert all(str(path) in text and "not affected" in text for text in messages)


def test_an_incomplete_last_line_is_skipped(tmp_path):
    (tmp_path / "log").write_text('{"a": 1}\n{"a": 2}\n{"a', encoding="utf-8")
    assert [e["a"] for e in read_log(tmp_path / "log")] == [1, 2]


def test_a_log_is_read_up_to_a_line_that_is_nested_too_deeply(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{deep}\n{{"step": 2}}\n')
    assert list(read_log(tmp_path / "log.jsonl")) == [{"step": 1}]
