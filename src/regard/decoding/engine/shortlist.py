"""Vocabulary shortlists: the output layer scores only likely translations of the source tokens."""

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
from regard.models.folder import model_in

FILE_NAME = "shortlist.safetensors"
FORMAT = "1"


@dataclass(frozen=True)
class Shortlist:
    """A shortlist of a translator.

    Attributes:
        best: (source vocabulary, N) the likely translations of each source token, padded with EOS.
        frequent: tokens that any translation may contain.
        source, target: fingerprints of the tokenizers.
        size: number of target tokens.
    """

    best: NDArray[np.int32]
    frequent: NDArray[np.int32]
    source: str
    target: str
    size: int

    def allowed(self, sentences: Sequence[Any]) -> list[Any]:
        """Return for each sentence the sorted ids of the tokens that its translation may contain.

        They do not depend on the other sentences.
        """
        common = np.zeros(self.size, bool)
        common[self.frequent] = True
        common[[UNK, EOS]] = True
        result = []
        for tokens in sentences:
            allowed = common.copy()
            allowed[self.best[tokens]] = True
            if self.source == self.target:  # names and numbers are often copied
                allowed[tokens] = True
            result.append(np.flatnonzero(allowed).astype(np.int32))
        return result

    def check(self, model: Any) -> None:
        """Raise an error if the model has other vocabularies or is a language model."""
        if not hasattr(model, "source"):
            raise OptionError("a shortlist is for translators, and this is a language model; leave it out")
        sizes = [model.source.table.num_embeddings, model.output.projection.out_features]
        if [len(self.best), self.size] != sizes:
            raise FolderError(
                f"the shortlist is for {len(self.best)} source and {self.size} target tokens, and the model "
                f"has {sizes[0]} and {sizes[1]}; make one with `regard shortlist MODEL`"
            )
        for side, fingerprint in (("source", self.source), ("target", self.target)):
            tokenizer = getattr(model, f"{side}_tokenizer", None)
            if tokenizer is not None and tokenizer.fingerprint != fingerprint:
                raise FolderError(
                    f"the shortlist was made with another {side} tokenizer than the model's; "
                    "make one with `regard shortlist MODEL`"
                )

    def save(self, folder: str | Path) -> Path:
        """Write the shortlist into the folder of a model or run, atomically."""
        from safetensors.numpy import save_file

        path = shortlist_path(folder)
        metadata = {"format": FORMAT, "source": self.source, "target": self.target, "size": str(self.size)}
        with atomic_path(path, "copy the model to a folder that you can write") as temporary:
            save_file({"best": self.best, "frequent": self.frequent}, temporary, metadata)
        return path


def load(folder: str | Path) -> Shortlist:
    """Load the shortlist of the folder of a model or run."""
    from safetensors import SafetensorError, safe_open

    path = shortlist_path(folder)
    if not path.is_file():
        raise FolderError(
            f"{path.parent} has no shortlist; make one with `regard shortlist {for_shell(folder)}`, "
            "or leave --shortlist out"
        )
    try:
        with safe_open(str(path), "numpy") as stored:
            metadata = stored.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise FolderError(
                    f"{path} is not a shortlist of this version; "
                    f"make it again with `regard shortlist {for_shell(folder)}`"
                )
            shortlist = Shortlist(
                stored.get_tensor("best"),
                stored.get_tensor("frequent"),
                metadata["source"],
                metadata["target"],
                int(metadata["size"]),
            )
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(
            f"{path} cannot be read ({error}); make it again with `regard shortlist {for_shell(folder)}`"
        ) from None
    tables = (shortlist.best, 2), (shortlist.frequent, 1)
    if any(
        t.ndim != n or t.dtype != np.int32 or t.min(initial=0) < 0 or t.max(initial=0) >= shortlist.size
        for t, n in tables
    ):
        raise FolderError(
            f"{path} has tokens that are not in its vocabulary; "
            f"make it again with `regard shortlist {for_shell(folder)}`"
        )
    return shortlist


def shortlist_path(folder: str | Path) -> Path:
    """Return the path of the shortlist in the folder of a model or run."""
    return model_in(Path(folder)) / FILE_NAME
