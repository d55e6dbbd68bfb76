"""`regard search`: the documents of an index that fit a question best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import document_options as shared

if TYPE_CHECKING:
    from regard.search.index import Index
    from regard.search.methods import Hit, SearchMethod

WIDE = 100  # characters of a text that are shown


def command(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder written by `regard index`.")],
    query: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY]...", help="Queries; or lines of -i.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="File with a query per line; - is standard input."
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-k", min=1, help="Documents per query.")] = 10,
    by: Annotated[
        str, typer.Option(metavar="WAY", help="hybrid (vectors and words), vectors or bm25.")
    ] = "hybrid",
    exact: Annotated[bool, typer.Option("--exact", help="Exact search instead of HNSW.")] = False,
    relevant: Annotated[
        Path | None,
        typer.Option(
            metavar="QRELS",
            help="Score the answers: lines `question 0 document relevance`, questions numbered.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder of the index's model, if it has moved.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per query.")] = False,
    threads: shared.Threads = 0,
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
    from regard.search.methods import WAYS

    if by not in WAYS:
        raise OptionError(f"--by is one of {', '.join(WAYS)}, got {by!r}")
    index = Index(folder, threads=threads)
    queries = _queries(query or [], files)
    judged = None if relevant is None else read_qrels(relevant)
    found = _way(by, index, model, exact).search(
        index, queries, max(count, 1000) if judged is not None else count
    )
    if judged is not None:
        _score(index, found, judged, by, as_json)
        return
    for asked, hits in zip(queries, found, strict=True):
        typer.echo(_as_json(index, asked, hits) if as_json else _shown(index, asked, hits, len(queries) > 1))


def _queries(query: list[str], files: list[Path] | None) -> list[str]:
    from regard.cli.text_options import find_source
    from regard.errors import DataError
    from regard.pipelines.input import Reader, WholeLine

    found = [
        row.text for chunk in Reader(find_source(query, files, WholeLine())).chunks() for row in chunk.rows
    ]
    if not any(text.strip() for text in found):
        raise DataError("there is no question; give one, or a file with a question a line after -i")
    return found


def _way(by: str, index: Index, model: str | None, exact: bool) -> SearchMethod:
    from regard.search.methods import make_way

    if by == "bm25":
        return make_way(by)
    embedder = shared.load_embedder(model or index.info.model)
    index.check(embedder.fingerprint())
    return make_way(by, embedder, exact=exact)


def _shown(index: Index, query: str, hits: list[Hit], several: bool) -> str:
    lines = [f"# {query}"] if several else []
    for hit in hits:
        document = index.document(hit.number)
        text = document.text if len(document.text) <= WIDE else document.text[: WIDE - 1] + "…"
        lines.append(f"{hit.score:.4f}\t{document.id}\t{text}")
    return "\n".join(lines or ["nothing was found"])


def _as_json(index: Index, query: str, hits: list[Hit]) -> str:
    from regard.search.methods import as_record

    return json.dumps(as_record(index, query, hits), ensure_ascii=False)


def _score(index: Index, found: list[list[Hit]], judged: Any, by: str, as_json: bool) -> None:
    from regard.evaluation.retrieval import retrieval_scores

    rankings = {str(i): [index.document(hit.number).id for hit in hits] for i, hits in enumerate(found, 1)}
    scores = retrieval_scores(rankings, judged)
    typer.echo(json.dumps({"by": by, **scores.as_dict()}) if as_json else f"{by}: {scores}")
