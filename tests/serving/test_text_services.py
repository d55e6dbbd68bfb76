"""Tests of text_services.py: answers equal those of the pipelines."""

import json

import numpy as np
import pytest
import torch

from regard.models.folder import load, save
from regard.pipelines.classify import classify
from regard.pipelines.embed import embed
from regard.pipelines.input import Chunk, Row
from regard.pipelines.tag_file import JsonFormat, TagJob, TagOptions
from regard.serving.request_limits import RequestLimits
from regard.serving.text_services import make_service
from tests import forked
from tests.decoding import model_folders
from tests.search.small import embedder
from tests.serving.server import process, running, write_model
from tests.serving.test_metrics import parse

TEXTS = ["ada lovelace met Babbage", "", "the Tower of London"]
TOKEN = "abcdefghijklmnop-1234"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return model_folders.classifier(tmp_path_factory.mktemp("classifier"))


def serving(folder, limits=None, **options):
    model = load(folder)
    return model, running(make_service(model, "small", limits or RequestLimits(), workers=1), **options)


def test_classify_gives_labels_with_probabilities(classifier):
    model, server = serving(classifier)
    expected = classify(TEXTS, model)
    with server as client:
        status, answer = client.post("/classify", {"texts": TEXTS, "top": 2})
        assert status == 200
        assert [label["label"] for label in answer["labels"]] == [str(label) or None for label in expected]
        for label, classification in zip(answer["labels"], expected, strict=True):
            assert list(label["probabilities"].items()) == [
                (k, round(p, 6)) for k, p in list(classification.probabilities.items())[:2]
            ]
        one = client.post("/classify", {"text": TEXTS[0], "threshold": 1.0})[1]
        assert one["labels"][0]["label"] is None and one["labels"][0]["probability"] > 0
        assert client.post("/classify", {"text": "a", "topp": 2})[1] == {
            "error": "there is no field 'topp'; did you mean 'top'?"
        }
        assert client.post("/classify", {"text": "a", "threshold": 2})[0] == 422
        assert client.post("/classify", {})[0] == 422
        status, answer = client.post("/translate", {"text": "a"})
        assert (status, "this server has a classifier" in answer["error"]) == (404, True)
        metrics = parse(client.get("/metrics")[2].decode())
        assert metrics['regard_requests_total{route="/classify",status="200"}'] == 2
        assert metrics['regard_tokens_total{side="source"}'] == sum(map(len, TEXTS)) + len(TEXTS[0])
        assert json.loads(client.get("/health")[2])["kind"] == "classifier"


def test_a_text_that_is_too_long_to_read_at_once_is_refused(classifier):
    with serving(classifier, RequestLimits(tokens=20))[1] as client:
        status, answer = client.post("/classify", {"texts": ["a", "b" * 21]})
        assert status == 422
        assert answer["error"].startswith("text 2 has 21 tokens, and at most 20 are allowed")


def test_a_token_is_needed_for_these_routes_too(classifier):
    with serving(classifier, host="0.0.0.0", token=TOKEN)[1] as client:
        assert client.post("/classify", {"text": "a"})[0] == 401
        assert client.post("/classify", {"text": "a"}, {"authorization": f"Bearer {TOKEN}"})[0] == 200


def test_tag_gives_words_tags_and_spans(tmp_path):
    model, server = serving(model_folders.tagger(tmp_path))
    expected = TagJob(model, TagOptions(), JsonFormat()).results(
        Chunk(0, [Row(text, text) for text in TEXTS], "")
    )
    with server as client:
        status, answer = client.post("/tag", {"texts": TEXTS})
        assert status == 200
        for item, tagged, text in zip(answer["texts"], expected, TEXTS, strict=True):
            assert item["words"] == [word.text for word in tagged.words]
            assert item["tags"] == list(tagged.tags)
            assert all(text[span["start"] : span["end"]] == span["text"] for span in item["spans"])
        assert len(answer["texts"][0]["tags"]) == 4 and answer["texts"][1]["tags"] == []
        with_io = client.post("/tag", {"text": TEXTS[0], "scheme": "io"})[1]
        assert not {tag[0] for tag in with_io["texts"][0]["tags"]} - {"I", "O"}
        assert "must be one of" in client.post("/tag", {"text": "a", "scheme": "none"})[1]["error"]


def test_embed_gives_vectors_of_length_one(tmp_path):
    model = embedder()
    save(tmp_path, model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    model, server = serving(tmp_path)
    with server as client:
        status, answer = client.post("/embed", {"texts": [*TEXTS, "x" * 9000]})
        assert status == 200
        assert np.allclose(answer["embeddings"], embed([*TEXTS, "x" * 9000], model), atol=1e-6)
        assert np.allclose(np.linalg.norm(answer["embeddings"], axis=1), 1, atol=1e-5)


def test_the_docs_page_loads_nothing_from_other_hosts(classifier):
    with serving(classifier)[1] as client:
        for path in ("/", "/docs"):
            status, headers, body = client.get(path)
            assert status == 200
            assert "default-src 'none'" in headers["content-security-policy"]
            text = body.decode()
            assert all(part in text for part in ("POST /classify", "threshold", "openapi.json"))
            assert "http://" not in text and "https://" not in text and "<script" not in text
        description = json.loads(client.get("/openapi.json")[2])
        assert set(description["paths"]) == {"/classify", "/health", "/metrics"}
        assert "Labels" in description["components"]["schemas"]


def test_the_docs_of_a_translator_describe_its_routes(tmp_path):
    torch.manual_seed(3)
    write_model(tmp_path)
    with serving(tmp_path)[1] as client:
        assert b"POST /translate" in client.get("/docs")[2]


def test_the_command_serves_a_classifier(classifier):
    with process(classifier, "--workers", "1") as (_, client):
        assert "/classify" in client.curl
        assert client.post("/classify", {"text": "fine"})[0] == 200


@pytest.mark.slow
def test_a_shortlist_for_a_classifier_is_refused(classifier):
    finished = forked.run("serve", classifier, "--port", 0, "--shortlist")
    assert finished.returncode != 0
    message = "--shortlist is for translators and language models, and this is a classifier; leave it out"
    assert message in " ".join(finished.stderr.split())
    assert "Traceback" not in finished.stderr
