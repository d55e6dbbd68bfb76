"""Lessons as Jupyter notebooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.files.atomic import write_file
from regard.lessons.scripts import Lesson, list_lessons


def notebook(lesson: Lesson) -> dict[str, Any]:
    """A lesson as a notebook (nbformat 4.5), without outputs."""
    cells = []
    for number, cell in enumerate(lesson.cells()):
        content: dict[str, Any] = {
            "id": f"lesson-{lesson.number:02}-{number:02}",
            "cell_type": cell.kind,
            "metadata": {},
            "source": cell.source.splitlines(keepends=True),
        }
        if cell.kind == "code":
            content |= {"execution_count": None, "outputs": []}
        cells.append(content)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write_notebooks(folder: Path) -> list[Path]:
    """Write every lesson as NN-name.ipynb into a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for lesson in list_lessons():
        path = folder / f"{lesson.name}.ipynb"
        write_file(path, json.dumps(notebook(lesson), indent=1, ensure_ascii=False) + "\n")
        paths.append(path)
    return paths
