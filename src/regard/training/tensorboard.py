"""Optional TensorBoard log with the numbers of the run log."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from regard.errors import RecipeError


def check_installed() -> None:
    """Raise a RecipeError if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise RecipeError(
            "training.tensorboard is true and TensorBoard is not installed; "
            "pip install 'regard[tensorboard]', or set it to false"
        )


class TensorBoardLog:
    """A TensorBoard log in the run folder; events after `step`, the resumed checkpoint, are removed."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
