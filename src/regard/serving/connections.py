"""Connections that cannot lock others out: a limit on their number, and on how long one may stay silent."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serving.log import Log
from regard.serving.request_limits import RequestLimits

BACKLOG = (
    128  # connections that the system holds until they are accepted; asyncio accepts so many in one turn
)
RESERVED = 64  # file descriptors for everything but connections


class Connections:
    """The open connections, oldest first. When there are too many, the one that has waited longest without a request goes."""

    def __init__(self, limits: RequestLimits, log: Log) -> None:
        self.most, self.idle, self.log = allowed(limits.connections, log), limits.idle, log
        self.open: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        self.open[connection] = None
        if len(self.open) > self.most:
            self.log.write(
                f"more than {self.most} connections are open; the one that was silent longest is closed"
            )
            silent = next((each for each in self.open if each.silent), connection)
            silent.drop()

    def waits(self, connection: Connection) -> None:
        """It waits for a request from now on."""
        if connection in self.open:
            del self.open[connection]
            self.open[connection] = None

    def protocol(self, *args: Any, **kwargs: Any) -> Connection:
        return Connection(self, *args, **kwargs)


class Connection(H11Protocol):
    """Uvicorn's connection, closed when the header of its next request does not arrive in time."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._others = connections
        self._header: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes of the last answer that the client had not read when we last looked

    @property
    def silent(self) -> bool:
        """No request is being read or answered, and every answer has left."""
        return self._between and not self.transport.get_write_buffer_size()

    @property
    def _between(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        self._others.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.open.pop(self, None)
        self._unset_keepalive_if_required()
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if not self._between:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._wait()
        self._others.waits(self)
        super().on_response_complete()
        self._unset_keepalive_if_required()  # our timer covers the silence and the header after it

    def drop(self) -> None:
        """Close at once, without an answer."""
        self._others.open.pop(self, None)
        self.transport.abort()

    def _wait(self) -> None:
        self._stop_waiting()
        self._unread = 0
        self._header = self.loop.call_later(self._others.idle, self._too_late)

    def _stop_waiting(self) -> None:
        if self._header is not None:
            self._header.cancel()
            self._header = None

    def _too_late(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and self._unread and unread >= self._unread:  # the client reads nothing
            self.drop()
        elif unread:
            self._wait()
            self._unread = unread
        elif self._between and not self.transport.is_closing():
            if self.conn.our_state is h11.IDLE:
                self.conn.send(h11.ConnectionClosed())
            self.transport.close()


def allowed(wanted: int, log: Log) -> int:
    """How many connections the system's limit on open files leaves room for; raises that limit as far as it may be."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + BACKLOG + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    found = max(8, soft - BACKLOG - RESERVED)
    log.write(
        f"at most {found} connections and not {wanted}: this system allows {soft} open files; raise it with ulimit -n"
    )
    return found
