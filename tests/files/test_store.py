"""Files are whole or absent, folders too, whoever else is at work."""

import multiprocessing
import os
import time

import numpy as np
import pytest

from regard.errors import DataError
from regard.files.store import (
    GrowingArray,
    build_folder,
    cache_folder,
    file_sha256,
    read_array,
    write_atomically,
)


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("REGARD_CACHE")
    assert cache_folder().parts[-2:] == (".cache", "regard")


def test_a_file_has_the_checksum_that_everyone_computes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_writing_replaces_and_leaves_nothing_else(tmp_path):
    write_atomically(tmp_path / "new" / "a.txt", "one")
    write_atomically(tmp_path / "new" / "a.txt", "zwei ü\n")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "zwei ü\n".encode()
    assert os.listdir(tmp_path / "new") == ["a.txt"]


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path):
    write_atomically(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a.txt", "half \ud83d")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_an_array_grows_on_disk_and_is_an_ordinary_npy(tmp_path, dtype):
    parts = [np.arange(n, dtype=np.int64) % 65536 for n in (0, 5, 100_000, 1)]
    with GrowingArray(tmp_path / "a.npy", dtype) as array:
        for part in parts:
            array.append(part)
    found = np.load(tmp_path / "a.npy")
    assert found.dtype == dtype
    assert np.array_equal(found, np.concatenate(parts))
    assert np.array_equal(read_array(tmp_path / "a.npy"), found)


def test_an_empty_array_can_be_read(tmp_path):
    with GrowingArray(tmp_path / "a.npy", np.uint16):
        pass
    assert read_array(tmp_path / "a.npy").shape == (0,)


def whole(folder):
    return (folder / "done").is_file()


def test_a_folder_is_built_once(tmp_path):
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "done").write_text("x")

    for _ in range(2):
        build_folder(tmp_path / "set", whole, build)
    assert len(calls) == 1
    assert sorted(os.listdir(tmp_path)) == ["set", "set.lock"]


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def build(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(tmp_path / "set", whole, build)
    assert os.listdir(tmp_path) == ["set.lock"]


def test_what_a_killed_build_left_is_cleared_and_a_damaged_folder_replaced(tmp_path):
    (tmp_path / "set.tmp-dead").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "junk").write_text("x")
    build_folder(tmp_path / "set", whole, lambda folder: (folder / "done").write_text("x"))
    assert sorted(os.listdir(tmp_path)) == ["set", "set.lock"]
    assert os.listdir(tmp_path / "set") == ["done"]


def slow_build(root, log):
    def build(folder):
        with open(log, "a", encoding="utf-8") as file:
            file.write("built\n")
        time.sleep(0.3)
        (folder / "done").write_text("x")

    build_folder(root / "set", whole, build)
    assert whole(root / "set")


def test_of_several_processes_one_builds_and_the_others_wait(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=slow_build, args=(tmp_path, tmp_path / "log")) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "built\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_one_sentence(tmp_path):
    def build(folder):
        with open("/dev/full", "wb") as file:
            file.write(b"x" * 100_000)

    with pytest.raises(DataError, match="is full; free some space, or set REGARD_CACHE"):
        build_folder(tmp_path / "set", whole, build)
    assert os.listdir(tmp_path) == ["set.lock"]


def test_a_folder_that_may_not_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be written"):
        build_folder(tmp_path / "file" / "set", whole, lambda folder: None)
    with pytest.raises(DataError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "a.txt", "x")
