"""A service on a port: bound before the model is loaded, and closed when accepted requests are answered or their time is up."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from regard.errors import OptionError
from regard.serving.auth import Authentication
from regard.serving.connections import BACKLOG, Connections
from regard.serving.http import Guarded
from regard.serving.log import Log, attach
from regard.serving.service_base import BaseService

LAST = 5.0  # seconds for answers to leave, and for workers to end, once the rest is cancelled


def bind(host: str, port: int) -> socket.socket:
    """A socket of our own at this address, or one sentence about why not. Nobody is let in yet."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise OptionError(
            f"--host {host} is no address of this machine; give one such as 127.0.0.1"
        ) from None
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
    )  # a server that has just ended leaves its port at once
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _unbound(error, host, port) from None
    return sock


def _unbound(error: OSError, host: str, port: int) -> OptionError:
    if error.errno == errno.EADDRINUSE:
        return OptionError(
            f"port {port} of {host} is in use by another program; choose another with --port, or 0 for any that is free"
        )
    if error.errno == errno.EACCES:
        return OptionError(f"port {port} is reserved for the system; choose one above 1023 with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return OptionError(f"--host {host} is no address of this machine; give one such as 127.0.0.1")
    return OptionError(
        f"{host} port {port} cannot be opened: {error.strerror}; choose others with --host and --port"
    )


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn, with a way out in three steps: refuse what is new, finish what can be within the grace time, cancel the rest."""

    def __init__(
        self,
        service: BaseService,
        door: Authentication,
        *,
        log: bool = False,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        self.log = Log()
        app = Guarded(service, door, log=log, problems=self.log)
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", loop="asyncio",
                http=Connections(service.limits, self.log).protocol,  # type: ignore[arg-type]
                server_header=False, proxy_headers=False, timeout_graceful_shutdown=1, backlog=BACKLOG,
            )
        )  # fmt: skip
        self.service, self._started, self._until = service, started, float("inf")
        self.cancelled = False  # whether accepted requests were cut short

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    def drain(self) -> None:
        """Take nothing new; end when all that was accepted is answered, or the grace time is over."""
        self.service.draining = True
        self._until = min(self._until, time.monotonic() + self.service.limits.grace)

    async def on_tick(self, counter: int) -> bool:
        if self.service.draining and self.service.metrics.in_flight and time.monotonic() > self._until:
            if self.cancelled:  # and those are not answered either
                return True
            self.cancelled, self._until = True, time.monotonic() + LAST
            self.service.cancel_all()
        over = self.service.draining and not self.service.metrics.in_flight
        return await super().on_tick(counter) or over

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        detach = attach(self.log)
        try:
            super().run(sockets)
        finally:
            detach()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.draining:
            self.should_exit = self.force_exit = True
        else:
            print("regard: finishing what was accepted; once more stops at once", file=sys.stderr, flush=True)
            self.drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The signals that ask a server to end are answered by ending, not raised once more afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    service: BaseService,
    sock: socket.socket,
    door: Authentication,
    *,
    log: bool = False,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Answer requests until a signal asks to end. Whether everything that was accepted got its answer."""
    server = Server(service, door, log=log, started=started)
    try:
        server.run([sock])
    except OSError as error:  # another program began to listen while the model was loading
        raise _unbound(error, *sock.getsockname()[:2]) from None
    whole = not server.force_exit and not server.cancelled and not service.metrics.in_flight
    if not whole:
        service.cancel_all()
    if not server.force_exit:
        service.batcher.close(None if whole else LAST)
    return whole
