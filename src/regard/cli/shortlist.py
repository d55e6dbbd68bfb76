"""`regard shortlist`: learn the likely translations of each source token, for `--shortlist`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a translator or its run.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME|FILE",
            help="A corpus, or two files (source, then target); default: the training data.",
        ),
    ] = None,
    best: Annotated[int, typer.Option(min=1, max=1000, help="Target tokens per source token.")] = 60,
    frequent: Annotated[
        int, typer.Option(min=0, help="Number of most frequent target tokens, allowed in every sentence.")
    ] = 200,
) -> None:
    """Learn a vocabulary shortlist from sentence pairs and save it with the model.

    With --shortlist, `regard translate` and `regard serve` then compute the scores of likely target tokens
    only.

    Example:

        regard shortlist runs/small
    """
    from regard.data.datasets import split_rows
    from regard.data.prepare import EncodingSettings, prepare
    from regard.decoding.engine.ibm1 import associate
    from regard.errors import OptionError
    from regard.evaluation.evaluate import data_section
    from regard.models.folder import load
    from regard.models.frames import require_text
    from regard.models.translator import Translator

    loaded: Any = load(model)
    if not isinstance(loaded, Translator):
        raise OptionError(f"{model} is {loaded.what}, and a shortlist needs source tokens; give a translator")
    require_text(loaded, "a shortlist")
    section = data_section(loaded.card, data or ())  # type: ignore[arg-type]
    if data and "test" in section:
        section["train"] = section.pop("test")
    settings = EncodingSettings(
        section.get("max_length") or 256, section.get("max_ratio"), section.get("limit")
    )
    source, target = loaded.source_tokenizer, loaded.target_tokenizer
    prepared = prepare(split_rows(section, "train", "translate"), source, target, settings, name="train")  # type: ignore[arg-type]
    shortlist = associate(prepared, source, target, best, frequent)
    path = shortlist.save(model)
    print(
        f"{path}: {shortlist.best.shape[1]} target tokens for each of {len(shortlist.best):,} source tokens, "
        f"{len(shortlist.frequent)} for all"
    )
