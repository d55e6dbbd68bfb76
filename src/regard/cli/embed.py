"""`regard embed`: one vector per text, line of a file or of standard input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli import option_groups as shared
from regard.cli.option_groups import grouped


@grouped
def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts; after -i, more files. Default: standard input."),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME|FOLDER", help="Model folder, or minilm; default: REGARD_MODEL."
        ),
    ] = None,
    input: shared.InputFileOptions,
    output: Annotated[Path, shared.output_option(".npy, .tsv or .jsonl, also .gz or .xz")] = Path("-"),
    as_json: shared.Json = False,
    precision: Annotated[
        str, shared.option(help="float32, bfloat16 or float16.", rich_help_panel=shared.JOB)
    ] = "float32",
    batch_tokens: shared.BatchTokens = None,
    job: shared.JobOptions,
) -> None:
    """Embed texts: one vector of length 1 per text or line, in order.

    A .npy file has one float32 row per line. Other outputs have the numbers of a vector on one line,
    separated by tabs.
    With -o, rerun the same command to resume an interrupted job.

    Examples:

        regard embed "a cat on a mat" --model minilm

        regard embed -i sentences.txt --model runs/embed-tatoeba -o vectors.npy

        regard embed -i papers.csv --column abstract --model minilm -o vec.npy

        zcat big.gz | regard embed --json --model minilm | gzip > vec.jsonl.gz
    """
    from regard.attention.devices import pick_device
    from regard.cli.jobs import model_folder, open_input, open_outputs, run_job
    from regard.errors import OptionError
    from regard.models.embedder import Embedder
    from regard.pipelines.embed_file import EmbedJob, EmbedOptions
    from regard.pipelines.job import File

    name = str(model_folder(None if model is None else Path(model), "embed", text or []))
    source, _ = open_input(text or [], input)
    options = EmbedOptions(_form(output, as_json), input.column, input.field, batch_tokens, str(output))
    output_files = open_outputs(source, [output])
    if options.output_format == "npy" and not isinstance(output_files[0], File):
        raise OptionError(f"{output} is not a file, and .npy needs one, for the number of rows; name a file")
    embedder = Embedder.load(name, str(pick_device(job.device)), precision)
    settings = lambda: options.about(embedder.fingerprint())  # noqa: E731
    run_job("embed", source, output_files, EmbedJob(embedder, options), settings, job)


def _form(output: Path, as_json: bool) -> str:
    """Return json, npy or text, by --json and the file name."""
    from regard.data.text_files import suffix
    from regard.errors import OptionError

    kind = suffix(output)
    if kind == "npz":
        raise OptionError(f"{output} is an archive of arrays, and this is one array; name it .npy")
    if kind == "npy" and (as_json or output.suffix != ".npy"):
        raise OptionError(f"{output} cannot be JSON or compressed; name it .npy alone and leave out --json")
    if as_json or kind in ("jsonl", "ndjson"):
        return "json"
    return "npy" if kind == "npy" else "text"
