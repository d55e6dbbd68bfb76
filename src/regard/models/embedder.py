"""A text embedder: one unit vector per text, close to those of texts with the same meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard import arguments
from regard.attention.devices import as_device
from regard.data.batch import Batch
from regard.data.subword_tokenizer import SubwordTokenizer
from regard.data.word_character_tokenizer import WordCharacterTokenizer
from regard.errors import FolderError, OptionError
from regard.models.chunked_loss import Loss
from regard.models.embedding import Embedding, prepend_bos
from regard.models.encoder import max_positions
from regard.models.frames import require_text
from regard.models.model import Model
from regard.models.options import MODELS, EncoderOptions, PoolingOptions, build_encoder
from regard.models.pooling import MeanPooling, MeanPoolingOptions
from regard.models.text_model import TextModelOptions
from regard.models.transformer import TransformerOptions

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LONGEST = 512  # tokens of a text that are read, unless a learned position table is shorter


@MODELS.add("embedder")
class EmbedderOptions(TextModelOptions):
    """A vector for a text."""

    kind: Literal["embedder"] = "embedder"
    encoder: EncoderOptions = Field(default=TransformerOptions(), description="the encoder")
    pooling: PoolingOptions = Field(
        default=MeanPoolingOptions(), description="how the states of a text become one vector"
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=0.05, description="cosine similarities are divided by this in training"
    )

    def check(self) -> Iterator[str]:
        yield from super().check()
        if not self.input.reads_text:
            yield f"model.input is {self.input.kind}, and an embedder reads text; leave it out"
        yield from self.pooling.check(self.encoder.width_of(self.dim), "model.pooling")

    def build(self, source_vocab: int | None, target_vocab: int) -> Embedder:
        rate = getattr(self.encoder, "embedding_dropout", 0.0)
        source = Embedding.scaled(target_vocab, self.dim, self.scale_embeddings, embedding_dropout=rate)
        encoder = build_encoder(self.encoder, self.dim, self.dropout)
        options = {"prepend_bos": self.prepend_bos, "temperature": self.temperature}
        return Embedder(source, encoder, self.pooling.build(encoder.width), **options)


class Embedder(Model):
    """pooling(encoder(embedding(tokens))), divided by its norm.

    `prepend_bos` puts BOS before a text, like BERT's CLS token. Trained on pairs of texts with the same
    meaning: −log softmax(cos(x, y)/τ) in both directions (InfoNCE, van den Oord et al. 2018, with in-batch
    negatives).
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
    def load(
        cls, name: str | Path, device: str | torch.device = "cpu", precision: str = "float32"
    ) -> Embedder:
        """Load `minilm`, the folder of a BERT-like sentence encoder, or a model folder of regard.

        >>> regard.models.Embedder.load("minilm", "cuda", "bfloat16").width  # doctest: +SKIP
        384

        Args:
            name: name or folder of the model.
            device: where the model is put.
            precision: float32, bfloat16 or float16, of weights and computation; `embed` always returns
                float32.
        """
        from regard.models import bert, catalog
        from regard.models.folder import load

        dtype, device = PRECISIONS[arguments.one_of("precision", precision, PRECISIONS)], as_device(device)
        folder = catalog.find_model(str(name))
        if (encoder := bert.encoder_folder("minilm" if str(name) == "minilm" else folder)) is not None:
            embedder = bert.read(encoder)
        elif not folder.is_dir():
            raise FolderError(
                f"there is no model {name}; give minilm, or the folder of a model, such as runs/NAME"
            )
        else:
            embedder = cls.of(load(folder))
        return embedder.to(device, dtype).eval()

    @classmethod
    def of(cls, model: Any) -> Embedder:
        """Make an embedder of any model with an encoder; an embedder is returned unchanged.

        A classifier keeps its pooling; a translator or a tagger of subwords gets mean pooling.
        """
        if isinstance(model, cls):
            return model
        if not hasattr(model, "source") or not hasattr(model, "encoder"):
            raise OptionError(
                f"a {type(model).__name__} reads no source, so it makes no document vectors; "
                "use a model with an encoder"
            )
        require_text(model, "embedding")
        if isinstance(getattr(model, "source_tokenizer", None), WordCharacterTokenizer):
            raise OptionError(
                "this tagger reads sentences that are split into words, so it makes no vectors of texts; "
                "use a translator, a classifier or an embedder"
            )
        pooling = getattr(model, "pooling", None) or MeanPooling(model.encoder.width)
        made = cls(model.source, model.encoder, pooling)
        made.prepend_bos = getattr(model, "prepend_bos", False)
        for name in ("source_tokenizer", "target_tokenizer", "config", "card"):
            if hasattr(model, name):
                setattr(made, name, getattr(model, name))
        if isinstance(tokenizer := getattr(made, "source_tokenizer", None), SubwordTokenizer):
            made.source_tokenizer = tokenizer.inner
        return made.train(model.training)

    def encode(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Tokens (batch, S) → unit vectors (batch, width); of a model in half precision, in float32."""
        pooled = self.pooling(self.encoder(self.source(tokens), lengths))
        if pooled.dtype in (torch.float16, torch.bfloat16):
            pooled = pooled.float()  # a norm of rounded numbers is not 1
        return nn.functional.normalize(pooled, dim=-1)

    def forward_for_flops(self, source: Tensor, target: Tensor) -> Tensor:
        return self.encode(source) @ self.encode(target).T

    def loss(self, batch: Batch, smoothing: float = 0.0, state: Any = None, agreement: float = 0.0) -> Loss:
        """Sums over the texts of a batch. Identical texts are not negatives of each other."""
        if agreement:
            raise OptionError(
                "agreement compares the predictions of two passes, and an embedder predicts no tokens; "
                "set it to 0"
            )
        assert batch.source is not None
        x = self.encode(*self._source(batch.source, batch.source_lengths))
        y = self.encode(*self._target(batch))
        scores = (x @ y.T).float() / self.temperature  # (batch, batch): row i should choose column i
        scores = scores.masked_fill(_is_same_text(batch), -torch.inf)
        correct = torch.arange(len(x), device=x.device)
        total, nll = (_symmetric_loss(scores, correct, e) for e in (smoothing, 0.0))
        return Loss(total, nll.detach(), len(x))

    def _source(self, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x1 … xn EOS, after BOS if `prepend_bos`."""
        return prepend_bos(tokens, lengths) if self.prepend_bos else (tokens, lengths)

    def _target(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The target of a batch, which starts with BOS, in the form of a source."""
        if self.prepend_bos:
            return batch.target, batch.target_lengths + 1
        return batch.target[:, 1:], batch.target_lengths

    @property
    def longest(self) -> int:
        """Largest number of tokens of a text, BOS and EOS included; the rest is cut off."""
        return min(LONGEST, max_positions(self.encoder) or LONGEST)

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return int(self.pooling.width)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """SHA-256 of weights, tokenizer and pooling; not of `config`, which newer versions may extend."""
        digest = hashlib.sha256(f"{self.prepend_bos} {type(self.pooling).__name__}".encode())
        tokenizer: Any = getattr(self, "source_tokenizer", None)
        digest.update(b"" if tokenizer is None else tokenizer.fingerprint.encode())
        for name, p in sorted(self.named_parameters()):
            digest.update(f"{name} {tuple(p.shape)}".encode())
            digest.update(p.detach().to("cpu", torch.float32).contiguous().numpy().data)
        return digest.hexdigest()


def _symmetric_loss(scores: Tensor, correct: Tensor, smoothing: float) -> Tensor:
    """Mean of the cross-entropies of rows over columns and of columns over rows.

    Label smoothing leaves out entries of −∞.
    """
    losses = []
    for s in (scores, scores.T):
        log_p = s.log_softmax(-1)
        nll = -log_p.gather(-1, correct[:, None]).sum()
        possible = s > -torch.inf
        mean = -(log_p.masked_fill(~possible, 0.0).sum(-1) / possible.sum(-1)).sum() if smoothing else nll
        losses.append((1 - smoothing) * nll + smoothing * mean)
    return (losses[0] + losses[1]) / 2


def _is_same_text(batch: Batch) -> Tensor:
    """Pairs (i, j), i ≠ j, with the same source or the same target text, which are not negatives."""
    assert batch.source is not None
    equal = lambda x: (x[:, None] == x[None]).all(-1)  # noqa: E731
    same = equal(batch.source) | equal(batch.target)  # (batch, batch)
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
