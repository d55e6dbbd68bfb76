"""What translators and language models share: they write a text word by word."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.data.batches import Batch
from regard.data.tokenizer import BOS, PAD
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

    def read(self, tokens: Tensor, carried: Carried) -> Carried:
        """Words that are given, (batch, T), taken in all at once: the state behind them."""
        return self.decoder(self.target(tokens), carried.memory, carried)[1]

    def best(self, tokens: Tensor, carried: Carried, k: int) -> tuple[Tensor, Tensor, Carried]:
        """One more word of each sentence → log p and numbers of the k best next words, (batch, at most k), best first."""
        scores, carried = self.step(tokens, carried)
        if k == 1:  # greedy: the place of the maximum, and one sum instead of a second matrix
            scores = writable(scores)
            top, words = scores.max(-1, keepdim=True)
            return top - scores.logsumexp(-1, keepdim=True), words, carried
        log_p, words = log_probabilities(scores).topk(min(k, scores.shape[-1]), -1)
        return log_p, words, carried

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def joins(self) -> bool:
        """Whether new sentences can join running ones: `carried.join(other)`."""
        return self.decoder.joins  # type: ignore[return-value]

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


def writable(scores: Tensor) -> Tensor:
    """Scores of at least float32 in which PAD and BOS, which nobody writes, cannot win."""
    scores = scores if scores.dtype == torch.float64 else scores.float()
    scores[..., PAD] = scores[..., BOS] = -torch.inf
    return scores


def log_probabilities(scores: Tensor) -> Tensor:
    """log p of every next word, PAD and BOS excepted."""
    return torch.log_softmax(writable(scores), -1)
