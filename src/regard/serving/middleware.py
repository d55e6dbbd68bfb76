"""The ASGI application around the routes: authentication, limits, metrics and the access log."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any

from starlette.requests import ClientDisconnect

from regard.serving.auth import Authentication
from regard.serving.http_errors import RequestError, error_response, shutting_down
from regard.serving.log import Log
from regard.serving.routes import make_app
from regard.serving.service import Service

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
MONITORING = ("/health", "/metrics")  # answered also while the server shuts down


class Application:
    """The routes of a service; every request is authenticated, counted, timed and, with `log`, logged."""

    def __init__(
        self,
        service: Service,
        authentication: Authentication,
        *,
        log: bool = False,
        error_log: Log | None = None,
    ) -> None:
        self.service, self.authentication, self.log = service, authentication, log
        self.app = make_app(service, error_log or Log())

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(receive, send, self.service.limits.seconds)
        start, metrics = time.perf_counter(), self.service.metrics
        metrics.in_flight += 1
        try:
            self._check(scope)
            await self.app(scope, exchange.receive, exchange.send)
        except RequestError as error:
            await error_response(error)(scope, exchange.receive, exchange.send)
        except (TimeoutError, ClientDisconnect):
            exchange.client_left = True
        except Exception as error:  # already answered and logged; starlette raises it once more
            del error
        finally:
            metrics.in_flight -= 1
            status = 499 if exchange.client_left else exchange.status
            seconds, route = time.perf_counter() - start, getattr(scope.get("route"), "path", "other")
            metrics.requests.labels(route, str(status)).inc()
            metrics.seconds.labels(route).observe(seconds)
            if self.log:
                _log(scope, status, seconds)

    def _check(self, scope: Message) -> None:
        """Raise RequestError without authentication, while shutting down, and above the limit of requests."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        scope["regard.known"] = self.authentication.check(
            headers.get(b"host", ""),
            headers.get(b"authorization"),
            public=scope["path"] in self.service.public,
        )
        if scope["path"] in MONITORING:
            return
        if self.service.draining:
            raise shutting_down()
        limit = self.service.limits.requests
        if self.service.metrics.in_flight > limit:
            raise RequestError(
                429,
                f"{limit} requests are being answered, the limit of this server; try again later",
                {"retry-after": "1"},
            )


class Exchange:
    """One request and its response: the status that was sent, and whether the client left before its end."""

    def __init__(self, receive: Callable[[], Awaitable[Message]], send: Send, seconds: float) -> None:
        self._receive, self._send, self._seconds = receive, send, seconds
        self.status, self.complete, self.client_left = 500, False, False

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        async with asyncio.timeout(self._seconds):  # for a client that does not read its response
            await self._send(message)
        self.complete = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self.client_left = True
        return message


def _log(scope: Message, status: int, seconds: float) -> None:
    path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")  # still escaped, as it was sent
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    print(f"{now} {scope['method']} {path} {status} {seconds * 1000:.1f} ms", file=sys.stderr, flush=True)
