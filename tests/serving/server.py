"""A server on a local port, in a thread of the test or as `regard serve`, and an HTTP client."""

import contextlib
import http.client
import json
import threading
import time
from urllib.parse import urlsplit

import torch

from regard.data.tokenizer import Tokenizer
from regard.models import folder as folders
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.serving import auth, server
from regard.serving.generation_service import GenerationService
from tests import forked
from tests.models.small import LAYER

LINES = ["ein kleiner Hund läuft", "a small dog runs", "zwei Hunde laufen 🐕", "Über den Wolken!"]
TRANSFORMER = {"kind": "transformer", **LAYER}


def write_model(path, *, encoder=TRANSFORMER, decoder=TRANSFORMER):
    """Write a model folder with random weights and load it in float64."""
    tokenizer = Tokenizer.train(LINES, "character", 60)
    config = AutoregressiveOptions.model_validate(
        {"dim": 32, "encoder": encoder, "decoder": decoder}
    ).model_dump()
    model = build(config, len(tokenizer) if encoder else None, len(tokenizer)).eval()
    for p in model.parameters():
        if p.ndim > 1:
            p.data *= 3  # sharper scores, so that different sources are translated differently
    folders.save(path, model, config, tokenizer if encoder else None, tokenizer, {"name": "small"})
    return folders.load(path).double()


def seeded_folder(tmp_path_factory):
    """A folder with the model of `write_model`, the same in every test file."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("model")
    write_model(path)
    return path


class Client:
    """A client of one server; every request uses a new connection unless `keep` gives one."""

    def __init__(self, address):
        self.host, self.port = urlsplit(address).hostname, urlsplit(address).port

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=60)

    def raw(self, method, path, body=None, headers=None, keep=None):
        connection = keep or self.connect()
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        result = answer.status, dict(answer.getheaders()), answer.read()
        if keep is None:
            connection.close()
        return result

    def get(self, path, **headers):
        return self.raw("GET", path, None, headers)

    def post(self, path, body, headers=None, keep=None):
        """Send JSON; return status and JSON of the response."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = self.raw(
            "POST", path, data, {"content-type": "application/json", **(headers or {})}, keep
        )
        return status, json.loads(answer)


class BlockedService(GenerationService):
    """Blocks every batch until a test sets `go`."""

    def __init__(self, *args, **kwargs):
        self.started, self.go = threading.Event(), threading.Event()
        super().__init__(*args, **kwargs)

    def _work(self, *args):
        self.started.set()
        assert self.go.wait(120)
        return super()._work(*args)


def in_background(call):
    """Call a function in a thread; return the thread and a list that gets the result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def until(condition):
    """Wait until a condition holds, for two minutes at most."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def running(service, *, host="127.0.0.1", token=None, log=False, port=0):
    """Run a server in this process and yield its client; the server is drained at the end."""
    sock = server.bind("127.0.0.1", port)
    started = threading.Event()
    new_server = server.Server(service, auth.Authentication(token, host), log=log, started=started.set)
    thread = threading.Thread(target=new_server.run, args=([sock],), daemon=True)
    thread.start()
    assert started.wait(120)
    client = Client(server.address(sock))
    client.server = new_server
    try:
        yield client
    finally:
        new_server.drain()
        thread.join(120)
        service.batcher.close()
        assert not thread.is_alive()


@contextlib.contextmanager
def process(*args, env=None, files=None):
    """Start `regard serve`; yield its process and a client once it prints its address.

    `files` limits the number of its open files (ulimit -n).
    """
    limit = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({files}, {files}))\n" if files else ""
    started = forked.Popen("serve", "--port", 0, *args, code=limit + forked.REGARD, env=env)
    try:
        output = started.stdout.readline()
        assert "answers at" in output, output + started.stderr.read()
        client = Client(output.split("answers at ")[1].split(" ")[0])
        client.curl = started.stdout.readline()
        yield started, client
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()
