"""benchmarks/shortlist.py: the table of a tiny translator."""

import pytest
from benchmarks import shortlist

from regard.decoding.engine import why_not
from regard.models.folder import load
from regard.training.trainer import train

TINY = (
    "model.dim=64", "model.encoder.layers=1", "model.decoder.layers=1", "model.encoder.inner=64",
    "model.decoder.inner=64", "tokenizer.size=200", "training.steps=2", "schedule.warmup=1",
    "training.threads=1",
    "data.limit=200", "training.validate_every=2", "training.save_every=2", "decoding.max_length=5",
)  # fmt: skip


def test_the_table_has_a_row_for_each_precision_and_beam(tmp_path, own_cache, run_regard, capfd):
    train("small", folder=tmp_path / "run", overrides=list(TINY))
    if (reason := why_not(load(tmp_path / "run"))) is not None:
        pytest.skip(reason)
    assert run_regard("shortlist", tmp_path / "run")[0] == 0
    assert shortlist.main([str(tmp_path / "run"), "--sentences", "4"]) == 0
    rows = [line for line in capfd.readouterr().out.splitlines() if line.startswith(("| float32", "| int8"))]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [
        f"{precision}, {search}" for precision in ("float32", "int8") for search in ("greedy", "beam 5")
    ]
    assert all("%)" in row for row in rows)
