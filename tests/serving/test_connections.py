"""Tests of connections.py and log.py."""

import http.client
import logging
import socket
import sys
import time

import pytest

from regard.serving.generation_service import GenerationService
from regard.serving.log import Handler, Log
from regard.serving.request_limits import RequestLimits
from tests import forked
from tests.serving.server import BlockedService, in_background, process, running, until, write_model


def silent_connections(client, count, sent=b""):
    """Open connections that send this and then nothing more."""
    connections = [socket.create_connection((client.host, client.port), 20) for _ in range(count)]
    for sock in connections:
        if sent:
            sock.sendall(sent)
    return connections


def is_closed(sock):
    """Whether the server closes a connection, within two minutes."""
    sock.settimeout(120)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent", [b"", b"POST /translate HTTP/1.1\r\nHost: lo"], ids=["nothing", "half a header"]
)
def test_the_connection_that_is_idle_longest_is_closed_for_a_new_one(model, sent, capfd):
    with running(GenerationService(model, "small", RequestLimits(connections=10), workers=1)) as client:
        active = client.connect()
        assert client.raw("GET", "/health", keep=active)[0] == 200
        socks = silent_connections(client, 60, sent)
        for _ in range(5):
            assert client.get("/health")[0] == 200
        assert all(is_closed(sock) for sock in socks[:45])
        for sock in socks:
            sock.close()
        active.close()
    log = capfd.readouterr().err.splitlines()
    assert log == ["regard: more than 10 connections are open; the one that is idle longest is closed"]


def test_more_connections_than_open_files_do_not_block_others_and_log_little(tmp_path):
    write_model(tmp_path)
    with process(tmp_path, "--workers", "1", files=256) as (started, client):
        socks = silent_connections(client, 400)
        for _ in range(3):
            assert client.post("/translate", {"text": "ein Hund"})[0] == 200
            socks += silent_connections(client, 50)
        started.terminate()
        _, err = started.communicate(timeout=60)
        for sock in socks:
            sock.close()
    assert started.returncode == 0
    assert "at most 64 connections instead of 1000, as the system allows 256 open files" in err
    assert len(err) < 2000


def test_a_connection_with_a_request_is_never_closed_for_another(model):
    service = BlockedService(model, "small", RequestLimits(connections=3), workers=1)
    with running(service) as client:
        pending = in_background(lambda: client.post("/translate", {"text": "a"}))
        until(lambda: service.metrics.in_flight == 1)
        socks = silent_connections(client, 10)
        assert is_closed(socks[0])
        service.go.set()
        pending[0].join(120)
        assert pending[1][0][0] == 200
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: lo"], ids=["nothing", "half a header"])
def test_a_connection_without_a_complete_header_is_closed(model, sent):
    with running(GenerationService(model, "small", RequestLimits(idle=0.2), workers=1)) as client:
        assert is_closed(silent_connections(client, 1, sent)[0])


def test_a_slow_header_does_not_keep_a_connection_open(model):
    with running(GenerationService(model, "small", RequestLimits(idle=0.5), workers=1)) as client:
        sock = silent_connections(client, 1, b"GET /health HTTP/1.1\r\n")[0]
        sock.settimeout(0.05)
        was_closed = False
        for _ in range(400):  # one more line every 0.05 seconds
            try:
                sock.sendall(b"x: y\r\n")
                was_closed = sock.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                was_closed = True
            if was_closed:
                break
        assert was_closed


def test_a_connection_stays_open_between_requests_until_the_idle_limit(model):
    with running(GenerationService(model, "small", RequestLimits(idle=1.0), workers=1)) as client:
        connection = client.connect()
        for _ in range(3):
            assert client.raw("GET", "/health", keep=connection)[0] == 200
            time.sleep(0.1)
        assert is_closed(connection.sock)


def test_a_slow_response_may_take_longer_than_the_idle_limit(model):
    service = BlockedService(model, "small", RequestLimits(idle=0.2), workers=1)
    with running(service) as client:
        pending = in_background(lambda: client.post("/translate", {"text": "a"}))
        until(lambda: service.metrics.in_flight == 1)
        time.sleep(0.6)
        service.go.set()
        pending[0].join(120)
        assert pending[1][0][0] == 200


def test_a_client_that_does_not_read_its_answer_is_dropped_and_one_that_reads_slowly_is_not(model):
    class Large(GenerationService):
        def _work(self, options, texts, cancelled):
            return ['"' + "x" * 40_000_000 + '"' for _ in texts]

    with running(Large(model, "small", RequestLimits(idle=1.0), workers=1)) as client:
        body, headers = b'{"text": "a"}', {"content-type": "application/json"}
        stuck, slow = client.connect(), client.connect()
        for connection in (stuck, slow):
            connection.request("POST", "/translate", body, headers)
        answer, read = slow.getresponse(), 0
        for _ in range(40):
            read += len(answer.read(500_000))
            time.sleep(0.05)
        assert read + len(answer.read()) > 40_000_000
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            stuck.getresponse().read()
        stuck.close()
        slow.close()


def test_broken_requests_are_counted_in_the_log(model, capfd):
    with running(GenerationService(model, "small", workers=1)) as client:
        for _ in range(30):
            with socket.create_connection((client.host, client.port), 20) as sock:
                sock.sendall(b"\x00\xff\r\n\r\n")
                assert b"400" in sock.recv(1000)
    assert capfd.readouterr().err == "regard: Invalid HTTP request received.\n"


def test_a_repeated_message_is_counted(capsys):
    now = 0.0
    log = Log(60, lambda: now)
    assert [log.write("full") for _ in range(5)] == [True, False, False, False, False]
    assert log.write("other")
    now = 61.0
    assert log.write("full")
    assert capsys.readouterr().err == "regard: full\nregard: other\nregard: full (4 more times since)\n"


def test_errors_of_the_event_loop_are_one_line(capsys):
    handler = Handler(Log())
    for number in range(3):
        try:
            raise OSError(24, "Too many open files")
        except OSError:
            info = sys.exc_info()
        text = f"socket.accept() out of system resource\nsocket: {number}"
        handler.emit(logging.LogRecord("asyncio", logging.ERROR, "", 0, text, (), info))
    expected = "regard: socket.accept() out of system resource: [Errno 24] Too many open files\n"
    assert capsys.readouterr().err == expected


def test_the_limit_of_open_files_limits_connections():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "from regard.serving.connections import max_connections; from regard.serving.log import Log\n"
        "print(max_connections(1000, Log()), max_connections(50, Log()), "
        "resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    finished = forked.run(code=code)
    assert finished.stdout.split() == ["108", "50", "300"]
    assert "at most 108 connections instead of 1000, as the system allows 300 open files" in finished.stderr
