"""Tests of serve.py: real processes, tokens, ports, errors in one sentence."""

import json
import shlex
import shutil
import socket
import subprocess
from functools import partial

import pytest

from tests.serving.server import process, seeded_folder

TOKEN = "abcdefghijklmnop-1234"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return seeded_folder(tmp_path_factory)


@pytest.fixture
def run(run_regard, monkeypatch):
    """Run a server that does not start; returns its exit code, standard output and standard error."""
    monkeypatch.delenv("REGARD_TOKEN", raising=False)
    return partial(run_regard, "serve")


def test_other_machines_need_a_token(run, folder):
    sentence = (
        "regard: --host 0.0.0.0 admits other machines, which needs a token; "
        "give --token-file FILE, set REGARD_TOKEN, or leave --host out\n"
    )
    assert run(folder, "--host", "0.0.0.0") == (2, "", sentence)


def test_a_taken_port_is_reported_before_the_model_is_loaded(run, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = run(tmp_path / "no model", "--port", port)
        assert code == 2 and f"port {port} of 127.0.0.1 is in use" in err and err.count("\n") == 1


def test_a_folder_without_a_model_is_an_error_of_one_sentence(run, tmp_path):
    code, _, err = run(tmp_path / "none", "--port", 0)
    assert code == 2 and "there is no folder" in err and err.count("\n") == 1


def test_a_queue_too_small_for_one_request_is_an_error_of_one_sentence(run, folder):
    code, _, err = run(folder, "--queue", 5)
    assert code == 2 and "a queue of 5 texts cannot hold one request of 1000" in err


def test_with_a_token_it_answers_its_bearer_and_curl_shows_how(folder, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n", encoding="utf-8")
    with process(folder, "--host", "127.0.0.1", "--token-file", tmp_path / "token", "--access-log") as (
        started,
        client,
    ):
        assert client.post("/translate", {"text": "ein Hund"})[0] == 401
        assert 'Authorization: Bearer $REGARD_TOKEN"' in client.curl
        line = client.curl.replace("$REGARD_TOKEN", TOKEN)
        if shutil.which("curl"):  # run the printed command unchanged
            done = subprocess.run(shlex.split(line), capture_output=True, check=True, timeout=60)
            assert json.loads(done.stdout)["translations"][0]["text"]
        assert client.post("/translate", {"text": "ein Hund"}, {"authorization": f"Bearer {TOKEN}"})[0] == 200
        started.terminate()
        _, err = started.communicate(timeout=60)
    assert started.returncode == 0
    assert err.count(" POST /translate ") >= 2
    assert TOKEN not in err
