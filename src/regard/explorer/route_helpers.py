"""Helpers of the explorer's routes: binary responses, indices in URLs, input errors as status 422."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Response

from regard.errors import RegardError
from regard.serving.http_errors import SAFE_HEADERS, RequestError

Result = TypeVar("Result")


def binary(content: bytes) -> Response:
    """A binary response, for weights."""
    return Response(content, 200, SAFE_HEADERS, "application/octet-stream")


def number(text: str) -> int:
    """Parse an index in a URL."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise RequestError(422, f"{text[:20]!r} is not an index; give an integer from 0")
    return int(text)


def checked(compute: Callable[[], Result]) -> Result:
    """Return the result; an error about the input becomes a response with status 422."""
    try:
        return compute()
    except RegardError as error:
        raise RequestError(422, str(error)) from None
