"""Run a service on a port, with a graceful shutdown."""

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
from regard.serving.log import Log, attach
from regard.serving.middleware import Application
from regard.serving.service import Service

CANCEL_SECONDS = 5.0  # for responses to be sent and workers to end, once requests are cancelled


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to this address, not yet listening; raise OptionError if that fails."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise OptionError(
            f"--host {host} is not an address of this machine; give one such as 127.0.0.1"
        ) from None
    family, kind, protocol, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # also right after another server has ended
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _bind_error(error, host, port) from None
    return sock


def _bind_error(error: OSError, host: str, port: int) -> OptionError:
    if error.errno == errno.EADDRINUSE:
        return OptionError(
            f"port {port} of {host} is in use by another program; choose another with --port, or 0 for any "
            "that is free"
        )
    if error.errno == errno.EACCES:
        return OptionError(f"port {port} is reserved for the system; choose one above 1023 with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return OptionError(f"--host {host} is not an address of this machine; give one such as 127.0.0.1")
    return OptionError(
        f"{host} port {port} cannot be opened: {error.strerror}; choose others with --host and --port"
    )


def address(sock: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn whose shutdown refuses new requests, waits for the accepted ones, and cancels the rest."""

    def __init__(
        self,
        service: Service,
        authentication: Authentication,
        *,
        log: bool = False,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        self.log = Log()
        app = Application(service, authentication, log=log, error_log=self.log)
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", loop="asyncio",
                http=Connections(service.limits, self.log).protocol,  # type: ignore[arg-type]
                server_header=False, proxy_headers=False, timeout_graceful_shutdown=1, backlog=BACKLOG,
            )
        )  # fmt: skip
        self.service, self._started, self._until = service, started, float("inf")
        self.cancelled = False  # True if accepted requests were cancelled

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    def drain(self) -> None:
        """Refuse new requests; end when all accepted ones are answered, or the grace time is over."""
        self.service.draining = True
        self._until = min(self._until, time.monotonic() + self.service.limits.grace)

    async def on_tick(self, counter: int) -> bool:
        if self.service.draining and self.service.metrics.in_flight and time.monotonic() > self._until:
            if self.cancelled:  # cancelled requests are not answered either
                return True
            self.cancelled, self._until = True, time.monotonic() + CANCEL_SECONDS
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
            print(
                "regard: finishing accepted requests; press again to stop at once",
                file=sys.stderr,
                flush=True,
            )
            self.drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM without raising them again afterwards, as uvicorn does."""
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
    service: Service,
    sock: socket.socket,
    authentication: Authentication,
    *,
    log: bool = False,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until a signal; return True if all accepted requests were answered."""
    server = Server(service, authentication, log=log, started=started)
    try:
        server.run([sock])
    except OSError as error:  # another program took the port while the model was loading
        raise _bind_error(error, *sock.getsockname()[:2]) from None
    complete = not server.force_exit and not server.cancelled and not service.metrics.in_flight
    if not complete:
        service.cancel_all()
    service.batcher.close(None if complete else CANCEL_SECONDS)
    return complete
