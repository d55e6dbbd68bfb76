"""Read the tokenizers of a MarianMT folder: source.spm, target.spm, and one vocabulary or one per side."""

from __future__ import annotations

import json
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
    folder: Path, rows: dict[str, int], *, start: int, end: int, pad: int | None
) -> tuple[Tokenizers, Mappings]:
    """Return the tokenizers of both sides, and the mappings of their ids to those of MarianMT.

    Args:
        folder: MarianMT folder.
        rows: number of rows of the embeddings, by side (source, target).
        start: id of the token that starts a translation.
        end: id of the token that ends it.
        pad: id of the padding token, if there is one.
    """
    exported = exported_tokenizer(folder)  # of a folder that regard exported
    if exported is not None:
        sides = {"source": exported, "target": exported_tokenizer(folder / "target") or exported}
        return sides, {side: TokenMapping(list(range(len(tokenizer)))) for side, tokenizer in sides.items()}
    settings = _settings(folder)
    files = _vocabulary_files(folder, settings)
    tokenizers: Tokenizers = {}
    mappings: Mappings = {}
    joint = files["source"] == files["target"] and rows["source"] == rows["target"]
    for side, file in files.items():
        names = [_special_name(settings, kind) for kind in ("unk", "eos")]
        vocabulary = _vocabulary(file, rows[side], names)
        unknown, ending = (vocabulary[name] for name in names)
        if side == "target":
            ending = end
        beginning = start if side == "target" or joint else None
        # Another start token than padding may also be a token of texts: it then has two of our ids.
        rest = [i for i in range(rows[side]) if i not in (pad, unknown, ending)]
        mappings[side] = TokenMapping([None, unknown, beginning, ending, *rest])
        spm = _require_file(folder / f"{side}.spm")
        model = read_sentencepiece(spm)
        names_by_id = {i: name for name, i in vocabulary.items()} | _pieces_by_id(
            file, spm, vocabulary, model
        )
        pieces = [names_by_id.get(i, "") for i in rest]
        codes = [match[1] for name in pieces if (match := LANGUAGE.fullmatch(name))]
        tokenizers[side] = SentencePieceTokenizer.from_model(model, pieces, codes if side == "source" else ())
    return tokenizers, mappings


def _settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json; FolderError for options that change token ids in a way we do not have."""
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    if settings.get("sp_model_kwargs"):
        raise FolderError(
            f"{path} has sp_model_kwargs {settings['sp_model_kwargs']!r}, which regard does not support; "
            "import another model"
        )
    check_added_tokens(folder, settings)
    return settings


def check_added_tokens(folder: Path, settings: dict[str, Any]) -> None:
    """Raise FolderError for tokens that were added to the tokenizer's vocabulary, but special tokens."""
    tokens = settings.get("added_tokens_decoder")
    path = folder / "added_tokens.json"
    if isinstance(tokens, dict):
        added = [token["content"] for token in tokens.values() if not token.get("special")]
    else:
        specials = folder / "special_tokens_map.json"
        listed = json.dumps([settings, read_json(specials) if specials.is_file() else {}])
        added = [
            name for name in (read_json(path) if path.is_file() else {}) if json.dumps(name) not in listed
        ]
    if added:
        raise FolderError(
            f"the tokenizer of {folder} has the additional token {min(added)!r} (added_tokens), which regard "
            "does not support; import another model"
        )


def _special_name(settings: dict[str, Any], kind: str) -> str:
    """Return the name of the unknown token (unk) or the end token (eos)."""
    name = settings.get(f"{kind}_token") or {"unk": "<unk>", "eos": "</s>"}[kind]
    return str(name["content"] if isinstance(name, dict) else name)


def _vocabulary_files(folder: Path, settings: dict[str, Any]) -> dict[str, Path]:
    """Return the vocabulary file of each side."""
    source = _require_file(folder / "vocab.json")
    separate = bool(settings.get("separate_vocabs"))
    return {"source": source, "target": _require_file(folder / "target_vocab.json") if separate else source}


def _vocabulary(file: Path, rows: int, special: list[str]) -> dict[str, int]:
    """Return the pieces and ids of a vocabulary file, which must have the special tokens."""
    vocabulary: dict[str, Any] = read_json(file)
    for name in special:
        if name not in vocabulary:
            raise FolderError(f"{file} has no {name}, which MarianMT needs; copy the folder again")
    for name, i in vocabulary.items():
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < rows:
            raise FolderError(
                f"{file} gives {name!r} the id {i!r}, but the embeddings of the model have {rows} rows; "
                "the two belong to different models, so copy the folder again"
            )
    return vocabulary


def _pieces_by_id(file: Path, spm: Path, vocabulary: dict[str, int], model: dict[str, Any]) -> dict[int, str]:
    """Return a SentencePiece model's pieces in the vocabulary; FolderError if few, or two have one id."""
    pieces = [name for kind in ("pieces", "user_defined") for name, _ in model[kind]]
    known: dict[int, str] = {}
    for name in pieces:
        if name in vocabulary and known.setdefault(vocabulary[name], name) != name:
            raise FolderError(
                f"{file} gives both {known[vocabulary[name]]!r} and {name!r} the id {vocabulary[name]}, and "
                "regard has one piece per id; copy the folder again"
            )
    if 2 * len(known) < len(pieces):
        raise FolderError(
            f"{file} has only {len(known)} of the {len(pieces)} pieces of {spm.name}, so most texts would be "
            "unknown tokens; if there is also a target_vocab.json, set separate_vocabs to true in "
            "tokenizer_config.json, else copy the folder again"
        )
    return known


def _require_file(file: Path) -> Path:
    if not file.is_file():
        raise FolderError(
            f"{file.parent} has no {file.name}, which MarianMT's tokenizer needs; the folder is incomplete, "
            "so copy it again"
        )
    return file
