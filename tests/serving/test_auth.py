"""Tests of auth.py."""

import pytest

from regard.errors import OptionError
from regard.serving.auth import Authentication, check_binding, is_loopback, read_token
from regard.serving.http_errors import RequestError

TOKEN = "abcdefghijklmnop-1234"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("localhost", True), ("LocalHost", True), ("::1", True), ("127.8.8.8", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False),
        ("localhost.evil.example", False), ("", False),
    ],
)  # fmt: skip
def test_loopback_addresses_are_recognised(host, loopback):
    assert is_loopback(host) is loopback


def test_other_machines_need_a_token():
    check_binding("127.0.0.1", None)
    check_binding("0.0.0.0", TOKEN)
    with pytest.raises(
        OptionError, match="--host 0.0.0.0 admits other machines, which needs a token; give --token-file"
    ):
        check_binding("0.0.0.0", None)


def test_a_token_comes_from_a_file_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("REGARD_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("REGARD_TOKEN", f" {TOKEN}\n")
    assert read_token(None) == TOKEN
    (tmp_path / "token").write_text("another-token-of-a-file\n", encoding="utf-8")
    assert read_token(tmp_path / "token") == "another-token-of-a-file"


@pytest.mark.parametrize("text", ["short", "", "with spaces in between them", "ünïcödé-is-not-for-headers"])
def test_a_weak_token_is_refused_without_being_shown(tmp_path, text):
    (tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match="must have at least 16") as refused:
        read_token(tmp_path / "token")
    assert not text or text not in str(refused.value)


def test_a_token_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(OptionError, match="none cannot be read: No such file"):
        read_token(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(OptionError, match="not UTF-8"):
        read_token(tmp_path / "bytes")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:80", "[::1]:8000", "[::1]"])
def test_without_a_token_loopback_host_names_are_accepted(host):
    assert Authentication(None, "127.0.0.1").check(host, None) is True


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "", "192.168.0.7", "127.0.0.1.evil.example", "[::2]:1", "localhost@evil"]
)
def test_without_a_token_other_host_names_are_refused(host):
    with pytest.raises(RequestError, match="localhost only") as refused:
        Authentication(None, "127.0.0.1").check(host, None)
    assert refused.value.status == 421


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        "Bearer ÿ",
    ],
)
def test_without_the_token_requests_are_refused(given):
    with pytest.raises(RequestError, match="Authorization: Bearer TOKEN") as refused:
        Authentication(TOKEN, "0.0.0.0").check("example.org", given)
    assert refused.value.status == 401
    assert refused.value.headers == {"www-authenticate": "Bearer"}
    assert TOKEN not in str(refused.value)


def test_with_the_token_any_host_name_is_accepted():
    authentication = Authentication(TOKEN, "0.0.0.0")
    assert authentication.check("example.org", f"Bearer {TOKEN}") is True
    assert authentication.check("example.org", f"bearer {TOKEN} ") is True
    assert authentication.check("example.org", None, public=True) is False
