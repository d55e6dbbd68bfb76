"""A shortlist: for each source token the target tokens it is likely translated by, so that only these need be
computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizer import EOS, UNK
from regard.errors import FolderError, OptionError, for_shell
from regard.files.atomic import atomic_path

NAME = "shortlist.safetensors"
FORMAT = "1"


@dataclass(frozen=True)
class Shortlist:
    """`best` (source vocabulary, N): the tokens that each source token is likely translated by, filled up
    with EOS. `frequent`: those that any sentence may hold. `source` and `target` are the fingerprints of the
    tokenizers whose numbers these are, `size` the number of target tokens.
    """

    best: NDArray[np.int32]
    frequent: NDArray[np.int32]
    source: str
    target: str
    size: int

    def words(self, sentences: Sequence[Any]) -> list[Any]:
        """The words that each sentence of tokens may be translated by, in rising order; it depends on that
        sentence alone.
        """
        every = np.zeros(self.size, bool)
        every[self.frequent] = True
        every[[UNK, EOS]] = True
        found = []
        for tokens in sentences:
            mine = every.copy()
            mine[self.best[tokens]] = True
            if self.source == self.target:  # names and numbers are often left as they are
                mine[tokens] = True
            found.append(np.flatnonzero(mine).astype(np.int32))
        return found

    def check(self, model: Any) -> None:
        """Refuse a model with another vocabulary, or with none to translate from."""
        if not hasattr(model, "source"):
            raise OptionError("a shortlist is for translators, and this is a language model; leave it out")
        sizes = [model.source.table.num_embeddings, model.output.projection.out_features]
        if [len(self.best), self.size] != sizes:
            raise FolderError(
                f"the shortlist is for {len(self.best)} source and {self.size} target tokens, and the model has {sizes[0]} and "
                f"{sizes[1]}; it is another model's, so make one with `regard shortlist MODEL`"
            )
        for side, mine in (("source", self.source), ("target", self.target)):
            tokenizer = getattr(model, f"{side}_tokenizer", None)
            if tokenizer is not None and tokenizer.fingerprint != mine:
                raise FolderError(
                    f"the shortlist was made with another {side} tokenizer than the model's; make one with `regard shortlist MODEL`"
                )

    def save(self, folder: str | Path) -> Path:
        """Write it into a model's folder, or its run's; it appears whole or not at all."""
        from safetensors.numpy import save_file

        path = place(folder)
        about = {"format": FORMAT, "source": self.source, "target": self.target, "size": str(self.size)}
        with atomic_path(path, "copy the model to a folder that you can write") as temporary:
            save_file({"best": self.best, "frequent": self.frequent}, temporary, about)
        return path


def load(folder: str | Path) -> Shortlist:
    """The shortlist of a model's folder, or its run's."""
    from safetensors import SafetensorError, safe_open

    path = place(folder)
    if not path.is_file():
        raise FolderError(
            f"{path.parent} has no shortlist; make one with `regard shortlist {for_shell(folder)}`, or leave --shortlist out"
        )
    try:
        with safe_open(str(path), "numpy") as stored:
            about = stored.metadata() or {}
            if about.get("format") != FORMAT:
                raise FolderError(
                    f"{path} is not a shortlist of this regard; make it again with `regard shortlist {for_shell(folder)}`"
                )
            found = Shortlist(
                stored.get_tensor("best"),
                stored.get_tensor("frequent"),
                about["source"],
                about["target"],
                int(about["size"]),
            )
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(
            f"{path} cannot be read ({error}); make it again with `regard shortlist {for_shell(folder)}`"
        ) from None
    tables = (found.best, 2), (found.frequent, 1)
    if any(
        t.ndim != n or t.dtype != np.int32 or t.min(initial=0) < 0 or t.max(initial=0) >= found.size
        for t, n in tables
    ):
        raise FolderError(
            f"{path} names words that its vocabulary has not; make it again with `regard shortlist {for_shell(folder)}`"
        )
    return found


def place(folder: str | Path) -> Path:
    """The file in a model's folder, or in that of the run it is in."""
    folder = Path(folder)
    return (folder / "model" if (folder / "model" / "config.json").is_file() else folder) / NAME
