"""The README of an exported folder, with a program that runs the model."""

from __future__ import annotations

from pathlib import Path

from regard.interchange.export.compare import Model
from regard.interchange.export.tokenizer_files import file_names
from regard.models.translator import Translator
from regard.version import __version__


def write_readme(model: Model, folder: Path, runtime: str, program: str) -> None:
    """Write README.md. `program` takes the folder as its argument and reads lines from standard input."""
    source, target = file_names(model)
    program = program.strip().replace("SOURCE_FILE", f'"{source}"').replace("TARGET_FILE", f'"{target}"')
    kind = "translator" if isinstance(model, Translator) else "language model"
    text = f"""# A {kind} for {runtime}
Exported by regard {__version__}. Save this program as run.py and run `python run.py FOLDER < lines.txt`,
where FOLDER is this folder:

```python
{program}
```
"""
    (folder / "README.md").write_text(text, encoding="utf-8")
