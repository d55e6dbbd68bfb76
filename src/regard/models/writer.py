"""What translators and language models share: they write a text word by word."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.data.batches import Batch
from regard.models.decoder import Carried
from regard.models.embedding import Embedding, Output
from regard.models.loss import Loss, cross_entropy
from regard.models.memory import Memory


class Writer(nn.Module):
    """p(y_t | y_<t, memory) by a decoder between the target's word vectors and the scores of all words."""

    texts = 1  # a language model takes one text, a translator two

    def __init__(self, target: Embedding, decoder: nn.Module, output: Output) -> None:
        super().__init__()
        self.target, self.decoder, self.output = target, decoder, output
        self._cost: list[float] = []

    def start(self, memory: Memory | None, batch: Tensor) -> Carried:
        """The state before the first word, for the sentences of `batch` (batch, …)."""
        return self.decoder.start(memory, batch)  # type: ignore[operator]

    def step(self, tokens: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """One more word of each sentence, (batch,) → scores of the next, (batch, vocabulary)."""
        features, carried = self.decoder.step(self.target(tokens[:, None])[:, 0], carried)  # type: ignore[operator]
        return self.output(features), carried

    def reorder(self, carried: Carried, rows: Tensor) -> Carried:
        return carried.reorder(rows)

    def predict(self, features: Tensor, labels: Tensor, smoothing: float, agreement: float = 0.0) -> Loss:
        words = self.output.words
        return cross_entropy(self.output.ready(features), words.weight, labels, smoothing, words.bias, agreement)

    def parameters_by_part(self) -> dict[str, int]:
        """How many numbers each part learns; shared ones count where they are first."""
        found: dict[str, int] = {}
        for name, p in self.named_parameters():
            part = name.split(".")[0]
            found[part] = found.get(part, 0) + p.numel()
        return found

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
        bare = {id(p): nn.Parameter(p.detach().to("meta")) for p in self.parameters()}
        model = copy.deepcopy(self, bare).eval()  # nothing is copied but the shapes
        words = [torch.zeros(1, n, dtype=torch.long, device="meta") for n in (source_length, target_length)]
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(*words[-self.texts :])
        return counter.get_total_flops()

    def loss(self, batch: Batch, smoothing: float = 0.0, state: Carried | None = None, agreement: float = 0.0) -> Loss:
        """The loss of a batch; with `agreement`, of two readings of it under different dropout (see `cross_entropy`)."""
        raise NotImplementedError
