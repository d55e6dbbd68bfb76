"""Listing and pruning the cache; entries in use are kept."""

import gc
import os
import time

import numpy as np
import pytest

from regard.data import prepared_cache
from regard.data.prepare import Prepared, prepare
from regard.data.reader_choice import open_files
from regard.data.tokenizer import Tokenizer
from tests import forked

DAY = 86_400


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"


def make(tmp_path, name, days=0.0):
    """A prepared text, last used some days ago."""
    (tmp_path / f"{name}.txt").write_text(f"{name} and more\n" * 20, encoding="utf-8")
    rows = open_files([tmp_path / f"{name}.txt"], None, None, False)
    path = prepare(rows, None, Tokenizer.train(["abcdefghijklmnopqrstuvwxyz "], "character", 60)).folder
    then = time.time() - days * DAY
    for file in (*path.rglob("*"), path):
        os.utime(file, (then, then))
    return path


def test_entries_have_size_age_and_origin(tmp_path):
    old, new = make(tmp_path, "old", 40), make(tmp_path, "new")
    prepared_cache.hold(Prepared(new), "training set of new.txt, recipe small")
    result = prepared_cache.entries()
    assert [entry.path for entry in result] == [old, new] and {entry.kind for entry in result} == {"data"}
    assert result[0].size == sum(file.stat().st_size for file in old.iterdir())
    assert result[0].age == pytest.approx(40 * DAY, abs=60) and result[0].made_by == "20 lines"
    assert result[1].made_by == "training set of new.txt, recipe small"
    assert prepared_cache.entries()[0].age > 39 * DAY  # listing does not count as use


def test_pruning_by_age_and_by_size_removes_the_least_recently_used(tmp_path, folder):
    paths = [make(tmp_path, name, days) for name, days in (("a", 40), ("b", 20), ("c", 10), ("d", 0))]
    assert [entry.path for entry in prepared_cache.prune(older_than=30 * DAY)] == paths[:1]
    sizes = [entry.size for entry in prepared_cache.entries()]
    assert [entry.path for entry in prepared_cache.prune(max_size=sum(sizes[1:]))] == paths[1:2]
    assert prepared_cache.prune(max_size=10**9) == [] and [path.exists() for path in paths] == [
        False,
        False,
        True,
        True,
    ]
    prepared_cache.prune(older_than=0)
    assert all(name.name.endswith(".lock") for name in folder.iterdir())


def test_a_locked_entry_stays_until_it_is_released(tmp_path):
    path = make(tmp_path, "a", 40)
    used = Prepared(path)
    assert prepared_cache.hold(used, "a test")
    os.utime(path.with_name(path.name + ".used"), (0, 0))
    assert prepared_cache.entries()[0].in_use and prepared_cache.prune(older_than=0) == [] and path.exists()
    del used
    gc.collect()
    assert (
        not prepared_cache.entries()[0].in_use
        and len(prepared_cache.prune(older_than=0)) == 1
        and not path.exists()
    )


def test_a_set_that_was_pruned_before_it_was_locked_is_an_error(tmp_path):
    used = Prepared(make(tmp_path, "a"))
    prepared_cache.prune(older_than=0)
    assert not prepared_cache.hold(used, "a test")


USES = """
import sys, time
from pathlib import Path
from regard.data import prepared_cache as cache
from regard.data.prepare import Prepared
prepared = Prepared(Path(sys.argv[1]))
tokens = cache.hold(prepared, "x") if sys.argv[2] == "hold" else prepared.arrays("target")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["hold", "map"])
def test_an_entry_used_by_another_process_is_kept_until_that_process_ends(tmp_path, how):
    path = make(tmp_path, "a", 40)
    with forked.Popen(path, how, code=USES) as process:
        assert process.stdout.readline() == "ready\n"
        assert prepared_cache.prune(older_than=0) == [] and path.exists()
        process.kill()
    assert len(prepared_cache.prune(older_than=0)) == 1


def test_leftovers_of_killed_processes_are_removed_and_builds_in_progress_are_kept(tmp_path, folder):
    import fcntl

    left = folder / "0123.tmp-abc"
    left.mkdir(parents=True)
    np.save(left / "x.npy", np.zeros(3))
    with open(folder / "0123.lock", "w") as building:
        fcntl.flock(building, fcntl.LOCK_EX)
        assert prepared_cache.entries()[0].kind == "unfinished" and prepared_cache.prune(older_than=0) == []
    assert len(prepared_cache.prune(older_than=0)) == 1 and not left.exists()
