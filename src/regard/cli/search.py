"""`regard search`: search an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.document_options import Threads

if TYPE_CHECKING:
    from regard.search.index import Index
    from regard.search.methods import Hit, SearchMethod

WIDTH = 100  # characters of a document that are printed


def command(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder written by `regard index`.")],
    query: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="Queries; or lines of -i.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="File with a query per line; - is standard input."
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-k", min=1, help="Documents per query.")] = 10,
    by: Annotated[
        str, typer.Option(metavar="METHOD", help="hybrid (vectors and BM25), vectors or bm25.")
    ] = "hybrid",
    exact: Annotated[bool, typer.Option("--exact", help="Exact search instead of HNSW.")] = False,
    relevant: Annotated[
        Path | None,
        typer.Option(
            metavar="QRELS",
            help="Print nDCG@10, MAP and recall@100; a file of relevance judgements (qrels) in TREC format, "
            "`query 0 document relevance`.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder of the index's model, if it has moved.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per query.")] = False,
    threads: Threads = 0,
) -> None:
    """Search an index.

    hybrid merges the rankings of vector search and BM25; bm25 alone needs no model.

    Examples:

        regard search papers.index "why do shells buckle under heat"

        regard search papers.index -i questions.txt -k 100 --json

        regard search cranfield.index -i queries.txt --relevant qrels.txt
    """
    from regard.errors import OptionError
    from regard.evaluation.retrieval import read_qrels
    from regard.search.index import Index
    from regard.search.methods import METHODS

    if by not in METHODS:
        raise OptionError(f"--by must be one of {', '.join(METHODS)}, got {by!r}")
    index = Index(folder, threads=threads)
    queries = _queries(query or [], files)
    qrels = None if relevant is None else read_qrels(relevant)
    depth = count if qrels is None else max(count, 1000)
    results = _method(by, index, model, exact).search(index, queries, depth)
    if qrels is not None:
        _score(index, results, qrels, by, as_json)
        return
    for text, hits in zip(queries, results, strict=True):
        typer.echo(_as_json(index, text, hits) if as_json else _as_text(index, text, hits, len(queries) > 1))


def _queries(query: list[str], files: list[Path] | None) -> list[str]:
    from regard.cli.jobs import make_source
    from regard.errors import DataError
    from regard.pipelines.input import Reader, WholeLine

    reader = Reader(make_source(query, files, WholeLine()))
    queries = [row.text for chunk in reader.chunks() for row in chunk.rows]
    if not any(text.strip() for text in queries):
        raise DataError("there is no query; give one, or a file with a query per line after -i")
    return queries


def _method(by: str, index: Index, model: str | None, exact: bool) -> SearchMethod:
    from regard.models.embedder import Embedder
    from regard.search.methods import make_method

    if by == "bm25":
        return make_method(by)
    embedder = Embedder.load(model or index.info.model)
    index.check(embedder.fingerprint())
    return make_method(by, embedder, exact=exact)


def _as_text(index: Index, query: str, hits: list[Hit], several: bool) -> str:
    lines = [f"# {query}"] if several else []
    for hit in hits:
        document = index.document(hit.number)
        text = document.text if len(document.text) <= WIDTH else document.text[: WIDTH - 1] + "…"
        lines.append(f"{hit.score:.4f}\t{document.id}\t{text}")
    return "\n".join(lines or ["no results"])


def _as_json(index: Index, query: str, hits: list[Hit]) -> str:
    from regard.search.methods import as_record

    return json.dumps(as_record(index, query, hits), ensure_ascii=False)


def _score(index: Index, results: list[list[Hit]], qrels: Any, by: str, as_json: bool) -> None:
    from regard.evaluation.retrieval import retrieval_scores

    rankings = {str(i): [index.document(hit.number).id for hit in hits] for i, hits in enumerate(results, 1)}
    scores = retrieval_scores(rankings, qrels)
    typer.echo(json.dumps({"by": by, **scores.as_dict()}) if as_json else f"{by}: {scores}")
