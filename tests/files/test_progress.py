"""Progress: nothing for quick work, plain lines without a terminal, a bar on a terminal."""

import os
import sys
import time

import pytest

from regard.files import progress
from regard.files.progress import track


def test_quick_work_shows_nothing(capfd):
    with track(10, "working") as bar:
        for _ in range(10):
            bar.advance(1)
    assert capfd.readouterr() == ("", "")


def test_longer_work_is_reported_in_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.05)
    monkeypatch.setattr(progress, "INTERVAL", 0.1)
    with track(1000, "reading", "rows") as bar:
        bar.advance(250)
        time.sleep(0.4)
    out, err = capsys.readouterr()
    assert out == ""
    outcome = err.splitlines()
    assert 2 <= len(outcome) <= 5
    assert outcome[0].startswith("reading: 250 rows of 1,000 rows (25%), ")
    assert "rows/s, about " in outcome[0] and outcome[0].endswith("left")


def test_progress_lines_show_what_is_known():
    bar = track(None, "learning", "lines")
    assert bar.line().startswith("learning: ") and bar.line().endswith(" s")
    bar.advance(5)
    assert "left" not in bar.line() and "lines/s" in bar.line()
    bar = track(3_000_000, "reading", "bytes")
    bar.advance(1_500_000)
    assert "1.5 MB of 3.0 MB (50%)" in bar.line()


def test_errors_pass_through_and_the_display_ends():
    with pytest.raises(KeyError), track(3, "working") as bar:
        raise KeyError
    assert not bar._thread.is_alive()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_terminal_shows_a_bar_that_is_erased_at_the_end():
    import pty

    code = (
        "import time; from regard.files import progress; progress.DELAY = 0.05\n"
        "with progress.track(100, 'reading', 'rows') as bar:\n"
        "    for _ in range(10): bar.advance(10); time.sleep(0.1)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": "120"}
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = b""
    while True:
        try:
            block = os.read(terminal, 4096)
        except OSError:
            break
        if not block:
            break
        shown += block
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert "━".encode() in shown  # the bar
    assert b"rows/s" in shown
    assert b"\x1b[2K" in shown  # and it is erased
