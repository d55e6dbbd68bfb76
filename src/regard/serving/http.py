"""The HTTP side of a service: routes, checks before them, and answers that never tell more than they should."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from regard.errors import OptionError, ShapeError
from regard.serving import responses
from regard.serving.auth import Authentication
from regard.serving.index_page import page
from regard.serving.log import Log
from regard.serving.metrics import CONTENT_TYPE
from regard.serving.request_limits import Refusal, RequestLimits, draining
from regard.serving.requests import (
    Body,
    Classify,
    Embed,
    Find,
    Generate,
    Look,
    LookBack,
    Read,
    Tag,
    Translate,
    described,
    read,
)
from regard.serving.service_base import BaseService
from regard.serving.text_generation_service import GenerationService
from regard.serving.text_service import TextService
from regard.version import __version__

Result = TypeVar("Result")
Sampled = TypeVar("Sampled", Translate, Generate)
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ALWAYS = ("/health", "/metrics")  # asked by machines that watch this one, also while it shuts down
SAFE = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


def make_app(service: BaseService, problems: Log) -> FastAPI:
    """The routes that this model can serve."""
    app = FastAPI(
        title=f"regard: {service.name}",
        version=__version__,
        description=f"A {service.kind} over HTTP.",
        docs_url=None,
        redoc_url=None,
    )
    app.exception_handler(Refusal)(lambda _, refusal: refuse(refusal))
    app.exception_handler(HTTPException)(lambda request, error: refuse(_unrouted(service, request, error)))
    app.exception_handler(Exception)(lambda _, error: refuse(_accident(error, problems)))
    _machine_routes(app, service)
    if isinstance(service, TextService):
        _read_route(app, service)
    elif isinstance(service, GenerationService):
        _translate_route(app, service, problems) if service.translates else _generate_route(
            app, service, problems
        )
        _attention_route(app, service)
    return app


def _machine_routes(app: FastAPI, service: BaseService) -> None:
    @app.get("/docs", response_class=HTMLResponse, summary="This page", include_in_schema=False)
    @app.get("/", response_class=HTMLResponse, summary="This page", include_in_schema=False)
    async def home() -> Response:
        return HTMLResponse(
            page(app.openapi()),
            headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"},
        )

    @app.get(
        "/health",
        summary="Whether requests are taken",
        responses={200: {"model": responses.Health}, 503: {"model": responses.Health}},
    )
    async def health(request: Request) -> Response:
        found: dict[str, Any] = {"status": "draining" if service.draining else "ready"}
        if request.scope["regard.known"]:
            found |= {"model": service.name, "kind": service.kind, "version": __version__}
        return _json(json.dumps(found), 503 if service.draining else 200)

    @app.get("/metrics", response_class=PlainTextResponse, summary="Counts and times for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def _translate_route(app: FastAPI, service: GenerationService, problems: Log) -> None:
    @app.post(
        "/translate",
        summary="Translate sentences",
        **_described(Translate, responses.Translations, streams=True),
    )
    async def translate(request: Request) -> Response:
        asked = _seeded(read(Translate, await _body(request, service.limits), service.limits))
        texts = asked.all_texts()
        # What requests must have in common to share a batch.
        options = asked.model_copy(update={"text": None, "texts": None, "stream": False})
        if asked.stream:
            until = time.monotonic() + service.limits.seconds
            await _affordable(request, service, options, texts, until)
            pieces = _tokens(service, asked) if asked.by_token else _finished(service, options, texts, until)
            return await _streamed(request, service, pieces, until, problems)
        found = await _answers(request, service, options, texts)
        return _json(f'{{"translations":[{",".join(found)}]}}')


def _generate_route(app: FastAPI, service: GenerationService, problems: Log) -> None:
    @app.post(
        "/generate", summary="Go on with a text", **_described(Generate, responses.Generated, streams=True)
    )
    async def generate(request: Request) -> Response:
        asked = read(Generate, await _body(request, service.limits), service.limits)
        if asked.stream:
            until = time.monotonic() + service.limits.seconds
            await _affordable(request, service, asked, [asked.prompt], until)
            return await _streamed(request, service, _tokens(service, asked), until, problems)
        options = _seeded(asked).model_copy(update={"prompt": ""})
        found = await _answers(request, service, options, [asked.prompt])
        return _json(found[0])


def _read_route(app: FastAPI, service: TextService) -> None:
    gives = {
        Classify: responses.Labels,
        Tag: responses.Tags,
        Embed: responses.Embeddings,
        Find: responses.Results,
    }[service.body]

    @app.post(f"/{service.example[0]}", summary=service.summary, **_described(service.body, gives))
    async def read_texts(request: Request) -> Response:
        asked = read(service.body, await _body(request, service.limits), service.limits)
        options = asked.model_copy(update={"text": None, "texts": None})
        found = await _answers(request, service, options, asked.all_texts())
        return _json(f'{{"{service.field}":[{",".join(found)}]}}')


def _attention_route(app: FastAPI, service: GenerationService) -> None:
    kind: type[Read] = Look if service.translates else LookBack

    @app.post("/attention", summary="Where the model looks", **_described(kind, responses.Looked))
    async def attention(request: Request) -> Response:
        asked = read(kind, await _body(request, service.limits), service.limits)
        found = await _answers(request, service, asked.model_copy(update={"text": ""}), [asked.text])
        return _json(found[0])


def _described(asks: type[Body], gives: type[Any], *, streams: bool = False) -> dict[str, Any]:
    """A route's part of /openapi.json; bodies are read by `read`, whose sentences say more than FastAPI's."""
    events = {"content": {"text/event-stream": {"schema": {"type": "string"}}}} if streams else {}
    problems = {status: {"model": responses.Problem} for status in (401, 413, 415, 422, 429, 500, 503)}
    schema = {"requestBody": {"required": True, "content": {"application/json": {"schema": described(asks)}}}}
    return {"responses": {200: {"model": gives, **events}, **problems}, "openapi_extra": schema}


async def _body(request: Request, limits: RequestLimits) -> bytes:
    """The bytes of a request, if they are JSON, not too many, and come in time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page can send anything else to this machine without asking first
        raise Refusal(415, f"the content type is {kind[:60]!r}, and must be application/json")
    too_long = Refusal(413, f"the request has more than {limits.body:,} bytes; send fewer texts at once")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limits.body:
        raise too_long
    found = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in request.stream():
                found += chunk
                if len(found) > limits.body:
                    raise too_long
    except ClientDisconnect:
        raise gone() from None
    except TimeoutError:
        raise Refusal(
            408, f"the request did not arrive within {limits.seconds:g} seconds; send it again"
        ) from None
    return bytes(found)


async def _answers(request: Request, service: BaseService, options: Body, texts: list[str]) -> list[str]:
    """Wait for the workers, but not longer than allowed, and not for a client that has left."""
    until = time.monotonic() + service.limits.seconds
    await _affordable(request, service, options, texts, until)
    answer = asyncio.wrap_future(service.batcher.submit(options, texts, until - time.monotonic()))
    try:
        return await _in_time(request, service, answer, until)
    finally:
        answer.cancel()  # what has not begun is not begun, and a search stops at its next step


async def _affordable(
    request: Request, service: BaseService, options: Body, texts: list[str], until: float
) -> None:
    """Refuse what costs too much. It reads all texts, so the loop that serves everybody does not do it."""
    stop = threading.Event()
    try:
        await _in_time(
            request,
            service,
            asyncio.ensure_future(asyncio.to_thread(service.check, options, texts, stop.is_set)),
            until,
        )
    finally:
        stop.set()


async def _in_time(
    request: Request, service: BaseService, result: asyncio.Future[Result], until: float
) -> Result:
    """The result, if it comes before `until` and before the client leaves."""
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait(
            {result, left}, timeout=until - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
        )
        if result.done():
            return result.result()
        if left.done():
            raise gone()
        raise _late(service)
    except (
        OptionError,
        ShapeError,
    ) as error:  # options that only the search can judge; other errors may name files
        raise Refusal(422, str(error)) from None
    finally:
        left.cancel()


def _late(service: BaseService) -> Refusal:
    seconds = f"{service.limits.seconds:g} seconds"
    return Refusal(
        503,
        f"the answer took longer than {seconds}; send fewer or shorter texts, or try again later",
        {"retry-after": "5"},
    )


def gone() -> Refusal:
    return Refusal(499, "the client has left")


def _seeded(asked: Sampled) -> Sampled:
    """Draws of one's own for each request that does not give a seed."""
    if asked.sample is None or asked.sample.seed is not None:
        return asked
    return asked.model_copy(update={"sample": asked.sample.model_copy(update={"seed": secrets.randbits(53)})})


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _tokens(service: GenerationService, asked: Generate | Translate) -> AsyncGenerator[str]:
    """{"text": …} for each piece of one text."""
    async with contextlib.aclosing(
        service.streams.open(lambda cancelled: service.stream(asked, cancelled)).pieces()
    ) as pieces:
        async for piece in pieces:
            yield json.dumps({"text": piece}, ensure_ascii=False)


async def _finished(
    service: GenerationService, options: Body, texts: list[str], until: float
) -> AsyncGenerator[str]:
    """{"index": …, "text": …, …} for each of several texts, in their order, when it and those before are translated."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[tuple[int, str] | BaseException]()

    def put(item: tuple[int, str] | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody reads any more
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    promise = service.batcher.submit(
        options, texts, until - time.monotonic(), lambda at, answer: put((at, answer))
    )
    promise.add_done_callback(
        lambda done: None if done.cancelled() or not (error := done.exception()) else put(error)
    )
    waiting: dict[int, str] = {}
    try:
        for i in range(len(texts)):
            while i not in waiting:
                try:
                    item = await asyncio.wait_for(arrived.get(), until - time.monotonic())
                except TimeoutError:
                    raise _late(service) from None
                if isinstance(item, BaseException):
                    raise item
                waiting[item[0]] = item[1]
            yield f'{{"index": {i}, {waiting.pop(i)[1:]}'
    finally:
        promise.cancel()


async def _streamed(
    request: Request, service: GenerationService, pieces: AsyncGenerator[str], until: float, problems: Log
) -> Response:
    """Server-sent events, the last one `done`. What is wrong with the request is told before the first."""
    first = asyncio.ensure_future(anext(pieces, None))
    try:
        found = await _in_time(request, service, first, until)
    except BaseException:
        first.cancel()
        with contextlib.suppress(BaseException):
            await first
        await pieces.aclose()
        raise
    return StreamingResponse(_events(found, pieces, problems), media_type="text/event-stream", headers=SAFE)


async def _events(first: str | None, pieces: AsyncGenerator[str], problems: Log) -> AsyncIterator[str]:
    async with contextlib.aclosing(pieces):  # a client that leaves stops the writing
        try:
            if first is not None:
                yield f"data: {first}\n\n"  # JSON holds no bare line end
                async for piece in pieces:
                    yield f"data: {piece}\n\n"
            yield "event: done\ndata: {}\n\n"
        except Exception as error:  # too late for a status: the last event says it
            refusal = error if isinstance(error, Refusal) else _accident(error, problems)
            yield f"event: error\ndata: {json.dumps({'error': refusal.why}, ensure_ascii=False)}\n\n"


def refuse(refusal: Refusal) -> Response:
    return _json(json.dumps({"error": refusal.why}, ensure_ascii=False), refusal.status, refusal.headers)


def _json(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, {**SAFE, **(headers or {})}, "application/json")


def _unrouted(service: BaseService, request: Request, error: HTTPException) -> Refusal:
    if error.status_code == 404:
        return Refusal(
            404,
            f"there is no such address here; this server holds a {service.kind}, and GET / lists what it answers",
        )
    if error.status_code == 405:
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        return Refusal(
            405,
            f"{request.method} is not answered here; use {headers.get('allow', 'another method')}",
            headers,
        )
    return Refusal(error.status_code, HTTPStatus(error.status_code).phrase.lower())


def _accident(error: Exception, problems: Log) -> Refusal:
    """What should not have happened: the server's log has all of it, once a minute, the client a number to ask about."""
    number, trace = secrets.token_hex(4), "".join(traceback.format_exception(error))
    if not problems.write(f"error {number}\n{trace}", trace):
        print(f"regard: error {number}, as before: {type(error).__name__}", file=sys.stderr, flush=True)
    return Refusal(500, f"something went wrong on the server; its log has more under {number}")


class Guarded:
    """The app behind its door, with every request counted, timed and, if wanted, logged."""

    def __init__(
        self, service: BaseService, door: Authentication, *, log: bool = False, problems: Log | None = None
    ) -> None:
        self.service, self.door, self.log = service, door, log
        self.app = make_app(service, problems or Log())

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, begin, metrics = 500, time.perf_counter(), self.service.metrics
        answered = left = False
        metrics.in_flight += 1

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status, answered
            status = message.get("status", status)
            async with asyncio.timeout(
                self.service.limits.seconds
            ):  # for a client that does not read its answer
                await send(message)
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)

        async def watched() -> MutableMapping[str, Any]:
            nonlocal left
            message = await receive()
            left = left or (message["type"] == "http.disconnect" and not answered)
            return message

        try:
            self._check(scope)
            await self.app(scope, watched, noted)
        except Refusal as refusal:
            await refuse(refusal)(scope, watched, noted)
        except (TimeoutError, ClientDisconnect):
            left = True
        except Exception as error:  # has been answered and logged; starlette raises it once more
            del error
        finally:
            metrics.in_flight -= 1
            status = 499 if left else status
            seconds, route = time.perf_counter() - begin, getattr(scope.get("route"), "path", "other")
            metrics.requests.labels(route, str(status)).inc()
            metrics.seconds.labels(route).observe(seconds)
            if self.log:
                _log(scope, status, seconds)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        scope["regard.known"] = self.door.check(
            headers.get(b"host", ""), headers.get(b"authorization"), open_to_all=scope["path"] == "/health"
        )
        if scope["path"] in ALWAYS:
            return
        if self.service.draining:
            raise draining()
        if self.service.metrics.in_flight > self.service.limits.requests:
            most = self.service.limits.requests
            raise Refusal(
                429,
                f"{most} requests are being answered and no more are at once; try again later",
                {"retry-after": "1"},
            )


def _log(scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
    path = scope.get("raw_path", b"").decode(
        "ascii", "backslashreplace"
    )  # as it was sent: escapes stay escapes
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    print(f"{now} {scope['method']} {path} {status} {seconds * 1000:.1f} ms", file=sys.stderr, flush=True)
