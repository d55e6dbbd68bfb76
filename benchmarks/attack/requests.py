"""Many requests to `regard serve`, each answer checked, while misbehaving clients are connected.

Slow clients send a request byte by byte and must be answered; silent clients send nothing; others leave in
the middle or send no HTTP.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.decoding import model_folders
from tests.search.small import embedder
from tests.serving.server import write_model
from tests.training.tiny import ROOT, environment

from benchmarks.attack import commands
from benchmarks.attack.outcome import Outcome, Plan, attacking
from benchmarks.peers.memory import memory_status
from regard.decoding.engine import fast
from regard.files.progress import Progress
from regard.models.folder import load, save
from regard.pipelines.classify import classify
from regard.pipelines.embed import embed
from regard.pipelines.tag import tag
from regard.pipelines.translate import translate

REQUESTS = {"translate": 3200, "classify": 2400, "tag": 2200, "embed": 2400}
QUICK = {"classify": 200}
CONNECTIONS, SILENT, SLOW = 64, 50, 4
TOLERANCE = 1e-4  # tolerance of scores: float32 sums differ between batches of different shapes
MAX_LOG_BYTES = 20_000  # that a server may write to standard error
WORDS = "the small dog and two dogs run over there I like Ada London you very much 🐕 Über".split()  # noqa: SIM905


SHORT_TEXT = "the small dog"


class Route(NamedTuple):
    """A route of the server: its model folder, random options of a request, and a check of an answer."""

    name: str
    folder: Path
    options: Callable[[random.Random], dict[str, Any]]
    wrong: Callable[[dict[str, Any], dict[str, Any]], str | None]


def run(plan: Plan) -> list[Outcome]:
    texts = sample_texts(plan.draw("texts", 0))
    total = QUICK if plan.quick else REQUESTS
    return [
        attack_route(plan, ROUTES[name](plan.folder / name, texts), texts, count)
        for name, count in total.items()
    ]


def sample_texts(draw: random.Random) -> list[str]:
    """Texts of 0 to 100 words, most of them one sentence."""
    return [
        "",
        " ",
        SHORT_TEXT,
        *(" ".join(draw.choices(WORDS, k=k)) for k in (1, 2, 3, 5, 8, 12) * 20 + (40, 100)),
    ]


def request(plan: Plan, route: Route, texts: list[str], number: int) -> dict[str, Any]:
    draw = plan.draw(route.name, number)
    chosen = draw.choices(texts, k=draw.choice((1, 1, 1, 2, 3, 8)))
    return {"texts": chosen, **route.options(draw)}


def attack_route(plan: Plan, route: Route, texts: list[str], count: int) -> Outcome:
    numbers = plan.numbers(count)
    with attacking(f"requests to /{route.name}", "requests", len(numbers), "requests") as (outcome, progress):
        with (
            serving(route.folder, plan.folder / f"{route.name}.log") as server,
            bad_clients(server, route, plan) as clients,
        ):
            send_all(plan, route, texts, numbers, server, outcome, progress)
        for problem in [*server.problems(), *clients.problems]:
            outcome.failed(0, problem, plan.seed)
        outcome.note = f"{clients}; server: {server.memory}, log {server.log.stat().st_size:,} bytes"
    return outcome


def send_all(
    plan: Plan,
    route: Route,
    texts: list[str],
    numbers: list[int],
    server: Server,
    outcome: Outcome,
    progress: Progress,
) -> None:
    """Send every request over one of the connections, which stay open, and compare the answers."""
    remaining, lock = list(reversed(numbers)), threading.Lock()

    def send_requests() -> None:
        connection = http.client.HTTPConnection(*server.address, timeout=300)
        while True:
            with lock:
                if not remaining:
                    break
                number = remaining.pop()
            body = request(plan, route, texts, number)
            problem = send(connection, route, body)
            with lock:
                outcome.count += 1
                progress.advance()
                if problem:
                    outcome.failed(number, problem, plan.seed)
        connection.close()

    threads = [threading.Thread(target=send_requests) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if outcome.count < len(numbers):
        outcome.failed(
            numbers[0], f"{len(numbers) - outcome.count} requests got no answer that could be read", plan.seed
        )


def send(connection: http.client.HTTPConnection, route: Route, body: dict[str, Any]) -> str | None:
    """Send one request and return what is wrong with its answer, if anything."""
    try:
        connection.request("POST", f"/{route.name}", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        status, body_bytes = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return f"lost: {type(error).__name__} {error}"
    return route.wrong(body, json.loads(body_bytes)) if status == 200 else f"{status}: {body_bytes[:300]!r}"


class Server:
    """`regard serve` as a user starts it."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.log, self.memory, self.code = log, "", None
        self._file = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "regard", *commands.serve(folder)],
            stdout=subprocess.PIPE, stderr=self._file, text=True, encoding="utf-8",
            cwd=ROOT, env=environment(),
        )  # fmt: skip
        assert self.process.stdout is not None
        welcome = self.process.stdout.readline()
        if "answers at http://" not in welcome:
            raise RuntimeError(f"the server did not start: {welcome} {log.read_text()}")
        host, _, port = welcome.split("http://")[1].split(" ")[0].partition(":")
        self.address = host, int(port)

    def stop(self) -> None:
        """Note its memory, send SIGTERM, and wait for its end."""
        status = Path(f"/proc/{self.process.pid}/status")
        if status.is_file():
            current, peak = (memory_status(key, self.process.pid) >> 20 for key in ("VmRSS", "VmHWM"))
            self.memory = f"{current} MB, {peak} MB at most"
        was_running = self.process.poll() is None
        if was_running:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.code = (
            self.process.returncode if was_running else f"{self.process.returncode} before it was asked to"
        )
        self._file.close()

    def problems(self) -> Iterator[str]:
        log = self.log.read_text(errors="replace")
        if self.code != 0:
            yield f"the server ended with {self.code}: {log[-300:]}"
        if "Traceback" in log or len(log) > MAX_LOG_BYTES:
            yield f"the server's log has {len(log):,} bytes: {log[:300]}"


@contextlib.contextmanager
def serving(folder: Path, log: Path) -> Iterator[Server]:
    server = Server(folder, log)
    try:
        yield server
    finally:
        server.stop()


class BadClients:
    """Misbehaving clients, until `stop` is set. `done` counts what they did; `problems` are the server's."""

    def __init__(self, server: Server, route: Route, plan: Plan) -> None:
        self.stop, self.done, self.problems = threading.Event(), Counter(), []
        self._server, self._route, self._draw = server, route, plan.draw("rude", 0)
        body = {"texts": [SHORT_TEXT], **route.options(self._draw)}
        self._body, encoded = body, json.dumps(body).encode()
        self._request = (
            f"POST /{route.name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(encoded)}\r\n\r\n".encode()
            + encoded
        )

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))

    def connect(self) -> socket.socket:
        return socket.create_connection(self._server.address, 60)

    def slow(self) -> None:
        """Send a request byte by byte, within the server's time limit; it must be answered like any other."""
        while not self.stop.is_set():
            with self.connect() as sock:
                for position in range(len(self._request)):
                    sock.sendall(self._request[position : position + 1])
                    time.sleep(0.02)
                response = http.client.HTTPResponse(sock)
                response.begin()
                body = response.read()
            problem = (
                self._route.wrong(self._body, json.loads(body))
                if response.status == 200
                else f"{response.status} {body[:200]!r}"
            )
            self.done["slow"] += 1
            if problem:
                self.problems.append(f"a slow client got {problem}")

    def leaving(self) -> None:
        """Send a complete or partial request, or no HTTP at all, and leave without reading the answer."""
        while not self.stop.is_set():
            with self.connect() as sock:
                choice = self._draw.random()
                if choice < 0.2:
                    sock.sendall(self._draw.randbytes(200) + b"\r\n\r\n")
                else:
                    sock.sendall(
                        self._request
                        if choice < 0.7
                        else self._request[: self._draw.randrange(len(self._request))]
                    )
            self.done["left"] += 1
            time.sleep(0.05)

    def silent(self) -> None:
        """Open connections that send nothing; the server may close them."""
        socks = [self.connect() for _ in range(SILENT)]
        self.done["silent"] += len(socks)
        self.stop.wait()
        for sock in socks:
            sock.close()


@contextlib.contextmanager
def bad_clients(server: Server, route: Route, plan: Plan) -> Iterator[BadClients]:
    clients = BadClients(server, route, plan)

    def run_client(behaviour: Callable[[], None]) -> None:
        try:
            behaviour()
        except Exception as error:
            clients.problems.append(
                f"a {behaviour.__name__} client was not served: {type(error).__name__} {error}"
            )

    behaviours = [clients.silent, clients.leaving, *[clients.slow] * SLOW]
    threads = [threading.Thread(target=run_client, args=(behaviour,)) for behaviour in behaviours]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        clients.stop.set()
        for thread in threads:
            thread.join()


# The routes: a model of each kind, and its expected answers, computed without a server.


def translating(folder: Path, texts: list[str]) -> Route:
    torch.manual_seed(3)
    write_model(folder)
    engine = fast(load(folder), "auto")
    expected = {
        beam: dict(zip(texts, translate(texts, engine, beam=beam), strict=True)) for beam in (1, 2, 4)
    }

    def wrong(body: dict[str, Any], answer: dict[str, Any]) -> str | None:
        translations = answer["translations"]
        for text, translation in zip(body["texts"], translations, strict=True):
            best = expected[body["beam"]][text]
            score = best.hypotheses[0].score if best.hypotheses else 0.0
            if not text.strip():  # stays empty, as a line of `regard translate` does
                best, score = "", 0.0
            if translation["text"] != best and abs((translation["score"] or 0.0) - score) > TOLERANCE:
                got = translation["text"]
                return f"{text!r:.80} is translated as {got!r:.80} and offline as {str(best)!r:.80}"
        return None

    return Route("translate", folder, lambda draw: {"beam": draw.choice((1, 1, 2, 4))}, wrong)


def classifying(folder: Path, texts: list[str]) -> Route:
    model_folders.classifier(folder)
    expected = dict(zip(texts, classify(texts, load(folder)), strict=True))

    def wrong(body: dict[str, Any], answer: dict[str, Any]) -> str | None:
        for text, prediction in zip(body["texts"], answer["labels"], strict=True):
            best = expected[text]
            different = [
                name
                for name, p in prediction["probabilities"].items()
                if abs(best.probabilities[name] - p) > TOLERANCE
            ]
            if prediction["label"] != (str(best) or None) or different:
                return f"{text!r:.80} is {prediction} and offline {best.probabilities}"
        return None

    return Route("classify", folder, lambda draw: {"top": draw.randint(1, 3)}, wrong)


def tagging(folder: Path, texts: list[str]) -> Route:
    model_folders.tagger(folder)
    expected = dict(zip(texts, tag(texts, load(folder)), strict=True))

    def wrong(body: dict[str, Any], answer: dict[str, Any]) -> str | None:
        for text, tagged in zip(body["texts"], answer["texts"], strict=True):
            if tagged["tags"] != expected[text].tags:
                return f"{text!r:.80} is tagged {tagged['tags']} and offline {expected[text].tags}"
        return None

    return Route("tag", folder, lambda draw: {}, wrong)


def embedding(folder: Path, texts: list[str]) -> Route:
    model = embedder()
    save(folder, model, model.config, model.source_tokenizer, model.target_tokenizer, {})
    expected = dict(zip(texts, embed(texts, load(folder)), strict=True))

    def wrong(body: dict[str, Any], answer: dict[str, Any]) -> str | None:
        for text, vector in zip(body["texts"], answer["embeddings"], strict=True):
            if not np.allclose(vector, expected[text], atol=1e-5):
                error = np.abs(np.array(vector) - expected[text]).max()
                return f"{text!r:.80} has another vector than offline, by {error:.1e}"
        return None

    return Route("embed", folder, lambda draw: {}, wrong)


ROUTES = {"translate": translating, "classify": classifying, "tag": tagging, "embed": embedding}
