"""JavaScript and CSS as they are sent to browsers: without lines of comments and without indentation."""

from __future__ import annotations

import re


def compact(text: str) -> str:
    """Remove lines of comments, indentation and empty lines; no string may span several lines.

    >>> compact("// One.\\nif (a) {\\n  b();  // two\\n}\\n")
    'if (a) {\\nb();  // two\\n}\\n'
    """
    text = re.sub(r"^[ \t]*/\*.*?\*/[ \t]*\n", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^[ \t]*//.*\n|^[ \t]+|^\n", "", text, flags=re.MULTILINE)


def compact_file(name: str, content: bytes) -> bytes:
    """The content of a file of a page: JavaScript and CSS compacted, others unchanged."""
    return compact(content.decode("utf-8")).encode() if name.endswith((".js", ".css")) else content
