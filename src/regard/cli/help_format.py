"""`regard COMMAND --help`: flags without a type, paragraphs that fit the terminal, examples as written."""

from __future__ import annotations

import inspect
import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

# typer removes the common indentation of a help text; after a tag without effect, spaces are not indentation.
_INDENT = "[none][/none]    "


def help_text(docstring: str) -> str:
    """Return a docstring as help: lines of a paragraph joined, indented lines (examples) kept.

    >>> help_text("Train a model\\nfrom a recipe.")
    'Train a model from a recipe.'
    """
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(_paragraph(paragraph.splitlines()) for paragraph in paragraphs)


def _paragraph(lines: list[str]) -> str:
    if lines[0].startswith("    "):
        return "\n".join(_INDENT + _escape(line.removeprefix("    ")) for line in lines)
    return _escape(" ".join(lines))


def _escape(text: str) -> str:
    """Keep brackets, which rich would read as markup; `rich.markup.escape` without importing rich."""
    return re.sub(r"\[(?=[a-z])", r"\\[", text)


def _hide_flag_types(parameters: list[Any]) -> list[Any]:
    """Print `--strict`, not `--strict <bool>`: a flag takes no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """`regard` itself; its help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))
