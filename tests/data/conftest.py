"""An empty cache for every test, and the folder of downloaded corpora."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("REGARD_CACHE", str(folder))
    monkeypatch.delenv("REGARD_WORKERS", raising=False)
    return folder


@pytest.fixture
def real_data(monkeypatch):
    """The folder of downloaded corpora; the test is skipped if it does not exist."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("REGARD_DATA") or beside)
    if not (folder / "multi30k").is_dir():
        pytest.skip(f"no corpora: REGARD_DATA is not set and {beside} is not there")
    monkeypatch.setenv("REGARD_DATA", str(folder))
    return folder
