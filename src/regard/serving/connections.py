"""Limits on the number of open connections and on the time one may stay idle."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serving.log import Log
from regard.serving.request_limits import RequestLimits

BACKLOG = 128  # connections that the system queues; asyncio accepts so many at a time
RESERVED = 64  # file descriptors for everything but connections


class Connections:
    """The open connections, oldest first. Above the limit, the one that is idle longest is closed."""

    def __init__(self, limits: RequestLimits, log: Log) -> None:
        self.limit, self.idle_seconds, self.log = max_connections(limits.connections, log), limits.idle, log
        self.open: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        self.open[connection] = None
        if len(self.open) > self.limit:
            self.log.write(
                f"more than {self.limit} connections are open; the one that is idle longest is closed"
            )
            idle = next((other for other in self.open if other.idle), connection)
            idle.drop()

    def mark_idle(self, connection: Connection) -> None:
        """Move a connection that has just become idle to the end."""
        if connection in self.open:
            del self.open[connection]
            self.open[connection] = None

    def protocol(self, *args: Any, **kwargs: Any) -> Connection:
        return Connection(self, *args, **kwargs)


class Connection(H11Protocol):
    """Uvicorn's connection, closed when the header of its next request does not arrive in time."""

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes of the last response that were unread at the last check

    @property
    def idle(self) -> bool:
        """True if no request is being read or answered, and all responses are sent."""
        return self._between_requests and not self.transport.get_write_buffer_size()

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.pop(self, None)
        self._unset_keepalive_if_required()
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if not self._between_requests:
            self._stop_timer()

    def on_response_complete(self) -> None:
        self._start_timer()
        self._connections.mark_idle(self)
        super().on_response_complete()
        self._unset_keepalive_if_required()  # our timer covers the idle time and the next header

    def drop(self) -> None:
        """Close at once, without a response."""
        self._connections.open.pop(self, None)
        self.transport.abort()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._unread = 0
        self._timer = self.loop.call_later(self._connections.idle_seconds, self._timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and self._unread and unread >= self._unread:  # the client reads nothing
            self.drop()
        elif unread:
            self._start_timer()
            self._unread = unread
        elif self._between_requests and not self.transport.is_closing():
            if self.conn.our_state is h11.IDLE:
                self.conn.send(h11.ConnectionClosed())
            self.transport.close()


def max_connections(wanted: int, log: Log) -> int:
    """Return how many connections the limit on open files allows, after raising it as far as possible."""
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
    count = max(8, soft - BACKLOG - RESERVED)
    log.write(
        f"at most {count} connections instead of {wanted}, as the system allows {soft} open files; "
        "raise the limit with ulimit -n"
    )
    return count
