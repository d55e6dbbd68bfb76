"""A small translator, its folder, and a server of it."""

import pytest
import torch

from regard.models.folder import load
from regard.serving.generation_service import GenerationService
from tests.serving.server import running, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("model")
    write_model(path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return load(folder).double()


@pytest.fixture(scope="module")
def client(model):
    with running(GenerationService(model, "small", workers=1)) as running_client:
        yield running_client
