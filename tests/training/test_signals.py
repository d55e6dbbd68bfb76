"""Asked once, asked twice."""

import os
import signal

import pytest

from regard.training.signals import StopNow, StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_a_wish_and_the_second_an_end(number):
    said = []
    before = signal.getsignal(number)
    with StopSignals(said.append) as interrupt:
        assert not interrupt.wanted
        os.kill(os.getpid(), number)
        assert interrupt.wanted and interrupt.signal == number and len(said) == 1
        with pytest.raises(StopNow) as stopped:
            os.kill(os.getpid(), number)
    assert isinstance(stopped.value, KeyboardInterrupt) and stopped.value.signal == number
    assert signal.getsignal(number) == before


def test_a_closed_terminal_does_not_stop_what_nohup_started():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(lambda text: None) as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.wanted
    finally:
        signal.signal(signal.SIGHUP, before)


def test_under_torchrun_a_second_signal_is_the_same_wish(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with StopSignals(lambda text: None) as interrupt:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.wanted
