"""Read the body of a request and wait for its result: with a timeout, and not for a client that has left."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from regard.errors import OptionError, ShapeError
from regard.serving.http_errors import RequestError, client_left, timed_out
from regard.serving.request_limits import RequestLimits
from regard.serving.requests import Body
from regard.serving.service import Service

Result = TypeVar("Result")


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """Return the body; it must be JSON, within the size limit, and arrive in time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # web pages may send other types across origins without asking first
        raise RequestError(415, f"the content type is {kind[:60]!r}, and must be application/json")
    too_long = RequestError(413, f"the request has more than {limits.body:,} bytes; send fewer texts at once")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limits.body:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body:
                    raise too_long
    except ClientDisconnect:
        raise client_left() from None
    except TimeoutError:
        raise RequestError(
            408, f"the request did not arrive within {limits.seconds:g} seconds; send it again"
        ) from None
    return bytes(body)


async def answer(request: Request, service: Service, options: Body, texts: list[str]) -> list[str]:
    """Return the answers of the workers, as JSON, one per text."""
    until = time.monotonic() + service.limits.seconds
    await check_cost(request, service, options, texts, until)
    answers = asyncio.wrap_future(service.batcher.submit(options, texts, until - time.monotonic()))
    try:
        return await wait(request, service, answers, until)
    finally:
        answers.cancel()  # waiting texts are dropped, and a running search stops at its next step


async def check_cost(
    request: Request, service: Service, options: Body, texts: list[str], until: float
) -> None:
    """Raise RequestError if the request costs too much. Tokenizes in a thread to keep the event loop free."""
    stop = threading.Event()
    check = asyncio.to_thread(service.check, options, texts, stop.is_set)
    try:
        await wait(request, service, asyncio.ensure_future(check), until)
    finally:
        stop.set()


async def wait(request: Request, service: Service, result: asyncio.Future[Result], until: float) -> Result:
    """Return the result, if it comes before `until` and before the client leaves."""
    left = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait(
            {result, left}, timeout=until - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
        )
        if result.done():
            return result.result()
        if left.done():
            raise client_left()
        raise TimeoutError
    except TimeoutError:
        raise timed_out(service.limits.seconds) from None
    except (OptionError, ShapeError) as error:  # only the search can check these; other errors may name files
        raise RequestError(422, str(error)) from None
    finally:
        left.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
