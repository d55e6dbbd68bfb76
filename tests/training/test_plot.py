"""Curves of a run."""

import json

from regard.training import plot


def write(path, events):
    path.write_text("".join(json.dumps(e) + "\n" for e in events), encoding="utf-8")


def test_a_run_is_plotted_as_png(tmp_path):
    train = [{"event": "train", "step": s, "nll": 5.0 / s} for s in range(1, 9)]
    valid = [{"event": "validation", "step": s, "loss": 5.0 / s, "bleu": 2.0 * s} for s in (4, 8)]
    write(tmp_path / "log.jsonl", train + valid)
    plot.draw(tmp_path / "log.jsonl", tmp_path / "curves.png", "a run")
    assert (tmp_path / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["curves.png", "log.jsonl"]


def test_an_empty_log_writes_no_file(tmp_path):
    plot.draw(tmp_path / "log.jsonl", tmp_path / "curves.png")
    write(tmp_path / "log.jsonl", [{"event": "train", "step": 1, "nll": None}])
    plot.draw(tmp_path / "log.jsonl", tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_perplexity_is_plotted_without_the_metric(tmp_path):
    write(
        tmp_path / "log.jsonl",
        [{"event": "validation", "step": s, "loss": 1.0, "perplexity": 1000.0 / s} for s in (1, 500)],
    )
    plot.draw(tmp_path / "log.jsonl", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_a_run_without_matplotlib_has_no_plot_and_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    (tmp_path / "log.jsonl").write_text('{"event": "train", "step": 1, "nll": 2.0}\n')
    plot.draw(tmp_path / "log.jsonl", tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()
