"""Search indexes: search, changes, crashes, damage and locks.

Covers build_index.py, exact.py, hnsw.py, methods.py, segment.py.
"""

import json
import os
import signal
import sys
import threading

import numpy as np
import pytest

from regard.errors import DataError, FolderError, OptionError
from regard.search import build_index
from regard.search.documents import Document
from regard.search.exact import nearest, top_k
from regard.search.hnsw import HnswGraph
from regard.search.index import Index, IndexInfo
from regard.search.methods import Bm25Search, Hit, HybridSearch, VectorSearch
from tests import forked
from tests.search.small import TEXTS, embedder

pytest.importorskip("usearch")
WIDTH = 16


def random_vectors(n, seed=1):
    x = np.random.default_rng(seed).standard_normal((n, WIDTH)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def flip(path, position):
    """Flip a bit of the byte at this position."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def documents(n, first=0):
    return [Document(f"d{i}", f"text number {i}") for i in range(first, first + n)]


def nearest_ids(index, queries):
    return [[index.document(int(n)).id for n in row] for row in index.nearest(queries, 5)[0]]


def bm25_matches(index, query):
    numbers, scores = index.bm25_search(query, 9)
    return [(index.document(int(n)).id, score) for n, score in zip(numbers, scores, strict=True)]


@pytest.fixture
def folder(tmp_path):
    build_index.create(tmp_path / "index", IndexInfo("m", "f" * 64, WIDTH))
    return tmp_path / "index"


@pytest.mark.parametrize("min_graph_size", [10_000, 10])
def test_search_over_changed_segments_matches_brute_force(folder, min_graph_size):
    """Exact and by HNSW, over two segments, with removed documents."""
    x, queries = random_vectors(300), random_vectors(20, 2)
    # One thread keeps the graph deterministic.
    build_index.add(folder, documents(200), x[:200], min_graph_size=min_graph_size, threads=1)
    build_index.add(folder, documents(100, 200), x[200:], min_graph_size=min_graph_size, threads=1)
    index = build_index.remove(folder, ["d7", "d250"])
    assert (index.graph is None) == (min_graph_size == 10_000) and len(index) == 298
    cosines = queries @ x.T
    cosines[:, [7, 250]] = -2
    expected = np.argsort(-cosines, axis=1, kind="stable")[:, :5]
    numbers, hits = index.nearest(queries, 5)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_allclose(hits, np.take_along_axis(cosines, expected, 1), atol=1e-6)
    np.testing.assert_array_equal(index.nearest(queries, 5, exact=True)[0], expected)
    assert index.document(int(numbers[0, 0])) == Document(f"d{numbers[0, 0]}", f"text number {numbers[0, 0]}")


def test_missing_results_are_minus_one(folder):
    index = build_index.add(folder, documents(3), random_vectors(3))
    numbers, cosines = index.nearest(random_vectors(2, 5), 10)
    assert sorted(numbers[0, :3]) == [0, 1, 2]
    assert (numbers[:, 3:] == -1).all() and np.isneginf(cosines[:, 3:]).all()


def test_a_single_query_works_with_hnsw(folder):
    x = random_vectors(100)
    index = build_index.add(folder, documents(100), x, min_graph_size=10, threads=1)
    assert index.nearest(x[42:43], 1)[0].tolist() == [[42]]


def test_hnsw_recall_is_above_97_percent():
    x, queries = random_vectors(3000), random_vectors(100, 2)
    graph = HnswGraph(WIDTH, threads=1)
    graph.add(np.arange(3000), x)
    exact, _ = nearest([(0, x)], queries, 10, np.array([], np.int64))
    shares = [len(set(a) & set(b)) / 10 for a, b in zip(graph.search(queries, 30), exact, strict=True)]
    assert np.mean(shares) > 0.97


def test_ties_are_ranked_by_document_order():
    assert top_k(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 2).tolist() == [1, 2]
    same = np.ones((40, 2), np.float32) / np.sqrt(2)
    assert nearest([(0, same[:3]), (3, same[3:])], same[:1], 4, np.array([1]))[0].tolist() == [[0, 2, 3, 4]]


def test_bm25_finds_documents_but_not_removed_ones(folder):
    index = build_index.add(folder, documents(5), random_vectors(5))
    assert [hit.number for hit in Bm25Search().search(index, ["3"], 5)[0]] == [3]
    index = build_index.remove(folder, ["d3"])
    assert Bm25Search().search(index, ["3"], 5) == [[]]
    assert len(Bm25Search().search(index, ["number"], 10)[0]) == 4


@pytest.mark.parametrize("min_graph_size", [10_000, 10])
def test_compacting_erases_removed_texts_and_keeps_results(folder, min_graph_size):
    x, queries = random_vectors(60), random_vectors(8, 2)
    build_index.add(folder, documents(40), x[:40], min_graph_size=min_graph_size, threads=1)
    build_index.add(
        folder,
        [Document("secret", "a secret"), *documents(19, 41)],
        x[40:],
        min_graph_size=min_graph_size,
        threads=1,
    )
    before = build_index.remove(folder, ["secret", "d3"])
    ids = nearest_ids(before, queries)
    matches = bm25_matches(before, "number 17")
    before.close()  # an open index keeps its files
    index = build_index.compact(folder, min_graph_size=min_graph_size, threads=1)
    assert (index.graph is None) == (min_graph_size == 10_000)
    assert len(index) == len(index.live()) == 58 and not len(index.removed)
    assert nearest_ids(index, queries) == ids
    assert bm25_matches(index, "number 17") == matches
    assert not any(b"a secret" in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert (
        len(build_index.add(folder, [Document("d3", "again")], x[3:4], min_graph_size=min_graph_size)) == 59
    )
    assert len(build_index.compact(folder, min_graph_size=min_graph_size)) == 59


def test_an_index_without_remaining_documents_can_be_compacted(folder):
    build_index.add(folder, documents(2), random_vectors(2))
    build_index.remove(folder, ["d0", "d1"])
    index = build_index.compact(folder)
    assert len(index) == 0 and Bm25Search().search(index, ["text"], 3) == [[]]
    assert len(build_index.add(folder, documents(1), random_vectors(1))) == 1


def test_hybrid_search_is_reciprocal_rank_fusion(folder):
    """Lists 4 1 2 and 1 3: 1 has 1/62 + 1/61, then 4 by 1/61, then 3 by 1/62 and 2 by 1/63."""

    class Fixed:
        def __init__(self, numbers):
            self.numbers = numbers

        def search(self, index, queries, k):
            return [[Hit(n, 0.0) for n in self.numbers]]

    hits = HybridSearch((Fixed([4, 1, 2]), Fixed([1, 3]))).search(Index(folder), ["q"], 3)[0]
    assert [hit.number for hit in hits] == [1, 4, 3]
    assert hits[0].score == pytest.approx(1 / 62 + 1 / 61)


def test_vector_search_finds_the_text_itself_first(tmp_path):
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


def test_another_model_or_vector_width_is_an_error(folder):
    index = Index(folder)
    with pytest.raises(
        FolderError, match=r"built with another model \(m, ffffffffffff\) than this one \(000000000000\)"
    ):
        index.check("0" * 64)
    with pytest.raises(DataError, match="has vectors of width 16, got queries of shape"):
        index.nearest(np.zeros((1, 8), np.float32), 3)
    with pytest.raises(DataError, match=r"need vectors of shape \(2, 16\), got \(2, 8\)"):
        build_index.add(folder, documents(2), np.zeros((2, 8), np.float32))


def test_an_existing_id_is_an_error_or_overwritten(folder):
    x = random_vectors(4)
    build_index.add(folder, documents(3), x[:3])
    with pytest.raises(DataError, match="already contains a document with id 'd1'"):
        build_index.add(folder, [Document("d1", "new")], x[3:])
    index = build_index.add(folder, [Document("d1", "new")], x[3:], overwrite=True)
    assert len(index) == 3
    assert index.document(int(index.nearest(x[3:], 1)[0][0, 0])) == Document("d1", "new")
    with pytest.raises(DataError, match="no document with id 'd9'; nothing was removed"):
        build_index.remove(folder, ["d0", "d9"])
    assert len(Index(folder)) == 3


CRASH = """
import os, sys
import numpy as np
from regard.search import build_index
from regard.search.documents import Document
crash_at, folder = int(sys.argv[1]), sys.argv[2]
steps = 0
fsync = os.fsync
def exit_at_step(handle):
    global steps
    steps += 1
    if steps == crash_at:
        os._exit(9)  # like kill -9
    return fsync(handle)
os.fsync = exit_at_step
x = np.eye(16, dtype=np.float32)[:12]
build_index.add(folder, [Document(f"n{i}", "new") for i in range(12)], x, min_graph_size=10)
"""


@pytest.mark.parametrize("step", [1, 10, 14, 17, 40])
def test_a_crash_leaves_the_old_index_or_the_new_one(folder, step):
    """The process exits at the n-th fsync; 40 is more than there are."""
    build_index.add(folder, documents(5), random_vectors(5))
    process = forked.run(step, folder, code=CRASH)
    assert process.returncode == (9 if step < 40 else 0), process.stderr
    index = Index(folder)
    assert len(index) in (5, 17) and (step < 40 or len(index) == 17)
    assert index.document(0).id == "d0" and len(Bm25Search().search(index, ["text"], 9)[0]) == 5
    index.close()  # files of an open index would be kept
    index = build_index.add(folder, [Document("after", "a text")], random_vectors(1, 9))  # deletes leftovers
    expected = {entry["name"] for entry in index.manifest["parts"]} | {index.manifest["graph"]}
    assert {entry.name for entry in folder.iterdir() if entry.is_dir()} == expected - {None}
    assert len(index) in (6, 18)


def test_a_second_writer_is_locked_out(folder):
    fcntl = pytest.importorskip("fcntl")
    with (folder / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is writing index"):
            build_index.remove(folder, [])


def test_a_folder_without_a_valid_index_is_an_error(tmp_path, folder):
    with pytest.raises(
        FolderError, match="there is no folder .*nowhere; create an index with `regard index FILES"
    ):
        Index(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match=r"has no index.json, so it is not an index"):
        Index(tmp_path / "empty")
    with pytest.raises(OptionError, match="already exists"):
        build_index.create(folder, IndexInfo("m", "f", 2))
    manifest = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    (folder / "index.json").write_text(json.dumps(manifest | {"format": 99}), encoding="utf-8")
    with pytest.raises(FolderError, match="has format 99 .* this regard reads format 1"):
        Index(folder)
    (folder / "index.json").write_text("{", encoding="utf-8")
    with pytest.raises(FolderError, match=r"index.json cannot be read"):
        Index(folder)


def test_errors_name_damaged_files(folder):
    index = build_index.add(folder, documents(30), random_vectors(30), min_graph_size=10)
    part = folder / index.manifest["parts"][0]["name"]
    flip(part / "vectors.npy", -1)
    with pytest.raises(
        FolderError, match=r"vectors.npy is damaged: its SHA-256 is not the one in checksums.json"
    ):
        Index(folder)
    for subfolder in (part, folder / index.manifest["graph"]):  # indexes without checksums are still read
        (subfolder / "checksums.json").unlink()
    os.truncate(part / "vectors.npy", 100)
    with pytest.raises(FolderError, match=r"vectors.npy cannot be read"):
        Index(folder).nearest(random_vectors(1), 1, exact=True)
    np.save(part / "vectors.npy", random_vectors(30)[:, :8])
    with pytest.raises(FolderError, match="has vectors of shape"):
        Index(folder).nearest(random_vectors(1), 1, exact=True)
    (folder / index.manifest["graph"] / "graph.usearch").write_bytes(b"nonsense")
    with pytest.raises(FolderError, match=r"graph.usearch cannot be read"):
        Index(folder).nearest(random_vectors(1), 1)
    (part / "documents.jsonl").unlink()
    with pytest.raises(FolderError, match=r"documents.jsonl is missing"):
        Index(folder).document(0)


def test_every_vector_is_found_with_several_threads():
    for seed in range(15):
        x, graph = random_vectors(300, seed), HnswGraph(WIDTH, threads=2)
        graph.add(np.arange(300), x)
        assert len(graph) == 300 and all(i in row for i, row in enumerate(graph.search(x, 10)))


@pytest.mark.parametrize("min_graph_size", [10_000, 10])
def test_an_open_index_keeps_its_files_while_others_write(folder, min_graph_size):
    build_index.add(folder, documents(20), random_vectors(20), min_graph_size=min_graph_size, threads=1)
    index = Index(folder)  # opened, but nothing read yet
    build_index.remove(folder, ["d3"])
    assert len(build_index.compact(folder, min_graph_size=min_graph_size, threads=1)) == 19
    assert build_index.has_stale_files(Index(folder))
    assert index.nearest(random_vectors(1), 1)[0].tolist() == [[0]]
    assert index.document(3).id == "d3" and len(index.bm25_search("number 3", 3)[0]) == 3
    index.close()
    assert not build_index.has_stale_files(
        build_index.compact(folder, min_graph_size=min_graph_size, threads=1)
    )


def test_a_missing_usearch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(OptionError, match=r'this needs usearch; pip install "regard\[search\]"'):
        HnswGraph(4)


def test_ctrl_c_while_the_graph_is_built_is_a_keyboard_interrupt():
    x, graph = random_vectors(200_000), HnswGraph(WIDTH, threads=1)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        graph.add(np.arange(len(x)), x)
    assert len(graph) < len(x)


def test_a_folder_in_which_a_crash_left_an_unfinished_file_can_become_an_index(tmp_path):
    (tmp_path / ".index.json.writing").write_text("{")
    assert len(build_index.create(tmp_path, IndexInfo("m", "f" * 64, WIDTH))) == 0
