"""A static site of the explorer: the page, a translator in int8, and an engine in JavaScript that runs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard.data import language_guess
from regard.errors import OptionError
from regard.explorer.explored_model import ExploredModel
from regard.files.atomic import write_folder
from regard.interchange.export.export_model import check_free
from regard.models import folder as model_folder
from regard.models.translator import Translator
from regard.pictures.web_files import compact_file

POLICY = (  # the server's policy without frame-ancestors, which a meta element cannot set
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
CHARSET = '<meta charset="utf-8">\n'
META = f'{CHARSET}<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
VIEWS = ["alignment", "heads", "whatif", "compare", "mechanism"]  # of the page, those that the engine serves
WITHOUT = ("search.js", "trust.js")  # files of the other views
MAX_CHARACTERS = 2000  # of a text
TOKENIZERS = ("bpe", "byte-bpe", "character", "word")
# What the engine runs, by kind of encoder or decoder: the values of each option.
TRANSFORMER = {
    "position": ("sinusoidal", "learned", "none"),
    "mask": (None,),
    "sliced": (False,),
    "energy": ("scaled-dot",),
    "normalize": ("softmax",),
}
ENCODERS = {"transformer": TRANSFORMER, "recurrent": {}}
DECODERS = {"transformer": TRANSFORMER, "bahdanau": {"normalize": ("softmax",)}}


def write_site(folder: str | Path, model: Any, name: str, *, overwrite: bool = False) -> int:
    """Write the site of a translator to a folder; return its size in bytes.

    `FOLDER/model` is a model folder in int8, which `regard.load` reads too.
    """
    folder = Path(folder)
    check_free(folder, overwrite)
    for reason in _unsupported(model):
        raise OptionError(f"{name} cannot run without a server: {reason}")
    write_folder(folder, lambda path: _write(path, model, name))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def site_files() -> dict[str, bytes]:
    """The files of the page and of the engine, by name; `api.js` asks the engine instead of a server."""
    package = files("regard.explorer")
    contents = {entry.name: entry.read_bytes() for entry in package.joinpath("page").iterdir()}
    contents |= {entry.name: entry.read_bytes() for entry in package.joinpath("static").iterdir()}
    contents["api.js"] = contents.pop("static_api.js")
    for name in WITHOUT:
        del contents[name]
    for name, content in contents.items():
        if name.endswith(".html"):
            contents[name] = content.replace(CHARSET.encode(), META.encode())
        else:
            contents[name] = compact_file(name, content)
    return contents


def _unsupported(model: Any) -> Iterator[str]:
    """Yield each reason why the engine cannot run a model."""
    if not isinstance(model, Translator):
        yield f"the engine of the page runs translators, and this is {model.what}; use `regard explore`"
        return
    for side, kinds in (("encoder", ENCODERS), ("decoder", DECODERS)):
        options = model.config[side]
        if options["kind"] not in kinds:
            yield (
                f"its {side} is of kind {options['kind']}, and the engine of the page has "
                f"{' and '.join(kinds)}; use `regard explore`"
            )
            continue
        for key, values in kinds[options["kind"]].items():
            if options[key] not in values:
                yield (
                    f"its {side} has {key}: {options[key]}, and the engine of the page has "
                    f"{' or '.join(map(str, values))}; use `regard explore`"
                )
    for tokenizer in (model.source_tokenizer, model.target_tokenizer):
        if tokenizer.kind not in TOKENIZERS:
            yield (
                f"its tokenizer is of kind {tokenizer.kind}, and the engine of the page has "
                f"{', '.join(TOKENIZERS)}; use `regard explore`"
            )


def _write(folder: Path, model: Any, name: str) -> None:
    for file, content in site_files().items():
        (folder / file).write_bytes(content)
    inside = folder / "model"
    recipe = (model.card.get("recipe") or {}).get("data") or {}
    languages = {side: recipe[side] for side in ("source", "target") if side in recipe}
    card = {"name": name, "recipe": {"data": languages}}  # nothing else of the card: the site is public
    tokenizers = model.source_tokenizer, model.target_tokenizer
    model_folder.save(inside, model, model.config, *tokenizers, card, precision="int8")
    described = ExploredModel(model, name).describe()
    described["limits"]["characters"] = MAX_CHARACTERS
    described |= {
        "views": VIEWS,
        "can": [],
        "models": [name],
        "bytes": (inside / "model.safetensors").stat().st_size,
        "tokenizers": sorted(
            path.name for path in inside.glob("*.json") if path.stem not in ("card", "config")
        ),
    }
    (inside / "description.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
    if model.source_tokenizer.languages:
        shutil.copy(language_guess.TABLE, inside)
