"""Read the tokenizers of a MarianMT folder: source.spm, target.spm, and one vocabulary or one per side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from regard.data.sentencepiece_tokenizer import SentencePieceTokenizer
from regard.data.tokenizer import Tokenizer
from regard.errors import FolderError
from regard.interchange.sentencepiece import read_sentencepiece
from regard.interchange.token_mapping import TokenMapping, exported_tokenizer
from regard.models.folder import read_json

LANGUAGE = re.compile(r">>([^<>\s]+)<<")  # a code that selects the target language
Tokenizers = dict[str, Tokenizer]
Mappings = dict[str, TokenMapping]


def read_tokenizers(
    folder: Path, rows: dict[str, int], *, start: int, end: int, pad: int
) -> tuple[Tokenizers, Mappings]:
    """Return the tokenizers of both sides, and the mappings of their ids to those of MarianMT.

    Args:
        folder: MarianMT folder.
        rows: number of rows of the embeddings, by side (source, target).
        start: id of the token that starts a translation.
        end: id of the token that ends it.
        pad: id of the padding token.
    """
    exported = exported_tokenizer(folder)  # of a folder that regard exported
    if exported is not None:
        sides = {"source": exported, "target": exported_tokenizer(folder / "target") or exported}
        return sides, {side: TokenMapping(list(range(len(tokenizer)))) for side, tokenizer in sides.items()}
    files = _vocabulary_files(folder)
    tokenizers: Tokenizers = {}
    mappings: Mappings = {}
    joint = files["source"] == files["target"] and rows["source"] == rows["target"]
    for side, file in files.items():
        vocabulary = _vocabulary(file, rows[side])
        ending = end if side == "target" else vocabulary["</s>"]
        special = [vocabulary["<unk>"], start if side == "target" or joint else None, ending]
        rest = [i for i in range(rows[side]) if i != pad and i not in special]
        mappings[side] = TokenMapping([None, *special, *rest])
        names = {i: name for name, i in vocabulary.items()}
        pieces = [names.get(i, "") for i in rest]
        codes = [match[1] for name in pieces if (match := LANGUAGE.fullmatch(name))]
        model = read_sentencepiece(_require_file(folder / f"{side}.spm"))
        tokenizers[side] = SentencePieceTokenizer.from_model(model, pieces, codes if side == "source" else ())
    return tokenizers, mappings


def _vocabulary_files(folder: Path) -> dict[str, Path]:
    """Return the vocabulary file of each side."""
    config = folder / "tokenizer_config.json"
    separate = config.is_file() and bool(read_json(config).get("separate_vocabs"))
    source = _require_file(folder / "vocab.json")
    return {"source": source, "target": _require_file(folder / "target_vocab.json") if separate else source}


def _vocabulary(file: Path, rows: int) -> dict[str, int]:
    """Return the pieces and ids of a vocabulary file."""
    vocabulary: dict[str, Any] = read_json(file)
    for name in ("<unk>", "</s>"):
        if name not in vocabulary:
            raise FolderError(f"{file} has no {name}, which MarianMT needs; copy the folder again")
    for name, i in vocabulary.items():
        if not isinstance(i, int) or not 0 <= i < rows:
            raise FolderError(
                f"{file} gives {name!r} the id {i!r}, but the embeddings of the model have {rows} rows; "
                "the two belong to different models, so copy the folder again"
            )
    return vocabulary


def _require_file(file: Path) -> Path:
    if not file.is_file():
        raise FolderError(
            f"{file.parent} has no {file.name}, which MarianMT's tokenizer needs; the folder is incomplete, "
            "so copy it again"
        )
    return file
