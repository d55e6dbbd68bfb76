"""Models known by name: those bundled with the package, and those in the folders of REGARD_MODELS.

A model in the catalog is a model folder with `card.md`, which begins with a YAML header:

    ---
    about: English to German, 6 + 2 layers
    task: translate
    languages: [en, de]
    into: [de]
    license: CC BY 2.0 FR
    scores: {BLEU Tatoeba en-de: 50.1}
    default: true
    ---
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from regard.errors import FolderError

BUNDLED = Path(__file__).with_name("bundled")
VARIABLE = "REGARD_MODELS"  # folders with more models, separated by ":"
CARD = "card.md"
MAX_BYTES = 1 << 20  # of a card


class CardHeader(BaseModel):
    """The header of `card.md`."""

    model_config = ConfigDict(extra="forbid")

    about: str = Field(description="what the model does, in one line")
    task: str = Field(description="translate, generate, classify, tag or embed")
    languages: tuple[str, ...] = Field(description="languages that it reads or generates")
    into: tuple[str, ...] = Field(default=(), description="translators: languages that it translates into")
    license: str = Field(description="of the weights, with the attribution that the data asks for")
    scores: dict[str, float | str] = Field(default={}, description="metric and test set → score")
    default: bool = Field(default=False, description="used for its task when no model is named")


class CatalogEntry(CardHeader):
    """A model of the catalog."""

    name: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def card(self) -> str:
        """The text of `card.md` below its header."""
        return _split(self.folder / CARD)[1].lstrip("\n")


def known_models() -> dict[str, CatalogEntry]:
    """The known models by name; the folders of REGARD_MODELS come before the bundled models.

    >>> known_models()["film-reviews"].task
    'classify'
    """
    entries: dict[str, CatalogEntry] = {}
    for folder in (*_own_folders(), BUNDLED):
        if not folder.is_dir():
            continue
        for card in sorted(folder.glob(f"*/{CARD}")):
            if (card.parent / "config.json").is_file():
                entries.setdefault(card.parent.name, _entry(card, card.stat().st_mtime_ns))
    return entries


def find_model(path: str | Path) -> Path:
    """The folder of a model: the path itself if it exists, else the model of the catalog with that name."""
    path = Path(path)
    if len(path.parts) != 1 or os.path.lexists(path):
        return path
    entry = known_models().get(path.name)
    return path if entry is None else entry.folder


def _own_folders() -> list[Path]:
    folders = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    for folder in folders:
        if not folder.is_dir():
            raise FolderError(f"{VARIABLE} names the folder {folder}, which does not exist; correct it")
    return folders


@lru_cache(maxsize=256)
def _entry(card: Path, changed: int) -> CatalogEntry:
    """Read a card; `changed`, its modification time, is part of the cache key."""
    header: Any = None
    try:
        header = yaml.safe_load(_split(card)[0])
        known = CardHeader.model_validate(header).model_dump()
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise FolderError(f"the header of {card} is not YAML ({first}); correct it") from None
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, wrong["loc"])) or "it"
        raise FolderError(f"the header of {card}: {key}: {wrong['msg']}; correct it") from None
    return CatalogEntry(**known, name=card.parent.name, folder=card.parent)


def _split(card: Path) -> tuple[str, str]:
    """The header and the text of a card."""
    try:
        if card.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        text = card.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FolderError(f"{card} cannot be read ({error}); copy it again") from None
    start, _, rest = text.partition("---\n")
    header, end, body = rest.partition("\n---\n")
    if start or not end:
        raise FolderError(f"{card} does not begin with a header between two lines of ---; add it")
    return header, body
