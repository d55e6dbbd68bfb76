"""Save and load a model folder: config.json, model.safetensors, tokenizers, and its history in card.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

from regard.arguments import quoted
from regard.attention.devices import as_device
from regard.data.tokenizer import Tokenizer
from regard.errors import FolderError, OptionError, RegardError, for_shell
from regard.files.atomic import atomic_path, write_file
from regard.files.checksums import verify_listed
from regard.models import int8
from regard.models.build import build
from regard.models.catalog import find_model
from regard.models.config import check_config, check_layers, known_kind
from regard.models.model import COMMANDS, Model
from regard.version import __version__

FORMAT = 1  # of the folder; increased when older versions cannot read it
MAX_BYTES = 1 << 28  # of a JSON file, tokenizers included


def save(
    folder: str | Path,
    model: Model,
    config: dict[str, Any],
    source_tokenizer: Tokenizer | None,
    target_tokenizer: Tokenizer,
    card: dict[str, Any],
    precision: str = "float32",
) -> None:
    """Write a model folder; with precision int8, matrices are stored in int8 (see int8.py).

    Each file is written atomically. config.json comes last, so a folder that has it is complete.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().to("cpu").contiguous() for name, p in model.named_parameters()}
    if precision == "int8":
        tensors = int8.quantized(tensors)
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary)
    joint = source_tokenizer is None or source_tokenizer.fingerprint == target_tokenizer.fingerprint
    names = (
        {"tokenizer.json": target_tokenizer}
        if joint
        else {"source.json": source_tokenizer, "target.json": target_tokenizer}
    )
    for name, tokenizer in names.items():
        tokenizer.save(folder / name)
    write_file(folder / "card.json", _json_text(card))
    source_vocabulary = None
    if source_tokenizer is not None and model.kind != "language-model":
        source_vocabulary = len(source_tokenizer)
    top = {
        "format": FORMAT,
        "regard": __version__,
        "kind": model.kind,
        "source_vocabulary": source_vocabulary,
        "target_vocabulary": len(target_tokenizer),
        "model": config,
    }
    write_file(folder / "config.json", _json_text(top))


def load(folder: str | Path, device: str | torch.device = "cpu") -> Any:
    """Load the model of a folder in eval mode, with its tokenizers, `.config` and `.card`.

    >>> model = regard.load("tatoeba-en-de-bahdanau")
    >>> type(model).__name__, model.card["languages"]
    ('Translator', {'source': 'en', 'target': 'de'})

    Files are verified against checksums.json if the folder has one; a file is hashed again only when it
    changes. Weights that are stored in int8 are restored, and `.stored_precision` is "int8".

    Args:
        folder: a model folder, a run folder with a finished model, or a name of `regard models`.
        device: where the model is put.
    """
    folder, device = model_in(as_path("folder", folder)), as_device(device)
    config = read_config(folder)
    names = _tokenizer_files(folder)
    card = ["card.json"] if is_file(folder / "card.json") else []
    for name in (*names, "model.safetensors"):
        _need(folder / name)
    verify_listed(folder, ["config.json", *names, "model.safetensors", *card])
    source, target = read_tokenizers(folder)
    for side, tokenizer in (("source", source), ("target", target)):
        if config[f"{side}_vocabulary"] not in (None, len(tokenizer)):
            raise FolderError(
                f"{folder} was trained with {config[f'{side}_vocabulary']} {side} tokens and its tokenizer "
                f"has {len(tokenizer)}; the tokenizer belongs to another model, so copy the folder again"
            )
    model = _filled(folder, config)
    model.source_tokenizer, model.target_tokenizer = source, target
    model.config = config["model"]
    model.card = read_json(folder / "card.json") if card else {}
    return model.to(device).eval()


def model_in(folder: Path) -> Path:
    """The folder of a model: of one of the catalog by name, of a finished run, else the folder itself."""
    folder = find_model(folder)
    return folder / "model" if is_file(folder / "model" / "config.json") else folder


def _tokenizer_files(folder: Path) -> list[str]:
    return ["tokenizer.json"] if is_file(folder / "tokenizer.json") else ["source.json", "target.json"]


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target tokenizer of a model folder."""
    tokenizers = [_tokenizer(_need(folder / name)) for name in _tokenizer_files(folder)]
    return tokenizers[0], tokenizers[-1]


def as_path(name: str, value: object) -> Path:
    """Return a Path; raise an OptionError for other types and for strings that cannot name a file."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path or not _can_be_encoded(path):
        raise OptionError(f"{name} is a path, a string or a Path, got {quoted(value)}")
    return Path(path)


def _can_be_encoded(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # an unpaired surrogate
        return False
    return True


def is_file(path: Path) -> bool:
    """True if there is such a file; also False where the system refuses the path."""
    try:
        return path.is_file()
    except OSError:  # the name is too long, or the folder is not readable
        return False


def _tokenizer(path: Path) -> Tokenizer:
    if path.stat().st_size > MAX_BYTES:
        raise FolderError(
            f"{path} has {path.stat().st_size} bytes, more than any tokenizer; copy the folder again"
        )
    try:
        return Tokenizer.load(path)
    except RegardError as error:
        raise FolderError(str(error).replace("\n", " ")) from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise FolderError(
            f"{path} is not a tokenizer file ({_first_line(error)}); it is damaged, so copy it again"
        ) from None


class SkipInitialization(TorchFunctionMode):
    """Leaves new weights uninitialized in this thread: drawing them takes longer than reading a file."""

    _SKIPPED = ("uniform_", "normal_", "orthogonal_")  # ends of names: kaiming_uniform_ too

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").endswith(self._SKIPPED):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _filled(folder: Path, config: dict[str, Any]) -> Any:
    """The model with its stored weights.

    It is first built on the meta device and compared with the file, so that a wrong config takes no memory.
    """
    path, where = folder / "model.safetensors", folder / "config.json"
    arguments = (config["model"], config["source_vocabulary"], config["target_vocabulary"])
    try:
        with safe_open(str(path), "pt") as stored:
            shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
            scales = int8.take_scales(path, shapes)
            check_layers(where, config["model"], len(shapes))
            # Some weights are still drawn, as by torch.randn; the caller's generator must not change.
            with torch.random.fork_rng(devices=[]), SkipInitialization():
                with torch.device("meta"):
                    _check_shapes(path, build(*arguments), shapes)
                model = build(*arguments)
            _fill(model, stored, path, scales)
            model.stored_precision = "int8" if scales else "float32"
    except FolderError:
        raise
    except RegardError as error:  # parts that do not work together
        raise FolderError(f"{where}: {error}") from None
    except (SafetensorError, OSError) as error:
        raise FolderError(
            f"{path} cannot be read ({_first_line(error)}); it is truncated or damaged, so copy it again"
        ) from None
    return model


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a model folder, validated and completed."""
    if not os.path.isdir(folder):
        raise FolderError(
            f"there is no folder {folder}; give the folder of a trained model, such as runs/NAME/model, or a "
            "name that `regard models` lists"
        )
    if not is_file(folder / "config.json"):
        if is_file(folder / "recipe.yaml"):
            raise FolderError(
                f"the run {folder} has no model yet, as it ended before its first validation; continue it "
                f"with `regard resume {for_shell(folder)}`"
            )
        raise FolderError(
            f"{folder} has no config.json, so it is not a model folder; give one that `regard train` wrote"
        )
    config = read_json(folder / "config.json")
    if config.get("kind") == "recommender":
        raise FolderError(
            f"{folder} is a recommender: use it with `regard recommend --model {for_shell(folder)}`, or in "
            "Python with regard.interactions.Recommender.load"
        )
    missing = {"format", "kind", "source_vocabulary", "target_vocabulary", "model"} - set(config)
    if missing:
        raise FolderError(
            f"{folder / 'config.json'} has no {sorted(missing)[0]!r}; "
            "it was not written by regard, or is damaged"
        )
    if config["format"] != FORMAT:
        raise FolderError(
            f"{folder} has format {config['format']!r:.40} (regard {config.get('regard', '?')}) and this "
            f"regard reads format {FORMAT}; install that version, or train again"
        )
    if not known_kind(config["kind"]):
        raise FolderError(
            f"{folder} is a {config['kind']!r:.60} (regard {config.get('regard', '?')!s:.40}), which this "
            f"regard does not know; it knows {', '.join(COMMANDS)}, so install the version that wrote it"
        )
    return check_config(folder / "config.json", config)


def _check_shapes(path: Path, model: torch.nn.Module, stored: dict[str, tuple[int, ...]]) -> None:
    """Raise a FolderError if names or shapes in the file are not those of the model."""
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    unmatched = sorted(set(stored) ^ set(expected))
    if unmatched:
        problem = "lacks" if unmatched[0] in expected else "has an unknown"
        raise FolderError(
            f"{path} {problem} {unmatched[0]!r}: it belongs to another config.json; copy the folder again"
        )
    for name, shape in expected.items():
        if stored[name] != shape:
            raise FolderError(
                f"{path} holds {name!r} as {stored[name]} and config.json makes it {shape}; copy it again"
            )


def _fill(model: torch.nn.Module, stored: Any, path: Path, scales: set[str]) -> None:
    """Copy the stored weights into the model; each must be finite."""
    for name, p in model.named_parameters():
        x = stored.get_tensor(name)
        if name in scales:
            scale = stored.get_tensor(name + int8.SCALE)
            int8.check_types(path, name, x, scale)
            _check_finite(path, name, scale)
            int8.restore(x, scale, p.data)
            continue
        if not x.is_floating_point():
            raise FolderError(
                f"{path} holds {name!r} as {x.dtype}, which is not a dtype of weights; copy it again"
            )
        _check_finite(path, name, x)
        p.data.copy_(x)  # copied: products of unaligned memory may differ in their last bit


def _check_finite(path: Path, name: str, x: torch.Tensor) -> None:
    if not torch.isfinite(x.sum()) and not torch.isfinite(x).all():  # usually one pass is enough
        raise FolderError(
            f"{path} holds NaN or infinity in {name!r}; training diverged or the file is damaged, so "
            "use another checkpoint"
        )


def _need(path: Path) -> Path:
    if not is_file(path):
        raise FolderError(f"{path.parent} has no {path.name}; the folder is incomplete, so copy it again")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a model or run folder."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise FolderError(f"{path} is nested too deep to be read; it is damaged, so copy it again") from None
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{path} cannot be read ({_first_line(error)}); it is damaged, so copy it again"
        ) from None
    if not isinstance(value, dict):
        raise FolderError(
            f"{path} holds a {type(value).__name__} where an object belongs; it is damaged, so copy it again"
        )
    return value


def _json_text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
