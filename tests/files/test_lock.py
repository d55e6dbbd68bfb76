"""Locks: two processes never use one run."""

import errno
import os
import time

import pytest

from regard.errors import FolderError
from regard.files import lock
from regard.files.lock import RunLock
from regard.training.step_folders import step_folders, step_of
from regard.training.trainer import resume, train
from tests.training import tiny


def test_the_second_process_learns_who_holds_the_lock_and_gets_it_afterwards(tmp_path):
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    first.acquire()
    with pytest.raises(
        FolderError, match=rf"{tmp_path} is in use by process {os.getpid()} on host \S+; wait"
    ):
        second.acquire()
    first.release()
    assert not list(tmp_path.iterdir())
    second.acquire()
    second.release()


def test_a_lock_file_removed_between_open_and_lock_is_created_again(tmp_path, monkeypatch):
    """The owner removes the file after we opened it: two processes would then lock two different files."""
    import fcntl

    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    real = fcntl.flock

    def flock(file, how):
        first.release()
        return real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    second.acquire()
    monkeypatch.undo()
    with pytest.raises(FolderError, match="in use"):
        RunLock(tmp_path).acquire()
    second.release()


def test_a_disk_that_cannot_be_written_is_an_error_of_one_sentence(tmp_path, monkeypatch):
    def refused(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(lock, "open", refused, raising=False)
    with pytest.raises(FolderError, match=r"cannot be written \(Read-only file system\).*make it writable"):
        RunLock(tmp_path).acquire()


@pytest.mark.slow
def test_a_running_run_cannot_be_resumed_or_replaced_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    made = tiny.recipe(tmp_path, training__steps=100_000, training__validate_every=100_000)
    process = tiny.start(tmp_path, "train", made, tmp_path / "run")
    try:
        while not step_folders(tmp_path / "run" / "checkpoints"):
            time.sleep(0.005)
        for again in (
            lambda: resume(tmp_path / "run", quiet=True),
            lambda: train(made, folder=tmp_path / "run", overwrite=True, quiet=True),
        ):
            with pytest.raises(FolderError, match=rf"run is in use by process {process.pid} on host"):
                again()
    finally:
        process.kill()
    reached = step_of(step_folders(tmp_path / "run" / "checkpoints")[-1])
    result = resume(tmp_path / "run", overrides=[f"training.steps={reached + 2}"], quiet=True)
    assert result.finished and not (tmp_path / "run" / lock.NAME).exists()
