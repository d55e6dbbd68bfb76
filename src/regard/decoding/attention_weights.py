"""The attention weights of a translator or language model for given texts: every layer, head and kind.

One forward pass with teacher forcing over source and target computes the same weights as the steps of a
search, so nothing is stored during the search, and any kernel, cache or beam may have found the text.

Rows and columns: the source ends with its end-of-sentence token. Row t belongs to the step that generates
token t of the target; a text that ended has one more row, for the end-of-sentence token. That step has read
<s> and the tokens before t, which are the columns of decoder self-attention.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import arguments
from regard.attention.diversity import HeadDiversity, head_diversity
from regard.attention.watching import Recorded, watch
from regard.data.padding import pad_frames
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decoding.batching import evaluation_mode
from regard.errors import OptionError
from regard.models.autoregressive import AutoregressiveModel
from regard.models.default import as_model
from regard.models.frames import FrameProjection
from regard.pictures.attention_views import attention_picture
from regard.pictures.picture import Picture
from regard.pictures.pictured import Pictured
from regard.pictures.shown_layers import ShownLayer, show_layers

KINDS = ("encoder", "decoder", "cross")  # two self-attentions and cross-attention
SHOWN_FIRST = ("cross", "pooling", "decoder", "encoder")  # the kind that a picture shows by default
TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
    "pooling": "attention pooling",
}
AXES = {  # what rows and columns are
    "encoder": ("query", "key"),
    "decoder": ("generates", "has read"),
    "cross": ("target", "source"),
    "pooling": ("query", "token"),
}
# Rows × longest² of one batch: `watch` keeps queries and keys of every step of a recurrent decoder.
MAX_AREA = 1 << 16


@dataclass(frozen=True, eq=False)
class AttentionMaps(Pictured, Mapping[str, Tensor]):
    """The attention weights of one text: a mapping from names, as in `regard.watch`, to (heads, rows,
    columns).

    `plot`, `save` and notebooks draw them; see `picture`.

    Attributes:
        source: tokens of the source, the end-of-sentence token last; empty for a language model.
        target: the token that each step generates.
        inputs: the token that each step reads: <s>, then the target without its last token.
        weights: the weights by name, on the CPU.
    """

    source: list[str]
    target: list[str]
    inputs: list[str]
    weights: dict[str, Tensor] = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return self is other  # comparing the tensors of a mapping gives no truth value

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.weights:
            raise OptionError(
                f"there is no attention {name!r}; there are {', '.join(self.weights) or 'none'}"
            )
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def names(self, kind: str) -> list[str]:
        """Return the names of one kind (encoder, decoder, cross or pooling), lowest layer first."""
        if kind not in TITLES:
            raise OptionError(f"the kinds of attention are {', '.join(TITLES)}, got {kind!r}")
        return [name for name in self.weights if kind_of(name) == kind]

    def pieces(self, name: str) -> tuple[list[str], list[str]]:
        """Return the tokens of the rows and of the columns of a matrix."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.target, self.inputs),
            "cross": (self.target, self.source),
            "pooling": ([f"query {i}" for i in range(self[name].shape[-2])], self.source),
        }[kind_of(name)]

    def cross(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """Return cross-attention (target, source): of a layer and head, or the mean over all; −1 is the
        last.
        """
        layers = [self.weights[name] for name in self.names("cross")]
        if not layers:
            raise OptionError(
                "this model has no cross-attention: it is a language model, or its decoder has none"
            )
        if layer is not None:
            layers = [_select("layer", layers, layer)]
        if head is not None:
            return torch.stack([_select("head", weights, head) for weights in layers]).mean(0)
        return torch.cat(layers).mean(0)

    def head_diversity(self, name: str) -> HeadDiversity:
        """How different the heads of a layer are; see `regard.attention.head_diversity`."""
        return head_diversity(self[name])

    def picture(
        self,
        view: str | None = None,
        *,
        kind: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        title: str = "",
    ) -> Picture:
        """Return a picture of the weights, which a notebook shows; `save` and `plot` take the same options.

        >>> translation = regard.translate("Where is my book?", "tatoeba-en-de-bahdanau", attention=True)
        >>> translation.attention.picture("lines").save("book.svg").name
        'book.svg'

        Args:
            view: "heatmap" (the default), "lines", "grid" with a matrix for each layer and head, or "text",
                the default for attention pooling.
            kind: "encoder", "decoder", "cross" or "pooling"; by default cross-attention if there is any,
                then attention pooling, then self-attention.
            layer: a layer, from 0; by default the mean of all, in a grid all; −1 is the last.
            head: a head, from 0; by default the mean of all, in a grid all; −1 is the last.
            title: the headline; by default the text.
        """
        kind = self._kind(kind)
        names = self.names(kind)
        if layer is not None:
            names = [_select("layer", names, layer, TITLES[kind])]
        shown = {f"layer {self.names(kind).index(name)}": self[name] for name in names}
        which = next(iter(shown)) if layer is not None else f"mean of {len(names)} layers"
        note = TITLES[kind] if len(self.names(kind)) == 1 or view == "grid" else f"{TITLES[kind]}, {which}"
        if view is None and kind == "pooling":
            view = "text"
        rows, columns = self.pieces(names[0])
        return attention_picture(
            shown,
            view,
            rows=rows,
            columns=columns,
            head=head,
            title=title or ("" if view == "text" else self._title(kind)),  # text shows its tokens anyway
            note=note,
            axes=AXES[kind],
        )

    def show(
        self, *, kind: str | None = None, layer: int | None = None, head: int | None = None, title: str = ""
    ) -> Any:
        """Show the weights: in a notebook an interactive view of all layers and heads, elsewhere text.

        In a terminal, cells are coloured unless NO_COLOR is set.

        >>> translation = regard.translate("Where is my book?", "tatoeba-en-de-bahdanau", attention=True)
        >>> translation.attention.show(layer=0, head=0)  # doctest: +SKIP

        Args:
            kind: "encoder", "decoder", "cross" or "pooling"; by default all, and that of `picture` first.
            layer: a layer of that kind, from 0; by default all, and the last one first; −1 is the last.
            head: the head that is shown first, from 0; by default the mean of all.
            title: the headline; by default the text.

        Returns:
            In a notebook the view; with anywidget (`pip install "regard[notebook]"`) `view.choice` is what
            is chosen in it. Elsewhere None.
        """
        first_kind = self._kind(kind)
        first = _select("layer", self.names(first_kind), -1 if layer is None else layer, TITLES[first_kind])
        if layer is not None:
            names = [first]
        else:
            names = [name for k in TITLES if kind in (None, k) for name in self.names(k)]
        layers = [
            ShownLayer(
                f"{TITLES[kind_of(name)]}, layer {self.names(kind_of(name)).index(name)}",
                self[name],
                *self.pieces(name),
                AXES[kind_of(name)],
            )
            for name in names
        ]
        return show_layers(layers, names.index(first), head, title or self._title(first_kind))

    def _kind(self, kind: str | None) -> str:
        """The kind to draw; an error if the model has none of it."""
        there = [k for k in SHOWN_FIRST if self.names(k)]
        if not there:
            raise OptionError("this model has no attention to draw; use one with attention")
        if kind is not None and not self.names(kind):
            raise OptionError(f"this model has no {TITLES[kind]}; kind can be {', '.join(there)}")
        return there[0] if kind is None else kind

    def _title(self, kind: str) -> str:
        sides = {"cross": (self.source, self.target), "decoder": (self.target,)}.get(kind, (self.source,))
        return " → ".join(map(_text, sides))

    def best_head(self) -> tuple[int, int]:
        """Return the layer and head of cross-attention with the highest mutual information; see
        `best_head`.
        """
        return best_head([self])


def _text(tokens: Sequence[str]) -> str:
    """The text of tokens, which are words or have ▁ for spaces."""
    kept = [token for token in tokens if token not in ("<s>", "</s>")]
    between = "" if any("▁" in token for token in kept) else " "
    return " ".join(between.join(kept).replace("▁", " ").split())


def kind_of(name: str) -> str:
    """Return the kind (encoder, decoder, cross or pooling) of a name of `watch`."""
    if name.split(".", 1)[0] == "pooling":
        return "pooling"
    if name.rsplit(".", 1)[-1] == "cross":
        return "cross"
    return "encoder" if name.split(".", 1)[0] == "encoder" else "decoder"


def _select(name: str, values: Any, index: int, where: str = "cross-attention") -> Any:
    if isinstance(index, bool) or not isinstance(index, int):
        raise OptionError(f"{name} must be an integer from 0, got {index!r}")
    if not -len(values) <= index < len(values):
        raise OptionError(
            f"{name} {index} does not exist; this model's {where} has {len(values)}, counted from 0"
        )
    return values[index]


def best_head(attentions: Iterable[AttentionMaps]) -> tuple[int, int]:
    """Return the layer and head of cross-attention with the highest mutual information between row and
    column.

    Mutual information is H(mean row) − mean H(row) in nats, summed over the texts: log of the length for a
    head that attends to one source token for each target token; 0 for a head that attends everywhere, and
    also for one that always attends to the end-of-sentence token. (The lowest entropy would choose the
    latter.) The first of equals wins.
    """
    total: Tensor | None = None
    for attention in attentions:
        layers = [attention[name].double() for name in attention.names("cross")]
        if layers and attention.target:
            information = torch.stack([_entropy(w.mean(-2)) - _entropy(w).mean(-1) for w in layers])
            total = information if total is None else total + information  # (layers, heads)
    if total is None:
        raise OptionError("there is no cross-attention to choose a head from")
    return divmod(int(total.argmax()), total.shape[1])


def _entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights).sum(-1)


def attention_maps(
    sources: Sequence[Sequence[int]] | None,
    targets: Sequence[Sequence[int]],
    model: Any = None,
    kinds: Collection[str] = KINDS,
) -> list[AttentionMaps]:
    """Return the attention weights of texts given as token ids, in order.

    >>> model = regard.load("tatoeba-en-de-bahdanau")
    >>> source, target = model.source_tokenizer.encode("a dog"), model.target_tokenizer.encode("ein Hund")
    >>> (maps,) = regard.decoding.attention_maps([source], [[*target, 3]], model)
    >>> maps.cross().shape
    torch.Size([3, 3])

    Args:
        sources: the sources of a translator; None for a language model. The end-of-sentence token is added if
            missing.
        targets: the outputs, with the end-of-sentence token if they ended.
        model: a model folder or a loaded model; by default the folder in REGARD_MODEL.
        kinds: some of encoder, decoder and cross.
    """
    if sources is not None and not _are_frames(sources):
        sources = _token_ids("sources", sources)
    targets = _token_ids("targets", targets)
    kinds = arguments.as_list("kinds", kinds, f"some of {', '.join(KINDS)}")
    for kind in kinds:
        arguments.one_of("a kind", kind, KINDS)
    model = as_model(model, "generate" if sources is None else "translate")
    maps = dict(attention_of_tokens(sources, targets, model, kinds))
    return [maps[i] for i in range(len(targets))]


def _are_frames(sources: Any) -> bool:
    """True for sequences of frames: lists or arrays of vectors instead of token ids."""
    return isinstance(sources, list | tuple) and any(np.ndim(row) == 2 for row in sources)


def _token_ids(name: str, value: Any) -> list[list[int]]:
    expected = "a list of lists of token ids"
    rows = [arguments.as_list(name, row, expected) for row in arguments.as_list(name, value, expected)]
    for row in rows:
        for token in row:
            if not isinstance(token, int | np.integer) or isinstance(token, bool) or token < 0:
                raise OptionError(f"{name} is {expected}, got {arguments.quoted(value)}")
    return rows


@torch.no_grad()
def attention_of_tokens(
    sources: Sequence[Sequence[int]] | None,
    targets: Sequence[Sequence[int]],
    model: AutoregressiveModel,
    kinds: Collection[str] = KINDS,
    skip: Callable[[int], bool] = lambda _: False,
    first: int = BOS,
) -> Iterator[tuple[int, AttentionMaps]]:
    """Yield the index and the weights of each text, in batches by length; only one batch is in memory.

    `skip` is called with the index of each text before its batch is computed; True leaves it out. `first` is
    the token that the decoder reads first.
    """
    encoded = _check_sources(model, sources, targets)
    device = next(model.parameters()).device
    with evaluation_mode(model):
        for batch in _batches([max(len(s), len(t)) for s, t in zip(encoded, targets, strict=True)]):
            batch = [i for i in batch if not skip(i)]
            if not batch:
                continue
            target = _padded([[first, *targets[i][:-1]] for i in batch], device)
            with watch(model) as recorded:
                if sources is None:
                    model(target)
                else:
                    lengths = torch.tensor([len(encoded[i]) for i in batch], device=device)
                    model(_padded([encoded[i] for i in batch], device), target, lengths)
            weights = {
                name: _concatenate(recorded.calls(name)) for name in recorded if kind_of(name) in kinds
            }
            for row, i in enumerate(batch):
                of_row = {name: w[row] for name, w in weights.items()}
                yield i, _unpadded(model, encoded[i], list(targets[i]), of_row, first)


def _check_sources(
    model: AutoregressiveModel, sources: Sequence[Sequence[int]] | None, targets: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the sources with their end-of-sentence tokens; empty ones for a language model."""
    if not isinstance(model, AutoregressiveModel):
        raise OptionError(
            f"attention_maps needs a translator or a language model, got {type(model).__name__}; "
            "for an ensemble, call it for each model"
        )
    if (sources is None) != (model.num_inputs == 1):
        raise OptionError("sources must be given for a translator, and be None for a language model")
    if sources is None:
        return [[] for _ in targets]
    if len(sources) != len(targets):
        raise OptionError(
            f"there are {len(sources)} sources and {len(targets)} targets; give one target for each source"
        )
    if isinstance(getattr(model, "source", None), FrameProjection):
        return [list(s) for s in sources]
    return [list(s) if s and s[-1] == EOS else [*s, EOS] for s in sources]


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Yield indices of texts of similar length, longest first: if memory is too small this shows at once."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] ** 2 > MAX_AREA:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _padded(texts: list[list[Any]], device: torch.device) -> Tensor:
    longest = max(map(len, texts))
    if np.ndim(texts[0][0]):
        return torch.from_numpy(pad_frames(texts)[0]).to(device)
    return torch.tensor([t + [PAD] * (longest - len(t)) for t in texts], device=device)


def _concatenate(calls: list[Recorded]) -> Tensor:
    """Return one matrix (batch, heads, rows, columns); a recurrent decoder has one call per row."""
    weights = torch.cat([call.weights() for call in calls], -2).cpu()
    return weights if weights.dtype == torch.float64 else weights.float()


def _unpadded(
    model: AutoregressiveModel, source: list[int], target: list[int], weights: dict[str, Tensor], first: int
) -> AttentionMaps:
    """Return the weights of one text without padding."""
    sizes = {
        "encoder": (len(source), len(source)),
        "decoder": (len(target), len(target)),
        "cross": (len(target), len(source)),
    }
    cropped = {}
    for name, w in weights.items():
        rows, columns = sizes[kind_of(name)]
        cropped[name] = w[:, :rows, :columns].clone()  # a view would keep the whole batch in memory
    inputs = [first, *target[:-1]] if target else []
    source_pieces = _pieces(model, "source_tokenizer", source)
    target_pieces, input_pieces = (_pieces(model, "target_tokenizer", ids) for ids in (target, inputs))
    return AttentionMaps(source_pieces, target_pieces, input_pieces, cropped)


def _pieces(model: AutoregressiveModel, side: str, tokens: list[int]) -> list[str]:
    tokenizer: Any = getattr(model, side, None)  # only a loaded model has tokenizers
    return [str(t) for t in tokens] if tokenizer is None else tokenizer.tokens(tokens)
