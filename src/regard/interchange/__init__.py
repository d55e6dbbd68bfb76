"""Export models to and import them from other libraries.

>>> from regard.interchange import FORMATS
>>> sorted(FORMATS)
['ctranslate2', 'huggingface', 'onnx']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.interchange.export.export_model import FORMATS, export_model

__all__ = ["FORMATS", "export_model"]
__getattr__ = exported(__name__, dict.fromkeys(__all__, "export.export_model"))
