"""The options that `regard index`, `duplicates` and `label` share, and how they read and embed documents."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from regard.cli.option_groups import INPUT, JOB, OptionGroup, Strict, option

if TYPE_CHECKING:
    from regard.models.embedder import Embedder
    from regard.search.documents import Document, LoadedDocuments

Threads = Annotated[
    int, option(min=0, help="Threads that build and search the index; 0: all cores.", rich_help_panel=JOB)
]


@dataclass(frozen=True)
class DocumentOptions(OptionGroup):
    """The columns of documents, and the model that embeds them."""

    model: Annotated[
        str,
        option(
            "--model",
            "-m",
            metavar="NAME|FOLDER",
            help="minilm (needs the extra minilm), or the folder of a model or run.",
        ),
    ] = "minilm"
    text_column: Annotated[
        str | None,
        option(
            "--text",
            metavar="COLUMN",
            help="Column of the text (name, or number from 1), or field of JSON lines.",
            rich_help_panel=INPUT,
        ),
    ] = None
    id_column: Annotated[
        str | None,
        option(
            "--id",
            metavar="COLUMN",
            help="Column or field of the document ids; default: FILE:LINE.",
            rich_help_panel=INPUT,
        ),
    ] = None
    strict: Strict = False
    threads: Threads = 0

    def read(self, files: list[Path]) -> LoadedDocuments:
        """Read the documents and report those that are left out."""
        from regard.cli.jobs import report
        from regard.search.documents import read_documents

        documents = read_documents(files, text=self.text_column, name=self.id_column, strict=self.strict)
        for warning in documents.warnings():
            report(warning)
        return documents

    def embed(self, files: list[Path]) -> tuple[list[Document], Any, Embedder | None]:
        """Return the documents, their vectors and the model that computed them.

        If `files` is the folder of an index, the vectors are read from it and the model is None.
        """
        from regard.models.embedder import Embedder
        from regard.pipelines.embed import embed
        from regard.search.index import MANIFEST, Index

        if len(files) == 1 and (files[0] / MANIFEST).is_file():
            index = Index(files[0])
            numbers = index.live()
            return [index.document(int(number)) for number in numbers], index.vectors(numbers), None
        documents = self.read(files)
        embedder = Embedder.load(self.model)
        return documents.documents, embed(documents.texts, embedder, progress=True), embedder


def write_output(output: Path, text: str) -> None:
    """Write to standard output, or to a file atomically."""
    from regard.files.atomic import write_file
    from regard.pipelines.job import convert_write_errors

    if str(output) == "-":
        sys.stdout.write(text)
        return
    with convert_write_errors(str(output)):
        write_file(output, text)
