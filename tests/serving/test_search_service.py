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
    process = forked.run(*args)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, texts and their index."""
    folder, model = tmp_path_factory.mktemp("index"), embedder()
    save(folder / "model", model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    regard("index", folder / "texts.txt", "-m", folder / "model", "-o", folder / "i.index")
    return folder


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "by", ["hybrid", pytest.param("vectors", marks=SLOW), pytest.param("bm25", marks=SLOW)]
)
def test_search_results_equal_those_of_the_command(folder, by):
    queries = ["a cat on a mat", "moon"]
    lines = regard("search", folder / "i.index", *queries, "--by", by, "-k", 3, "--json").splitlines()
    with process(folder / "i.index") as (_, client):
        status, answer = client.post("/search", {"texts": queries, "by": by, "count": 3})
        assert status == 200
        expected = [json.loads(line) for line in lines]
        for result, line in zip(answer["results"], expected, strict=True):
            assert result["query"] == line["query"]
            assert [hit["id"] for hit in result["documents"]] == [hit["id"] for hit in line["documents"]]
            assert [hit["text"] for hit in result["documents"]] == [hit["text"] for hit in line["documents"]]
            assert [hit["score"] for hit in result["documents"]] == pytest.approx(
                [hit["score"] for hit in line["documents"]], abs=2e-6
            )
        if by == "hybrid":
            single = client.post("/search", {"text": queries[0], "count": 3})[1]
            assert single["results"] == answer["results"][:1]
            assert "/search" in client.curl
            assert json.loads(client.get("/health")[2]) | {"version": ""} == {
                "status": "ready", "model": "i.index", "kind": "search index", "version": "",
            }  # fmt: skip


def test_wrong_requests_are_errors_of_one_sentence_and_the_description_lists_the_routes(folder):
    with running(SearchService(Index(folder / "i.index"), embedder(), "i", workers=1)) as client:
        for request, message in (
            ({"text": "a", "count": 0}, "count is 0, and must be at least 1"),
            ({"text": "a", "by": "words"}, "by is 'words', and must be one of 'hybrid', 'vectors' or 'bm25'"),
            ({"query": "a"}, "there is no field 'query'"),
            ({}, "give either text"),
        ):
            status, answer = client.post("/search", request)
            assert status == 422 and message in answer["error"]
        assert client.post("/embed", {"text": "a"})[0] == 404
        description = json.loads(client.get("/openapi.json")[2])
        assert set(description["paths"]) == {"/search", "/health", "/metrics"}
        assert "/search" in client.get("/docs")[2].decode()


def test_a_model_other_than_that_of_the_index_is_refused(folder):
    with pytest.raises(FolderError, match="was built with another model"):
        SearchService(Index(folder / "i.index"), embedder(seed=2), "i")


def test_the_folder_of_a_moved_model_can_be_given(folder, tmp_path):
    (folder / "model").rename(tmp_path / "moved")
    try:
        with process(folder / "i.index", "--model", tmp_path / "moved") as (_, client):
            answer = client.post("/search", {"text": "moon", "count": 1})[1]
            assert answer["results"][0]["documents"][0]["text"] == TEXTS[1]
    finally:
        (tmp_path / "moved").rename(folder / "model")


@pytest.mark.slow
def test_model_may_be_given_as_an_option(folder):
    with process("--model", folder / "model") as (_, client):
        assert len(client.post("/embed", {"text": "moon"})[1]["embeddings"]) == 1
    finished = forked.run("serve", "--port", 0, folder / "model", "-m", folder / "model")
    assert finished.returncode == 2 and "a server has one model" in finished.stderr
