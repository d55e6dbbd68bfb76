"""What the commands about documents share: options, and the model that makes the vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.models.embedder import Embedder
    from regard.search.documents import Documents

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME|FOLDER",
        help="minilm (needs the extra minilm), or the folder of a model or run.",
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="COLUMN",
        help="Column of the text (name, or number from 1), or field of JSON lines.",
    ),
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="COLUMN", help="Column or field of the document names; FILE:LINE unless given."
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at a line that is not UTF-8.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads that build and search the index; 0: all cores.")]


def load_embedder(name: str, device: str = "cpu") -> Embedder:
    """`minilm`, a folder of a BERT-like sentence encoder, or a model folder of regard."""
    from regard.errors import FolderError
    from regard.models import bert
    from regard.models.embedder import Embedder
    from regard.models.folder import load, read_json

    folder = Path(name)
    if name == "minilm":
        found: Any = bert.minilm()
    elif not folder.is_dir():
        raise FolderError(
            f"there is no model {name}; say minilm, or give the folder of a trained model, such as runs/NAME"
        )
    elif (folder / "config.json").is_file() and read_json(folder / "config.json").get("model_type") == "bert":
        found = bert.read(folder)
    else:
        found = Embedder.of(load(folder))
    return found.to(device).eval()


def say(what: str) -> None:
    print(f"regard: {what}", file=sys.stderr, flush=True)


def read(files: list[Path], text: str | None, name: str | None, strict: bool) -> Documents:
    """The documents, and a word about those that were left out."""
    from regard.search.documents import read_documents

    found = read_documents(files, text=text, name=name, strict=strict)
    for warning in found.warnings():
        say(warning)
    return found


def write(output: Path, text: str) -> None:
    """To standard output, or to a file that is whole or not there."""
    from regard.files.atomic import write_file

    if str(output) == "-":
        sys.stdout.write(text)
        return
    from regard.pipelines.job import write_errors

    with write_errors(str(output)):
        write_file(output, text)


def check_output(output: Path) -> None:
    """Before the work starts."""
    from regard.errors import OptionError

    if str(output) != "-" and (output.is_dir() or not output.absolute().parent.is_dir()):
        why = "it is a folder" if output.is_dir() else "its folder is not there"
        raise OptionError(f"{output} cannot be written, {why}; name a file in a folder that is there")


def same_path(name: str) -> str:
    """How an index remembers its model: a folder by its full path."""
    return name if name == "minilm" else str(Path(name).resolve())
