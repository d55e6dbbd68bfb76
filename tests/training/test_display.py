"""Tests of display.py: messages and progress on stderr."""

import io

from regard.training import display

VALUES = {
    "step": 1200,
    "steps": 10_000,
    "epochs": 3.14,
    "loss": 3.2141,
    "tokens_per_second": 15_300.4,
    "rate": 7e-4,
    "left": 730.0,
}


def test_the_progress_line_shows_step_loss_rate_and_time():
    expected = "step 1,200/10,000 · epoch 3.1 · loss 3.214 · 15,300 tokens/s · lr 7.0e-04 · 0:12:10 left"
    assert display.progress_line(VALUES) == expected
    assert display.progress_line({**VALUES, "steps": None, "left": None}).startswith("step 1,200 · epoch")


def test_progress_is_written_to_stderr_with_the_last_score(capsys):
    with display.Display() as shown:
        shown.score = "BLEU 21.30 at 1,000"
        shown.update(VALUES)
        assert not shown.is_due  # only after LINE_INTERVAL
    assert capsys.readouterr().err.endswith("left · BLEU 21.30 at 1,000\n")


def test_quiet_prints_nothing(capsys):
    with display.Display(quiet=True) as shown:
        shown.print("x")
        assert not shown.is_due
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_the_line_is_updated_in_place(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with display.Display() as shown:
        shown.update(VALUES)
        shown.print("validation at step 3")
    assert "step 1,200/10,000 · epoch" in screen.getvalue() and "validation at step 3" in screen.getvalue()


def test_a_closed_terminal_does_not_stop_training(monkeypatch):
    class Closed:
        def write(self, text):
            raise OSError(5, "Input/output error")

        def flush(self):
            raise OSError(5, "Input/output error")

        def isatty(self):
            return False

    monkeypatch.setattr("sys.stderr", Closed())
    with display.Display() as shown:
        shown.print("one")
        assert shown.quiet
        shown.print("two")
