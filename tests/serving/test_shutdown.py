"""Tests of server.py: graceful shutdown."""

import json
import os
import signal
import socket
import threading
import time

import pytest

from regard.errors import OptionError
from regard.models.folder import load
from regard.serving import server
from regard.serving.request_limits import RequestLimits
from tests.serving.server import BlockedService, Client, in_background, process, running, until


@pytest.fixture
def blocked(folder):
    return BlockedService(load(folder), "small", workers=1)


def test_a_draining_server_finishes_requests_and_refuses_new_ones(blocked):
    with running(blocked) as client:
        open_connection = client.connect()
        assert client.raw("GET", "/health", keep=open_connection)[0] == 200
        accepted = [
            in_background(lambda i=i: client.post("/translate", {"text": "ein Hund" + "!" * i}))
            for i in range(4)
        ]
        until(lambda: blocked.metrics.in_flight == 4)
        client.server.drain()
        status, headers, body = client.raw(
            "POST", "/translate", b'{"text": "a"}', {"content-type": "application/json"}, open_connection
        )
        assert (status, headers["retry-after"]) == (503, "5")
        assert "shutting down" in json.loads(body)["error"]
        status, _, body = client.get("/health")
        assert (status, json.loads(body)["status"]) == (503, "draining")
        assert b"regard_ready 0" in client.get("/metrics")[2]
        time.sleep(0.3)  # the event loop must not end before they are answered
        assert client.get("/health")[0] == 503
        blocked.go.set()
        for thread, result in accepted:
            thread.join(120)
            assert result[0][0] == 200
        open_connection.close()
    with pytest.raises(OSError, match="refused"):
        client.get("/health")


def test_draining_ends_when_a_request_exceeds_its_time_limit(folder):
    service = BlockedService(load(folder), "small", RequestLimits(seconds=0.5), workers=1)
    with running(service) as client:
        pending = in_background(lambda: client.post("/translate", {"text": "ein Hund"}))
        until(lambda: service.metrics.in_flight == 1)
        client.server.drain()
        pending[0].join(120)
        assert pending[1][0][0] == 503  # its own time limit
        service.go.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_when_everything_is_answered(folder, number):
    with process(folder, "--workers", "1") as (started, client):
        texts = ["ein kleiner Hund läuft"] * 40
        pending = [
            in_background(lambda: client.post("/translate", {"texts": texts, "beam": 8})) for _ in range(4)
        ]
        until(lambda: b"regard_requests_in_flight 5.0" in client.get("/metrics")[2])
        os.kill(started.pid, number)
        for thread, result in pending:
            thread.join(60)
            assert result[0][0] == 200
            assert len(result[0][1]["translations"]) == len(texts)
        _, err = started.communicate(timeout=60)
    assert started.returncode == 0
    assert err == "regard: finishing accepted requests; press again to stop at once\nregard: stopped\n"


def test_a_port_that_is_taken_is_an_error_of_one_sentence():
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with pytest.raises(
            OptionError,
            match=f"port {port} of 127.0.0.1 is in use by another program; choose another with --port",
        ):
            server.bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "8.8.8.8", "a" * 300, ".."])
def test_an_address_that_is_not_ours_is_an_error_of_one_sentence(host):
    with pytest.raises(OptionError, match="is not an address of this machine"):
        server.bind(host, 0)


def test_the_printed_address_is_the_one_to_request():
    with server.bind("localhost", 0) as sock:
        assert server.address(sock).startswith("http://127.0.0.1:")
        assert Client(server.address(sock)).port == sock.getsockname()[1]


def test_no_thread_is_left_behind(blocked):
    before = threading.active_count()
    blocked.go.set()
    with running(blocked) as client:
        assert client.post("/translate", {"text": "a"})[0] == 200
    until(lambda: threading.active_count() < before)  # the worker has ended too
