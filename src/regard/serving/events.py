"""Streamed responses as server-sent events: tokens of one text, or finished translations of several."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from regard.serving.generation_service import GenerationService
from regard.serving.http_errors import SAFE_HEADERS, RequestError, internal_error, timed_out
from regard.serving.log import Log
from regard.serving.requests import Body, GenerateRequest, TranslateRequest
from regard.serving.waiting import wait


async def token_events(
    service: GenerationService, request: GenerateRequest | TranslateRequest
) -> AsyncGenerator[str]:
    """Yield {"text": …} for each piece of one text."""
    stream = service.streams.open(lambda cancelled: service.stream(request, cancelled))
    async with contextlib.aclosing(stream.pieces()) as pieces:
        async for piece in pieces:
            yield json.dumps({"text": piece}, ensure_ascii=False)


async def text_events(
    service: GenerationService, options: Body, texts: list[str], until: float
) -> AsyncGenerator[str]:
    """Yield {"index": …, "text": …, …} for each text in order, once it and those before are translated."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[tuple[int, str] | BaseException]()

    def put(item: tuple[int, str] | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the client
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    future = service.batcher.submit(
        options, texts, until - time.monotonic(), lambda index, answer: put((index, answer))
    )
    future.add_done_callback(
        lambda done: None if done.cancelled() or not (error := done.exception()) else put(error)
    )
    waiting: dict[int, str] = {}
    try:
        for i in range(len(texts)):
            while i not in waiting:
                try:
                    item = await asyncio.wait_for(arrived.get(), until - time.monotonic())
                    if isinstance(item, BaseException):
                        raise item
                except TimeoutError:
                    raise timed_out(service.limits.seconds) from None
                waiting[item[0]] = item[1]
            yield f'{{"index": {i}, {waiting.pop(i)[1:]}'
    finally:
        future.cancel()


async def event_response(
    request: Request, service: GenerationService, events: AsyncGenerator[str], until: float, log: Log
) -> Response:
    """Return a response with these events and a last event `done`.

    Waits for the first event, so that a refused request still gets its status.
    """
    first = asyncio.ensure_future(anext(events, None))
    try:
        event = await wait(request, service, first, until)
    except BaseException:
        first.cancel()
        with contextlib.suppress(BaseException):
            await first
        await events.aclose()
        raise
    return StreamingResponse(_lines(event, events, log), media_type="text/event-stream", headers=SAFE_HEADERS)


async def _lines(first: str | None, events: AsyncGenerator[str], log: Log) -> AsyncIterator[str]:
    async with contextlib.aclosing(events):  # stops the generation when the client leaves
        try:
            if first is not None:
                yield f"data: {first}\n\n"  # JSON has no raw line breaks
                async for event in events:
                    yield f"data: {event}\n\n"
            yield "event: done\ndata: {}\n\n"
        except Exception as error:  # too late for a status, so the last event reports it
            problem = error if isinstance(error, RequestError) else internal_error(error, log)
            yield f"event: error\ndata: {json.dumps({'error': problem.message}, ensure_ascii=False)}\n\n"
