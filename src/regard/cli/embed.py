"""`regard embed`: one vector for each text, line of a file or of standard input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli import search_options


def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="What to embed; after -i more files. Else standard input."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME|FOLDER",
            help="A model folder, or minilm; REGARD_MODEL unless given.",
        ),
    ] = None,
    files: search_options.Files = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Resumable; .npy, .tsv and .jsonl, also .gz and .xz, as named.",
        ),
    ] = Path("-"),
    column: search_options.Column = None,
    header: search_options.Header = False,
    field: search_options.Field = None,
    as_json: Annotated[bool, typer.Option("--json", "--jsonl", help="Write JSON lines.")] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens computed together.")] = None,
    device: search_options.Device = "auto",
    strict: search_options.Strict = False,
    restart: search_options.Restart = False,
    quiet: search_options.Quiet = False,
) -> None:
    """Embed texts: one vector of length 1 for each text or line, in order.

    A .npy file holds them as float32, a row per line. Elsewhere a line holds the numbers of a vector, separated by tabs.
    With -o, rerun the same command to resume an interrupted job.

    Examples:

        regard embed "a cat on a mat" --model minilm

        regard embed -i sentences.txt --model runs/embed-tatoeba -o vectors.npy

        regard embed -i papers.csv --column abstract --model minilm -o vectors.npy

        zcat big.gz | regard embed --json --model minilm | gzip > vectors.jsonl.gz
    """
    from regard.cli.document_options import load_embedder
    from regard.cli.text_options import How, check_paths, find_place, find_source, model_folder, work_through
    from regard.errors import OptionError
    from regard.pipelines.embed_file import EmbedJob, EmbedOptions
    from regard.pipelines.job import File, open_output
    from regard.training.distributed import pick_device

    name = str(model_folder(None if model is None else Path(model), "embed", text or []))
    place = find_place(text or [], files, column, field, header)
    source = find_source(text or [], files, place.layout, strict, header=place.header)
    settings = EmbedOptions(_form(output, as_json), column, field, batch_tokens, str(output))
    check_paths(source, [output])
    places = [open_output(output)]
    if settings.output_format == "npy" and not isinstance(places[0], File):
        raise OptionError(
            f"{output} is no file, and a .npy file gets its number of rows in the end; name a file"
        )
    embedder = load_embedder(name, str(pick_device(device)))
    work = EmbedJob(embedder, settings)
    work_through(
        source, places, work, lambda: settings.about(embedder.fingerprint()), How("embed", restart, quiet)
    )


def _form(output: Path, as_json: bool) -> str:
    from regard.data.text_files import suffix
    from regard.errors import OptionError

    kind = suffix(output)
    if kind == "npz":
        raise OptionError(f"{output} would be an archive of arrays, and this is one array; name it .npy")
    if kind == "npy" and (as_json or output.suffix != ".npy"):
        raise OptionError(
            f"{output} is neither JSON nor packed, as .npy files are not; name it .npy alone and leave out --json"
        )
    return "json" if as_json or kind in ("jsonl", "ndjson") else "npy" if kind == "npy" else "text"
