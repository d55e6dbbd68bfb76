"""What an export format is, and the registry of formats. A format is one file in this folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from regard.errors import OptionError
from regard.interchange.export.compare import Model, Runner
from regard.registry import Registry

FORMATS: Registry[type[ExportFormat]] = Registry("export format")


class ExportFormat(ABC):
    """The files of another runtime. Register a subclass with `@FORMATS.add("name")`.

    Args:
        quantization: type of the stored weights, one of `quantizations`.
    """

    title: ClassVar[str]  # as messages call it
    quantizations: ClassVar[tuple[str, ...]] = ("float32",)

    def __init__(self, quantization: str = "float32") -> None:
        if quantization not in self.quantizations:
            raise OptionError(
                f"{self.title} takes --quantization {', '.join(self.quantizations)}, got {quantization!r}"
            )
        self.quantization = quantization

    @property
    def exact(self) -> ExportFormat:
        """The same format in float32, whose outputs must equal regard's."""
        return self if self.quantization == "float32" else type(self)()

    @abstractmethod
    def check_supported(self, model: Model) -> None:
        """Raise OptionError with the reason if the format cannot express this model."""

    @abstractmethod
    def write(self, model: Model, folder: Path) -> None:
        """Write the files of the model into an empty folder."""

    @abstractmethod
    def load(self, model: Model, folder: Path) -> Runner:
        """Load what `write` wrote into its own runtime."""
