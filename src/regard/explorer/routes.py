"""The HTTP routes of the explorer: its page, and the runs that the page shows."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from regard.errors import RegardError
from regard.explorer.attention_changes import AttentionChange, as_edits
from regard.explorer.explored_model import MAX_BEAM, ExploredModel, Job
from regard.explorer.page_service import PageService
from regard.explorer.run import Run
from regard.explorer.run_store import RunStore
from regard.serving.http_errors import SAFE_HEADERS, RequestError, json_response
from regard.serving.requests import Body, parse
from regard.serving.service import Service
from regard.serving.waiting import read_body, wait

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
Result = TypeVar("Result")
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class RunRequest(Body):
    """A text to run, and changes of attention."""

    text: str = Field(description="The text.")
    to: str | None = Field(None, max_length=20, description="Target language of a multilingual translator.")
    beam: int = Field(1, ge=1, le=MAX_BEAM, description="Beam size; 1 is greedy search.")
    base: str | None = Field(None, max_length=40, description="The run to compare with.")
    changes: tuple[AttentionChange, ...] = Field((), max_length=50, description="Changes of attention.")


class Explorer:
    """The page and its runs; `add_routes` puts them into the application of a service."""

    def __init__(self, service: Service, store: RunStore | None = None) -> None:
        self.service, self.store = service, RunStore() if store is None else store
        if isinstance(service, PageService):
            self.explored = service.explored
        else:
            self.explored = ExploredModel(service.model, service.name)
        self.page = {
            entry.name: entry.read_bytes()
            for entry in files("regard.explorer").joinpath("page").iterdir()
            if entry.name.endswith(tuple(TYPES))
        }

    def add_routes(self, app: FastAPI) -> None:
        # The files of the page hold nothing of the model: a browser reads them without the token.
        self.service.public |= {"/explore", "/explore/", *(f"/explore/{name}" for name in self.page)}
        _add_page(app, self)
        _add_runs(app, self)

    async def run(self, request: Request, body: RunRequest) -> tuple[str, Run]:
        """Run the text of a request in a thread; the timeout and a client that leaves cancel it."""
        until, stop = time.monotonic() + self.service.limits.seconds, threading.Event()
        base = None if body.base is None else self.store.get(body.base)
        edits = _checked(lambda: as_edits(body.changes))
        job = Job(body.text, body.to, body.beam, edits, base, stop.is_set)
        work = asyncio.ensure_future(asyncio.to_thread(self.explored.run, job))
        work.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # also if nobody waits for it
        try:
            run = await wait(request, self.service, work, until)
        except RegardError as error:
            raise RequestError(422, str(error)) from None
        finally:
            stop.set()
        return self.store.add(run), run


def _add_page(app: FastAPI, explorer: Explorer) -> None:
    @app.get("/explore", include_in_schema=False)
    async def redirect() -> Response:
        return RedirectResponse("explore/", 307, headers=SAFE_HEADERS)

    @app.get("/explore/", include_in_schema=False)
    @app.get("/explore/{name}", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        content = explorer.page.get(name)
        if content is None:
            raise RequestError(404, "the explorer has no such file; its page is at /explore/")
        kind = TYPES[name[name.rindex(".") :]]
        return Response(content, 200, PAGE_HEADERS, f"{kind}; charset=utf-8")


def _add_runs(app: FastAPI, explorer: Explorer) -> None:
    api = "/explore/api"

    @app.get(f"{api}/model", include_in_schema=False)
    async def model() -> Response:
        described = explorer.explored.describe()
        described["limits"]["characters"] = explorer.service.limits.characters
        return json_response(json.dumps(described, ensure_ascii=False))

    @app.post(f"{api}/runs", include_in_schema=False)
    async def run(request: Request) -> Response:
        limits = explorer.service.limits
        body = parse(RunRequest, await read_body(request, limits), limits)
        identity, finished = await explorer.run(request, body)
        return json_response(json.dumps(finished.describe(identity), ensure_ascii=False))

    @app.get(f"{api}/runs/{{identity}}", include_in_schema=False)
    async def describe(identity: str) -> Response:
        found = explorer.store.get(identity)
        return json_response(json.dumps(found.describe(identity), ensure_ascii=False))

    @app.get(f"{api}/runs/{{identity}}/thumbnails", include_in_schema=False)
    async def thumbnails(identity: str) -> Response:
        return _binary(await asyncio.to_thread(explorer.store.get(identity).thumbnails))

    @app.get(f"{api}/runs/{{identity}}/maps/{{index}}/heads/{{head}}", include_in_schema=False)
    async def head(identity: str, index: str, head: str) -> Response:
        run = explorer.store.get(identity)
        return _binary(_checked(lambda: run.head(_number(index), None if head == "mean" else _number(head))))

    @app.get(f"{api}/runs/{{identity}}/maps/{{index}}/rows/{{row}}", include_in_schema=False)
    async def row(identity: str, index: str, row: str) -> Response:
        run = explorer.store.get(identity)
        return _binary(_checked(lambda: run.row(_number(index), _number(row))))


def _binary(content: bytes) -> Response:
    return Response(content, 200, SAFE_HEADERS, "application/octet-stream")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise RequestError(422, f"{text[:20]!r} is not an index; give an integer from 0")
    return int(text)


def _checked(compute: Callable[[], Result]) -> Result:
    """Return the result; an error about the input becomes a response with status 422."""
    try:
        return compute()
    except RegardError as error:
        raise RequestError(422, str(error)) from None
