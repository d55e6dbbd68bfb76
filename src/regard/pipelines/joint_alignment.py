"""One alignment head over two translators, one in each direction: it sees both sentences completely.

A decoder that reads a target word has not seen the words behind it. The encoder of the other direction has,
since there the target is the source. So a word is described by two states, of the encoder that reads its
sentence and of the decoder that generates it, after Zenkel et al. 2020 ("End-to-End Neural Word Alignment
Outperforms GIZA++"), who align with the full context of both sides. As in SHIFT-AET (Chen et al. 2020) the
translators do not change, and the links to learn come from their own attention.

    q_t = W_q [encoder of the backward model; decoder of the forward model](t)      of a target word
    k_s = W_k [encoder of the forward model; decoder of the backward model](s)      of a source word
    forward(t, s) = softmax_s(q_t · k_s / √d),   backward(s, t) = softmax_t(q_t · k_s / √d)
    loss = −Σ_t log Σ_(s linked with t) forward(t, s) − Σ_s log Σ_(t linked with s) backward(s, t)

States of tokens are averaged over each word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.attention.attend import weights as attention_weights
from regard.attention.position_masks import Padding
from regard.errors import DataError, FolderError
from regard.files.atomic import atomic_path
from regard.models.folder import model_in
from regard.models.translator import Translator
from regard.pipelines.alignment_head import BATCH_TOKENS, HeadTraining, decoder_layer
from regard.pipelines.pair_states import PairBatch, TokenPairs, reading_states, stacked
from regard.pipelines.word_links import Links

JOINT = "joint-aligner.safetensors"  # in the folder of the forward model


class WordStates(NamedTuple):
    """States of the words of some pairs (batch, words, features), and the numbers of words."""

    target: Tensor
    source: Tensor
    targets: Tensor
    sources: Tensor


class JointAlignmentHead(nn.Module):
    """Attention between the words of a sentence and its translation, by the states of two translators."""

    def __init__(
        self, forward_widths: tuple[int, int], backward_widths: tuple[int, int], layers: Any
    ) -> None:
        """`…_widths` are those of encoder and decoder; `layers` the decoder layer of each translator."""
        super().__init__()
        self.layers = (int(layers[0]), int(layers[1]))
        target, source = backward_widths[0] + forward_widths[1], forward_widths[0] + backward_widths[1]
        dim = forward_widths[1]
        self.query = nn.Sequential(nn.LayerNorm(target), nn.Linear(target, dim, bias=False))
        self.key = nn.Sequential(nn.LayerNorm(source), nn.Linear(source, dim, bias=False))

    @classmethod
    def of(
        cls, forward: Translator, backward: Translator, layers: tuple[int | None, int | None] = (None, None)
    ) -> JointAlignmentHead:
        """A new head for two translators with Transformer decoders, source to target and target to source."""
        models = (forward, backward)
        chosen = [decoder_layer(model, layer) for model, layer in zip(models, layers, strict=True)]
        widths: list[Any] = [(model.encoder.width, model.decoder.width) for model in models]  # type: ignore[union-attr]
        return cls(widths[0], widths[1], chosen).to(forward.device)

    def forward(self, states: WordStates) -> tuple[Tensor, Tensor]:
        """Weights (batch, target words, source words) and (batch, source words, target words)."""
        query, key = self.query(states.target)[:, None], self.key(states.source)[:, None]
        by_target = attention_weights(query, key, mask=Padding(states.sources))
        by_source = attention_weights(key, query, mask=Padding(states.targets))
        return by_target[:, 0], by_source[:, 0]

    @torch.no_grad()
    def align_words(
        self, sources: Sequence[str], targets: Sequence[str], forward: Translator, backward: Translator
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the index of each pair, in any order, with its weights (target words, source words) and
        (source words, target words), in float64.
        """
        pairs = JointPairs(forward, backward, sources, targets)
        for i in set(range(len(sources))) - pairs.filled:
            empty = torch.zeros(len(targets[i].split()), len(sources[i].split()), dtype=torch.float64)
            yield i, empty, empty.T.contiguous()
        for batch, states in pairs.batches(self.layers, BATCH_TOKENS):
            by_target, by_source = (weights.double().cpu() for weights in self(states))
            for row, i in enumerate(batch.rows):
                T, S = int(states.targets[row]), int(states.sources[row])
                yield i, by_target[row, :T, :S], by_source[row, :S, :T]

    def save(self, path: str | Path) -> None:
        """Write the weights."""
        tensors = {name: p.detach().cpu().contiguous() for name, p in self.named_parameters()}
        layers = {"forward": str(self.layers[0]), "backward": str(self.layers[1])}
        with atomic_path(Path(path)) as temporary:
            save_file(tensors, temporary, metadata=layers)

    @classmethod
    def load(cls, path: str | Path, forward: Translator, backward: Translator) -> JointAlignmentHead:
        """Read the weights of a head for these two models, from a file or from the forward model's folder."""
        path = model_in(Path(path)) / JOINT if Path(path).is_dir() else Path(path)
        if not path.is_file():
            raise FolderError(
                f"there is no joint alignment head {path}; train one with `regard align --learn --joint`"
            )
        try:
            with safe_open(str(path), "pt") as stored:
                metadata = stored.metadata() or {}
                layers = int(metadata["forward"]), int(metadata["backward"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError):
            raise FolderError(f"{path} is no joint alignment head; train it again") from None
        head = cls.of(forward, backward, layers)
        try:
            head.load_state_dict(tensors)
        except RuntimeError:
            raise FolderError(f"{path} is an alignment head of other models; train it again") from None
        return head.eval()


class JointPairs:
    """Sentence pairs as both translators read them."""

    def __init__(
        self,
        forward: Translator,
        backward: Translator,
        sources: Sequence[str],
        targets: Sequence[str],
        links: Sequence[Links] = (),
    ) -> None:
        self.models = (forward, backward)
        self.pairs = TokenPairs(forward, sources, targets, links)
        self.reversed = TokenPairs(backward, targets, sources)
        self.filled = self.pairs.filled & self.reversed.filled
        self.pairs.filled = self.filled

    def batches(
        self, layers: tuple[int, int], tokens: int, draw: torch.Generator | None = None
    ) -> Iterator[tuple[PairBatch, WordStates]]:
        """Yield batches of similar length with the states of their words; with `draw` in random order."""
        for batch in self.pairs.batches(tokens, draw):
            other = self.reversed.batch(batch.rows)
            decoder, encoder, _ = reading_states(self.models[0], batch, layers[0])
            other_decoder, other_encoder, _ = reading_states(self.models[1], other, layers[1])
            target = [(other_encoder, other, 0), (decoder, batch, 1)]
            source = [(encoder, batch, 0), (other_decoder, other, 1)]
            counts = torch.tensor([[len(t.words), len(s.words)] for s, t in batch.words])
            targets, sources = counts.to(encoder.device).unbind(1)
            queries, keys = (
                torch.cat([_of_words(*part) for part in parts], -1) for parts in (target, source)
            )
            yield batch, WordStates(queries, keys, targets, sources)


def _of_words(states: Tensor, batch: PairBatch, side: int) -> Tensor:
    """The mean of the states of each word's tokens: (batch, tokens, width) → (batch, words, width)."""
    owner = stacked([words[side].owner for words in batch.words], states, states.shape[1])
    return owner.transpose(1, 2) @ states / owner.sum(1)[..., None].clamp(min=1)


def train_joint_head(
    forward: Translator,
    backward: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    links: Sequence[Links],
    options: HeadTraining = HeadTraining(),  # noqa: B008 - frozen
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> JointAlignmentHead:
    """Train a head on the links of sentence pairs; the translators do not change.

    `report` is called with each step and its loss (nats per linked word, the sum of both directions).
    """
    if not len(sources) == len(targets) == len(links):
        raise DataError(
            f"there are {len(sources)} sources, {len(targets)} targets and links of {len(links)} pairs; "
            "give one of each"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        head = JointAlignmentHead.of(forward, backward, (options.layer, options.layer))
    optimizer = torch.optim.Adam(head.parameters(), lr=options.lr)
    draw = torch.Generator().manual_seed(options.seed)
    pairs, steps = JointPairs(forward, backward, sources, targets, links), count(1)
    done = 0
    while done < options.steps:
        before = done
        for batch, states in pairs.batches(head.layers, options.batch_tokens, draw):
            if not any(batch.links):
                continue
            for group in optimizer.param_groups:
                group["lr"] = options.lr * (1 - done / options.steps)
            loss = _loss(head(states), batch.links)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done = next(steps)
            report(done, float(loss.detach()))
            if done == options.steps:
                break
        if done == before:
            raise DataError("none of the pairs has a link to learn from; give pairs with links")
    return head.eval()


def _loss(weights: tuple[Tensor, Tensor], links: list[Links]) -> Tensor:
    """−log of the weight on linked words, the mean over words with links, for both directions."""
    linked = torch.zeros(weights[0].shape)
    for row, pairs in enumerate(links):
        for s, t in pairs:
            linked[row, t, s] = 1
    linked = linked.to(weights[0])
    masses = [(w * x).sum(-1)[x.any(-1)] for w, x in zip(weights, (linked, linked.mT), strict=True)]
    return -torch.stack([mass.clamp(min=1e-9).log().mean() for mass in masses]).sum()
