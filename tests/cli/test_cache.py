"""Tests of cache.py."""

import json
import os
from functools import partial

import pytest

from regard.cli import cache


@pytest.fixture
def regard(run_regard, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    return partial(run_regard, "cache")


@pytest.fixture
def entry(tmp_path):
    path = tmp_path / "prepared" / "0123456789abcdef"
    path.mkdir(parents=True)
    (path / "meta.json").write_text(json.dumps({"rows": 1200, "paired": True}), encoding="utf-8")
    (path / "target.0.npy").write_bytes(b"x" * 3000)
    for file in (*path.iterdir(), path):
        os.utime(file, (1e9, 1e9))
    return path


def test_cache_entries_are_listed_and_pruned(regard, entry, tmp_path):
    code, out, _ = regard()
    assert code == 0 and all(
        word in out
        for word in ("01234567", "data", "3.0 KiB", "days ago", "1,200 pairs", "1 entries", str(tmp_path))
    )
    assert json.loads(regard("--json")[1])[0]["made_by"] == "1,200 pairs"
    assert "removed 0 entries" in regard("--prune", "--older-than", "90000")[1]
    assert "removed 0 entries" in regard("--prune", "--max-size", "10k")[1]
    assert entry.exists()
    assert "removed 1 entries" in regard("--prune")[1] and not entry.exists()
    assert "0 entries" in regard()[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [(["--max-size", "much", "--prune"], "'much'"), (["--older-than", "3"], "add --prune")],
)
def test_bad_options_are_errors_of_one_sentence(regard, args, message):
    code, _, err = regard(*args)
    assert code == 2 and message in err and err.count("\n") == 1


def test_sizes_are_read_and_shown():
    assert [cache.parse_size(text) for text in ("500", "2K", "1.5g", "10 GiB", "3MB")] == [
        500,
        2048,
        3 << 29,
        10 << 30,
        3 << 20,
    ]
    assert [cache.size(n) for n in (12, 2048, 3 << 29)] == ["12 B", "2.0 KiB", "1.5 GiB"]
