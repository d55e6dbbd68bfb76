"""Tests of budget.py and request_limits.py: costly requests are refused, cancelled ones stop."""

import json
import os
import signal
import threading
import time

import pytest
import torch

from regard.decoding.constraints import Constraints
from regard.decoding.limits import Limits
from regard.pipelines.translate import translate
from regard.serving.generation_service import GenerationService
from regard.serving.http_errors import RequestError
from regard.serving.request_limits import RequestLimits
from regard.serving.requests import TranslateRequest
from tests.serving.server import in_background, process, running, until, write_model
from tests.serving.test_metrics import parse, value
from tests.serving.test_routes import as_json

LONG = {"text": "ein Hund " * 60, "min_length": 1000, "max_length": 1024, "beam": 4}  # about 1000 steps
TOO_MUCH = "more than 2,000,000 rows × steps"


class CountingService(GenerationService):
    """Counts decoding steps; every step takes 0.02 seconds until `go` is set."""

    def __init__(self, *args, **kwargs):
        self.steps, self.go = 0, threading.Event()
        super().__init__(*args, **kwargs)

    @property
    def engine(self):
        return self._engine

    @engine.setter
    def engine(self, model):
        service = self

        class CountedEngine:
            def __getattr__(self, name):
                return getattr(model, name)

            def best(self, *args):
                return service.step(model.best, args)

            def step(self, *args):
                return service.step(model.step, args)

        self._engine = CountedEngine()

    def step(self, call, args):
        self.steps += 1
        self.go.wait(0.02)
        return call(*args)


def batches_of(client):
    return parse(client.get("/metrics")[2])["regard_batch_texts_count"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/translate", {"text": "a", "required": ["ein Hund " * 111], "beam": 8}, TOO_MUCH),
        ("/translate", {"texts": ["ein Hund"] * 1000, "beam": 32, "max_length": 100}, TOO_MUCH),
        ("/translate", {"texts": ["a"] * 100, "sample": {"count": 32}, "max_length": 1024}, TOO_MUCH),
        ("/translate", {"text": "a", "required": ["ein Hund " * 1000]}, "may have 9,"),
        ("/translate", {"text": "a", "prefix": "e" * 10_000}, "may have 10,0"),
        ("/translate", {"text": "x" * 10_000, "max_length": 5}, "the text has 10,000 tokens"),
        ("/translate", {"texts": ["a", "x" * 10_000]}, "text 2 has 10,000 tokens, and at most 2,048"),
        ("/translate", {"text": "x" * 2000, "no_repeat": 3}, "the answer to the text may have 3,021 tokens"),
        ("/translate", {"text": "a", "forbidden": ["e" * 9000]}, "forbidden has 9,000 tokens, and at most"),
        ("/attention", {"text": "x" * 10_000}, "the text has 10,000 tokens"),
        ("/attention", {"text": "a", "target": "x" * 10_000}, "target has 10,001 tokens"),
        ("/attention", {"text": "x" * 1500, "max_length": 1}, "at most 4,000,000 are sent"),
    ],
)  # fmt: skip
def test_a_request_above_the_budget_is_refused_and_nothing_is_computed(client, path, body, message):
    before = batches_of(client)
    status, answer = client.post(path, body)
    assert status == 422
    assert message in answer["error"]
    assert len(answer["error"]) < 300 and "\n" not in answer["error"]
    assert batches_of(client) == before


def test_request_limits_are_those_of_the_service(model):
    service = GenerationService(model, "small", RequestLimits(work=100, tokens=30), workers=1)
    service.check(TranslateRequest(max_length=25, beam=4), ["a"])
    with pytest.raises(RequestError, match="more than 100 rows × steps"):
        service.check(TranslateRequest(max_length=26, beam=4), ["a"])
    with pytest.raises(RequestError, match=r"the text has 31 tokens, and at most 30"):
        service.check(TranslateRequest(max_length=1), ["x" * 31])
    service.batcher.close()


def test_a_prompt_and_a_stream_have_the_same_budget(tmp_path):
    torch.manual_seed(4)
    with running(
        GenerationService(write_model(tmp_path, encoder=None), "small", RequestLimits(tokens=50), workers=1)
    ) as client:
        for stream in (False, True):
            status, answer = client.post(
                "/generate", {"prompt": "x" * 30, "max_length": 21, "stream": stream}
            )
            assert (status, answer["error"].partition(", and at")[0]) == (
                422,
                "the prompt with its continuation has 51 tokens",
            )


def test_a_request_that_ran_out_of_time_stops_computing(model):
    service = CountingService(model, "small", RequestLimits(seconds=0.3), workers=1)
    with running(service) as client:
        status, answer = client.post("/translate", LONG)
        assert (status, answer["error"][:42]) == (503, "the answer took longer than 0.3 seconds; s")
        service.go.set()
        assert client.post("/translate", {"text": "a", "max_length": 2})[0] == 200  # the only worker is free
        assert service.steps < 200


def test_a_client_that_leaves_frees_its_worker_and_its_neighbour_gets_its_own_answer(model, capfd):
    service = CountingService(model, "small", workers=1)
    options = {"max_length": 40, "min_length": 30, "beam": 2}
    options_in_python = {"constraints": Constraints(min_length=30), "limits": Limits(max_length=40)}
    expected = [as_json(t) for t in translate(["Wolken!"], model, beam=2, **options_in_python)]
    with running(service, log=True) as client:
        first = in_background(
            lambda: client.post("/translate", {"text": "a", "max_length": 3, "min_length": 3})
        )
        until(lambda: service.steps)  # the worker is busy: what follows shares a batch
        leaving = client.connect()
        body = json.dumps({"text": "ein Hund", **options}).encode()
        leaving.request("POST", "/translate", body, {"content-type": "application/json"})
        until(lambda: service.batcher.waiting == 1)
        staying = in_background(lambda: client.post("/translate", {"text": "Wolken!", **options}))
        begun = service.steps
        until(lambda: service.steps > begun + 8)
        leaving.close()
        until(lambda: value(service.metrics, "regard_requests_total", route="/translate", status="499") == 1)
        service.go.set()
        for thread, _ in (first, staying):
            thread.join(120)
        assert staying[1][0] == (200, {"translations": expected})
        assert client.post("/translate", {"text": "a", "max_length": 2})[0] == 200
    log = capfd.readouterr().err
    assert "POST /translate 499" in log
    assert "Traceback" not in log


def test_a_client_that_leaves_while_it_sends_is_499_without_a_traceback(model, capfd):
    service = GenerationService(model, "small", workers=1)
    with running(service, log=True) as client:
        leaving = client.connect()
        leaving.putrequest("POST", "/translate")
        for header in (("content-type", "application/json"), ("content-length", "1000")):
            leaving.putheader(*header)
        leaving.endheaders(b'{"text": "ein')
        until(lambda: service.metrics.in_flight == 1)
        leaving.close()
        until(lambda: value(service.metrics, "regard_requests_total", route="/translate", status="499") == 1)
    log = capfd.readouterr().err
    assert "POST /translate 499" in log
    assert "Traceback" not in log


def test_draining_cancels_requests_that_exceed_the_grace_time(model):
    service = CountingService(model, "small", RequestLimits(grace=0.3), workers=1)
    with running(service) as client:
        pending = in_background(lambda: client.post("/translate", LONG))
        until(lambda: service.steps > 2)
        client.server.drain()
        pending[0].join(120)
        assert pending[1][0][0] == 503
        assert "shutting down" in pending[1][0][1]["error"]
        assert client.server.cancelled
    service.go.set()
    assert service.batcher.close(20)
    assert service.steps < 200


def test_sigterm_ends_the_process_within_the_grace_time(folder):
    heavy = {"texts": [LONG["text"]] * 15, **{k: v for k, v in LONG.items() if k != "text"}, "beam": 32}
    with process(folder, "--workers", "1", "--grace", "0.5") as (started, client):
        pending = in_background(lambda: client.post("/translate", heavy))
        until(lambda: b"regard_requests_in_flight 2.0" in client.get("/metrics")[2])
        time.sleep(0.3)
        os.kill(started.pid, signal.SIGTERM)
        _, err = started.communicate(timeout=120)
        pending[0].join(120)
    assert pending[1][0][0] == 503, pending
    assert started.returncode == 1
    assert err.splitlines()[-1] == "regard: stopped before all requests were answered"
    assert "Traceback" not in err
