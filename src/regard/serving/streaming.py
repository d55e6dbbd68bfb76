"""A text that is sent while it is written: a thread writes, the event loop passes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator

from regard.serving.request_limits import Refusal, draining


class Streams:
    """At most `most` of them at once: each has a thread of its own, and all share the cores."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds, self.running = most, seconds, 0
        self._open: weakref.WeakSet[Stream] = weakref.WeakSet()

    def open(self, write: Callable[[Callable[[], bool]], Iterator[str]]) -> Stream:
        if self.running >= self.most:
            raise Refusal(
                429,
                f"{self.most} texts are being streamed and no more are at once; try again later",
                {"retry-after": "2"},
            )
        stream = Stream(self, write)
        self._open.add(stream)
        return stream

    def cancel_all(self) -> None:
        """End every stream with an error; called by the loop's thread."""
        for stream in list(self._open):
            stream.cancel(draining())


class Stream:
    """The pieces of one text, in order. Ends with the text, with an error, when time is up, or when the client leaves."""

    def __init__(self, streams: Streams, write: Callable[[Callable[[], bool]], Iterator[str]]) -> None:
        self._streams, self._write = streams, write
        self._loop, self._pieces = asyncio.get_running_loop(), asyncio.Queue[str | BaseException]()
        self._stop = threading.Event()
        self._until = self._loop.time() + streams.seconds
        streams.running += 1
        threading.Thread(target=self._run, name="regard-stream", daemon=True).start()

    async def pieces(self) -> AsyncGenerator[str]:
        try:
            while True:
                try:
                    async with asyncio.timeout_at(self._until):
                        piece = await self._pieces.get()
                except TimeoutError:
                    raise Refusal(
                        503,
                        f"the text took longer than {self._streams.seconds:g} seconds; ask for a shorter one",
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
        """Asked by the search at every step, in the thread that writes."""
        return self._stop.is_set() or self._loop.time() >= self._until

    def _run(self) -> None:
        end: BaseException = StopIteration()
        try:
            for piece in self._write(self._cancelled):
                if self._stop.is_set():
                    break
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except BaseException as error:
            end = error
        with contextlib.suppress(RuntimeError):  # the loop has ended before: nobody reads any more
            self._loop.call_soon_threadsafe(self._finished, end)

    def _finished(self, end: BaseException) -> None:
        self._streams.running -= 1
        self._pieces.put_nowait(end)
