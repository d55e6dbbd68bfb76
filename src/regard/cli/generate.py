"""`regard generate`: a language model goes on with a text."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli import search_options


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a language model or its run.")],
    prompt: Annotated[
        str | None, typer.Argument(help="Text to continue; standard input unless given.")
    ] = None,
    length: Annotated[
        int, typer.Option("--length", "--max-length", min=1, help="Maximum number of tokens.")
    ] = 100,
    beam: search_options.Beam = None,
    temperature: search_options.Temperature = None,
    top_k: search_options.TopK = None,
    top_p: search_options.TopP = None,
    min_p: search_options.MinP = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of samples.")] = 1,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of sampling; a random one is chosen and printed unless given."),
    ] = None,
    lines: Annotated[
        bool | None, typer.Option("--lines/--no-lines", help="Go on after the end of a line, or stop there.")
    ] = None,
    forbid: search_options.Forbid = None,
    no_repeat: search_options.NoRepeat = None,
    min_length: search_options.MinLength = None,
    precision: search_options.Precision = "auto",
    device: search_options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each text.")] = False,
) -> None:
    """Continue a text with a language model and print tokens as they are generated.

    Tokens are sampled; --beam searches for the most likely text instead.
    """
    from regard.decoding.engine import fast
    from regard.errors import FolderError
    from regard.models.folder import load
    from regard.models.language_model import LanguageModel
    from regard.training.distributed import pick_device

    search_options.check_text("forbid", *(forbid or ()))
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    search = _search(beam, {key: value for key, value in drawing.items() if value is not None}, count)
    rules = {"forbidden": forbid, "no_repeat": no_repeat, "min_length": min_length, "lines": lines}
    given = {key: value for key, value in rules.items() if value is not None} | {"max_length": length}
    text = _prompt(prompt)
    loaded = load(model, pick_device(device))
    if not isinstance(loaded, LanguageModel):
        raise FolderError(
            f"{model} is {loaded.what}, and generating takes a language model; `{loaded.command}` uses it"
        )
    writer = fast(loaded, precision)
    try:
        if count == 1 and "sample" in search and not as_json:
            _stream(writer, text, search | given)
        else:
            _whole(writer, text, search | given, as_json)
    except BrokenPipeError:
        raise typer.Exit(141) from None  # as `cat` ends when nobody reads on
    except KeyboardInterrupt:
        _write("\n")  # what was written stays, as a whole line
        raise typer.Exit(130) from None
    if seed is None and "sample" in search and os.isatty(2):
        print(f"regard: drawn with --seed {search['sample'].seed}", file=sys.stderr)


def _search(beam: int | None, drawing: dict[str, Any], count: int) -> dict[str, Any]:
    from regard.decoding.sampling import Sample
    from regard.errors import OptionError

    if beam is None:
        return {"sample": Sample(count=count, **drawing)}
    if drawing:
        name = next(iter(drawing)).replace("_", "-")
        raise OptionError(f"--{name} is about drawing words, which --beam does not; leave out one of them")
    if count > beam:
        raise OptionError(f"--count {count} needs a beam of at least as many; give --beam {count}")
    return {"beam": beam, "nbest": count}


def _prompt(prompt: str | None) -> str:
    from regard.errors import DataError

    if prompt is not None:
        return prompt.encode("utf-8", "surrogateescape").decode(
            "utf-8", "replace"
        )  # what a shell hands over may be any bytes
    if os.isatty(0):
        print("regard: type a text; Ctrl-D ends it", file=sys.stderr)
    try:
        with open(0, "rb", closefd=False) as given:
            return given.read().decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise DataError(f"standard input cannot be read: {error.strerror}; give the text as PROMPT") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"the text on standard input is not UTF-8 (byte {error.start}); convert it first"
        ) from None


def _stream(writer: Any, text: str, search: dict[str, Any]) -> None:
    """The text and, word by word, what follows."""
    from regard.pipelines.generate import stream

    pieces = stream(writer, text, **search)
    _write(text)
    for piece in pieces:
        _write(piece)
    _write("\n")


def _whole(writer: Any, text: str, search: dict[str, Any], as_json: bool) -> None:
    from regard.pipelines.generate import generate

    nbest = search.pop("nbest", None)
    for found in generate(writer, [text], **search)[0].hypotheses[:nbest]:
        record = {"prompt": text, "text": found.text, "log_p": round(found.log_p, 6), "ended": found.ended}
        _write(json.dumps(record, ensure_ascii=False) + "\n" if as_json else f"{text}{found.text}\n")


def _write(text: str) -> None:
    from regard.pipelines.output import Stream, telling

    with telling("standard output"):
        Stream(1, "standard output").write(text.encode("utf-8", "replace"))
