"""An index finds what is nearest, grows and shrinks, survives a crash, and knows the model that made it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from regard.errors import DataError, FolderError, OptionError
from regard.search import build_index
from regard.search.documents import Document
from regard.search.exact import best, nearest
from regard.search.hnsw import Graph
from regard.search.index import Index, IndexInfo
from regard.search.methods import Bm25Search, Hit, HybridSearch, VectorSearch
from tests.search.small import TEXTS, embedder

pytest.importorskip("usearch")
WIDTH = 16


def drawn(n, seed=1):
    x = np.random.default_rng(seed).standard_normal((n, WIDTH)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def documents(n, first=0):
    return [Document(f"d{i}", f"text number {i}") for i in range(first, first + n)]


@pytest.fixture
def folder(tmp_path):
    build_index.create(tmp_path / "index", IndexInfo("m", "f" * 64, WIDTH))
    return tmp_path / "index"


@pytest.mark.parametrize("many", [10_000, 10])
def test_documents_are_found_as_comparing_with_all_finds_them(folder, many):
    """By comparing and through a graph, in two parts, with some removed."""
    x, queries = drawn(300), drawn(20, 2)
    # One thread: a graph built by several may lose a vector in the race, and is another one each time.
    build_index.add(folder, documents(200), x[:200], many=many, threads=1)
    build_index.add(folder, documents(100, 200), x[200:], many=many, threads=1)
    index = build_index.remove(folder, ["d7", "d250"])
    assert (index.graph is None) == (many == 10_000) and len(index) == 298
    cosines = queries @ x.T
    cosines[:, [7, 250]] = -2
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :5]
    numbers, found = index.near(queries, 5)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_allclose(found, np.take_along_axis(cosines, expected, 1), atol=1e-6)
    np.testing.assert_array_equal(index.near(queries, 5, exact=True)[0], expected)
    assert index.document(int(numbers[0, 0])) == Document(f"d{numbers[0, 0]}", f"text number {numbers[0, 0]}")


def test_asking_for_more_than_there_are_gives_what_there_is(folder):
    index = build_index.add(folder, documents(3), drawn(3))
    numbers, cosines = index.near(drawn(2, 5), 10)
    assert (
        sorted(numbers[0, :3]) == [0, 1, 2]
        and (numbers[:, 3:] == -1).all()
        and np.isneginf(cosines[:, 3:]).all()
    )


def test_a_single_query_goes_through_a_graph_too(folder):
    x = drawn(100)
    index = build_index.add(folder, documents(100), x, many=10, threads=1)
    assert index.near(x[42:43], 1)[0].tolist() == [[42]]


def test_a_graph_finds_nearly_what_comparing_finds():
    x, queries = drawn(3000), drawn(100, 2)
    graph = Graph(WIDTH, threads=1)
    graph.add(np.arange(3000), x)
    exact, _ = nearest([(0, x)], queries, 10, np.array([], np.int64))
    shares = [len(set(a) & set(b)) / 10 for a, b in zip(graph.near(queries, 30), exact, strict=True)]
    assert np.mean(shares) > 0.97


def test_of_equal_scores_the_first_is_best():
    assert best(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 2).tolist() == [1, 2]
    same = np.ones((40, 2), np.float32) / np.sqrt(2)
    assert nearest([(0, same[:3]), (3, same[3:])], same[:1], 4, np.array([1]))[0].tolist() == [[0, 2, 3, 4]]


def test_words_find_documents_and_removed_ones_no_longer(folder):
    index = build_index.add(folder, documents(5), drawn(5))
    assert [hit.number for hit in Bm25Search().search(index, ["3"], 5)[0]] == [3]
    index = build_index.remove(folder, ["d3"])
    assert Bm25Search().search(index, ["3"], 5) == [[]]
    assert len(Bm25Search().search(index, ["number"], 10)[0]) == 4


@pytest.mark.parametrize("many", [10_000, 10])
def test_compacting_forgets_what_was_removed_and_finds_the_same(folder, many):
    x, queries = drawn(60), drawn(8, 2)
    build_index.add(folder, documents(40), x[:40], many=many, threads=1)
    build_index.add(
        folder, [Document("secret", "a secret"), *documents(19, 41)], x[40:], many=many, threads=1
    )
    before = build_index.remove(folder, ["secret", "d3"])
    names = [[before.document(int(n)).id for n in row] for row in before.near(queries, 5)[0]]
    words = [
        (before.document(int(n)).id, score) for n, score in zip(*before.words("number 17", 9), strict=True)
    ]
    before.close()  # while it is open, its files stay
    index = build_index.compact(folder, many=many, threads=1)
    assert (
        (index.graph is None) == (many == 10_000)
        and len(index) == len(index.live()) == 58
        and not len(index.removed)
    )
    assert [[index.document(int(n)).id for n in row] for row in index.near(queries, 5)[0]] == names
    assert [
        (index.document(int(n)).id, score) for n, score in zip(*index.words("number 17", 9), strict=True)
    ] == words
    assert not any(b"a secret" in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert len(build_index.add(folder, [Document("d3", "again")], x[3:4], many=many)) == 59
    assert len(build_index.compact(folder, many=many)) == 59


def test_an_index_from_which_all_was_removed_can_be_compacted(folder):
    build_index.add(folder, documents(2), drawn(2))
    build_index.remove(folder, ["d0", "d1"])
    index = build_index.compact(folder)
    assert len(index) == 0 and Bm25Search().search(index, ["text"], 3) == [[]]
    assert len(build_index.add(folder, documents(1), drawn(1))) == 1


def test_both_ways_are_joined_by_rank(folder):
    """Lists 4 1 2 and 1 3: 1 has 1/62 + 1/61, then 4 by 1/61, then 3 by 1/62 and 2 by 1/63."""

    class Fixed:
        def __init__(self, numbers):
            self.numbers = numbers

        def search(self, index, queries, k):
            return [[Hit(n, 0.0) for n in self.numbers]]

    found = HybridSearch((Fixed([4, 1, 2]), Fixed([1, 3]))).search(Index(folder), ["q"], 3)[0]
    assert [hit.number for hit in found] == [1, 4, 3]
    assert found[0].score == pytest.approx(1 / 62 + 1 / 61)


def test_a_text_finds_itself_by_vectors(tmp_path):
    from regard.pipelines.embed import embed

    model = embedder()
    build_index.create(tmp_path / "i", IndexInfo("m", model.fingerprint(), model.width))
    index = build_index.add(tmp_path / "i", [Document(text, text) for text in TEXTS], embed(TEXTS, model))
    index.check(model.fingerprint())
    assert [
        index.document(hits[0].number).id for hits in VectorSearch(model).search(index, TEXTS, 2)
    ] == TEXTS
    with pytest.raises(OptionError, match="at least 1, got 0"):
        VectorSearch(model).search(index, TEXTS, 0)


def test_an_index_of_another_model_or_width_is_refused(folder):
    index = Index(folder)
    with pytest.raises(
        FolderError, match=r"built by another model \(m, ffffffffffff\) than this one \(000000000000\)"
    ):
        index.check("0" * 64)
    with pytest.raises(DataError, match="are 16 wide, and a query of shape"):
        index.near(np.zeros((1, 8), np.float32), 3)
    with pytest.raises(DataError, match=r"need vectors of shape \(2, 16\), got \(2, 8\)"):
        build_index.add(folder, documents(2), np.zeros((2, 8), np.float32))


def test_a_name_that_is_there_is_refused_or_replaced(folder):
    x = drawn(4)
    build_index.add(folder, documents(3), x[:3])
    with pytest.raises(DataError, match="called 'd1' is in .* already"):
        build_index.add(folder, [Document("d1", "new")], x[3:])
    index = build_index.add(folder, [Document("d1", "new")], x[3:], again=True)
    assert len(index) == 3
    assert index.document(int(index.near(x[3:], 1)[0][0, 0])) == Document("d1", "new")
    with pytest.raises(DataError, match="no document called 'd9' in .*; nothing was removed"):
        build_index.remove(folder, ["d0", "d9"])
    assert len(Index(folder)) == 3


CRASH = """
import os, sys
import numpy as np
from regard.search import build_index as writing
from regard.search.documents import Document
at, folder = int(sys.argv[1]), sys.argv[2]
steps = 0
real = os.fsync
def counted(handle):
    global steps
    steps += 1
    if steps == at:
        os._exit(9)  # the process is gone, as when it is killed
    return real(handle)
os.fsync = counted
x = np.eye(16, dtype=np.float32)[:12]
writing.add(folder, [Document(f"n{i}", "new") for i in range(12)], x, many=10)
"""


@pytest.mark.parametrize("at", [1, 10, 14, 17, 40])
def test_a_crash_leaves_the_old_index_or_the_new_one(folder, at):
    """The process ends at the n-th time it waits for the disk; the last is beyond what there are."""
    build_index.add(folder, documents(5), drawn(5))
    done = subprocess.run([sys.executable, "-c", CRASH, str(at), str(folder)], capture_output=True, text=True)
    assert done.returncode == (9 if at < 40 else 0), done.stderr
    index = Index(folder)
    assert len(index) in (5, 17) and (at < 40 or len(index) == 17)
    assert index.document(0).id == "d0" and len(Bm25Search().search(index, ["text"], 9)[0]) == 5
    index.close()  # what is open is not swept up
    index = build_index.add(folder, [Document("after", "a text")], drawn(1, 9))  # it goes on, and sweeps up
    known = {entry["name"] for entry in index.top["parts"]} | {index.top["graph"]}
    assert {entry.name for entry in folder.iterdir() if entry.is_dir()} == known - {None}
    assert len(index) in (6, 18)


def test_two_writers_are_kept_apart(folder):
    fcntl = pytest.importorskip("fcntl")
    with (folder / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is writing index"):
            build_index.remove(folder, [])


def test_folders_that_are_no_index_are_named(tmp_path, folder):
    with pytest.raises(FolderError, match="there is no folder .*nowhere; `regard index FILES"):
        Index(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match=r"has no index.json, so it is no index"):
        Index(tmp_path / "empty")
    with pytest.raises(OptionError, match="is already there"):
        build_index.create(folder, IndexInfo("m", "f", 2))
    top = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    (folder / "index.json").write_text(json.dumps(top | {"format": 99}), encoding="utf-8")
    with pytest.raises(FolderError, match="has format 99 .* this regard reads format 1"):
        Index(folder)
    (folder / "index.json").write_text("{", encoding="utf-8")
    with pytest.raises(FolderError, match=r"index.json cannot be read"):
        Index(folder)


def test_damaged_parts_are_named(folder):
    index = build_index.add(folder, documents(30), drawn(30), many=10)
    part = folder / index.top["parts"][0]["name"]
    flip(part / "vectors.npy", -1)
    with pytest.raises(
        FolderError, match=r"vectors.npy is damaged: its SHA-256 is not the one in checksums.json"
    ):
        Index(folder)
    for place in (part, folder / index.top["graph"]):  # an index of before, which is read without
        (place / "checksums.json").unlink()
    os.truncate(part / "vectors.npy", 100)
    with pytest.raises(FolderError, match=r"vectors.npy cannot be read"):
        Index(folder).near(drawn(1), 1, exact=True)
    np.save(part / "vectors.npy", drawn(30)[:, :8])
    with pytest.raises(FolderError, match="holds vectors of shape"):
        Index(folder).near(drawn(1), 1, exact=True)
    (folder / index.top["graph"] / "graph.usearch").write_bytes(b"nonsense")
    with pytest.raises(FolderError, match=r"graph.usearch cannot be read"):
        Index(folder).near(drawn(1), 1)
    (part / "documents.jsonl").unlink()
    with pytest.raises(FolderError, match=r"documents.jsonl is missing"):
        Index(folder).document(0)


def test_every_vector_of_a_graph_is_found_however_many_threads():
    for seed in range(15):
        x, graph = drawn(300, seed), Graph(WIDTH, threads=2)
        graph.add(np.arange(300), x)
        assert len(graph) == 300 and all(i in row for i, row in enumerate(graph.near(x, 10)))


@pytest.mark.parametrize("many", [10_000, 10])
def test_an_index_that_is_open_keeps_its_parts_while_others_write(folder, many):
    build_index.add(folder, documents(20), drawn(20), many=many, threads=1)
    index = Index(folder)  # nothing of it is read yet
    build_index.remove(folder, ["d3"])
    assert len(build_index.compact(folder, many=many, threads=1)) == 19 and build_index.leftovers(
        Index(folder)
    )
    assert (
        index.near(drawn(1), 1)[0].tolist() == [[0]]
        and index.document(3).id == "d3"
        and len(index.words("number 3", 3)[0]) == 3
    )
    index.close()
    assert not build_index.leftovers(build_index.compact(folder, many=many, threads=1))


def test_a_missing_usearch_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(OptionError, match=r'this needs usearch; pip install "regard\[search\]"'):
        Graph(4)
