"""Errors of a request as JSON responses with a status and one sentence."""

from __future__ import annotations

import json
import secrets
import sys
import traceback
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from regard.serving.log import Log

SAFE_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


@dataclass
class RequestError(Exception):
    """A refused request: HTTP status, one sentence with the reason and the fix, and response headers."""

    status: int
    message: str
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


def shutting_down() -> RequestError:
    return RequestError(
        503,
        "the server is shutting down and takes no more requests; send it to another, or later",
        {"retry-after": "5"},
    )


def client_left() -> RequestError:
    return RequestError(499, "the client has left")


def timed_out(seconds: float) -> RequestError:
    return RequestError(
        503,
        f"the answer took longer than {seconds:g} seconds; send fewer or shorter texts, or try again later",
        {"retry-after": "5"},
    )


def error_response(error: RequestError) -> Response:
    return json_response(
        json.dumps({"error": error.message}, ensure_ascii=False), error.status, error.headers
    )


def json_response(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, {**SAFE_HEADERS, **(headers or {})}, "application/json")


def routing_error(kind: str, request: Request, error: HTTPException) -> RequestError:
    """Return the error for an unknown path or method; `kind` is the kind of model that is served."""
    if error.status_code == 404:
        return RequestError(
            404, f"there is no such address here; this server has a {kind}, and GET / lists its routes"
        )
    if error.status_code == 405:
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        allowed = headers.get("allow", "another method")
        return RequestError(405, f"{request.method} is not allowed here; use {allowed}", headers)
    return RequestError(error.status_code, HTTPStatus(error.status_code).phrase.lower())


def internal_error(error: Exception, log: Log) -> RequestError:
    """Log an unexpected error under a random number, and return an error that shows the number only.

    The same traceback is logged at most once a minute.
    """
    number, trace = secrets.token_hex(4), "".join(traceback.format_exception(error))
    if not log.write(f"error {number}\n{trace}", trace):
        print(f"regard: error {number}, as before: {type(error).__name__}", file=sys.stderr, flush=True)
    return RequestError(500, f"something went wrong on the server; its log has more under {number}")
