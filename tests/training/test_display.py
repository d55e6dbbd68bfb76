"""What a person sees."""

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


def test_a_line_says_where_training_stands():
    want = "step 1,200/10,000 · epoch 3.1 · loss 3.214 · 15,300 tokens/s · lr 7.0e-04 · 0:12:10 left"
    assert display.describe(VALUES) == want
    assert display.describe({**VALUES, "steps": None, "left": None}).startswith("step 1,200 · epoch")


def test_plain_lines_go_to_stderr_with_the_last_score(capsys):
    with display.Display() as shown:
        shown.score = "BLEU 21.30 at 1,000"
        shown.line(VALUES)
        assert not shown.due  # not again for a while
    assert capsys.readouterr().err.endswith("left · BLEU 21.30 at 1,000\n")


def test_quiet_says_nothing(capsys):
    with display.Display(quiet=True) as shown:
        shown.say("x")
        assert not shown.due
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_the_line_lives(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with display.Display() as shown:
        shown.line(VALUES)
        shown.say("validation at step 3")
    assert "step 1,200/10,000 · epoch" in screen.getvalue() and "validation at step 3" in screen.getvalue()


def test_a_terminal_that_was_closed_does_not_stop_training(monkeypatch):
    class Closed:
        def write(self, text):
            raise OSError(5, "Input/output error")

        def flush(self):
            raise OSError(5, "Input/output error")

        def isatty(self):
            return False

    monkeypatch.setattr("sys.stderr", Closed())
    with display.Display() as shown:
        shown.say("one")
        assert shown.quiet
        shown.say("two")
