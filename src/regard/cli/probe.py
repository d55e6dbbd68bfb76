"""`regard probe`: compare sentences that differ in one word under a language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.option_groups import check_utf8


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a language model, a run or a Hugging Face model.")],
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=r"A sentence with \[nouns] and {alternatives}; repeatable. Default: 24 sentences.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with one such sentence per line.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the attention to the nouns: .svg, .png, .pdf, .html."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Probe a language model for bias: which pronoun it expects, and which noun the pronoun attends to.

    Sentences differ in one word. For each alternative: its log-probability, and the attention from it to each
    noun, in every layer and head. Works for language models of regard, and for causal and masked models of
    Hugging Face.

    Examples:

        regard probe runs/wikitext-2

        regard probe gpt2 --text "The [nurse] called because {she|he} fell."

        regard probe gpt2-folder --data sentences.txt --json
    """
    from regard.attention.devices import pick_device
    from regard.cli.jobs import report
    from regard.errors import OptionError
    from regard.evaluation.bias_probes import ProbeSentence, bias_probe, read_sentences
    from regard.evaluation.explanation.explained_inputs import load_inputs
    from regard.pictures.picture import check_picture_path, save_pictures

    check_utf8("text", *(text or ()))
    if text and data:
        raise OptionError("--text and --data both name the sentences; give one of them")
    sentences = read_sentences(data) if data else text or None
    for sentence in sentences or ():
        ProbeSentence.parse(sentence)
    if picture is not None:
        check_picture_path(picture)
        if sentences is None or (len(sentences) > 1 and picture.suffix != ".html"):
            raise OptionError(
                "--picture draws the sentences of --text or --data, one per file; give one, or a .html file"
            )
    inputs = load_inputs(model, pick_device(device))
    result = bias_probe(inputs.model, sentences, tokenizer=inputs.tokenizer, progress=not as_json)
    print(json.dumps(result.as_dict(), ensure_ascii=False, indent=2) if as_json else result)
    if picture is not None:
        save_pictures([probed.picture() for probed in result.sentences], picture)
        report(f"the attention is drawn in {picture}")
