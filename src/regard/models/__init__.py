"""Models: any encoder with any decoder makes a translator, a decoder alone a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.models import crf

__all__ = ["crf"]
