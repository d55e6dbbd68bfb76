"""One thread per worker, the same drawn examples on every run in CI, and a fresh seed for each test."""

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("dev", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("ci" if os.environ.get("CI") else "dev")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """Prepared data goes to a folder of this module, so that nothing is found that another test has made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_configure():
    """Interrupts can be tested even when the tests run in the background, where a shell lets processes ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
