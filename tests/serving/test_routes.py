"""Tests of routes.py, waiting.py, middleware.py, http_errors.py, requests.py and index_page.py.

Covers responses.py, service.py.
"""

import json
import socket

import pytest
import torch

from regard.decoding.attention_weights import attention_maps
from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.pipelines.translate import translate
from regard.serving.generation_service import GenerationService
from regard.serving.request_limits import RequestLimits
from regard.version import __version__
from tests.serving.server import BlockedService, Client, in_background, running, until
from tests.serving.test_metrics import parse, value

TEXTS = ["ein Hund", "", "zwei Hunde laufen 🐕", "Wolken!"]
TOKEN = "abcdefghijklmnop-1234"


def as_json(result):
    """A translation in the JSON format of the server."""
    hypotheses = [
        {
            "text": h.text,
            "score": round(h.score, 6),
            "log_p": round(h.log_p, 6),
            "tokens": len(h.tokens),
            "ended": h.ended,
        }
        for h in result.hypotheses
    ]
    if not hypotheses:
        return {"text": "", "score": None, "log_p": None, "tokens": 0, "ended": True}
    return hypotheses[0] | ({"hypotheses": hypotheses} if len(hypotheses) > 1 else {})


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        (
            {"beam": 3, "nbest": 2, "length_penalty": 0.6, "max_length": 9},
            {"strategy": Beam(3, 0.6), "nbest": 2, "limits": Limits(max_length=9)},
        ),
        (
            {"beam": 4, "groups": 2, "diversity": 1.0, "nbest": 4},
            {"strategy": Beam(4, groups=2, diversity=1.0), "nbest": 4},
        ),
        ({"beam": 2, "coverage_penalty": 0.2}, {"strategy": Beam(2, coverage_penalty=0.2)}),
        (
            {"no_repeat": 2, "min_length": 3, "forbidden": ["s", "ei"]},
            {"constraints": Constraints(no_repeat=2, min_length=3, forbidden=["s", "ei"])},
        ),
        ({"prefix": "der "}, {"constraints": Constraints(prefix="der ")}),
        ({"prefix": "", "required": [""]}, {}),
        (
            {"beam": 4, "required": ["Hu"], "max_length": 12},
            {"beam": 4, "constraints": Constraints(required=["Hu"]), "limits": Limits(max_length=12)},
        ),
        ({"sample": {"seed": 5, "top_k": 4, "count": 2}}, {"strategy": Sample(seed=5, top_k=4, count=2)}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_translations_are_those_of_the_python_call(model, client, body, options):
    expected = translate(TEXTS, model, **options)
    status, answer = client.post("/translate", {"texts": TEXTS, **body})
    assert (status, answer) == (200, {"translations": [as_json(t) for t in expected]})


def test_one_text_is_a_list_of_one(client):
    status, answer = client.post("/translate", {"text": "ein Hund"})
    assert status == 200
    assert answer == client.post("/translate", {"texts": ["ein Hund"]})[1]
    assert client.post("/translate", {"texts": []}) == (200, {"translations": []})


def test_samples_without_a_seed_differ(client):
    request = {"text": "zwei Hunde laufen", "sample": {}}
    assert client.post("/translate", request) != client.post("/translate", request)


def test_attention_equals_that_of_the_best_translation_in_python(model, client):
    best = translate(["ein Hund"], model, beam=2, limits=Limits(max_length=4))[0]
    seen = attention_maps(
        [best.source_tokens], [best.hypotheses[0].tokens + [3] * best.hypotheses[0].ended], model
    )[0]
    status, answer = client.post("/attention", {"text": "ein Hund", "beam": 2, "max_length": 4})
    assert status == 200
    assert answer["text"] == best
    assert [m["name"] for m in answer["attention"]] == list(seen)
    for matrix in answer["attention"]:
        assert torch.allclose(torch.tensor(matrix["weights"]), seen[matrix["name"]].float(), atol=1e-6)
        assert (matrix["rows"], matrix["columns"]) == seen.pieces(matrix["name"])


def test_attention_of_a_given_translation_and_of_one_kind(client):
    status, answer = client.post("/attention", {"text": "ein Hund", "target": "a dog", "kinds": ["cross"]})
    assert status == 200
    assert {m["kind"] for m in answer["attention"]} == {"cross"}
    assert answer["attention"][0]["rows"] == ["a", "▁", "d", "o", "g", "</s>"]
    assert answer["attention"][0]["columns"][-1] == "</s>"


def test_attention_of_an_empty_text_has_no_matrices(client):
    assert client.post("/attention", {"text": ""}) == (200, {"text": "", "score": None, "attention": []})


def test_health_index_page_and_description_are_served(client):
    status, headers, body = client.get("/health")
    assert (status, json.loads(body)) == (
        200,
        {"status": "ready", "model": "small", "kind": "translator", "version": __version__},
    )
    assert "server" not in headers
    status, headers, body = client.get("/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    text = body.decode()
    assert all(
        part in text
        for part in ("POST /translate", "POST /attention", "GET /health", "GET /metrics", "length_penalty")
    )
    assert "http://" not in text and "https://" not in text and "<script" not in text
    description = json.loads(client.get("/openapi.json")[2])
    assert set(description["paths"]) == {"/translate", "/attention", "/health", "/metrics"}
    request = description["paths"]["/translate"]["post"]["requestBody"]
    fields = request["content"]["application/json"]["schema"]["properties"]
    assert list(fields)[:2] == ["text", "texts"]
    assert fields["sample"]["anyOf"][0]["properties"]["temperature"]["minimum"] == 1e-4
    assert "$defs" not in json.dumps(description["paths"])


def test_metrics_count_requests_and_texts(client):
    before = parse(client.get("/metrics")[2].decode())
    client.post("/translate", {"texts": ["ein Hund", "Wolken!"]})
    client.post("/translate", {"text": 3})
    client.get("/nowhere/at/all")
    _, headers, body = client.get("/metrics")
    after = parse(body.decode())
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    increase = {key: after[key] - before.get(key, 0) for key in after}
    assert increase['regard_requests_total{route="/translate",status="200"}'] == 1
    assert increase['regard_requests_total{route="/translate",status="422"}'] == 1
    assert increase['regard_requests_total{route="other",status="404"}'] == 1
    assert increase['regard_tokens_total{side="source"}'] == len("ein Hund") + len("Wolken!")
    assert increase['regard_request_seconds_count{route="/translate"}'] == 2
    assert increase["regard_batch_texts_sum"] == 2
    assert after["regard_requests_in_flight"] == 1  # this one
    assert after["regard_queue_texts"] == 0


INVALID = [
    (b"", "not JSON"),
    (b"{", "not JSON: EOF"),
    (b"[]", "the request is [], and must be an object with text, texts"),
    (b"[" * 100_000, "recursion limit"),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, "recursion limit"),
    (b'{"text": "\xff"}', "invalid unicode"),
    (rb'{"text": "\ud800"}', "not JSON"),
    (b'{"text": 3}', "text is 3, and must be text"),
    (b'{"text": ["a"]}', "and must be text; give a list as texts"),
    (b'{"texts": "a"}', "texts is 'a', and must be a list"),
    (b'{"texts": ["a", null]}', "texts[1] is null, and must be text"),
    (b"{}", "give either text, a string, or texts"),
    (b'{"text": "a", "texts": ["a"]}', "give either text"),
    (b'{"text": "a", "beam": NaN}', "beam is nan, and must be an integer"),
    (b'{"text": "a", "length_penalty": NaN}', "length_penalty is nan, and must be a finite number"),
    (b'{"text": "a", "length_penalty": 1e999}', "length_penalty is inf, and must be a finite number"),
    (b'{"text": "a", "beam": true}', "beam is true, and must be an integer"),
    (b'{"text": "a", "beam": "2"}', "beam is '2', and must be an integer"),
    (b'{"text": "a", "beam": 33}', "beam is 33, and must be at most 32"),
    (b'{"text": "a", "beam": ' + b"9" * 5000 + b"}", "number out of range"),
    (b'{"text": "a", "bean": 2}', "there is no field 'bean'; did you mean 'beam'?"),
    (b'{"text": "a", "sample": {"temprature": 2}}', "did you mean 'temperature'?"),
    (b'{"text": "a", "sample": {"temperature": 0}}', "sample.temperature is 0, and must be at least 0.0001"),
    (
        b'{"text": "a", "sample": {"temperature": 5e-324}}',
        "sample.temperature is 5e-324, and must be at least 0.0001",
    ),
    (
        b'{"text": "a", "sample": {"top_k": 2147483648}}',
        "sample.top_k is 2147483648, and must be less than 2147483648",
    ),
    (
        b'{"text": "a", "no_repeat": 1, "min_length": 900, "sample": {}}',
        "no output of at most 900 tokens satisfies the constraints",
    ),
    (b'{"text": "a", "nbest": 2}', "nbest 2 needs a beam of at least 2"),
    (b'{"text": "a", "required": ["a"], "sample": {}}', "constraints.required needs a beam without groups"),
    (b'{"text": "' + b"a" * 10_001 + b'"}', "text has 10,001 characters, and at most 10,000"),
    (b'{"text": "a", "forbidden": ["' + b"a" * 10_001 + b'"]}', "forbidden[0] has 10,001 characters"),
    (json.dumps({"texts": ["a"] * 10_000}).encode(), "texts has 10,000 entries, and at most 1,000"),
]


@pytest.mark.parametrize(("body", "message"), INVALID, ids=[message[:40] for _, message in INVALID])
def test_an_invalid_request_is_an_error_of_one_sentence(client, body, message):
    status, answer = client.post("/translate", body)
    assert status == 422
    assert list(answer) == ["error"]
    assert message in answer["error"]
    assert len(answer["error"]) < 400
    assert "\n" not in answer["error"]


def test_unusual_texts_are_translated(client):
    unusual = ["a\x00b", "a\nb\tc", "\u202e\ufeff", "🐕" * 50, "   ", "ÿ" * 300]
    status, answer = client.post("/translate", {"texts": unusual})
    assert status == 200
    assert len(answer["translations"]) == len(unusual)


def test_a_body_that_is_too_large_is_refused_with_and_without_content_length(client):
    status, answer = client.post("/translate", b"x" * (3 << 20))
    assert (status, answer) == (
        413,
        {"error": "the request has more than 1,048,576 bytes; send fewer texts at once"},
    )

    connection = client.connect()  # chunked: the length is unknown until the end
    connection.request(
        "POST",
        "/translate",
        iter([b"x" * 65536] * 40),
        {"content-type": "application/json"},
        encode_chunked=True,
    )
    assert connection.getresponse().status == 413
    connection.close()


def test_errors_name_wrong_addresses_methods_and_content_types(client):
    status, _, body = client.get("/translat")
    assert status == 404
    assert "this server has a translator" in json.loads(body)["error"]
    status, headers, body = client.get("/translate")
    assert (status, headers["allow"]) == (405, "POST")
    assert "use POST" in json.loads(body)["error"]
    assert client.post("/generate", {"prompt": "a"})[0] == 404
    # Other web pages can send only text/plain and forms.
    status, _, body = client.raw("POST", "/translate", b'{"text": "a"}', {"content-type": "text/plain"})
    assert (status, json.loads(body)["error"]) == (
        415,
        "the content type is 'text/plain', and must be application/json",
    )


def test_requests_of_web_pages_are_refused(client):
    status, _, body = client.get("/health", host="evil.example")
    assert status == 421
    assert "localhost only" in json.loads(body)["error"]
    status, headers, _ = client.get("/health", origin="http://evil.example")
    assert not [name for name in headers if name.startswith("access-control")]


def test_broken_http_does_not_stop_the_server(client):
    for sent in (
        b"\x00\xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    ):
        with socket.create_connection((client.host, client.port), 5) as sock:
            sock.sendall(sent)
            assert b"400" in sock.recv(1000)
    assert client.get("/health")[0] == 200


def test_without_the_token_only_health_answers(model):
    with running(GenerationService(model, "small", workers=1), host="0.0.0.0", token=TOKEN) as client:
        assert json.loads(client.get("/health", host="example.org")[2]) == {"status": "ready"}
        for path in ("/", "/metrics", "/openapi.json", "/nowhere"):
            status, headers, body = client.get(path, host="example.org")
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert "small" not in body.decode()
        assert client.post("/translate", {"text": "a"}, {"authorization": "Bearer wrong"})[0] == 401
        status, answer = client.post(
            "/translate", {"text": "a"}, {"authorization": f"Bearer {TOKEN}", "host": "example.org"}
        )
        assert status == 200
        assert len(answer["translations"]) == 1


def test_a_full_queue_is_429_and_accepted_requests_are_answered(model):
    service = BlockedService(model, "small", RequestLimits(queue=2, texts=2), workers=1)
    with running(service) as client:
        first = in_background(lambda: client.post("/translate", {"text": "eins"}))
        assert service.started.wait(120)  # a worker has taken it from the queue
        second = in_background(lambda: client.post("/translate", {"texts": ["zwei", "drei"]}))
        until(lambda: service.batcher.waiting == 2)
        status, headers, body = client.raw(
            "POST", "/translate", b'{"text": "vier"}', {"content-type": "application/json"}
        )
        assert (status, headers["retry-after"]) == (429, "1")
        assert "2 texts are waiting and the queue holds 2" in json.loads(body)["error"]
        service.go.set()
        for thread, result in (first, second):
            thread.join(120)
            assert result[0][0] == 200


def test_too_many_requests_at_once_are_429_before_they_are_read(model):
    service = BlockedService(model, "small", RequestLimits(requests=1), workers=1)
    with running(service) as client:
        first = in_background(lambda: client.post("/translate", {"text": "eins"}))
        until(lambda: service.metrics.in_flight == 1)
        status, answer = client.post("/translate", {"text": "zwei"})
        assert status == 429
        assert "1 requests are being answered" in answer["error"]
        assert client.get("/health")[0] == 200
        service.go.set()
        first[0].join(120)
        assert first[1][0][0] == 200


def test_a_text_longer_than_the_model_was_trained_for_is_translated_in_parts(model, monkeypatch):
    sentences = ["ein Hund.", "Wolken!", "Wir laufen."]
    max_length = max(len(model.source_tokenizer.encode(s)) for s in sentences)
    monkeypatch.setattr(model, "card", {"recipe": {"data": {"max_length": max_length}}}, raising=False)
    with running(GenerationService(model, "small", workers=1)) as client:
        answer = client.post("/translate", {"texts": ["ein Hund. Wolken!\nWir laufen.", "ein Hund."]})[1]
    parts = translate(sentences, model)
    long, short = answer["translations"]
    assert long["text"] == f"{parts[0]} {parts[1]}\n{parts[2]}" and long["parts"] == 3
    assert long["log_p"] == pytest.approx(sum(p.hypotheses[0].log_p for p in parts), abs=1e-5)
    assert short == as_json(parts[0])


def test_a_text_of_several_sentences_is_split_for_a_model_of_single_ones(model, monkeypatch):
    card = {"decoding": {"split_tokens": 2}, "recipe": {"data": {"max_length": 90}}}
    monkeypatch.setattr(model, "card", card, raising=False)
    text = "ein Hund. Wolken!"
    with running(GenerationService(model, "small", workers=1)) as client:
        (split,) = client.post("/translate", {"text": text})[1]["translations"]
        (whole,) = client.post("/translate", {"text": text, "prefix": "a"})[1]["translations"]
    assert split["parts"] == 2 and "parts" not in whole
    assert split["text"] == " ".join(map(str, translate(["ein Hund.", "Wolken!"], model)))


def test_a_request_past_its_timeout_is_503_and_is_not_computed_later(model):
    service = BlockedService(model, "small", RequestLimits(seconds=1.0), workers=1)
    with running(service) as client:
        first = in_background(lambda: client.post("/translate", {"text": "eins"}))
        assert service.started.wait(120)  # a worker has taken it from the queue
        status, answer = client.post("/translate", {"text": "zwei"})
        assert status == 503
        assert "longer than 1 seconds" in answer["error"]
        service.go.set()
        first[0].join(120)
        until(lambda: not service.batcher.waiting)
        assert client.post("/translate", {"text": "drei"})[0] == 200
        tokens = value(service.metrics, "regard_tokens_total", side="source")
        assert tokens in (len("drei"), len("einsdrei"))  # "zwei" was never computed


def test_requests_of_clients_that_left_are_cancelled(model):
    service = BlockedService(model, "small", workers=1)
    with running(service) as client:
        first = in_background(lambda: client.post("/translate", {"text": "eins"}))
        assert service.started.wait(120)  # a worker has taken it from the queue
        connection = client.connect()
        connection.request("POST", "/translate", b'{"text": "zwei"}', {"content-type": "application/json"})
        until(lambda: service.batcher.waiting == 1)
        connection.close()
        until(lambda: service.metrics.in_flight == 1)
        service.go.set()
        first[0].join(120)
        until(lambda: not service.batcher.waiting)
        assert value(service.metrics, "regard_tokens_total", side="source") == len("eins")


def test_an_unexpected_error_is_500_with_a_number_only(model, capfd):
    class Broken(GenerationService):
        def _work(self, *args):
            raise RuntimeError("secret /etc/path")

    with running(Broken(model, "small", workers=1)) as client:
        status, answer = client.post("/translate", {"text": "a"})
        assert status == 500
        number = answer["error"].split()[-1]
        assert answer["error"] == f"something went wrong on the server; its log has more under {number}"
        assert client.get("/health")[0] == 200
    log = capfd.readouterr().err
    assert f"regard: error {number}" in log
    assert "secret /etc/path" in log
    assert log.count("Traceback") == 1


def test_the_access_log_has_one_line_for_each_request(model, capfd):
    with running(GenerationService(model, "small", workers=1), log=True) as client:
        client.get("/health")
        client.get("/a%0aGET%20/fake%20200")
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[1:4] for line in lines] == [
        ["GET", "/health", "200"],
        ["GET", "/a%0aGET%20/fake%20200", "404"],
    ]


def test_concurrent_requests_share_batches_and_get_their_own_answers(model):
    service = BlockedService(model, "small", workers=1)
    texts = [["Hund", "Hunde laufen", "ein kleiner Hund", "Wolken"][i % 4] + "!" * (i % 5) for i in range(24)]
    expected = [as_json(t) for t in translate(texts, model)]
    with running(service) as client:
        pending = [
            in_background(lambda text=text: client.post("/translate", {"text": text})) for text in texts
        ]
        until(lambda: service.metrics.in_flight == len(texts))
        service.go.set()
        for thread, _ in pending:
            thread.join(120)
        sizes = parse(client.get("/metrics")[2].decode())
    assert [result[0][1]["translations"][0] for _, result in pending] == expected
    assert sizes["regard_batch_texts_count"] <= 3


def test_a_connection_serves_several_requests(client):
    connection = client.connect()
    for text in ("ein Hund", "Wolken!"):
        assert client.post("/translate", {"text": text}, keep=connection)[0] == 200
    sock = connection.sock
    assert client.post("/translate", b"nonsense", keep=connection)[0] == 422
    assert connection.sock is sock
    connection.close()


def test_an_address_over_ipv6_is_spelled_in_brackets():
    assert (Client("http://[::1]:80").host, Client("http://[::1]:80").port) == ("::1", 80)
