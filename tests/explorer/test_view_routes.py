"""Tests of view_routes.py and route_helpers.py: search, trust, stages and diversity over HTTP, two models."""

import json

import numpy as np
import pytest
import torch

from regard.errors import OptionError
from regard.explorer.explored_model import ExploredModel
from regard.explorer.explorer_routes import Explorer
from regard.models.folder import load
from regard.serving.generation_service import GenerationService
from regard.serving.request_limits import RequestLimits
from tests.decoding import model_folders
from tests.serving.server import running, write_model


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    torch.manual_seed(3)
    model = write_model(tmp_path_factory.mktemp("model"))
    other = load(model_folders.translator(tmp_path_factory.mktemp("other")))
    service = GenerationService(model, "small", RequestLimits(characters=300), workers=1)
    explorer = Explorer(service, others=[ExploredModel(other, "other")])
    service.extensions.append(explorer.add_routes)
    with running(service) as running_client:
        yield running_client


def test_a_search_returns_its_tree(client):
    status, tree = client.post("/explore/api/search", {"text": "ein Hund", "beam": 2})
    assert status == 200 and tree["beam"] == 2 and len(tree["hypotheses"]) == 2
    first = tree["nodes"][1]["id"]
    status, forced = client.post("/explore/api/search", {"text": "ein Hund", "prefix": [first], "then": "e"})
    assert status == 200 and forced["prefix"][0] == first and len(forced["prefix"]) > 1
    status, run = client.post("/explore/api/runs", {"text": "ein Hund", "prefix": forced["prefix"]})
    assert status == 200 and run["output"]["text"] == forced["hypotheses"][0]["text"]


def test_two_models_run_the_same_text(client):
    description = json.loads(client.get("/explore/api/model")[2])
    assert description["models"] == ["small", "other"] and "compare" in description["views"]
    runs = [client.post("/explore/api/runs", {"text": "ein Hund", "model": i})[1] for i in (0, 1)]
    assert [run["model"] for run in runs] == [0, 1] and len(runs[0]["maps"]) != len(runs[1]["maps"])
    path = f"/explore/api/runs/{runs[1]['id']}/maps/0/heads/0/stages/energy"
    assert len(client.get(path)[2]) == 4 * runs[1]["maps"][0]["rows"] * runs[1]["maps"][0]["columns"]
    assert client.post("/explore/api/runs", {"text": "ein", "model": 2})[0] == 422


def test_models_of_two_tasks_are_refused(tmp_path):
    torch.manual_seed(3)
    service = GenerationService(write_model(tmp_path / "a"), "small", workers=1)
    classifier = ExploredModel(load(model_folders.classifier(tmp_path / "b")), "labels")
    with pytest.raises(OptionError, match="small is to translate, labels to classify"):
        Explorer(service, others=[classifier])


def test_figures_stages_and_differences_of_a_run(client):
    _, run = client.post("/explore/api/runs", {"text": "ein Hund"})
    status, result = client.post("/explore/api/trust", {"run": run["id"], "row": 1})
    assert status == 200 and len(result["figures"]) == 6
    path = f"/explore/api/runs/{run['id']}/maps/{len(run['maps']) - 1}"
    diversity = json.loads(client.get(f"{path}/diversity")[2])
    assert 0 <= diversity["divergence"] <= 1 <= diversity["effectiveRank"]
    shape = run["maps"][-1]["rows"], run["maps"][-1]["columns"]
    weights = np.frombuffer(client.get(f"{path}/heads/0")[2], "<f4").reshape(shape)
    normalised = np.frombuffer(client.get(f"{path}/heads/0/stages/normalised")[2], "<f4").reshape(shape)
    assert np.allclose(weights, normalised, atol=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("search", {"text": " "}, 422, "there is no text"),
        ("search", {"text": "a", "prefix": [99999]}, 422, "cannot be forced"),
        ("search", {"text": "a", "then": "日本"}, 422, "not in the vocabulary"),
        ("search", {"text": "a", "beam": 9}, 422, "beam"),
        ("search", {"text": "a", "model": 7}, 422, "there is no model 7"),
        ("search", {"text": "a", "to": "xx"}, 422, "to='xx'"),
        ("trust", {"run": "nothing"}, 404, "no longer kept"),
        ("trust", {"run": 3}, 422, "run"),
    ],
)
def test_bad_requests_are_errors_of_one_sentence(client, path, body, status, message):
    received, answer = client.post(f"/explore/api/{path}", body)
    assert received == status and message in answer["error"] and "\n" not in answer["error"]


def test_parts_of_a_run_that_do_not_exist_are_errors(client):
    _, run = client.post("/explore/api/runs", {"text": "ein"})
    for part in ("maps/99/diversity", "maps/0/heads/99/stages/energy", "maps/0/heads/0/stages/other"):
        status, _, body = client.get(f"/explore/api/runs/{run['id']}/{part}")
        assert status == 422 and json.loads(body)["error"]
    assert client.post("/explore/api/trust", {"run": run["id"], "attention": "x"})[0] == 422
