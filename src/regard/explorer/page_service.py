"""A server of the explorer's page alone: for a Hugging Face model, or without any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import nn

from regard.explorer.run import Run
from regard.explorer.run_job import Job
from regard.serving.http_errors import RequestError
from regard.serving.request_limits import RequestLimits
from regard.serving.service import Cancelled, Service

HINT = (
    "There is no model to explore, only the mechanism. Train one with `regard train small` and open it with "
    "`regard explore runs/small`, or open a Hugging Face folder with `regard explore --hf FOLDER`."
)


class Explored(Protocol):
    """A model behind the page."""

    name: str
    task: str

    def describe(self) -> dict[str, Any]: ...

    def run(self, job: Job) -> Run: ...

    def search_tree(self, job: Job, then: str = "") -> dict[str, Any]: ...

    def trust(
        self, run: Run, row: int | None, attention: str | None, cancelled: Callable[[], bool]
    ) -> dict[str, Any]: ...

    def stage(self, run: Run, index: int, head: int, stage: str) -> bytes: ...


class NoModel:
    """The page without a model: it shows the mechanism and one sentence."""

    name = "the mechanism"
    task = ""
    model = nn.Module()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "task": "", "notice": HINT, "limits": {}}

    def run(self, job: Job, then: str = "") -> Run:
        raise RequestError(422, HINT)

    search_tree = run  # the other views need a run, and there is none


class PageService(Service):
    """The service of `regard explore` for what has no routes of its own."""

    kind = "page"
    example = ("explore/api/runs", '{"text": "Hello."}')

    def __init__(self, explored: Any, limits: RequestLimits | None = None) -> None:
        super().__init__(explored.model, explored.name, limits, workers=1)
        self.explored: Explored = explored

    def warm_up(self) -> None:
        """Nothing is compiled lazily."""

    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        """The explorer checks its texts itself."""

    def answers(self, options: Any, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        raise RequestError(404, "this server has the explorer only; its page is at /explore/")

    def _cost(self, options: Any, text: str) -> int:
        return 1
