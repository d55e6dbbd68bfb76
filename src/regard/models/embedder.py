"""An embedder: a text becomes one vector of length 1, and texts that mean the same come to lie close to each other."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.data.subwords import Subwords
from regard.errors import OptionError
from regard.models.embedding import Embedding, put_bos_first
from regard.models.encoder import positions
from regard.models.loss import Loss
from regard.models.model import Model
from regard.models.pooling import Mean

LONGEST = 512  # tokens of a text that are read, unless a table of positions ends before


class Embedder(Model):
    """pooling(encoder(words)), divided by its length. `prepend_bos` puts BOS in front of a text, where BERT has its CLS.

    Trained on pairs of texts that mean the same: each should find its partner among all texts of the batch,
    −log softmax(cos(x, y)/τ) in both directions (InfoNCE, van den Oord et al. 2018, with in-batch negatives).
    """

    kind = "embedder"

    def __init__(
        self,
        source: Embedding,
        encoder: nn.Module,
        pooling: nn.Module,
        *,
        prepend_bos: bool = False,
        temperature: float = 0.05,
    ) -> None:
        super().__init__()
        self.source, self.encoder, self.pooling = source, encoder, pooling
        self.prepend_bos, self.temperature = prepend_bos, temperature

    @classmethod
    def of(cls, model: Any) -> Embedder:
        """The vectors of any model that reads: an embedder is itself; a classifier lends its encoder and pooling, a translator or
        tagger its encoder, whose states are averaged.
        """
        if isinstance(model, cls):
            return model
        if not hasattr(model, "source") or not hasattr(model, "encoder"):
            raise OptionError(
                f"a {type(model).__name__} reads no source, so it makes no document vectors; use a model with an encoder"
            )
        found = cls(model.source, model.encoder, getattr(model, "pooling", None) or Mean(model.encoder.width))
        found.prepend_bos = getattr(model, "prepend_bos", False)
        for name in ("source_tokenizer", "target_tokenizer", "config", "card"):
            if hasattr(model, name):
                setattr(found, name, getattr(model, name))
        if isinstance(tokenizer := getattr(found, "source_tokenizer", None), Subwords):
            found.source_tokenizer = tokenizer.inner
        return found.train(model.training)

    def encode(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Words (batch, S) → vectors of length 1, (batch, width)."""
        pooled = self.pooling(self.encoder(self.source(tokens), lengths))
        return nn.functional.normalize(pooled, dim=-1)

    def counted(self, source: Tensor, target: Tensor) -> Tensor:
        return self.encode(source) @ self.encode(target).T

    def loss(self, batch: Batch, smoothing: float = 0.0, state: Any = None, agreement: float = 0.0) -> Loss:
        """Sums over the texts of a batch, as those of other models over its tokens. Equal texts are no negatives of each other."""
        if agreement:
            raise OptionError(
                "agreement compares two readings of a text word by word, and vectors have none; set it to 0"
            )
        assert batch.source is not None
        x = self.encode(*self._begun(batch.source, batch.source_lengths))
        y = self.encode(*self._written(batch))
        scores = (x @ y.T).float() / self.temperature  # (batch, batch): row i should choose column i
        scores = scores.masked_fill(_same(batch), -torch.inf)
        right = torch.arange(len(x), device=x.device)
        total, nll = (_both_ways(scores, right, e) for e in (smoothing, 0.0))
        return Loss(total, nll.detach(), len(x))

    def _begun(self, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x1 … xn EOS, with BOS in front where it belongs there."""
        return put_bos_first(tokens, lengths) if self.prepend_bos else (tokens, lengths)

    def _written(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The target of a batch, which begins with BOS, as a text to be read."""
        return (
            (batch.target, batch.target_lengths + 1)
            if self.prepend_bos
            else (batch.target[:, 1:], batch.target_lengths)
        )

    @property
    def longest(self) -> int:
        """How many tokens of a text are read, those at its ends included."""
        return min(LONGEST, positions(self.encoder) or LONGEST)

    @property
    def width(self) -> int:
        """Of a vector."""
        return int(self.pooling.width)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """SHA-256 of weights, tokenizer and pooling. Not of `config`, to which a newer regard may add keys."""
        found = hashlib.sha256(f"{self.prepend_bos} {type(self.pooling).__name__}".encode())
        tokenizer: Any = getattr(self, "source_tokenizer", None)
        found.update(b"" if tokenizer is None else tokenizer.fingerprint.encode())
        for name, p in sorted(self.named_parameters()):
            found.update(f"{name} {tuple(p.shape)}".encode())
            found.update(p.detach().to("cpu", torch.float32).contiguous().numpy().data)
        return found.hexdigest()


def _both_ways(scores: Tensor, right: Tensor, smoothing: float) -> Tensor:
    """The cross-entropy of rows choosing columns and of columns choosing rows, halved; what is −∞ takes no part in smoothing."""
    halves = []
    for s in (scores, scores.T):
        log_p = s.log_softmax(-1)
        own = -log_p.gather(-1, right[:, None]).sum()
        possible = s > -torch.inf
        mean = -(log_p.masked_fill(~possible, 0.0).sum(-1) / possible.sum(-1)).sum() if smoothing else own
        halves.append((1 - smoothing) * own + smoothing * mean)
    return (halves[0] + halves[1]) / 2


def build_embedder(config: dict[str, Any], vocabulary: int) -> Embedder:
    """From the `model:` section of a recipe. Weights are drawn from torch's generator."""
    from regard.models.build import make_encoder, make_pooling, make_words  # which builds embedders too

    words, encoder = (
        make_words(config["encoder"], config, vocabulary),
        make_encoder(config["encoder"], config),
    )
    pooling = make_pooling(config["pooling"], int(encoder.width))  # type: ignore[arg-type]
    return Embedder(
        words, encoder, pooling, prepend_bos=config["prepend_bos"], temperature=config["temperature"]
    )


def _same(batch: Batch) -> Tensor:
    """Pairs (i, j), i ≠ j, whose source or whose target is the very same text: they would be punished for being right."""
    assert batch.source is not None
    equal = lambda x: (x[:, None] == x[None]).all(-1)  # noqa: E731
    found = equal(batch.source) | equal(batch.target)
    return found & ~torch.eye(len(found), dtype=torch.bool, device=found.device)
