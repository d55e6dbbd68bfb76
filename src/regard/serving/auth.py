"""Who may ask: this machine alone, or whoever has the token."""

from __future__ import annotations

import hmac
import ipaddress
import os
from pathlib import Path

from regard.errors import OptionError
from regard.serving.request_limits import Refusal

SHORTEST = 16  # characters of a token
VARIABLE = "REGARD_TOKEN"


def read_token(file: Path | None) -> str | None:
    """The token from a file, else from the environment, else none."""
    if file is None:
        token, where = os.environ.get(VARIABLE), VARIABLE
    else:
        try:
            token, where = file.read_text(encoding="utf-8"), str(file)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise OptionError(
                f"the token file {file} cannot be read: {reason}; give a file that holds the token alone"
            ) from None
    if token is None:
        return None
    token = token.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(
            f"the token in {where} must be at least {SHORTEST} plain letters, digits and signs without spaces, got {len(token)} "
            'characters; make one with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """Other machines are let in with a token only."""
    if token is None and not is_loopback(host):
        raise OptionError(
            f"--host {host} lets other machines in, so it needs a token; "
            f"give --token-file FILE, set {VARIABLE}, or leave --host out"
        )


class Authentication:
    """The check of each request. A server without a token answers loopback names only, so that no web page reaches it by DNS."""

    def __init__(self, token: str | None, host: str) -> None:
        self._token = None if token is None else token.encode()
        self._loopback = is_loopback(host)

    def check(self, host: str, authorization: str | None, *, open_to_all: bool = False) -> bool:
        """Whether the asker is known; raises a Refusal where that is needed. `open_to_all` is what strangers may ask too."""
        if self._loopback and not is_loopback(_name(host)):
            raise Refusal(
                421, "this server answers to localhost only; ask for http://localhost with its port"
            )
        if self._token is None or self._matches(authorization):
            return True
        if open_to_all:
            return False
        why = "the token is not the server's" if authorization else "this server needs a token"
        raise Refusal(
            401, f"{why}; send the header Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
        )

    def _matches(self, authorization: str | None) -> bool:
        kind, _, token = (authorization or "").partition(" ")
        same = hmac.compare_digest(
            token.strip().encode("utf-8", "replace"), self._token or b""
        )  # takes as long for any token
        return same and kind.lower() == "bearer"


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
