"""The steps of `benchmarks.translator`, which train the bundled translator: with a tiny model, and their
schedule.
"""

import subprocess
import sys
from itertools import islice

import pytest
from benchmarks.translator import prepare, schedule, session

import regard
from regard.data import corpora


@pytest.mark.slow
def test_every_step_runs_and_the_model_comes_back(tmp_path, monkeypatch):
    pairs = list(islice(corpora.find("tatoeba-sample").rows("train", "en", "de"), 600))
    for language in ("de", "fr"):  # the German sentences stand for both languages
        for corpus in ("tatoeba", "europarl"):
            for split in ("train", "validation", "test"):
                prepare.write_pairs(tmp_path / "data", f"{corpus}-x", language, split, pairs)
    monkeypatch.setattr(session, "ROOT", tmp_path)
    session.check(tmp_path / "data")
    model = regard.load(tmp_path / "check" / "models" / "student")
    assert model.source_tokenizer.languages == ("de", "en", "fr")
    assert (tmp_path / "check" / "work" / "distilled.tsv").read_text(encoding="utf-8").startswith(">>de<< ")


def test_pieces_that_came_back_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(session.transfer, "PIECE", 4000)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(range(256)) * 40)
    session.transfer.pack(tmp_path / "model", tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) > 2
    session.transfer.unpack(tmp_path / "out", tmp_path / "joined")
    assert (tmp_path / "joined" / "model" / "weights").read_bytes() == bytes(range(256)) * 40


def test_the_schedule_uses_the_time_and_goes_on_after_a_failed_step(tmp_path, capsys):
    calls = []

    def start(arguments, log):
        calls.append(arguments)
        with log.open("a") as file:
            file.write(f"step {arguments[0]}: 1 s\nuninteresting\n")
        return subprocess.Popen([sys.executable, "-c", f"exit({3 * (arguments[0] == 'distill')})"])

    schedule.run(27.0, tmp_path, start)
    assert [call[0] for call in calls] == [step.name for step in schedule.STEPS]
    minutes = {name: float(rest[1]) for name, *rest in calls if rest}
    # Almost no time passes here, so the first step leaves its share to the others.
    first, second = schedule.STEPS[:2]
    training = 27 - sum(step.seconds for step in schedule.STEPS) / 60
    assert minutes["teacher"] == pytest.approx(second.share * (training + first.seconds / 60), abs=0.2)
    assert schedule.wait(0.0, tmp_path, tmp_path / "results")
    shown = capsys.readouterr().out
    assert "error: step distill ended with exit code 3" in shown and "uninteresting" not in shown
    assert (tmp_path / "results" / "schedule.txt").is_file()


def test_teacher_and_student_can_have_a_session_each(tmp_path):
    calls = []

    def start(arguments, log):
        calls.append(arguments)
        log.touch()
        return subprocess.Popen([sys.executable, "-c", "pass"])

    for plan in ("teacher", "student"):
        schedule.run(27.0, tmp_path, start, schedule.PLANS[plan])
    names = [call[0] for call in calls]
    assert names.index("pack-distilled") < names.index("student") and names[-1] == "finish"
    minutes = {name: float(rest[1]) for name, *rest in calls if rest}
    assert min(minutes.values()) > 23


def test_waiting_ends_after_its_minutes_and_shows_each_line_once(tmp_path, capsys):
    (tmp_path / "schedule.txt").write_text("validation at step 5: BLEU 3\nvalidation at st")
    assert not schedule.wait(0.0, tmp_path, tmp_path / "results")
    assert not schedule.wait(0.0, tmp_path, tmp_path / "results")
    assert capsys.readouterr().out.count("validation at") == 1
