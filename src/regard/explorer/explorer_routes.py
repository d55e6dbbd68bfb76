"""The HTTP routes of the explorer: its page, and the runs that the page shows."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from regard.errors import OptionError, RegardError
from regard.explorer.attention_changes import AttentionChange, as_edits
from regard.explorer.bundled_choices import ModelChoice
from regard.explorer.explored_model import MAX_BEAM, ExploredModel
from regard.explorer.gold_links import GoldPair
from regard.explorer.page_service import Explored, PageService
from regard.explorer.route_helpers import Result, binary, checked, number
from regard.explorer.run import Run
from regard.explorer.run_job import MAX_TOKENS, Job
from regard.explorer.run_store import RunStore
from regard.explorer.view_routes import add_view_routes
from regard.pictures.web_files import compact_file
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
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class RunRequest(Body):
    """A text to run, and changes of attention."""

    text: str = Field(description="The text.")
    to: str | None = Field(None, max_length=20, description="Target language of a multilingual translator.")
    beam: int = Field(1, ge=1, le=MAX_BEAM, description="Beam size; 1 is greedy search.")
    base: str | None = Field(None, max_length=40, description="The run to compare with.")
    prefix: tuple[int, ...] = Field(
        (), max_length=MAX_TOKENS, description="Token ids the output starts with."
    )
    target: str = Field("", description="A translation that the output is forced to be.")
    candidates: tuple[str, ...] = Field(
        (), max_length=8, description="Words to score at the mask of a masked language model."
    )
    model: int = Field(0, ge=0, lt=100, description="Index of the model.")
    changes: tuple[AttentionChange, ...] = Field((), max_length=50, description="Changes of attention.")


class Explorer:
    """The page and its runs; `add_routes` puts them into the application of a service."""

    def __init__(
        self,
        service: Service,
        store: RunStore | None = None,
        others: Sequence[Explored] = (),
        gold: Sequence[GoldPair] = (),
        choices: Sequence[ModelChoice] = (),
    ) -> None:
        self.gold = gold
        self.service, self.store = service, RunStore() if store is None else store
        if isinstance(service, PageService):
            self.explored: Explored = service.explored
        else:
            self.explored = ExploredModel(service.model, service.name)
        self.compared = [self.explored, *others]
        self.choices = choices
        if gold and self.explored.task != "translate":
            raise OptionError(f"gold links are for translators, and {self.explored.name} is none")
        for other in others:
            if other.task != self.explored.task:
                raise OptionError(
                    f"models of one task can be compared, and {self.explored.name} is to "
                    f"{self.explored.task}, {other.name} to {other.task}; name two of a kind"
                )
        self.page = {
            entry.name: compact_file(entry.name, entry.read_bytes())
            for entry in files("regard.explorer").joinpath("page").iterdir()
            if entry.name.endswith(tuple(TYPES))
        }

    def add_routes(self, app: FastAPI) -> None:
        # The files of the page hold nothing of the model: a browser reads them without the token.
        self.service.public |= {"/explore", "/explore/", *(f"/explore/{name}" for name in self.page)}
        _add_page(app, self)
        _add_runs(app, self)
        add_view_routes(app, self)

    def model(self, index: int) -> Explored:
        """The model of this index; one of `choices` is loaded first, so call this in a thread."""
        count = len(self.compared) + len(self.choices)
        if index >= count:
            raise RequestError(422, f"there is no model {index}; the explorer has {count}, from 0")
        if index < len(self.compared):
            return self.compared[index]
        return checked(self.choices[index - len(self.compared)].explored)

    def describe(self, index: int) -> dict[str, Any]:
        """What the page shows of a model before a text is run."""
        described = self.model(index).describe()
        described["limits"]["characters"] = self.service.limits.characters
        described["models"] = [one.name for one in (self.compared if index == 0 else [self.model(index)])]
        if self.choices:
            names = enumerate([self.explored.name, *(choice.name for choice in self.choices)])
            described["choices"] = [[str(i), name] for i, name in names]
        if self.gold:
            described["gold"] = [asdict(pair) for pair in self.gold]
            described["examples"] = [pair.source for pair in self.gold[:3]]
        return described

    async def run(self, request: Request, body: RunRequest) -> tuple[str, Run]:
        """Run the text of a request in a thread; the timeout and a client that leaves cancel it."""
        base = None if body.base is None else self.store.get(body.base)
        edits = checked(lambda: as_edits(body.changes))

        def work(cancelled: Callable[[], bool]) -> Run:
            job = Job(
                body.text,
                body.to,
                body.beam,
                edits,
                base,
                cancelled,
                body.prefix,
                body.target.strip(),
                body.candidates,
            )
            return replace(self.model(body.model).run(job), model=body.model)

        run = await self.in_thread(request, work)
        return self.store.add(run), run

    async def in_thread(self, request: Request, compute: Callable[[Callable[[], bool]], Result]) -> Result:
        """Compute in a thread; `compute` gets a function that is True once nobody waits any more."""
        until, stop = time.monotonic() + self.service.limits.seconds, threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(compute, stop.is_set))
        work.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # also if nobody waits for it
        try:
            return await wait(request, self.service, work, until)
        except RegardError as error:
            raise RequestError(422, str(error)) from None
        finally:
            stop.set()


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
    async def model(index: str = "0") -> Response:
        described = await asyncio.to_thread(explorer.describe, number(index))
        return json_response(json.dumps(described, ensure_ascii=False))

    @app.post(f"{api}/runs", include_in_schema=False)
    async def run(request: Request) -> Response:
        limits = explorer.service.limits
        body = parse(RunRequest, await read_body(request, limits), limits)
        identity, finished = await explorer.run(request, body)
        return json_response(json.dumps(finished.describe(identity), ensure_ascii=False))

    @app.get(f"{api}/runs/{{identity}}", include_in_schema=False)
    async def describe(identity: str) -> Response:
        run = explorer.store.get(identity)
        return json_response(json.dumps(run.describe(identity), ensure_ascii=False))

    @app.get(f"{api}/runs/{{identity}}/statistics", include_in_schema=False)
    async def statistics(identity: str) -> Response:
        run = explorer.store.get(identity)
        return json_response(json.dumps(await asyncio.to_thread(run.head_statistics)))

    @app.get(f"{api}/runs/{{identity}}/thumbnails", include_in_schema=False)
    async def thumbnails(identity: str) -> Response:
        return binary(await asyncio.to_thread(explorer.store.get(identity).thumbnails))

    @app.get(f"{api}/runs/{{identity}}/maps/{{index}}/heads/{{head}}", include_in_schema=False)
    async def head(identity: str, index: str, head: str) -> Response:
        run = explorer.store.get(identity)
        return binary(checked(lambda: run.head(number(index), None if head == "mean" else number(head))))

    @app.get(f"{api}/runs/{{identity}}/maps/{{index}}/rows/{{row}}", include_in_schema=False)
    async def row(identity: str, index: str, row: str) -> Response:
        run = explorer.store.get(identity)
        return binary(checked(lambda: run.row(number(index), number(row))))
