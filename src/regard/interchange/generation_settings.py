"""The generation options of a Hugging Face folder: special tokens, excluded tokens, search options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import FolderError
from regard.models.folder import read_json

# Options that change what `generate` returns, with the value that does not.
SEARCH = {
    "begin_suppress_tokens": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_decoder_ids": None,
    "guidance_scale": 1.0,
    "length_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "sequence_bias": None,
}


@dataclass(frozen=True)
class GenerationSettings:
    """What generation_config.json has or, in old folders, config.json."""

    folder: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, folder: Path, defaults: dict[str, Any]) -> GenerationSettings:
        """Read the options of a folder; `defaults` are those of its model type."""
        path = folder / "generation_config.json"
        later = read_json(path) if path.is_file() else {}
        return cls(folder, defaults | read_json(folder / "config.json") | later)

    def token(self, key: str, rows: int) -> int:
        """Return the id of a special token of a vocabulary with this many rows."""
        value = self.values.get(key)
        if isinstance(value, list) and len(value) > 1:
            raise FolderError(
                f"{self.folder} has {key} {value} in its generation options, and regard has one such token; "
                "import another model"
            )
        token: Any = value[0] if isinstance(value, list) and value else value
        if not _is_id(token, rows):
            raise FolderError(
                f"{self.folder} has {key} {value!r} in its generation options, and the model has {rows} "
                "tokens; correct generation_config.json or config.json"
            )
        return token

    def excluded(self, rows: int) -> set[int]:
        """Return the tokens that are never generated."""
        words = self.values.get("bad_words_ids") or []
        singles = self.values.get("suppress_tokens") or []
        tokens: list[Any] = []
        for given in (words, singles):
            tokens += given if isinstance(given, list) else [given]
        if any(isinstance(token, list) and len(token) > 1 for token in tokens):
            raise FolderError(
                f"{self.folder} excludes a sequence of tokens from its output (bad_words_ids), and regard "
                "can exclude single tokens; import another model"
            )
        tokens = [token[0] if isinstance(token, list) and token else token for token in tokens]
        for token in tokens:
            if not _is_id(token, rows):
                raise FolderError(
                    f"{self.folder} excludes the token {token!r} (bad_words_ids or suppress_tokens), and the "
                    f"model has {rows} tokens; correct generation_config.json or config.json"
                )
        return set(tokens)

    def beam(self) -> int:
        """Return the beam size."""
        beam = self.values.get("num_beams")
        return beam if isinstance(beam, int) and beam > 0 else 1

    def search(self) -> dict[str, Any]:
        """Return the other options that change what `generate` returns."""
        given = {key: self.values.get(key) for key in SEARCH}
        return {key: value for key, value in given.items() if value is not None and value != SEARCH[key]}

    def card(self) -> dict[str, Any]:
        """Return what the card of the imported model says about them."""
        search = self.search()
        return {"decoding": {"beam": self.beam()}} | ({"generation": search} if search else {})


def _is_id(token: Any, rows: int) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < rows
