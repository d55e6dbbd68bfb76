"""A learned alignment: one attention head on a frozen translator, trained to agree with given links.

After SHIFT-AET (Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation"): the
query is the decoder's state at the step that *reads* a target token, the keys are the encoder's states. Links
for training come from the attention of two translators, one in each direction, so no person has to annotate.

    weights = softmax(W_q s_t · W_k h_s / √d),   loss = −Σ_t log Σ_(s linked with t) weights(t, s)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.attention.attend import weights as attention_weights
from regard.attention.position_masks import Padding
from regard.errors import DataError, FolderError, OptionError
from regard.files.atomic import atomic_path
from regard.models.folder import model_in
from regard.models.translator import Translator
from regard.pipelines.pair_states import PairBatch, TokenPairs, reading_states, stacked
from regard.pipelines.token_words import WordAlignment, word_weights
from regard.pipelines.word_links import Links

HEAD = "aligner.safetensors"  # in a model folder
BATCH_TOKENS = 4096  # target tokens, padding included


@dataclass(frozen=True)
class HeadTraining:
    """How an alignment head is trained: Adam with a linear decay of the learning rate.

    Args:
        steps: optimizer steps.
        lr: the first learning rate.
        batch_tokens: target tokens of a batch, padding included.
        layer: the decoder layer whose states are the queries, from 0; −1 is the last. By default the last but
            one: the last one is about the next token.
        seed: of the weights and of the order of the pairs.
    """

    steps: int = 1500
    lr: float = 1e-3
    batch_tokens: int = BATCH_TOKENS
    layer: int | None = None
    seed: int = 1


def decoder_layer(model: Translator, layer: int | None = None) -> int:
    """Check that a translator has this decoder layer; None is the last but one."""
    layers: Any = getattr(model.decoder, "layers", None)
    if not isinstance(model, Translator) or not isinstance(layers, nn.ModuleList):
        raise OptionError(
            "an alignment head needs a translator with a Transformer decoder; train one with "
            "model.decoder.kind=transformer"
        )
    layer = max(0, len(layers) - 2) if layer is None else layer
    if not -len(layers) <= layer < len(layers):
        raise OptionError(f"layer {layer} does not exist; this decoder has {len(layers)} layers, from 0")
    return layer


class AlignmentHead(nn.Module):
    """Attention from the states of a decoder layer, when it reads a token, to the states of the encoder."""

    def __init__(self, decoder_width: int, encoder_width: int, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.query = nn.Linear(decoder_width, decoder_width, bias=False)
        self.key = nn.Linear(encoder_width, decoder_width, bias=False)

    @classmethod
    def of(cls, model: Translator, layer: int | None = None) -> AlignmentHead:
        """A new head for a translator with a Transformer decoder."""
        layer = decoder_layer(model, layer)
        return cls(model.decoder.width, model.encoder.width, layer).to(model.device)  # type: ignore[arg-type]

    def forward(self, states: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """States (batch, T, width) and encoder states (batch, S, width) → weights (batch, T, S)."""
        query, key = self.query(states), self.key(memory)
        mask = Padding(lengths, finite=True)
        return attention_weights(query[:, None], key[:, None], mask=mask)[:, 0]

    def align_words(
        self, sources: Sequence[str], targets: Sequence[str], model: Translator
    ) -> Iterator[tuple[int, WordAlignment]]:
        """Yield the index and the weights between words of each pair, in any order."""
        pairs = TokenPairs(model, sources, targets)
        for i in range(len(sources)):
            if i not in pairs.filled:
                between = torch.zeros(len(targets[i].split()), len(sources[i].split()), dtype=torch.float64)
                yield i, WordAlignment(between, sources[i].split(), targets[i].split())
        with torch.no_grad():
            for batch in pairs.batches(BATCH_TOKENS):
                weights = self(*reading_states(model, batch, self.layer)).cpu()  # (batch, T, S)
                for row, i in enumerate(batch.rows):
                    source, target = batch.words[row]
                    between = word_weights(weights[row], source, target)
                    yield i, WordAlignment(between, source.words, target.words)

    def save(self, path: str | Path) -> None:
        """Write the weights."""
        tensors = {name: p.detach().cpu().contiguous() for name, p in self.named_parameters()}
        with atomic_path(Path(path)) as temporary:
            save_file(tensors, temporary, metadata={"layer": str(self.layer)})

    @classmethod
    def load(cls, path: str | Path, model: Translator) -> AlignmentHead:
        """Read the weights of a head for this model, from a file or from its model folder."""
        path = model_in(Path(path)) / HEAD if Path(path).is_dir() else Path(path)
        if not path.is_file():
            raise FolderError(f"there is no alignment head {path}; train one with `regard align --learn`")
        try:
            with safe_open(str(path), "pt") as stored:
                layer = int((stored.metadata() or {})["layer"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError):
            raise FolderError(f"{path} is no alignment head; train it again") from None
        head = cls.of(model, layer)
        try:
            head.load_state_dict(tensors)
        except RuntimeError:
            raise FolderError(f"{path} is an alignment head of another model; train it again") from None
        return head


def train_alignment_head(
    model: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    links: Sequence[Links],
    options: HeadTraining = HeadTraining(),  # noqa: B008 - frozen
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> AlignmentHead:
    """Train a head on the links of sentence pairs; the translator does not change.

    `report` is called with each step and its loss (nats per linked target word).
    """
    if not len(sources) == len(targets) == len(links):
        raise DataError(
            f"there are {len(sources)} sources, {len(targets)} targets and links of {len(links)} pairs; "
            "give one of each"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        head = AlignmentHead.of(model, options.layer)
    optimizer = torch.optim.Adam(head.parameters(), lr=options.lr)
    pairs, draw = TokenPairs(model, sources, targets, links), torch.Generator().manual_seed(options.seed)
    step = 0
    while step < options.steps:
        seen = step
        for batch in pairs.batches(options.batch_tokens, draw):
            for group in optimizer.param_groups:
                group["lr"] = options.lr * (1 - step / options.steps)
            loss = _loss(head, model, batch)
            if loss is None:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            report(step, float(loss.detach()))
            if step == options.steps:
                break
        if step == seen:
            raise DataError("none of the pairs has a link to learn from; give pairs with links")
    return head.eval()


def _loss(head: AlignmentHead, model: Translator, batch: PairBatch) -> Tensor | None:
    """−log of the weight on the linked source words, the mean over target words with links."""
    weights = head(*reading_states(model, batch, head.layer))  # (batch, T, S)
    source = stacked(
        [words.owner for words, _ in batch.words], weights, weights.shape[2]
    )  # (batch, S, words)
    target = stacked(
        [words.owner for _, words in batch.words], weights, weights.shape[1]
    )  # (batch, T, words)
    tokens = target.sum(1)[..., None].clamp(min=1)  # of each target word
    between = target.transpose(1, 2) @ weights @ source / tokens  # (batch, target words, source words)
    linked = torch.zeros(between.shape)
    for row, links in enumerate(batch.links):
        for s, t in links:
            linked[row, t, s] = 1
    linked = linked.to(between)
    mass = (between * linked).sum(-1)[linked.any(-1)]
    return -mass.clamp(min=1e-9).log().mean() if len(mass) else None
