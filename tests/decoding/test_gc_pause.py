"""Tests of gc_pause.py: the garbage collector is paused in a block and left as it was."""

import gc

import pytest

from regard.decoding.gc_pause import gc_paused


@pytest.fixture
def collector():
    """Leave the collector on after the test."""
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_after_a_pause(collector, enabled):
    (gc.enable if enabled else gc.disable)()
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_an_error_ends_the_pause(collector):
    @gc_paused()
    def fail():
        assert not gc.isenabled()
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            fail()
        assert gc.isenabled()
