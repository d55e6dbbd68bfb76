"""When each of some hundred requests to `regard serve` is sent and answered: docs/serving.md draws it.

python -m benchmarks.serve_times    # the bundled translator, 16 connections; writes results/serve-times.json
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.peers import machine
from regard import __version__
from regard.data import load_corpus
from regard.files.atomic import write_file

RESULTS = Path(__file__).parent / "results"


def send_all(port: int, texts: list[str], connections: int) -> list[list[tuple[float, float]]]:
    """Send one request per text; return, by connection, when each was sent and answered, in milliseconds."""
    pending, begin = iter(texts), time.perf_counter()
    lock, times = threading.Lock(), [list[tuple[float, float]]() for _ in range(connections)]

    def work(answered: list[tuple[float, float]]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while True:
            with lock:
                text = next(pending, None)
            if text is None:
                break
            body, sent = json.dumps({"text": text, "to": "de"}), time.perf_counter()
            connection.request("POST", "/translate", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status} for {text!r}")
            answered.append((round(1e3 * (sent - begin), 1), round(1e3 * (time.perf_counter() - begin), 1)))
        connection.close()

    threads = [threading.Thread(target=work, args=(answered,)) for answered in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def texts_per_batch(port: int) -> tuple[int, int]:
    """Number of texts and of batches so far, from /metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
    values = dict(re.findall(r"^regard_batch_texts_(sum|count) (\S+)", metrics, re.M))
    return int(float(values["sum"])), int(float(values["count"]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.serve_times", description=__doc__)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS / "serve-times.json")
    options = parser.parse_args(argv)
    data = {"corpus": "tatoeba-sample", "source": "en", "target": "de"}
    corpus = load_corpus(data, {"kind": "bpe", "size": 2000})
    assert corpus.validation is not None
    texts = corpus.validation.sources[: options.requests + 32]
    server = subprocess.Popen(
        [sys.executable, "-m", "regard", "serve", "tatoeba-en-de-fr", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split("127.0.0.1:")[1].split()[0])
        send_all(port, texts[options.requests :], 4)  # warm up
        before = texts_per_batch(port)
        times = send_all(port, texts[: options.requests], options.connections)
        count, batches = (now - then for now, then in zip(texts_per_batch(port), before, strict=True))
    finally:
        server.terminate()
        server.wait(30)
    seconds = max(answered for connection in times for _, answered in connection) / 1e3
    log = {
        "command": "python -m benchmarks.serve_times", "regard": __version__, "date": machine.today(),
        "machine": machine.cpu_name(), "requests": count, "batches": batches, "seconds": round(seconds, 3),
        "milliseconds": times,
    }  # fmt: skip
    write_file(options.out, json.dumps(log, ensure_ascii=False) + "\n")
    print(f"{count} requests over {options.connections} connections in {seconds:.2f} s, {batches} batches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
