"""Pipelines: translate, generate, classify, tag, embed and align texts, files and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.pipelines.align import View
    from regard.pipelines.classify import Classification, word_attention
    from regard.pipelines.translate import Translation, stream
    from regard.pipelines.word_links import pharaoh

__all__ = ["Classification", "Translation", "View", "pharaoh", "stream", "word_attention"]
__getattr__ = exported(
    __name__,
    {
        "Classification": "classify",
        "Translation": "translate",
        "View": "align",
        "pharaoh": "word_links",
        "stream": "translate",
        "word_attention": "classify",
    },
)
