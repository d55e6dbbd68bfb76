"""One thread per worker, the same drawn examples on every run, and a fresh seed for each test.

With REGARD_LONG=1 in the environment hypothesis draws new examples on every run, and ten times as many.
"""

import os
import signal
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

LONG = os.environ.get("REGARD_LONG") == "1"
settings.register_profile("short", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("long" if LONG else "short")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Prepared data goes to a folder of this module, so that data of other tests is not reused."""
    from tests import forked

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", forked.new_cache(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def run_regard(monkeypatch, capfd):
    """A function that runs `regard ARGUMENTS` and returns exit code, standard output and standard error.

    In this process, which saves importing torch for every case.
    """
    from regard.cli import main
    from regard.files import progress

    monkeypatch.setattr(progress, "DELAY", 3600)  # on a busy machine progress would be printed too

    def run(*args):
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main.run()
        return stopped.value.code or 0, *capfd.readouterr()

    return run


def pytest_configure():
    """Let tests send signals: a shell makes background processes ignore Ctrl-C, and nohup SIGHUP."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_sessionstart():
    """Build the C++ before workers start and load it in each: the command that builds it prints to stderr."""
    from regard.attention.kernels import build_cpp, native
    from regard.decoding.engine import cpp_engine as engine

    build_cpp.library(native._SOURCE)
    build_cpp.library(engine._SOURCE)


def pytest_collection_modifyitems(items):
    """In the long profile, a test with its own number of examples also gets ten times as many."""
    for item in items if LONG else ():
        own_settings = getattr(item.obj, "_hypothesis_internal_use_settings", None)
        if own_settings is not None and own_settings.max_examples != settings.default.max_examples:
            more = 10 * own_settings.max_examples
            item.obj._hypothesis_internal_use_settings = settings(own_settings, max_examples=more)
