"""The service of a search index: the answers of `regard search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.search.index import Index
from regard.search.methods import as_record, make_method
from regard.serving.request_limits import RequestLimits
from regard.serving.requests import SearchIndexRequest
from regard.serving.service import Cancelled
from regard.serving.text_services import TextService


class SearchService(TextService):
    """An index, as it is when the server starts, and the model of its vectors."""

    kind, body, summary, field = "search index", SearchIndexRequest, "Search documents", "results"
    example = ("search", '{"text": "Hello."}')

    def __init__(
        self,
        index: Index,
        model: Any,
        name: str,
        limits: RequestLimits | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        index.check(model.fingerprint())
        self.index = index
        super().__init__(model, name, limits, workers=workers)

    def answers(self, options: SearchIndexRequest, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        results = make_method(options.by, self.model, exact=options.exact).search(
            self.index, texts, options.count
        )
        self._count(texts)
        return [as_record(self.index, text, hits) for text, hits in zip(texts, results, strict=True)]
