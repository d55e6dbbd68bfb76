"""Tests of explorer_routes.py: the page's files, runs over HTTP, errors."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.explorer.explorer_routes import POLICY, Explorer
from regard.explorer.run_store import RunStore
from regard.serving.generation_service import GenerationService
from regard.serving.request_limits import RequestLimits
from tests.serving.server import running, write_model

MAX_PAGE = 150_000  # bytes of HTML, JavaScript and CSS


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    torch.manual_seed(3)
    model = write_model(tmp_path_factory.mktemp("model"))
    service = GenerationService(model, "small", RequestLimits(characters=300), workers=1)
    explorer = Explorer(service, RunStore(max_runs=3))
    service.extensions.append(explorer.add_routes)
    return explorer


@pytest.fixture(scope="module")
def client(explorer):
    with running(explorer.service) as running_client:
        yield running_client


def test_the_page_is_small_and_self_contained(explorer):
    assert sum(map(len, explorer.page.values())) <= MAX_PAGE
    for name, content in explorer.page.items():
        text = content.decode()
        assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org)[\w.-]+\.\w+/", text), name
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "eval(" not in text, name
        assert " style=" not in text and not re.search(r"<script(?! type=\"module\" src=)", text), name


def test_the_files_come_with_a_strict_policy(client, explorer):
    status, headers, body = client.get("/explore/")
    assert status == 200 and headers["content-security-policy"] == POLICY and b"<textarea" in body
    assert "unsafe" not in POLICY and POLICY.startswith("default-src 'none'")
    for name in explorer.page:
        status, headers, body = client.get(f"/explore/{name}")
        assert status == 200 and body == explorer.page[name]
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/explore/app.js")[1]["content-type"] == "text/javascript; charset=utf-8"
    assert client.get("/explore")[0] == 307
    assert client.get("/explore/other.js")[0] == 404
    assert client.get("/explore/..%2fexplorer_routes.py")[0] == 404


def test_other_routes_still_work(client):
    assert client.post("/translate", {"text": "ein Hund"})[0] == 200


def test_a_run_can_be_read_in_parts(client):
    model = json.loads(client.get("/explore/api/model")[2])
    assert (model["task"], model["limits"]["characters"]) == ("translate", 300) and model["examples"]
    status, run = client.post("/explore/api/runs", {"text": "ein Hund", "beam": 2})
    assert status == 200 and len(run["output"]["hypotheses"]) == 2
    path = f"/explore/api/runs/{run['id']}"
    assert json.loads(client.get(path)[2]) == run
    cells = sum(m["heads"] * m["thumbnail"][0] * m["thumbnail"][1] for m in run["maps"])
    assert len(client.get(f"{path}/thumbnails")[2]) == cells
    for i, attention_map in enumerate(run["maps"]):
        shape = attention_map["rows"], attention_map["columns"]
        mean = np.frombuffer(client.get(f"{path}/maps/{i}/heads/mean")[2], "<f4").reshape(shape)
        assert np.allclose(mean.sum(-1), 1, atol=1e-5)
        row = np.frombuffer(client.get(f"{path}/maps/{i}/rows/1")[2], "<f4").reshape(
            attention_map["heads"], shape[1]
        )
        assert np.allclose(row.mean(0), mean[1], atol=1e-6)


def test_changes_are_compared_with_their_base(client):
    _, base = client.post("/explore/api/runs", {"text": "ein Hund"})
    change = {"map": base["maps"][-1]["name"], "change": "zero"}
    status, run = client.post(
        "/explore/api/runs", {"text": "ein Hund", "base": base["id"], "changes": [change]}
    )
    assert status == 200 and run["output"]["comparison"]["original"]["plain"] == base["output"]["logP"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"text": ""}, 422, "there is no text"),
        ({"text": "x" * 301}, 422, "at most 300"),
        ({"text": "a", "beam": 99}, 422, "beam"),
        ({"text": "a", "texts": ["b"]}, 422, "there is no field 'texts'"),
        ({"text": "a", "base": "nothing"}, 404, "no longer kept"),
        ({"text": "a", "to": "xx"}, 422, "to='xx'"),
        ({"text": "a", "changes": [{"map": "x", "change": "zero"}]}, 422, "intervene"),
        ({"text": "a", "changes": [{"map": "x", "change": "pin"}]}, 422, "needs key, the column"),
        ({"text": "a", "changes": [{}]}, 422, "the field changes[0].map is missing: Name of the attention"),
        ({"text": "a", "changes": [5]}, 422, "changes[0] is 5, and must be an object with map, change"),
        ({"text": "a", "changes": [{"map": "x", "change": "zero", "hed": 1}]}, 422, "did you mean 'head'?"),
        (b"{", 422, "JSON"),
    ],
)
def test_bad_requests_are_errors_of_one_sentence(client, body, status, message):
    received, answer = client.post("/explore/api/runs", body)
    assert received == status and message in answer["error"] and "\n" not in answer["error"]


def test_parts_of_a_run_that_do_not_exist_are_errors(client):
    _, run = client.post("/explore/api/runs", {"text": "ein Hund"})
    path = f"/explore/api/runs/{run['id']}"
    for part, status in (
        ("maps/9/heads/0", 422),
        ("maps/0/heads/99", 422),
        ("maps/0/heads/-1", 422),
        ("maps/x/heads/0", 422),
        ("maps/0/rows/99", 422),
        ("maps/0/rows/1e3", 422),
        ("other", 404),
    ):
        received, _, body = client.get(f"{path}/{part}")
        assert received == status and json.loads(body)["error"]


def test_old_runs_are_dropped(client):
    _, first = client.post("/explore/api/runs", {"text": "ein"})
    for _ in range(3):
        client.post("/explore/api/runs", {"text": "Hund"})
    status, _, body = client.get(f"/explore/api/runs/{first['id']}/thumbnails")
    assert status == 404 and "send the text again" in json.loads(body)["error"]


def test_the_documentation_has_every_file_of_the_mechanism(explorer):
    hook = Path(__file__).parents[2] / "docs" / "api" / "explorer_pages.py"
    names = runpy.run_path(str(hook))["page_files"]()
    assert {"mechanism.html", "mechanism.js", "calculus.js", "dom.js", "matrix.js"} <= set(names)
    assert set(names) <= set(explorer.page) and "api.js" not in names  # the mechanism needs no server
