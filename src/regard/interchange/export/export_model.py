"""Export a model: check that the format supports it, write a temporary folder, compare, rename."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

from regard.errors import OptionError
from regard.files.atomic import write_folder
from regard.files.checksums import CHECKSUMS
from regard.files.progress import track
from regard.interchange.export import ctranslate2, huggingface, onnx  # noqa: F401 (they register themselves)
from regard.interchange.export.compare import Model, RuntimeComparison, compare, require_equal
from regard.interchange.export.format import FORMATS, ExportFormat
from regard.interchange.export.sentencepiece_files import convert_sentencepiece
from regard.models.autoregressive import require_autoregressive
from regard.models.frames import require_text


def export_model(
    model: Model, folder: str | Path, to: str | ExportFormat, *, overwrite: bool = False
) -> RuntimeComparison:
    """Write a model for another runtime and compare its outputs there with regard's.

    >>> model = regard.load("runs/small")  # doctest: +SKIP
    >>> regard.interchange.export_model(model, "small-onnx", to="onnx")  # doctest: +SKIP

    Args:
        model: a translator or language model with its tokenizers, as `regard.load` returns it.
        folder: new folder for the exported model.
        to: name of a format in `FORMATS`, or a format object.
        overwrite: replace a folder that regard wrote.

    Raises UnequalError and keeps nothing if the outputs differ. With quantized weights, the float32 layout is
    checked this way first; the returned comparison then shows the effect of quantization.
    """
    folder = Path(folder)
    chosen = FORMATS[to]() if isinstance(to, str) else to
    require_autoregressive(model, "exports")
    require_text(model, "export")
    chosen.check_supported(model)
    check_free(folder, overwrite)
    ours: Model = copy.deepcopy(model).cpu().float().eval()
    convert_sentencepiece(ours)
    comparisons: list[RuntimeComparison] = []

    def fill(place: Path) -> None:
        if chosen.exact is not chosen:
            (place / "exact").mkdir()
            comparisons.append(_write_and_compare(ours, place / "exact", chosen.exact))
            shutil.rmtree(place / "exact")
        comparisons.append(_write_and_compare(ours, place, chosen))

    write_folder(folder, fill)
    return comparisons[-1]


def _write_and_compare(model: Model, folder: Path, to: ExportFormat) -> RuntimeComparison:
    with track(None, "writing"):
        to.write(model, folder)
    runner = to.load(model, folder)
    return require_equal(model, runner, to.title) if to.exact is to else compare(model, runner)


def check_free(folder: Path, overwrite: bool) -> None:
    """Raise OptionError if the folder is not empty; with `overwrite`, only if regard did not write it."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise OptionError(f"{folder} already exists; give another folder, or --overwrite")
    if not (folder / CHECKSUMS).is_file():
        raise OptionError(
            f"{folder} was not written by regard, so --overwrite does not replace it; give another folder"
        )
