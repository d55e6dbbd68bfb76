"""Authentication: loopback only, or with a token."""

from __future__ import annotations

import hmac
import ipaddress
import os
from pathlib import Path

from regard.errors import OptionError
from regard.serving.http_errors import RequestError

MIN_LENGTH = 16  # characters of a token
VARIABLE = "REGARD_TOKEN"


def read_token(file: Path | None) -> str | None:
    """Return the token from a file or REGARD_TOKEN; None if there is neither."""
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
    if len(token) < MIN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(
            f"the token in {where} must have at least {MIN_LENGTH} printable ASCII characters without "
            "spaces, got "
            f'{len(token)}; create one with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return token


def is_loopback(host: str) -> bool:
    """True for names and addresses of this machine's loopback interface."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """Raise OptionError if other machines can connect and there is no token."""
    if token is None and not is_loopback(host):
        raise OptionError(
            f"--host {host} admits other machines, which needs a token; "
            f"give --token-file FILE, set {VARIABLE}, or leave --host out"
        )


class Authentication:
    """The check of every request.

    A server on loopback answers to loopback host names only, which prevents DNS rebinding by web pages.
    """

    def __init__(self, token: str | None, host: str) -> None:
        self._token = None if token is None else token.encode()
        self._loopback = is_loopback(host)

    def check(self, host: str, authorization: str | None, *, public: bool = False) -> bool:
        """Return True if the client is authenticated; if not, raise RequestError unless `public`."""
        if self._loopback and not is_loopback(_name(host)):
            raise RequestError(
                421, "this server answers to localhost only; use http://localhost with its port"
            )
        if self._token is None or self._matches(authorization):
            return True
        if public:
            return False
        why = "the token is not the server's" if authorization else "this server needs a token"
        raise RequestError(
            401, f"{why}; send the header Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
        )

    def _matches(self, authorization: str | None) -> bool:
        kind, _, token = (authorization or "").partition(" ")
        # compare_digest takes the same time for any token.
        same = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token or b"")
        return same and kind.lower() == "bearer"


def _name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
