"""What every model that is trained can say of itself: its kind, its size, its cost."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

COMMANDS = {
    "translator": "translate",
    "language-model": "generate",
    "classifier": "classify",
    "tagger": "tag",
    "embedder": "embed",
}


class Model(nn.Module):
    """Parameters by part, and floating-point operations by the lengths of the texts."""

    kind: ClassVar[str]  # in config.json
    source_tokenizer: Any  # all four are put on a model that was loaded or is trained
    target_tokenizer: Any
    config: Any
    card: Any

    def __init__(self) -> None:
        super().__init__()
        self._cost: list[float] = []

    @property
    def what(self) -> str:
        """Its kind in words: `a language model`, `an embedder`."""
        return f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind.replace('-', ' ')}"

    @property
    def command(self) -> str:
        """What a user runs to use it."""
        return f"regard {COMMANDS[self.kind]}"

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def parameters_by_part(self) -> dict[str, int]:
        """How many numbers each part learns; shared ones count where they are first."""
        found: dict[str, int] = {}
        for name, p in self.named_parameters():
            part = name.split(".")[0]
            found[part] = found.get(part, 0) + p.numel()
        return found

    def counted(self, source: Tensor, target: Tensor) -> Any:
        """The forward pass whose products are counted, for words (1, S) and (1, T)."""
        raise NotImplementedError

    def flops(self, source_length: int, target_length: int) -> int:
        """Floating-point operations (multiply and add are two) of one forward pass of one sentence, products only.

        Counted by torch on tensors without data at a few lengths; between them the count is a polynomial of degree two.
        Training costs three times as much: the backward pass forms two products for each of the forward's.
        """
        terms = lambda s, t: [1, s, t, s * s, t * t, s * t]  # noqa: E731
        if not self._cost:
            points = [(2, 2), (4, 2), (6, 2), (2, 4), (2, 6), (4, 4)]
            matrix = torch.tensor([terms(s, t) for s, t in points], dtype=torch.float64)
            counts = torch.tensor([self._count(s, t) for s, t in points], dtype=torch.float64)
            self._cost = torch.linalg.solve(matrix, counts).tolist()
        return round(sum(a * b for a, b in zip(self._cost, terms(source_length, target_length), strict=True)))

    def _count(self, source_length: int, target_length: int) -> int:
        bare = {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False) for p in self.parameters()}
        model = copy.deepcopy(self, bare).eval()  # nothing is copied but the shapes
        words = [torch.zeros(1, n, dtype=torch.long, device="meta") for n in (source_length, target_length)]
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.counted(*words)
        return counter.get_total_flops()
