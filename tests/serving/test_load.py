"""Tests of the server under load."""

import http.client
import json
import os
import threading
import time

import pytest

from regard.models.folder import load
from regard.pipelines.translate import translate
from tests.serving.server import process
from tests.serving.test_metrics import parse

NEAR = 1e-4  # scores within this are equal: float32 sums depend on the batch
WORDS = "the small dog and two dogs run over there I like you very much 🐕".split()


def sentences(count):
    return [
        " ".join(WORDS[(i * 7 + j * (2 + i // 45)) % len(WORDS)] for j in range(1 + i % 9))
        for i in range(count)
    ]


def send_all(client, requests, connections):
    """Send all requests over a few persistent connections; return responses by index, and the seconds."""
    result, pending, lock = {}, list(enumerate(requests))[::-1], threading.Lock()

    def work():
        connection = http.client.HTTPConnection(client.host, client.port, timeout=300)
        while True:
            with lock:
                if not pending:
                    break
                i, body = pending.pop()
            connection.request("POST", "/translate", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            result[i] = answer.status, json.loads(answer.read())
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(connections)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result, time.perf_counter() - begin


def share_of_near_ties(folder, count, connections):
    """Send requests of one or several texts, greedy and with beams; compare with translations made here.

    Returns the share of translations that differ by a near tie; any other difference is an error.
    """
    texts = sentences(count)
    beams = [(1, 1, 2, 4)[i % 4] for i in range(count)]
    requests = [{"texts": texts[i : i + 1 + i % 3], "beam": beams[i]} for i in range(count)]
    model = load(folder)
    expected = {
        beam: dict(zip(texts, translate(texts, model, beam=beam), strict=True)) for beam in set(beams)
    }
    with process(folder) as (_, client):
        result, seconds = send_all(client, requests, connections)
        metrics = parse(client.get("/metrics")[2].decode())
    assert sorted(result) == list(range(count))  # nothing lost
    assert {status for status, _ in result.values()} == {200}
    assert metrics['regard_requests_total{route="/translate",status="200"}'] == count
    total = ties = 0
    for i, (_, answer) in result.items():
        assert len(answer["translations"]) == len(requests[i]["texts"])
        for text, translation in zip(requests[i]["texts"], answer["translations"], strict=True):
            best = expected[beams[i]][text]
            total += 1
            if translation["text"] != best:
                ties += 1
                assert abs(translation["score"] - best.hypotheses[0].score) < NEAR, (text, translation, best)
    batch_size = metrics["regard_batch_texts_sum"] / metrics["regard_batch_texts_count"]
    print(f"\n{count} requests ({total} texts) over {connections} connections in {seconds:.1f} s:")
    print(f"{count / seconds:.0f} requests/s, {total / seconds:.0f} texts/s, {batch_size:.1f} texts a batch")
    print(f"{ties} of {total} translations differ by a near tie")
    return ties / total


@pytest.mark.slow
def test_sixty_requests_from_eight_connections(folder):
    assert share_of_near_ties(folder, 60, 8) <= 0.01


@pytest.mark.slow
def test_a_thousand_requests_from_sixty_four_connections(folder):
    assert share_of_near_ties(os.environ.get("REGARD_LOAD_MODEL", folder), 1000, 64) <= 0.01
