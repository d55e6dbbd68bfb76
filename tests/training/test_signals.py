"""The first signal requests a stop, the second stops at once."""

import os
import signal

import pytest

from regard.training.signals import StopNow, StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_requests_a_stop_and_the_second_stops(number):
    messages = []
    before = signal.getsignal(number)
    with StopSignals(messages.append) as signals:
        assert not signals.stop_requested
        os.kill(os.getpid(), number)
        assert signals.stop_requested and signals.signal == number and len(messages) == 1
        with pytest.raises(StopNow) as stopped:
            os.kill(os.getpid(), number)
    assert isinstance(stopped.value, KeyboardInterrupt) and stopped.value.signal == number
    assert signal.getsignal(number) == before


def test_sighup_is_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(lambda text: None) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.stop_requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_under_torchrun_further_signals_are_ignored(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with StopSignals(lambda text: None) as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.stop_requested
