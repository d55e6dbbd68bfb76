"""Streams of tokens: a thread generates a text, and the event loop sends its pieces."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator

from regard.serving.http_errors import RequestError, shutting_down


class StreamPool:
    """At most `limit` streams at a time, each in its own thread and ended after `seconds`."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit, self.seconds, self.running = limit, seconds, 0
        self._open: weakref.WeakSet[TokenStream] = weakref.WeakSet()

    def open(self, generate: Callable[[Callable[[], bool]], Iterator[str]]) -> TokenStream:
        """Start a stream; `generate(cancelled)` yields its pieces."""
        if self.running >= self.limit:
            raise RequestError(
                429,
                f"{self.limit} texts are being streamed, the limit of this server; try again later",
                {"retry-after": "2"},
            )
        stream = TokenStream(self, generate)
        self._open.add(stream)
        return stream

    def cancel_all(self) -> None:
        """End every stream with an error. Must be called in the event loop's thread."""
        for stream in list(self._open):
            stream.cancel(shutting_down())


class TokenStream:
    """The pieces of one text, in order, until its end, an error, a timeout, or until the client leaves."""

    def __init__(self, pool: StreamPool, generate: Callable[[Callable[[], bool]], Iterator[str]]) -> None:
        self._pool, self._generate = pool, generate
        self._loop, self._pieces = asyncio.get_running_loop(), asyncio.Queue[str | BaseException]()
        self._stop = threading.Event()
        self._deadline = self._loop.time() + pool.seconds
        pool.running += 1
        threading.Thread(target=self._run, name="regard-stream").start()

    async def pieces(self) -> AsyncGenerator[str]:
        """Yield the pieces as they are generated."""
        try:
            while True:
                try:
                    async with asyncio.timeout_at(self._deadline):
                        piece = await self._pieces.get()
                except TimeoutError:
                    raise RequestError(
                        503,
                        f"the text took longer than {self._pool.seconds:g} seconds; request a shorter one",
                    ) from None
                if isinstance(piece, StopIteration):
                    return
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self._stop.set()

    def cancel(self, error: Exception) -> None:
        self._stop.set()
        self._pieces.put_nowait(error)

    def _cancelled(self) -> bool:
        """Called by the search at every step, in the generating thread."""
        return self._stop.is_set() or self._loop.time() >= self._deadline

    def _run(self) -> None:
        end: BaseException = StopIteration()
        try:
            for piece in self._generate(self._cancelled):
                if self._stop.is_set():
                    break
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except BaseException as error:
            end = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._finished, end)

    def _finished(self, end: BaseException) -> None:
        self._pool.running -= 1
        self._pieces.put_nowait(end)
