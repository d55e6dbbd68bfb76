"""benchmarks/gpu/schedule.py: plans run in the background, with a limit for each step, and resume."""

import shlex
import sys
import threading
import time
import zipfile

import pytest
from benchmarks.gpu import plans, schedule
from benchmarks.gpu.plans import Call, Plan, Step


def python(code):
    return shlex.join(["python", "-c", code])


def runner_of(tmp_path, *steps, minutes=10.0):
    return schedule.Runner(Plan(steps, ()), tmp_path, time.time() + 60 * minutes)


def log_of(tmp_path):
    return (tmp_path / "logs" / "schedule.txt").read_text(encoding="utf-8")


def test_a_step_that_fails_is_reported_and_the_next_one_runs(tmp_path):
    broken = Step("broken", python("print('as far as here'); import no_such_module"), 60)
    good = Step("good", python("open('{out}/figure', 'w').write('7')"), 60)
    runner_of(tmp_path, broken, good).run()
    assert (tmp_path / "out" / "figure").read_text() == "7"
    assert (tmp_path / "finished").read_text() == "broken"
    assert "step broken ended with exit code 1" in log_of(tmp_path)
    assert "No module named 'no_such_module'" in log_of(tmp_path)


def test_repeating_a_plan_runs_only_the_steps_that_failed(tmp_path):
    once = Step("once", python("open('{work}/calls', 'a').write('x')"), 60)
    later = Step("later", python("open('{work}/tries', 'a').write('x'); open('{work}/ready').read()"), 60)
    for _ in range(2):
        runner = runner_of(tmp_path, once, later)
        runner.run()
        (tmp_path / "work" / "ready").touch()
    assert (tmp_path / "finished").read_text() == ""
    assert (tmp_path / "work" / "calls").read_text() == "x"
    assert (tmp_path / "work" / "tries").read_text() == "xxx"  # twice in the first run


def test_a_step_that_fails_runs_once_more_at_the_end(tmp_path):
    early = Step("early", python("open('{work}/ready').read()"), 60)
    runner_of(tmp_path, early, Step("next", python("open('{work}/ready', 'w')"), 60)).run()
    assert (tmp_path / "finished").read_text() == "" and "step early ended" in log_of(tmp_path)


def test_a_step_is_stopped_after_twice_its_seconds_and_can_save_first(tmp_path):
    code = "import time\ntry:\n time.sleep(600)\nexcept KeyboardInterrupt:\n open('{out}/saved', 'w')\n raise"
    runner_of(tmp_path, Step("slow", python(code), 1.5), Step("next", python("pass"), 60)).run()
    assert (tmp_path / "finished").read_text() == "slow"
    assert (tmp_path / "out" / "saved").is_file()
    assert "the time of step slow is up: SIGINT" in log_of(tmp_path) and "end next" in log_of(tmp_path)


def test_nothing_starts_after_the_deadline(tmp_path):
    runner_of(tmp_path, Step("late", python("pass"), 60), minutes=0).run()
    assert "no time is left for step late" in log_of(tmp_path) and not runner_is_started(tmp_path)


def runner_is_started(tmp_path):
    return "start " in log_of(tmp_path)


def test_steps_side_by_side_overlap(tmp_path):
    # The first ends only if the second runs meanwhile.
    waits = "import pathlib, time\nwhile not pathlib.Path('{work}/b').exists(): time.sleep(0.05)"
    first = Step("first", python(waits), 60, side_by_side=True)
    runner_of(tmp_path, first, Step("second", python("open('{work}/b', 'w')"), 60)).run()
    assert (tmp_path / "finished").read_text() == ""


def test_training_gets_its_share_of_the_time_that_later_steps_leave(tmp_path):
    steps = (
        Step("teacher", "python", 60, share=0.5),
        Step("student", "python", 120, share=1.0),
        Step("score", "python", 0, minutes=2.0),
    )
    runner = runner_of(tmp_path, *steps, minutes=25.0)
    assert runner.minutes(steps[0]) == pytest.approx((25 - 5) / 2, abs=0.1)
    assert runner.minutes(steps[1]) == pytest.approx(25 - 4, abs=0.1)
    assert runner.minutes(steps[2]) == 2.0


def test_a_command_starts_the_plan_shows_each_line_once_and_copies_the_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "ROOT", tmp_path / "session")
    monkeypatch.setenv("OUT", str(tmp_path / "back"))
    monkeypatch.setenv("PYTHONPATH", "")  # restored afterwards
    for name, value in schedule.VARIABLES.items():
        monkeypatch.setenv(name, value)
    command = ["europarl", "--tiny", "--minutes", "0", "--wait", "2"]
    assert schedule.main(command) == 1  # no step has time, so all of them failed
    out = capsys.readouterr().out
    assert out.count("no time is left for step europarl-marian\n") == 1 and "done: results in" in out
    assert "no time is left" in (tmp_path / "back" / "log.txt").read_text(encoding="utf-8")
    schedule.show(tmp_path / "session" / "europarl-tiny")
    assert capsys.readouterr().out == ""


def test_the_wheels_are_unpacked_once_where_they_fit_and_found_by_every_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")  # restored afterwards
    (tmp_path / schedule.WHEELS).mkdir(parents=True)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for name in ("other-1.0-cp30-cp30-any", f"words-1.0-{tag}-{tag}-any"):
        with zipfile.ZipFile(tmp_path / schedule.WHEELS / f"{name}.whl", "w") as wheel:
            wheel.writestr(f"{name[:5]}.py", "greeting = 'hello'\n")
        schedule.prepare_environment()
        assert (tmp_path / schedule.LIBRARIES).is_dir() == (tag in name)
    step = Step("import", python("import words; open('{out}/greeting', 'w').write(words.greeting)"), 60)
    runner_of(tmp_path / "session", step).run()
    assert (tmp_path / "session" / "out" / "greeting").read_text() == "hello"


def test_more_or_larger_files_than_come_back_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "FILES", 1)
    monkeypatch.setattr(schedule, "FILE_BYTES", 5)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights").write_text("123456")
    schedule.copy_out(Plan((), ()), tmp_path, tmp_path / "back")
    out = capsys.readouterr().out
    assert "2 files in" in out and "weights has 6 bytes" in out


def test_what_a_call_sends_is_the_repository_without_weights_and_what_it_carries(tmp_path, capsys):
    plan = Plan((), (Call(("build/no-such-data",)), Call((), weights=("film-reviews",))))
    assert schedule.pack(plan, tmp_path / "calls") == 1
    weights = "src/regard/models/bundled/film-reviews/model.safetensors"
    assert not (tmp_path / "calls" / "1" / weights).exists()
    assert (tmp_path / "calls" / "2" / weights).is_file()
    assert (tmp_path / "calls" / "1" / "pyproject.toml").is_file()
    out = capsys.readouterr().out
    assert "error: build/no-such-data is missing" in out and "call 2: " in out


def test_results_of_a_step_that_still_runs_come_back(tmp_path, capsys):
    waits = "import pathlib, time\nwhile not pathlib.Path('{work}/end').exists(): time.sleep(0.05)"
    step = Step("long", python(waits), 60, results=("{work}/table.md", "{work}/not-yet"))
    runner = runner_of(tmp_path, step)
    thread = threading.Thread(target=runner.run)
    thread.start()
    while not (tmp_path / "logs" / "long.txt").is_file():
        time.sleep(0.01)
    (tmp_path / "work" / "table.md").write_text("| 7 |")
    with (tmp_path / "lock").open("a") as lock:
        assert schedule._lock(lock)
        assert schedule.wait(runner.plan, tmp_path, tmp_path / "back", 0.0) == 0
    (tmp_path / "work" / "end").touch()
    thread.join()
    assert (tmp_path / "back" / "long-table.md").read_text() == "| 7 |"
    assert "not done yet: give the same command again at once" in capsys.readouterr().out


def test_a_runner_that_ended_is_reported_with_its_last_words(tmp_path, capsys):
    (tmp_path / "runner.txt").write_text("Traceback\nOSError: no space left\n")
    assert schedule.wait(Plan((), ()), tmp_path, tmp_path / "back", 1.0) == 1
    assert "OSError: no space left" in capsys.readouterr().out


def test_every_plan_fits_into_its_time_and_the_limits_of_a_call():
    for plan in plans.PLANS.values():
        needed = sum(60 * step.minutes + step.seconds for step in plan.steps)
        assert needed <= 60 * 26  # the start of the machine and the transfers take two minutes or three
        assert len({step.name for step in plan.steps}) == len(plan.steps)
        assert all(len(call.carry) <= 8 for call in plan.calls)
        for step in plan.steps:
            step.command.format(out="out", work="work", minutes=1)
