"""The background thread that writes files."""

import threading

import pytest

from regard.files.background import Background


def test_jobs_run_in_order_in_a_background_thread():
    seen, go = [], threading.Event()
    background = Background()
    background.start(lambda: (go.wait(120), seen.append(1)))
    assert seen == []
    go.set()
    background.start(lambda: seen.append(2))
    background.wait()
    assert seen == [1, 2]


def test_an_error_of_a_job_reaches_the_caller_once():
    background = Background()
    background.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        background.wait()
    background.wait()


def test_jobs_after_a_failed_job_are_dropped():
    seen, go = [], threading.Event()
    background = Background()
    background.start(lambda: (go.wait(120), 1 / 0))
    background.start(lambda: seen.append("a checkpoint that names what was never written"))
    go.set()
    with pytest.raises(ZeroDivisionError):
        background.wait()
    background.start(lambda: seen.append("later"))
    background.wait()
    assert seen == ["later"]
