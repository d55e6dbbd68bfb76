"""An HTTP server for tests of downloads: files from memory, Range requests, injected faults, and a proxy."""

import hashlib
import os
import signal
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class FileServer:
    """Serves `files` (path to bytes). Each request uses one of `faults`: a status, ("cut", n) to close after
    n bytes, ("ctrl-c", n) to interrupt this process after n bytes, ("send", bytes) to send other bytes, or
    "no range". A proxy request has a full URL; `requested` lists all paths and URLs.
    """

    def __init__(self, files):
        self.files, self.faults, self.requested, self.ranges = dict(files), [], [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_CONNECT(self):
                outer.requested.append(f"CONNECT {self.path}")
                self.send_error(403)

            def do_GET(self):
                outer.answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request):
        self.requested.append(request.path)
        self.ranges.append(request.headers.get("Range"))
        fault = self.faults.pop(0) if self.faults else None
        data = self.files.get(unquote(urlsplit(request.path).path))
        if isinstance(fault, int) or data is None:
            request.send_error(fault or 404)
            return
        kind, value = fault if isinstance(fault, tuple) else (fault, None)
        if kind == "send":
            data = value
        start = (
            int(self.ranges[-1].removeprefix("bytes=").removesuffix("-"))
            if self.ranges[-1] and kind != "no range"
            else 0
        )
        if start >= len(data) > 0 and start:
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        body = data[start:]
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: value if kind in ("cut", "ctrl-c") else None])
        if kind == "ctrl-c":
            time.sleep(0.3)  # the client reads the bytes and waits for more
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        request.close_connection = True


@contextmanager
def serving(files):
    server = FileServer(files)
    thread = threading.Thread(target=server._server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server._server.shutdown()
        server._server.server_close()
        thread.join()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def entry(files, sources, by_hand=None):
    """A manifest entry of a small text corpus; `sources` maps path to (bytes, {file: steps})."""
    get = {"repository": "owner/name", "commit": "c0ffee", "downloads": {
        path: {"sha256": sha256(data), "bytes": len(data), "makes": makes}
        for path, (data, makes) in sources.items()
    }}  # fmt: skip
    return {
        "about": "made up", "source": "github.com/owner/name", "licence": "CC BY 4.0",
        "cite": "Nobody 1999", "task": "language", "languages": ["en"], "roles": {"train": "train"},
        "sets": [{"split": "train", "text": next(iter(files)), "rows": 1}],
        "files": {
            name: {"text": sha256(text), "as": ".gz", "packed": "0" * 64, "bytes": len(text)}
            for name, text in files.items()
        },
        "get": {"by_hand": by_hand} if by_hand else get,
    }  # fmt: skip
