"""A small translator, its folder, and a server of it."""

import pytest

from regard.models.folder import load
from regard.serving.generation_service import GenerationService
from tests.serving.server import running, seeded_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return seeded_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def model(folder):
    return load(folder).double()


@pytest.fixture(scope="module")
def client(model):
    with running(GenerationService(model, "small", workers=1)) as running_client:
        yield running_client
