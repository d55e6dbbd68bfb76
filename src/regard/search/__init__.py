"""Document search (embeddings, BM25, hybrid), near-duplicate detection and label spreading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.search import build_index
    from regard.search.documents import read_documents
    from regard.search.index import Index, IndexInfo
    from regard.search.methods import Bm25Search, HybridSearch, VectorSearch

__all__ = [
    "Bm25Search",
    "HybridSearch",
    "Index",
    "IndexInfo",
    "VectorSearch",
    "build_index",
    "read_documents",
]
__getattr__ = exported(
    __name__,
    {
        "Index": "index",
        "VectorSearch": "methods",
        "Bm25Search": "methods",
        "IndexInfo": "index",
        "HybridSearch": "methods",
        "read_documents": "documents",
    },
    ["build_index"],
)
