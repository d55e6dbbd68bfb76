"""Tests of search_service.py."""

import json

import pytest

from regard.errors import FolderError
from regard.models.folder import save
from regard.search.index import Index
from regard.serving.search_service import SearchService
from tests import forked
from tests.search.small import TEXTS, embedder
from tests.serving.server import process, running

pytest.importorskip("usearch")


def regard(*args):
    done = forked.run(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("index"), embedder()
    save(folder / "model", model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    regard("index", folder / "texts.txt", "-m", folder / "model", "-o", folder / "i.index")
    return folder


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "by", ["hybrid", pytest.param("vectors", marks=SLOW), pytest.param("bm25", marks=SLOW)]
)
def test_search_results_equal_those_of_the_command(place, by):
    questions = ["a cat on a mat", "moon"]
    lines = regard("search", place / "i.index", *questions, "--by", by, "-k", 3, "--json").splitlines()
    with process(place / "i.index") as (_, client):
        status, answer = client.post("/search", {"texts": questions, "by": by, "count": 3})
        assert status == 200
        expected = [json.loads(line) for line in lines]
        for result, want in zip(answer["results"], expected, strict=True):
            assert result["query"] == want["query"]
            assert [hit["id"] for hit in result["documents"]] == [hit["id"] for hit in want["documents"]]
            assert [hit["text"] for hit in result["documents"]] == [hit["text"] for hit in want["documents"]]
            assert [hit["score"] for hit in result["documents"]] == pytest.approx(
                [hit["score"] for hit in want["documents"]], abs=2e-6
            )
        if by == "hybrid":
            assert (
                client.post("/search", {"text": questions[0], "count": 3})[1]["results"]
                == answer["results"][:1]
            )
            assert "/search" in client.curl
            assert json.loads(client.get("/health")[2]) | {"version": ""} == {
                "status": "ready", "model": "i.index", "kind": "search index", "version": "",
            }  # fmt: skip


def test_wrong_questions_are_errors_of_one_sentence_and_the_description_is_true(place):
    with running(SearchService(Index(place / "i.index"), embedder(), "i", workers=1)) as client:
        for request, message in (
            ({"text": "a", "count": 0}, "count is 0, and must be at least 1"),
            ({"text": "a", "by": "words"}, "by is 'words', and must be one of 'hybrid', 'vectors' or 'bm25'"),
            ({"query": "a"}, "there is no field 'query'"),
            ({}, "give either text"),
        ):
            status, answer = client.post("/search", request)
            assert status == 422 and message in answer["error"]
        assert client.post("/embed", {"text": "a"})[0] == 404
        described = json.loads(client.get("/openapi.json")[2])
        assert set(described["paths"]) == {"/search", "/health", "/metrics"}
        assert "/search" in client.get("/docs")[2].decode()


def test_a_model_other_than_that_of_the_index_is_refused(place):
    with pytest.raises(FolderError, match="was built with another model"):
        SearchService(Index(place / "i.index"), embedder(seed=2), "i")


def test_a_model_that_has_moved_is_named_by_the_option(place, tmp_path):
    (place / "model").rename(tmp_path / "moved")
    try:
        with process(place / "i.index", "--model", tmp_path / "moved") as (_, client):
            assert (
                client.post("/search", {"text": "moon", "count": 1})[1]["results"][0]["documents"][0]["text"]
                == TEXTS[1]
            )
    finally:
        (tmp_path / "moved").rename(place / "model")


@pytest.mark.slow
def test_a_model_may_be_served_by_the_option(place):
    with process("--model", place / "model") as (_, client):
        assert len(client.post("/embed", {"text": "moon"})[1]["embeddings"]) == 1
    done = forked.run("serve", "--port", 0, place / "model", "-m", place / "model")
    assert done.returncode == 2 and "a server has one model" in done.stderr
