"""A griffe extension for the API reference: show `>>>` examples in docstrings as highlighted code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> [^\n]*\n?(?:^(?!>>> |\s*$)[^\n]*\n?)*)+", re.M)


class DoctestBlocks(griffe.Extension):
    """Wrap each run of `>>>` lines, with the output below it, in a fenced block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and ">>>" in obj.docstring.value:
            text = re.sub(r"^Examples?:\n| *# doctest: \+SKIP", "", obj.docstring.value, flags=re.M)
            obj.docstring.value = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", text)
