"""benchmarks/layer_time.py and benchmarks/pack.py: the log of a small run, and corpora cut to a part."""

import json
import lzma

import pytest
from benchmarks import align, layer_time, pack

from regard.errors import DataError


def test_the_log_has_every_layer_and_length_and_the_ratio_of_two_of_them(tmp_path, capsys):
    out = tmp_path / "times.json"
    assert layer_time.main(["--tiny", "--out", str(out)]) == 0
    log = json.loads(out.read_text(encoding="utf-8"))
    row = log["rows"][0]
    assert row["device"] == "cpu" and row["lengths"] == [4, 8]
    assert set(row["milliseconds"]) == {"convolution", "recurrence", "attention", "restricted attention"}
    times = row["milliseconds"]
    for i in (0, 1):
        ratio = times["recurrence"][i] / times["attention"][i]
        assert row["ratio"][i] == pytest.approx(
            ratio, rel=0.02, abs=0.006
        )  # it has two digits after the point
    assert log["command"].startswith("python -m benchmarks.layer_time --tiny")
    assert capsys.readouterr().out.count("\n| ") == 2 * len(log["rows"])


def test_the_training_files_are_cut_and_the_others_copied(tmp_path, monkeypatch, capsys):
    data, packed = tmp_path / "data", tmp_path / "packed"
    (data / "europarl").mkdir(parents=True)
    for name, count in (("train.en.xz", 5), ("dev.en.xz", 3)):
        (data / "europarl" / name).write_bytes(
            lzma.compress("".join(f"{i}\n" for i in range(count)).encode())
        )
    monkeypatch.setattr(align, "data_folder", lambda: data)
    assert pack.main([str(packed), "europarl", "--pairs", "2"]) == 0
    assert lzma.decompress((packed / "europarl" / "train.en.xz").read_bytes()) == b"0\n1\n"
    assert (packed / "europarl" / "dev.en.xz").read_bytes() == (data / "europarl" / "dev.en.xz").read_bytes()
    assert "europarl: " in capsys.readouterr().out
    with pytest.raises(DataError, match="there is no missing in"):
        pack.main([str(packed), "missing"])
