"""`regard shortlist`: which words each source word is likely translated by, learned for `--shortlist`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    model: Annotated[Path, typer.Argument(help="A translator's folder, or the run it is in.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME|FILE",
            help="A known corpus, or files (source, then target); the model's own unless given.",
        ),
    ] = None,
    best: Annotated[int, typer.Option(min=1, max=1000, help="Target tokens for each source token.")] = 60,
    frequent: Annotated[
        int, typer.Option(min=0, help="Most frequent target tokens, for every sentence.")
    ] = 200,
) -> None:
    """Learn a shortlist from pairs of sentences and put it into the model's folder; --shortlist of translate and serve uses it."""
    from regard.data.datasets import split_rows
    from regard.data.prepare import EncodingSettings, prepare
    from regard.decoding.engine.ibm1 import associate
    from regard.errors import OptionError
    from regard.evaluation.evaluate import data_section
    from regard.models.folder import load
    from regard.models.translator import Translator

    loaded: Any = load(model)
    if not isinstance(loaded, Translator):
        raise OptionError(
            f"{model} is {loaded.what}, which has no source words to list translations of; give a translator"
        )
    own = data_section(loaded.card, data or ())  # type: ignore[arg-type]
    if data and "test" in own:
        own["train"] = own.pop("test")
    settings = EncodingSettings(own.get("max_length") or 256, own.get("max_ratio"), own.get("limit"))
    source, target = loaded.source_tokenizer, loaded.target_tokenizer
    prepared = prepare(split_rows(own, "train", "translate"), source, target, settings, what="train")  # type: ignore[arg-type]
    found = associate(prepared, source, target, best, frequent)
    path = found.save(model)
    print(
        f"{path}: {found.best.shape[1]} target tokens for each of {len(found.best):,} source tokens, {len(found.frequent)} for all"
    )
