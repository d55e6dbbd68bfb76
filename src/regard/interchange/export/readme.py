"""The README of an exported folder: what it is, and a program that runs it."""

from __future__ import annotations

from pathlib import Path

from regard.interchange.export.check import Model
from regard.interchange.export.tokens import names
from regard.models.translator import Translator
from regard.version import __version__


def write_readme(model: Model, folder: Path, name: str, program: str) -> None:
    """The program reads lines on standard input and takes this folder as its argument."""
    source, target = names(model)
    program = program.strip().replace("SOURCE_FILE", f'"{source}"').replace("TARGET_FILE", f'"{target}"')
    what = "translator" if isinstance(model, Translator) else "language model"
    text = f"""# A {what} for {name}
Written by regard {__version__}. `python run.py FOLDER < lines.txt`, with this folder and this as run.py:

```python
{program}
```
"""
    (folder / "README.md").write_text(text, encoding="utf-8")
