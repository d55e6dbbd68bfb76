"""Logs of benchmarks, read by lessons."""

from regard.lessons import read_log


def test_a_log_is_read_and_the_command_that_made_it_is_printed(capsys):
    log = read_log("trainability", "python -m benchmarks.trainability")
    assert log is not None and {run["norm"] for run in log["runs"]} == {"post", "pre", "none"}
    assert capsys.readouterr().out.startswith("python -m benchmarks.trainability")


def test_for_a_missing_log_the_command_that_makes_it_is_printed(capsys):
    assert read_log("nowhere", "python -m benchmarks.nowhere") is None
    sentence = "there is no benchmarks/results/nowhere.json; `python -m benchmarks.nowhere` in the repository"
    assert capsys.readouterr().out == f"{sentence} makes it\n"
