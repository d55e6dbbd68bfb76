"""Tests of generation_service.py and attention_answers.py for language models."""

import json
import threading

import pytest
import torch

from regard.decoding.attention_weights import attention_maps
from regard.decoding.constraints import Constraints
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.pipelines.generate import generate
from regard.serving.generation_service import GenerationService
from regard.serving.request_limits import RequestLimits
from tests.serving.server import running, until, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(4)
    return write_model(tmp_path_factory.mktemp("language"), encoder=None)


@pytest.fixture(scope="module")
def client(model):
    with running(GenerationService(model, "small", RequestLimits(streams=2), workers=1)) as running_client:
        yield running_client


def events(client, request):
    """The events of a stream: their kinds and data, and their joined text."""
    status, headers, body = client.raw(
        "POST", "/generate", json.dumps({**request, "stream": True}), {"content-type": "application/json"}
    )
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    results = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        kind, _, data = block.rpartition("data: ")
        results.append((kind.removeprefix("event: ").strip(), json.loads(data)))
    return results, "".join(data["text"] for kind, data in results if not kind)


def test_generated_texts_equal_those_of_the_python_call(model, client):
    sample = {"seed": 5, "top_k": 6, "count": 3, "temperature": 1.5}
    sampled = generate(
        ["ein"],
        model,
        strategy=Sample(**sample),
        constraints=Constraints(no_repeat=2),
        limits=Limits(max_length=12),
    )[0]
    status, answer = client.post(
        "/generate", {"prompt": "ein", "sample": sample, "max_length": 12, "no_repeat": 2}
    )
    assert status == 200
    assert [t["text"] for t in answer["texts"]] == [h.text for h in sampled.hypotheses]
    best = generate(["ein"], model, beam=3, limits=Limits(max_length=9))[0]
    answer = client.post("/generate", {"prompt": "ein", "beam": 3, "max_length": 9})[1]
    assert [(t["text"], t["score"]) for t in answer["texts"]] == [
        (h.text, round(h.score, 6)) for h in best.hypotheses
    ]


def test_a_stream_is_the_same_text_piece_by_piece(client):
    request = {"prompt": "zwei", "sample": {"seed": 2}, "max_length": 20}
    pieces, text = events(client, request)
    assert pieces[-1] == ("done", {})
    assert len(pieces) > 3
    assert text == client.post("/generate", request)[1]["texts"][0]["text"]
    greedy = {"prompt": "zwei", "beam": 1, "max_length": 20}
    assert events(client, greedy)[1] == client.post("/generate", greedy)[1]["texts"][0]["text"]


def test_samples_without_a_seed_differ_streamed_or_not(client):
    request = {"prompt": "a", "max_length": 20, "sample": {"temperature": 3.0}}
    assert client.post("/generate", request) != client.post("/generate", request)
    assert events(client, request)[1] != events(client, request)[1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": 3}, "prompt is 3, and must be text"),
        ({"stream": True, "beam": 2}, "leave out stream"),
        ({"stream": True, "sample": {"count": 2}}, "a stream is one hypothesis"),
        ({"max_length": 0}, "max_length is 0, and must be at least 1"),
        ({"text": "a"}, "there is no field 'text'"),
    ],
)
def test_invalid_prompts_are_refused_before_anything_is_sent(client, body, message):
    status, answer = client.post("/generate", body)
    assert status == 422
    assert message in answer["error"]


def test_too_many_streams_are_refused_and_streams_of_closed_connections_stop(model):
    class Endless(GenerationService):
        def stream(self, request, cancelled):
            while not ended.wait(0.01):
                yield "x"
            yield "end"

    ended = threading.Event()
    service = Endless(model, "small", RequestLimits(streams=2), workers=1)
    with running(service) as client:
        connections = [client.connect() for _ in range(2)]
        for connection in connections:
            connection.request("POST", "/generate", b'{"stream": true}', {"content-type": "application/json"})
            assert connection.getresponse().read(6) == b"data: "
        status, answer = client.post("/generate", {"stream": True})
        assert status == 429
        assert "2 texts are being streamed" in answer["error"]
        connections[0].close()
        until(lambda: service.streams.running == 1)
        connections[1].close()
        until(lambda: service.streams.running == 0)
        ended.set()


def test_a_stream_that_takes_too_long_or_breaks_ends_with_an_event(model, capfd):
    class Breaking(GenerationService):
        def stream(self, request, cancelled):
            yield "one "
            if request.prompt == "break":
                raise RuntimeError("secret /etc/path")
            threading.Event().wait(1.0)
            yield "two"

    with running(Breaking(model, "small", RequestLimits(seconds=0.3), workers=1)) as client:
        result = events(client, {"prompt": "wait"})[0]
        assert result[0] == ("", {"text": "one "})
        assert result[1][0] == "error"
        assert "longer than 0.3 seconds" in result[1][1]["error"]
        result = events(client, {"prompt": "break"})[0]
        assert result[-1][1]["error"].startswith("something went wrong on the server")
    assert "secret /etc/path" in capfd.readouterr().err


def test_attention_of_a_text_equals_attention_maps(model, client):
    tokens = model.target_tokenizer.encode("ein Hund")
    seen = attention_maps(None, [tokens], model)[0]
    status, answer = client.post("/attention", {"text": "ein Hund"})
    assert status == 200
    assert [m["name"] for m in answer["attention"]] == list(seen)
    weights = torch.tensor(answer["attention"][0]["weights"], dtype=torch.float64)
    assert torch.allclose(weights, seen[answer["attention"][0]["name"]], atol=1e-6)
    assert client.post("/attention", {"text": ""})[1]["attention"] == []


def test_attention_that_needs_too_much_memory_is_refused(model):
    with running(GenerationService(model, "small", RequestLimits(weights=1000), workers=1)) as client:
        status, answer = client.post("/attention", {"text": "x" * 500})
        assert status == 422
        assert "at most 1,000 are sent" in answer["error"]


def test_a_language_model_refuses_to_translate(client):
    status, answer = client.post("/translate", {"text": "a"})
    assert status == 404
    assert "this server has a language model" in answer["error"]
