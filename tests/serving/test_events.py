"""Tests of events.py and stream_pool.py: a streamed response has the same text."""

import json
import threading

import pytest
import torch

from regard.serving.generation_service import GenerationService
from regard.serving.request_batching import Batcher
from regard.serving.request_limits import RequestLimits
from tests.serving.server import running, until, write_model
from tests.serving.test_metrics import value

LONG = "ein kleiner Hund läuft. zwei Hunde laufen! Über den Wolken. ein Hund läuft den kleiner"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(3)
    translator = write_model(tmp_path_factory.mktemp("translator"))
    translator.card = {"recipe": {"data": {"max_length": 30, "target": "de"}}}
    return translator


@pytest.fixture(scope="module")
def client(model):
    with running(
        GenerationService(model, "small", RequestLimits(streams=2, batch_tokens=64), workers=1)
    ) as running_client:
        yield running_client


def events(client, request):
    """The status, and kind and data of each event."""
    status, headers, body = client.raw(
        "POST", "/translate", json.dumps({**request, "stream": True}), {"content-type": "application/json"}
    )
    if status != 200:
        return status, json.loads(body)
    assert headers["content-type"].startswith("text/event-stream")
    blocks = [block.rpartition("data: ") for block in body.decode().removesuffix("\n\n").split("\n\n")]
    return status, [(kind.removeprefix("event: ").strip(), json.loads(data)) for kind, _, data in blocks]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 7, "no_repeat": 2, "forbidden": ["e"]},
        {"prefix": "Hund"},
        {"sample": {"seed": 3, "top_k": 5}},
        {"to": "de"},
    ],
)
@pytest.mark.parametrize("text", ["ein Hund läuft", LONG])
def test_the_streamed_tokens_of_one_text_join_to_the_plain_response(client, text, options):
    request = {"text": text, **options}
    full = client.post("/translate", request)[1]["translations"][0]
    assert ("parts" in full) == (text == LONG)
    status, answer = events(client, request)
    assert status == 200 and answer.pop() == ("done", {})
    assert all(kind == "" and set(data) == {"text"} for kind, data in answer)
    assert "".join(data["text"] for _, data in answer) == full["text"]
    assert len(answer) > 2


@pytest.mark.parametrize(
    "body",
    [
        {"texts": ["ein Hund", "", LONG, "Wolken!", "zwei Hunde laufen"] * 3},
        {"text": "ein Hund läuft", "beam": 3, "nbest": 2},
        {"text": "ein Hund läuft", "beam": 2, "required": ["dog"]},
        {"text": "ein Hund", "sample": {"seed": 1, "count": 2}},
        {"texts": []},
    ],
)
def test_several_texts_and_beams_are_streamed_as_finished_translations_in_order(client, body):
    full = client.post("/translate", body)[1]["translations"]
    status, answer = events(client, body)
    assert status == 200 and answer.pop() == ("done", {})
    assert answer == [("", {"index": i, **item}) for i, item in enumerate(full)]


def test_translations_are_sent_before_the_last_is_computed(model):
    class Blocked(GenerationService):
        """Blocks all batches after the first."""

        def _work(self, options, texts, cancelled):
            assert not begun.is_set() or go.wait(120)
            begun.set()
            return super()._work(options, texts, cancelled)

    begun, go = threading.Event(), threading.Event()
    go.set()
    service = Blocked(model, "small", RequestLimits(batch_tokens=1), workers=1)
    service.warm_up()
    go.clear()
    begun.clear()
    with running(service) as client:
        connection = client.connect()
        body = json.dumps({"texts": ["ein Hund", "Wolken!"], "stream": True})
        connection.request("POST", "/translate", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert json.loads(answer.readline().removeprefix(b"data: "))["index"] == 0
        go.set()
        assert b'"index": 1' in answer.read()
        connection.close()


def test_a_client_that_leaves_frees_the_queue(model):
    class Blocked(GenerationService):
        def _work(self, options, texts, cancelled):
            begun.set()
            assert go.wait(120)
            was_cancelled.append([item() for item in cancelled])
            return super()._work(options, texts, cancelled)

    begun, go, was_cancelled = threading.Event(), threading.Event(), []
    service = Blocked(model, "small", RequestLimits(batch_tokens=1), workers=1)
    with running(service) as client:
        connection = client.connect()
        body = json.dumps({"texts": ["ein Hund", "Wolken!", "b"], "stream": True})
        connection.request("POST", "/translate", body, {"content-type": "application/json"})
        assert begun.wait(120)
        connection.close()
        until(lambda: value(service.metrics, "regard_requests_total", route="/translate", status="499") == 1)
        go.set()
        until(lambda: service.batcher.waiting == 0)
        assert was_cancelled == [[True]]  # the others were never started


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "a", "to": "fr"}, "translates into 'de' only, got to='fr'"),
        ({"texts": ["a"], "to": "fr"}, "translates into 'de' only, got to='fr'"),
        ({"texts": ["a"], "beam": 2, "nbest": 3}, "nbest 3 needs a beam of at least 3"),
        ({"text": "a", "texts": ["b"]}, "give either text"),
        ({"text": "a", "stream": 1}, "stream is 1, and must be true or false"),
        ({"text": "a", "prefix": "@"}, "not in the vocabulary"),
    ],
)
def test_invalid_requests_are_refused_before_anything_is_sent(client, body, message):
    status, answer = (
        events(client, {**body}) if body.get("stream") is None else client.post("/translate", body)
    )
    assert status == 422
    assert message in answer["error"]


def test_the_openapi_description_includes_streams(client):
    description = json.loads(client.get("/openapi.json")[2])["paths"]["/translate"]["post"]
    assert set(description["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    fields = description["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert fields["stream"]["default"] is False and "to" in fields


def test_every_result_is_reported_as_soon_as_it_is_computed():
    messages = []
    batcher = Batcher(
        lambda options, texts, cancelled: [text.upper() for text in texts],
        lambda options, text: 1,
        batch_tokens=1,
        queue=9,
    )
    future = batcher.submit(
        "options", ["a", "b"], on_answer=lambda index, answer: messages.append((index, answer))
    )
    assert future.result(20) == ["A", "B"]
    assert messages == [(0, "A"), (1, "B")]
    batcher.close()
