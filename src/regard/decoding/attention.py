"""Where a model looked while it wrote a text: every layer, head and kind, for any text and however it was
found.

One teacher-forced pass over source and target computes what the steps of a search computed, so nothing has to
be kept during the search, and any kernel, cache or beam may have found the text (the tests follow a beam's
reorderings and compare).

Rows and columns. The source ends with its end mark. Row t belongs to the step that wrote token t of the
target, so a text that ended has one more row, for the end mark. That step has read <s> and the tokens before
t: they are the columns of decoder self-attention. In encoder self-attention rows and columns are the source's
    tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import arguments
from regard.attention.watching import Recorded, watch
from regard.data.tokenizer import BOS, EOS, PAD
from regard.errors import OptionError
from regard.models.autoregressive import AutoregressiveModel
from regard.models.default import as_model

KINDS = ("encoder", "decoder", "cross")  # the two self-attentions, and the decoder's looks at the source
AREA = (
    1 << 16
)  # rows × longest² of one batch: `watch` keeps queries and keys of every step of a recurrent decoder


@dataclass(frozen=True, eq=False)
class Attention(Mapping[str, Tensor]):
    """Weights by name, (heads, rows, columns), on the CPU; the names are those of `regard.watch`."""

    source: list[str]  # pieces of text, the end mark last; empty for a language model
    target: list[str]  # the piece each step wrote
    inputs: list[str]  # the piece each step had just read: <s>, then the target but for its last
    weights: dict[str, Tensor] = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return self is other  # a mapping would compare tensors, whose answer is no truth value

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.weights:
            raise OptionError(
                f"no attention is called {name!r}; there are {', '.join(self.weights) or 'none'}"
            )
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def names(self, kind: str) -> list[str]:
        """The names of one kind, lowest layer first: encoder, decoder (both self-attention) or cross."""
        if kind not in KINDS:
            raise OptionError(f"the kinds of attention are {', '.join(KINDS)}, got {kind!r}")
        return [name for name in self.weights if kind_of(name) == kind]

    def pieces(self, name: str) -> tuple[list[str], list[str]]:
        """What the rows and the columns of a matrix stand for."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.target, self.inputs),
            "cross": (self.target, self.source),
        }[kind_of(name)]

    def cross(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """(target, source): the mean over all layers and heads, or one layer's, one head's; −1 is the
        last.
        """
        found = [self.weights[name] for name in self.names("cross")]
        if not found:
            raise OptionError(
                "this model has no attention between target and source: a language model, or a decoder without any"
            )
        found = found if layer is None else [_picked("layer", found, layer)]
        heads = torch.cat(found) if head is None else torch.stack([_picked("head", x, head) for x in found])
        return heads.mean(0)

    def best_head(self) -> tuple[int, int]:
        """The layer and head of cross-attention that tells most about where it looks; see `best_head`."""
        return best_head([self])


def kind_of(name: str) -> str:
    """encoder, decoder or cross, by the name that `watch` gives."""
    if name.rsplit(".", 1)[-1] == "cross":
        return "cross"
    return "encoder" if name.split(".", 1)[0] == "encoder" else "decoder"


def _picked(what: str, found: Any, at: int) -> Any:
    if not -len(found) <= at < len(found):
        raise OptionError(
            f"{what} {at} is not there; this model's cross-attention has {len(found)}, counted from 0"
        )
    return found[at]


def best_head(attentions: Iterable[Attention]) -> tuple[int, int]:
    """The layer and head of cross-attention whose column depends most on the row, over some sentences.

    The measure is mutual information, H(mean row) − mean H(row) in nats: log of the length for a head that
    looks at one source word for each target word, 0 for one that looks everywhere and also for one that
    always looks at the end mark. (Lowest entropy alone would choose the latter.) The first of equals wins.
    """
    total: Tensor | None = None
    for attention in attentions:
        layers = [attention[name] for name in attention.names("cross")]
        if layers and attention.target:
            entropy = lambda w: torch.special.entr(w).sum(-1)  # noqa: E731
            told = torch.stack([entropy(w.double().mean(-2)) - entropy(w.double()).mean(-1) for w in layers])
            total = told if total is None else total + told
    if total is None:
        raise OptionError("there is no attention between target and source to choose a head from")
    return divmod(int(total.argmax()), total.shape[1])


def attention_maps(
    sources: Sequence[Sequence[int]] | None,
    targets: Sequence[Sequence[int]],
    model: Any = None,
    kinds: Collection[str] = KINDS,
) -> list[Attention]:
    """The attention of each pair of texts in token ids, in order; `sources` is None for a language model.

    A source's end mark is added where it is missing. A target is what was written: with the end mark if it
    ended. `model` is a folder, a loaded model, or left out for the default.
    """
    sources = None if sources is None else _token_ids("sources", sources)
    targets = _token_ids("targets", targets)
    kinds = [
        arguments.one_of("a kind", kind, KINDS)
        for kind in arguments.as_list("kinds", kinds, f"some of {', '.join(KINDS)}")
    ]
    found = dict(
        attention_of_tokens(
            sources, targets, as_model(model, "generate" if sources is None else "translate"), kinds
        )
    )
    return [found[i] for i in range(len(targets))]


def _token_ids(name: str, given: Any) -> list[list[int]]:
    what = "a list of lists of token ids"
    rows = [arguments.as_list(name, row, what) for row in arguments.as_list(name, given, what)]
    if not all(
        isinstance(token, int | np.integer) and not isinstance(token, bool) and token >= 0
        for row in rows
        for token in row
    ):
        raise OptionError(f"{name} is {what}, got {arguments.quoted(given)}")
    return rows


@torch.no_grad()
def attention_of_tokens(
    sources: Sequence[Sequence[int]] | None,
    targets: Sequence[Sequence[int]],
    model: AutoregressiveModel,
    kinds: Collection[str] = KINDS,
    skip: Callable[[int], bool] = lambda _: False,
) -> Iterator[tuple[int, Attention]]:
    """`look` one by one, each with its place: batches of like length come when asked for, so memory stays
    small.

    `skip` is asked about each pair before its batch is computed; those it is true for are left out.
    """
    read = _sources(model, sources, targets)
    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        for rows in _batches([max(len(s), len(t)) for s, t in zip(read, targets, strict=True)]):
            rows = [i for i in rows if not skip(i)]
            if not rows:
                continue
            target = _padded([[BOS, *targets[i][:-1]] for i in rows], device)
            with watch(model) as seen:
                if sources is None:
                    model(target)
                else:
                    lengths = torch.tensor([len(read[i]) for i in rows], device=device)
                    model(_padded([read[i] for i in rows], device), target, lengths)
            weights = {name: _joined(seen.calls(name)) for name in seen if kind_of(name) in kinds}
            for at, i in enumerate(rows):
                yield (
                    i,
                    _attention(
                        model, read[i], list(targets[i]), {name: w[at] for name, w in weights.items()}
                    ),
                )
    finally:
        model.train(training)


def _sources(
    model: AutoregressiveModel, sources: Sequence[Sequence[int]] | None, targets: Sequence[Sequence[int]]
) -> list[list[int]]:
    if not isinstance(model, AutoregressiveModel):
        raise OptionError(
            f"look takes a translator or a language model, got {type(model).__name__}; of an ensemble, look at each"
        )
    if (sources is None) != (model.texts == 1):
        raise OptionError(
            "a translator's attention needs sources, a language model's has none (sources=None)"
        )
    if sources is None:
        return [[] for _ in targets]
    if len(sources) != len(targets):
        raise OptionError(
            f"there are {len(sources)} sources and {len(targets)} targets; give one target for each source"
        )
    return [list(s) if s and s[-1] == EOS else [*s, EOS] for s in sources]


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Places of texts of like length, the longest first so that memory runs out at once if at all."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] ** 2 > AREA:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _padded(texts: list[list[int]], device: torch.device) -> Tensor:
    longest = max(map(len, texts))
    return torch.tensor([t + [PAD] * (longest - len(t)) for t in texts], device=device)


def _joined(calls: list[Recorded]) -> Tensor:
    """One matrix (batch, heads, rows, columns); a decoder that looks once per step made a row each time."""
    found = torch.cat([call.weights() for call in calls], -2).cpu()
    return found if found.dtype == torch.float64 else found.float()


def _attention(
    model: AutoregressiveModel, source: list[int], target: list[int], weights: dict[str, Tensor]
) -> Attention:
    """One sentence's part of a batch, padding cut off."""
    sides = {
        "encoder": (len(source), len(source)),
        "decoder": (len(target), len(target)),
        "cross": (len(target), len(source)),
    }
    cut = {}
    for name, w in weights.items():
        rows, columns = sides[kind_of(name)]
        cut[name] = w[:, :rows, :columns].clone()  # a view would keep the whole batch
    written = _pieces(model, "target_tokenizer", target)
    inputs = _pieces(model, "target_tokenizer", [BOS, *target[:-1]]) if target else []
    return Attention(_pieces(model, "source_tokenizer", source), written, inputs, cut)


def _pieces(model: AutoregressiveModel, side: str, tokens: list[int]) -> list[str]:
    tokenizer: Any = getattr(model, side, None)  # a model that was built and not loaded has none
    return [str(t) for t in tokens] if tokenizer is None else tokenizer.tokens(tokens)
