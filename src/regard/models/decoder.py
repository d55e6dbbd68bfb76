"""Decoders: features of the next token from the tokens so far and the encoder output.

Every decoder has `width` (of its features), `forward` over a whole target (teacher forcing), `start` and
`step` for the search, and `can_join` (whether new sentences can join a running batch). Without a memory it is
the body of a language model. Each kind has its options (the `decoder:` block of a recipe) and, below them,
its module. The Transformer is in transformer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.errors import OptionError, ShapeError
from regard.layers.dropout import Dropout, LockedDropout
from regard.layers.recurrent import RecurrentStack, RecurrentState
from regard.models.activation_penalty import ActivationPenalty
from regard.models.attention_options import NORMALIZERS, EnergyName, NormalizerName
from regard.models.cross_attention import CROSS_ATTENTIONS, AdditiveCrossAttention, CrossAttentionOptions
from regard.models.encoder import Cell, RecurrentEncoderOptions
from regard.models.memory import DecoderState, Memory
from regard.models.options import DECODERS, DecoderOptions, EncoderOptions, NameOf, Size
from regard.models.options import Dropout as DropoutRate

PenaltyWeight = Annotated[float, Field(ge=0)]
InitialState = Literal["final", "mean", "copy"]
INITIAL_STATE = "a learned map of the encoder's final or mean state, or a copy of the final state"


@DECODERS.add("recurrent")
class RecurrentDecoderOptions(DecoderOptions):
    """A recurrent decoder; its attention stays outside the recurrence unless `input_feeding` is on."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = Field(default="gru", description="the recurrent cell")
    layers: Size = Field(default=1, description="number of layers")
    width: Size | None = Field(default=None, description="width of each layer; null: dim")
    last_width: Size | None = Field(
        default=None, description="width of the last layer, where it differs; null: width"
    )
    attention: Annotated[str, NameOf(CROSS_ATTENTIONS)] = Field(
        default="none",
        description="attention to the encoder's states by this energy, or through projections; in lectures, "
        "dot is simple, projected parameterised",
    )
    attention_width: Size | None = Field(
        default=None, description="width of queries, keys and values of a projected attention"
    )
    energy: EnergyName | None = Field(default=None, description="energy of a projected attention; null: dot")
    normalize: NormalizerName = Field(
        default="softmax", description="normalizer of the attention; none: raw scores are the weights"
    )
    input_feeding: bool = Field(
        default=False,
        description="the last attention vector is part of the next input (Luong et al. 2015)",
    )
    initial_state: InitialState = Field(default="final", description=INITIAL_STATE)
    shared_recurrence: bool = Field(
        default=False, description="use the encoder's recurrence: one W^h for encoder and decoder"
    )
    dropout: DropoutRate | None = Field(
        default=None, description="dropout of embeddings and between layers; null: the model's"
    )
    dropout_input: DropoutRate | None = Field(
        default=None, description="dropout of the embeddings, one mask per sequence; null: `dropout`"
    )
    dropout_hidden: DropoutRate | None = Field(
        default=None, description="dropout between layers, one mask per sequence; null: `dropout`"
    )
    dropout_output: DropoutRate | None = Field(
        default=None, description="dropout of the last layer, one mask per sequence; null: `dropout`"
    )
    dropout_weight: DropoutRate = Field(
        default=0.0, description="DropConnect on the recurrent matrices (Merity et al. 2018)"
    )
    embedding_dropout: DropoutRate = Field(
        default=0.0, description="dropout of whole rows of the embedding table (Gal & Ghahramani 2016)"
    )
    activation_penalty: PenaltyWeight = Field(
        default=0.0,
        description="language models: weight of the mean square of the last layer's output after dropout "
        "(AR of Merity et al. 2018, there 2); 0: off",
    )
    temporal_penalty: PenaltyWeight = Field(
        default=0.0,
        description="language models: weight of the mean squared difference between consecutive outputs of "
        "the last layer before dropout (TAR, there 1); 0: off",
    )

    def width_of(self, dim: int) -> int:
        return self.last_width or self.width or dim

    def check_decoder(self, dim: int, encoder: EncoderOptions | None, place: str) -> Iterator[str]:
        if encoder is None:
            yield from self._check_language_model(place)
        else:
            yield from self._check_translator(dim, encoder, place)
        memory_width = None if encoder is None else encoder.width_of(dim)
        equal = ("dot", "scaled-dot", "cosine")
        if self.attention in equal and memory_width not in (None, self.width_of(dim)):
            yield (
                f"{place}.attention is {self.attention}, and the encoder's states are {memory_width} wide, "
                f"the decoder's {self.width_of(dim)}; take attention: projected, which maps both, or equal "
                "widths"
            )
        if self.attention == "none" and self.input_feeding:
            yield (
                f"{place}.input_feeding is true and attention is none: there is nothing to feed; "
                "choose an attention"
            )
        if self.attention_width and self.attention != "projected":
            yield (
                f"{place}.attention_width is for attention: projected, and attention is {self.attention}; "
                "leave it out"
            )
        if self.energy and self.attention != "projected":
            yield (
                f"{place}.energy is for attention: projected, and attention is {self.attention}; leave it "
                f"out, or set attention: {self.energy}, which compares the states themselves"
            )
        if self.normalize != "softmax" and self.attention == "none":
            yield f"{place}.normalize is {self.normalize}, and attention is none; choose an attention"
        if self.last_width and self.layers == 1:
            yield f"{place}.last_width sets the last of several layers, and there is one; set width instead"
        if self.initial_state == "copy" and encoder is not None:
            yield from _check_copy(self, dim, encoder, place)

    def _check_language_model(self, place: str) -> Iterator[str]:
        if self.attention != "none" or self.input_feeding:
            yield (
                f"{place}.attention is {self.attention}, and a language model has nothing to attend to; "
                "set it to none"
            )
        if self.shared_recurrence:
            yield (
                f"{place}.shared_recurrence shares the encoder's recurrence, and a language model has no "
                "encoder; leave it out"
            )

    def _check_translator(self, dim: int, encoder: EncoderOptions, place: str) -> Iterator[str]:
        for key in ("activation_penalty", "temporal_penalty"):
            if getattr(self, key):
                yield (
                    f"{place}.{key} is {getattr(self, key):g}, and only language models have it; set it to 0"
                )
        if self.shared_recurrence:
            yield from self._check_shared(dim, encoder, place)

    def _check_shared(self, dim: int, encoder: EncoderOptions, place: str) -> Iterator[str]:
        start = f"{place}.shared_recurrence is true"
        if not isinstance(encoder, RecurrentEncoderOptions):
            yield f"{start}, and the encoder must be of kind recurrent too"
            return
        if encoder.bidirectional:
            yield f"{start}, and a decoder runs in one direction only; set model.encoder.bidirectional: false"
        for key in ("cell", "layers"):
            values = getattr(encoder, key), getattr(self, key)
            if values[0] != values[1]:
                yield f"{start}, and {key} is {values[0]} in the encoder, {values[1]} in the decoder; use one"
        if encoder.width_of(dim) != (self.width or dim) or self.last_width:
            yield f"{start}, and encoder and decoder differ in width; give both the same, and no last_width"
        if self.input_feeding:
            yield (
                f"{start}, and input feeding widens the decoder's input alone; "
                f"set {place}.input_feeding: false"
            )

    def build_decoder(self, dim: int, dropout: float, encoder: Any) -> RecurrentDecoder:
        attention: Any = None
        if encoder is not None:
            options = CrossAttentionOptions(
                self.attention_width, self.energy or "dot", NORMALIZERS[self.normalize]()
            )
            attention = CROSS_ATTENTIONS[self.attention](self.width_of(dim), encoder.width, options)
        feeds = self.input_feeding and attention is not None
        fed_width = attention.width if attention is not None and feeds else 0
        if self.shared_recurrence and encoder is not None:
            stack = _shared_stack(encoder, dim)
        else:
            stack = self._stack(dim + fed_width, self.width or dim, dropout)
        first = None if encoder is None else _initial_state(self.initial_state, encoder, stack)
        locked = {
            name: None if rate is None else LockedDropout(rate)
            for name, rate in (("input_dropout", self.dropout_input), ("output_dropout", self.dropout_output))
        }
        module = InputFeedingDecoder if feeds else RecurrentDecoder
        penalty = ActivationPenalty(self.activation_penalty, self.temporal_penalty)
        return module(
            stack, initial_state=first, attention=attention, dropout=dropout, penalty=penalty, **locked
        )

    def _stack(self, input_width: int, width: int, dropout: float) -> RecurrentStack:
        return RecurrentStack(
            input_width,
            width,
            cell=self.cell,
            layers=self.layers,
            last_width=self.last_width,
            dropout=dropout if self.dropout_hidden is None else self.dropout_hidden,
            dropout_weight=self.dropout_weight,
        )


class RecurrentDecoder(nn.Module):
    """y^d(t) = cell(y^d(t−1), y(t−1)); features y^d(t), or [y^d(t); y^a(t)] with cross-attention.

    The attention stays outside the recurrence, so all steps of a known target are computed at once.
    """

    can_join = True

    def __init__(
        self,
        stack: RecurrentStack,
        *,
        initial_state: nn.Module | None = None,
        attention: nn.Module | None = None,
        dropout: float = 0.0,
        input_dropout: nn.Module | None = None,
        output_dropout: nn.Module | None = None,
        penalty: ActivationPenalty | None = None,
    ) -> None:
        super().__init__()
        self.penalty = penalty or None  # of the features, in the loss of a language model
        self.stack, self.initial_state, self.attention = stack, initial_state, attention
        self.width = stack.width + (0 if attention is None else attention.width)  # type: ignore[operator]
        self.input_dropout = Dropout(dropout) if input_dropout is None else input_dropout
        self.output_dropout = Dropout(dropout) if output_dropout is None else output_dropout

    def initial_hidden(self, memory: Memory | None, like: Tensor) -> RecurrentState:
        """Hidden states before the first token."""
        if memory is None or self.initial_state is None:
            return self.stack.zero_state(like)
        return self.initial_state(memory)

    def forward(
        self, x: Tensor, memory: Memory | None = None, state: DecoderState | None = None
    ) -> tuple[Tensor, DecoderState]:
        y, state = self.features_before_dropout(x, memory, state)
        return self.output_dropout(y), state

    def features_before_dropout(
        self, x: Tensor, memory: Memory | None = None, state: DecoderState | None = None
    ) -> tuple[Tensor, DecoderState]:
        """`forward` without the dropout of the features; not for decoders that run step by step."""
        state = self.start(memory, x) if state is None else state
        y, hidden = self.stack(self.input_dropout(x), state.hidden)
        if self.attention is not None and state.memory is not None:
            y = torch.cat([y, self.attention(y, state.memory).to(y.dtype)], -1)
        return y, DecoderState(state.memory, hidden)

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        return DecoderState(memory, self.initial_hidden(memory, batch))

    def step(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        features, state = self.forward(x[:, None], None, state)
        return features[:, 0], state


class _StepByStep(RecurrentDecoder):
    """A decoder whose recurrence depends on the attention, so steps run one after the other."""

    def forward(
        self, x: Tensor, memory: Memory | None = None, state: DecoderState | None = None
    ) -> tuple[Tensor, DecoderState]:
        state = self.start(memory, x) if state is None else state
        steps = []
        for t in range(x.shape[1]):
            features, state = self.step(x[:, t], state)
            steps.append(features)
        return torch.stack(steps, 1), state


class InputFeedingDecoder(_StepByStep):
    """Input feeding: cell(y^d(t−1), [y(t−1); y^a(t−1)]) (Luong et al. 2015, 3.3)."""

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        hidden = self.initial_hidden(memory, batch)
        attention: Any = self.attention
        context = hidden[0][0].new_zeros(len(batch), attention.width)
        return DecoderState(memory, hidden, context=context)

    def step(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        assert state.context is not None and state.memory is not None and self.attention is not None
        fed = torch.cat([self.input_dropout(x), state.context.to(x.dtype)], -1)
        y, hidden = self.stack(fed[:, None], state.hidden)
        context = self.attention(y, state.memory)
        features = self.output_dropout(torch.cat([y, context.to(y.dtype)], -1))[:, 0]
        return features, DecoderState(state.memory, hidden, context[:, 0])


@DECODERS.add("bahdanau")
class BahdanauOptions(DecoderOptions):
    """Additive attention of the last state, whose context enters the recurrence (Bahdanau et al. 2015)."""

    kind: Literal["bahdanau"] = "bahdanau"
    cell: Cell = Field(default="gru", description="the recurrent cell")
    layers: Size = Field(default=1, description="number of layers")
    width: Size | None = Field(default=None, description="width of each layer; null: dim")
    attention_width: Size | None = Field(
        default=None, description="width inside the additive energy; null: the layer's width"
    )
    normalize: NormalizerName = Field(
        default="softmax", description="normalizer of the attention; none: raw scores are the weights"
    )
    initial_state: InitialState = Field(default="final", description=INITIAL_STATE)
    dropout: DropoutRate | None = Field(
        default=None, description="dropout of embeddings and between layers; null: the model's"
    )

    def width_of(self, dim: int) -> int:
        return self.width or dim

    def check_decoder(self, dim: int, encoder: EncoderOptions | None, place: str) -> Iterator[str]:
        if encoder is None:
            yield (
                f"{place}.kind is bahdanau, and a language model has nothing to attend to; "
                "take kind: recurrent or transformer"
            )
        elif self.initial_state == "copy":
            yield from _check_copy(self, dim, encoder, place)

    def build_decoder(self, dim: int, dropout: float, encoder: Any) -> BahdanauDecoder:
        if encoder is None:
            raise OptionError(
                "a bahdanau decoder attends to an encoder; for a language model use kind: recurrent or "
                "transformer"
            )
        width = self.width_of(dim)
        shape = {"cell": self.cell, "layers": self.layers}
        stack = RecurrentStack(dim + encoder.width, width, dropout=dropout, **shape)
        normalize = NORMALIZERS[self.normalize]()
        attention = AdditiveCrossAttention(width, encoder.width, self.attention_width or width, normalize)
        first = _initial_state(self.initial_state, encoder, stack)
        return BahdanauDecoder(dim, stack, initial_state=first, attention=attention, dropout=dropout)


class BahdanauDecoder(_StepByStep):
    """s_i = cell(s_(i−1), [y_(i−1); c_i]), c_i attended by s_(i−1) (Bahdanau et al. 2015).

    The features are [s_i; c_i; y_(i−1)].
    """

    def __init__(
        self,
        dim: int,
        stack: RecurrentStack,
        *,
        initial_state: nn.Module,
        attention: AdditiveCrossAttention,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(stack, initial_state=initial_state, attention=attention, dropout=dropout)
        self.width += dim

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        if memory is None or not isinstance(self.attention, AdditiveCrossAttention):
            raise ShapeError(
                "Bahdanau's decoder attends to an encoder; for a language model use a recurrent or "
                "Transformer decoder"
            )
        return DecoderState(
            memory, self.initial_hidden(memory, batch), projected=self.attention.project(memory)
        )

    def step(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        assert state.memory is not None and state.projected is not None and self.attention is not None
        x = self.input_dropout(x)
        context = self.attention(state.hidden[-1][0][:, None], state.memory, state.projected)[:, 0].to(
            x.dtype
        )
        y, hidden = self.stack(torch.cat([x, context], -1)[:, None], state.hidden)
        features = self.output_dropout(torch.cat([y[:, 0], context, x], -1))
        return features, DecoderState(state.memory, hidden, projected=state.projected)


class LearnedInitialState(nn.Module):
    """y^d(0) = tanh(W · s + b) for every layer, where s is the encoder's final or mean state."""

    def __init__(self, memory_width: int, stack: RecurrentStack, *, of: str = "final") -> None:
        super().__init__()
        self.of = of
        parts = 2 if stack.cell == "lstm" else 1
        self.sizes = [[w] * parts for w in stack.widths]
        self.map = nn.Linear(memory_width, sum(map(sum, self.sizes)))

    def forward(self, memory: Memory) -> RecurrentState:
        states = torch.tanh(self.map(memory.final() if self.of == "final" else memory.mean()))
        states = iter(states.split([width for layer in self.sizes for width in layer], -1))
        return [tuple(next(states) for _ in layer) for layer in self.sizes]


class CopiedInitialState(nn.Module):
    """y^d(0) = y^e(T^e): the decoder starts from the encoder's last state."""

    def forward(self, memory: Memory) -> RecurrentState:
        assert memory.last is not None  # checked when the model is built
        return memory.last


def _initial_state(kind: str, encoder: Any, stack: RecurrentStack) -> nn.Module:
    if kind != "copy":
        return LearnedInitialState(encoder.width, stack, of=kind)
    source = getattr(encoder, "stack", None)
    if not isinstance(source, RecurrentStack) or source.widths != stack.widths or source.cell != stack.cell:
        raise OptionError(
            "initial_state: copy needs an encoder with the same cell, layers and width; "
            "use initial_state: final"
        )
    return CopiedInitialState()


def _shared_stack(encoder: Any, dim: int) -> RecurrentStack:
    """The encoder's own recurrence: one W^h reads and generates."""
    stack = getattr(encoder, "stack", None)
    if not isinstance(stack, RecurrentStack) or stack.bidirectional or stack.dim != dim:
        raise OptionError(
            "shared_recurrence needs a recurrent encoder of one direction with the decoder's cell, layers "
            "and width"
        )
    return stack


def _check_copy(
    decoder: RecurrentDecoderOptions | BahdanauOptions, dim: int, encoder: EncoderOptions, place: str
) -> Iterator[str]:
    """The encoder's final state can be the decoder's initial state only if both have the same shape."""
    start = f"{place}.initial_state is copy"
    if not isinstance(encoder, RecurrentEncoderOptions):
        yield (
            f"{start}, and this encoder has no final state to copy; "
            "take initial_state: mean or final, which learn a map"
        )
        return
    width = encoder.width_of(dim)
    for key, theirs, own in (
        ("cell", encoder.cell, decoder.cell),
        ("layers", encoder.layers, decoder.layers),
        ("width", width, decoder.width or dim),
    ):
        if theirs != own:
            yield (
                f"{start}, and the encoder's {key} is {theirs} and the decoder's {own}; "
                "take initial_state: final, or make them equal"
            )
            return
    if decoder.width_of(dim) != width:
        yield (
            f"{start}, and the decoder's last layer is {decoder.width_of(dim)} wide, the encoder's {width}; "
            "take initial_state: final"
        )
