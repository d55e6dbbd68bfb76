"""The base class of all models: kind, size and cost."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

COMMANDS = {
    "translator": "translate",
    "language-model": "generate",
    "classifier": "classify",
    "tagger": "tag",
    "embedder": "embed",
}


class Model(nn.Module):
    """Base class of all models: what it is, how many parameters it has, how many operations a pass takes."""

    kind: ClassVar[str]  # in config.json
    # Set on a model that was loaded or trained.
    source_tokenizer: Any
    target_tokenizer: Any
    config: Any
    card: Any

    def __init__(self) -> None:
        super().__init__()
        self._cost: list[float] = []

    @property
    def what(self) -> str:
        """The kind with an article, for messages: `a language model`, `an embedder`."""
        return f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind.replace('-', ' ')}"

    @property
    def command(self) -> str:
        """The command that uses such a model."""
        return f"regard {COMMANDS[self.kind]}"

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def parameters_by_part(self) -> dict[str, int]:
        """Number of parameters of each submodule; shared ones count once, where they come first."""
        counts: dict[str, int] = {}
        for name, p in self.named_parameters():
            module = name.split(".")[0]
            counts[module] = counts.get(module, 0) + p.numel()
        return counts

    def forward_for_flops(self, source: Tensor, target: Tensor) -> Any:
        """The forward pass that `flops` counts, for tokens (1, S) and (1, T)."""
        raise NotImplementedError

    def flops(self, source_length: int, target_length: int) -> int:
        """Floating-point operations of the matrix products in a forward pass of one sentence.

        A multiplication and an addition are two operations. torch counts them on meta tensors at a few
        lengths; a polynomial of degree two gives the count at all others. Training takes three times as many:
        the backward pass has two products for each of the forward pass.
        """
        terms = lambda s, t: [1, s, t, s * s, t * t, s * t]  # noqa: E731
        if not self._cost:
            points = [(2, 2), (4, 2), (6, 2), (2, 4), (2, 6), (4, 4)]
            matrix = torch.tensor([terms(s, t) for s, t in points], dtype=torch.float64)
            counts = torch.tensor([self._count(s, t) for s, t in points], dtype=torch.float64)
            self._cost = torch.linalg.solve(matrix, counts).tolist()
        return round(sum(a * b for a, b in zip(self._cost, terms(source_length, target_length), strict=True)))

    def _count(self, source_length: int, target_length: int) -> int:
        from torch.utils.flop_counter import FlopCounterMode  # slow to import, and rarely needed

        meta = {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False) for p in self.parameters()}
        model = copy.deepcopy(self, meta).eval()  # copies the shapes only
        source, target = (
            torch.zeros(1, n, dtype=torch.long, device="meta") for n in (source_length, target_length)
        )
        if hasattr(model, "source"):  # tokens, or frames of numbers
            source = model.source.example(source_length)  # type: ignore[operator]
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.forward_for_flops(source, target)
        return counter.get_total_flops()
