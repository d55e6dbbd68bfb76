"""HTTP routes of the views: search tree, trust, gold links, stages and diversity of heads, exports."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from pydantic import Field

from regard.explorer.exports import MEDIA_TYPES, export
from regard.explorer.gold_links import score_links
from regard.explorer.route_helpers import binary, checked, number
from regard.explorer.run_job import MAX_TOKENS, Job
from regard.serving.http_errors import SAFE_HEADERS, RequestError, json_response
from regard.serving.requests import Body, parse
from regard.serving.waiting import read_body

if TYPE_CHECKING:
    from regard.explorer.explorer_routes import Explorer

API = "/explore/api"
MAX_BEAM = 8
DOWNLOAD = {"content-disposition": "attachment", "content-security-policy": "sandbox"}


class SearchRequest(Body):
    """A text to decode; the reply is the search tree."""

    text: str = Field(description="The input text.")
    to: str | None = Field(None, max_length=20, description="Target language of a multilingual translator.")
    beam: int = Field(1, ge=1, le=MAX_BEAM, description="Beam size; 1 is greedy search.")
    prefix: tuple[int, ...] = Field(
        (), max_length=MAX_TOKENS, description="Token ids the output starts with."
    )
    then: str = Field("", max_length=200, description="Text that is forced after the prefix.")
    model: int = Field(0, ge=0, lt=100, description="Index of the model.")


class TrustRequest(Body):
    """The output of a run for which attention is tested as an explanation."""

    run: str = Field(max_length=40, description="Id of the run.")
    row: int | None = Field(
        None, ge=0, lt=10_000, description="Index of the output token or word; default: the first."
    )
    attention: str | None = Field(
        None, max_length=200, description="Name of the attention map; default: the last layer."
    )


class GoldRequest(Body):
    """Gold links between the words of a run."""

    links: str = Field(max_length=10_000, description="Links in Pharaoh format: 0-0 1-2 2?3.")
    head: int | None = Field(
        None, ge=0, lt=10_000, description="Index of the head; default: the mean of all."
    )


def add_view_routes(app: FastAPI, explorer: Explorer) -> None:
    """Add the routes to an application."""
    _add_model_routes(app, explorer)
    _add_map_routes(app, explorer)


def _add_model_routes(app: FastAPI, explorer: Explorer) -> None:
    @app.post(f"{API}/search", include_in_schema=False)
    async def search(request: Request) -> Response:
        limits = explorer.service.limits
        body = parse(SearchRequest, await read_body(request, limits), limits)
        if not body.text.strip():
            raise RequestError(422, "there is no text; type some")
        tree = await explorer.in_thread(
            request,
            lambda cancelled: explorer.model(body.model).search_tree(
                Job(body.text, body.to, body.beam, cancelled=cancelled, prefix=body.prefix), body.then
            ),
        )
        return _json(tree)

    @app.post(f"{API}/trust", include_in_schema=False)
    async def trust(request: Request) -> Response:
        limits = explorer.service.limits
        body = parse(TrustRequest, await read_body(request, limits), limits)
        run = explorer.store.get(body.run)
        work = partial(explorer.model(run.model).trust, run, body.row, body.attention)
        return _json(await explorer.in_thread(request, work))


def _add_map_routes(app: FastAPI, explorer: Explorer) -> None:
    map_path = f"{API}/runs/{{identity}}/maps/{{index}}"

    @app.get(f"{map_path}/diversity", include_in_schema=False)
    async def diversity(identity: str, index: str) -> Response:
        run, at = explorer.store.get(identity), number(index)
        return _json(await asyncio.to_thread(lambda: checked(lambda: run.diversity(at))))

    @app.get(f"{map_path}/heads/{{head}}/stages/{{stage}}", include_in_schema=False)
    async def stage(request: Request, identity: str, index: str, head: str, stage: str) -> Response:
        run, at, which = explorer.store.get(identity), number(index), number(head)
        model = explorer.model(run.model)
        return binary(await explorer.in_thread(request, lambda _: model.stage(run, at, which, stage)))

    @app.post(f"{map_path}/gold", include_in_schema=False)
    async def gold(request: Request, identity: str, index: str) -> Response:
        limits = explorer.service.limits
        body = parse(GoldRequest, await read_body(request, limits), limits)
        run, at = explorer.store.get(identity), number(index)
        return _json(checked(lambda: score_links(run, at, body.head, body.links)))

    @app.get(f"{map_path}/heads/{{head}}/export.{{kind}}", include_in_schema=False)
    async def picture(identity: str, index: str, head: str, kind: str, level: str = "words") -> Response:
        run, at = explorer.store.get(identity), number(index)
        which = None if head == "mean" else number(head)
        content = await asyncio.to_thread(lambda: checked(lambda: export(run, at, which, level, kind)))
        return Response(content, 200, SAFE_HEADERS | DOWNLOAD, MEDIA_TYPES[kind])


def _json(content: Any) -> Response:
    return json_response(json.dumps(content, ensure_ascii=False))
