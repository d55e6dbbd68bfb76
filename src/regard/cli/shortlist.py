"""`regard shortlist`: the likely translations of each source token, learned for `--shortlist`."""

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
            help="A known corpus, or two files (source, then target); the training data unless given.",
        ),
    ] = None,
    best: Annotated[int, typer.Option(min=1, max=1000, help="Target tokens per source token.")] = 60,
    frequent: Annotated[
        int, typer.Option(min=0, help="Number of most frequent target tokens, allowed in every sentence.")
    ] = 200,
) -> None:
    """Learn a vocabulary shortlist from sentence pairs and save it with the model.

    With --shortlist, `regard translate` and `regard serve` then compute the scores of likely target tokens only.
    """
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
