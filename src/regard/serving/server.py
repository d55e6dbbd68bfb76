"""A service on a port: bound before the model is loaded, and closed only when every accepted request is answered."""

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
from regard.serving.auth import Door
from regard.serving.http import Guarded
from regard.serving.service import Service

PATIENCE = 30.0  # seconds that accepted requests have to finish, beside their own limit


def bind(host: str, port: int) -> socket.socket:
    """A socket of our own at this address, or one sentence about why not. Nobody is let in yet."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise OptionError(f"--host {host} is no address of this machine; give one such as 127.0.0.1") from None
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just ended leaves its port at once
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
    return OptionError(f"{host} port {port} cannot be opened: {error.strerror}; choose others with --host and --port")


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn, with a way out in two steps: first refuse what is new and finish the rest, then close."""

    def __init__(self, service: Service, door: Door, *, log: bool = False, started: Callable[[], None] = lambda: None) -> None:
        app = Guarded(service, door, log=log)
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", loop="asyncio", http="h11",
                server_header=False, proxy_headers=False, timeout_graceful_shutdown=1, backlog=2048,
            )
        )  # fmt: skip
        self.service, self._started, self._until = service, started, float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    def drain(self) -> None:
        """Take nothing new; end when all that was accepted is answered."""
        self.service.draining = True
        self._until = min(self._until, time.monotonic() + self.service.limits.seconds + PATIENCE)

    async def on_tick(self, counter: int) -> bool:
        over = self.service.draining and (not self.service.metrics.in_flight or time.monotonic() > self._until)
        return await super().on_tick(counter) or over

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
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    service: Service, sock: socket.socket, door: Door, *, log: bool = False, started: Callable[[], None] = lambda: None
) -> bool:
    """Answer requests until a signal asks to end. Whether everything that was accepted got its answer."""
    server = Server(service, door, log=log, started=started)
    try:
        server.run([sock])
    except OSError as error:  # another program began to listen while the model was loading
        raise _unbound(error, *sock.getsockname()[:2]) from None
    whole = not server.force_exit and not service.metrics.in_flight
    if whole:
        service.batcher.close()
    return whole
