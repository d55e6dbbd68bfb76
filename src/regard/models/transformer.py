"""The Transformer (Vaswani et al. 2017): its options, its layer, its encoder and its decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from regard.attention.call import MaskLike
from regard.attention.kernel_hints import has_plain_call
from regard.attention.position_masks import Causal
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.fused_parts import is_enabled
from regard.layers.fused_residual import Sublayer, can_fuse, run_sublayers
from regard.layers.kv_cache import Cache
from regard.layers.multihead import MultiHead, SlicedMultiHead
from regard.layers.residual import Residual, make_norm
from regard.models.attention_options import (
    ENERGIES,
    NORMALIZERS,
    POSITIONS,
    EnergyName,
    MaskOptions,
    NormalizerName,
    PositionName,
)
from regard.models.memory import DecoderState, Memory, finite_padding
from regard.models.options import DECODERS, ENCODERS, DecoderOptions, EncoderOptions, Size
from regard.models.options import Dropout as DropoutRate

CAUSAL = Causal()
Heads = MultiHead | SlicedMultiHead


@ENCODERS.add("transformer")
@DECODERS.add("transformer")
class TransformerOptions(EncoderOptions, DecoderOptions):
    """Layers of self-attention and feed-forward (Vaswani et al. 2017); their width is the model's `dim`."""

    kind: Literal["transformer"] = "transformer"
    layers: Size = Field(default=6, description="number of layers")
    heads: Size = Field(default=8, description="attention heads; must divide the width")
    key_heads: Size | None = Field(
        default=None, description="heads of keys and values, shared in groups; null: as many as heads"
    )
    inner: Size = Field(default=2048, description="width inside the feed-forward sublayer")
    norm: Literal["post", "pre", "none"] = Field(
        default="post", description="normalization after each residual sum, before each sublayer, or none"
    )
    norm_kind: Literal["layer", "rms"] = Field(default="layer", description="LayerNorm or RMSNorm")
    norm_eps: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="epsilon of the normalization; null: torch's default"
    )
    activation: Literal["relu", "gelu", "gelu-tanh", "swish", "swiglu"] = Field(
        default="relu", description="activation of the feed-forward sublayer"
    )
    position: PositionName = Field(default="sinusoidal", description="position encoding")
    max_positions: Size = Field(default=1024, description="rows of a learned position table")
    mask: MaskOptions | None = Field(
        default=None,
        description="mask of self-attention, in addition to padding (and causality, in a decoder)",
    )
    sliced: bool = Field(
        default=False,
        description="each head sees a slice of the input (Schmidt-Thieme's form) instead of a projection of "
        "all of it",
    )
    energy: EnergyName = Field(default="scaled-dot", description="energy of self-attention")
    normalize: NormalizerName = Field(default="softmax", description="normalizer of self-attention")
    dropout: DropoutRate | None = Field(
        default=None, description="dropout of embeddings and residual branches; null: the model's"
    )
    attention_dropout: DropoutRate = Field(default=0.0, description="dropout of the attention weights")
    inner_dropout: DropoutRate = Field(default=0.0, description="dropout inside the feed-forward sublayer")

    def check(self, dim: int, place: str) -> Iterator[str]:
        if dim % self.heads:
            near = max(n for n in range(1, self.heads + 1) if dim % n == 0)
            yield (
                f"{place}.heads is {self.heads}, which does not divide the width {dim}; "
                f"take {near} heads, or another width"
            )
        elif self.position == "rotary" and (dim // self.heads) % 2:
            yield (
                f"{place}.position is rotary, which turns pairs, and a head is {dim // self.heads} wide; "
                "take fewer or more heads"
            )
        if self.position == "sinusoidal" and dim % 2:
            yield (
                f"{place}.position is sinusoidal, which needs an even width, and it is {dim}; "
                "take an even one, or position: learned"
            )
        if self.key_heads and self.heads % self.key_heads:
            yield (
                f"{place}.key_heads is {self.key_heads}, which does not divide the {self.heads} heads; "
                "take one that does"
            )
        if self.sliced and self.key_heads and self.key_heads != self.heads:
            yield f"{place}.sliced gives each head its own slice, so key_heads must be left out"

    def check_decoder(self, dim: int, encoder: EncoderOptions | None, place: str) -> Iterator[str]:
        return self.check(dim, place)

    def build_encoder(self, dim: int, dropout: float) -> TransformerEncoder:
        return TransformerEncoder(**self._parts(dim, dropout, causal=False, memory_width=None))

    def build_decoder(self, dim: int, dropout: float, encoder: Any = None) -> TransformerDecoder:
        memory_width = None if encoder is None else encoder.width
        return TransformerDecoder(**self._parts(dim, dropout, causal=True, memory_width=memory_width))

    def _parts(self, dim: int, dropout: float, *, causal: bool, memory_width: int | None) -> dict[str, Any]:
        position = POSITIONS[self.position].inputs(dim, self.max_positions, self.norm_eps)
        final = make_norm(dim, "post" if self.norm == "pre" else "none", self.norm_kind, self.norm_eps)
        layers = [self._layer(dim, dropout, causal, memory_width) for _ in range(self.layers)]
        return {"layers": layers, "position": position, "norm": final, "dropout": dropout}

    def _layer(self, dim: int, dropout: float, causal: bool, memory_width: int | None) -> TransformerLayer:
        def residual() -> Residual:
            norms = {"norm": self.norm, "norm_kind": self.norm_kind, "norm_eps": self.norm_eps}
            return Residual(dim, **norms, dropout=dropout)

        feed = FeedForward(dim, self.inner, activation=self.activation, dropout=self.inner_dropout)
        head_dim, position = dim // self.heads, POSITIONS[self.position]
        options = {
            "mask": None if self.mask is None else self.mask.build(),
            "bias": position.bias(self.heads, head_dim, causal),
            "rotary": position.rotary(head_dim),
            "energy": ENERGIES[self.energy](head_dim, self.heads),
            "normalize": NORMALIZERS[self.normalize](),
            "dropout": self.attention_dropout,
        }
        if self.sliced:
            attention = SlicedMultiHead(dim, self.heads, **options)
        else:
            attention = MultiHead(dim, self.heads, key_heads=self.key_heads, **options)
        cross = None
        if memory_width is not None:
            shared = {"key_heads": self.key_heads, "dropout": self.attention_dropout}
            cross = MultiHead(dim, self.heads, memory_dim=memory_width, **shared)
        return TransformerLayer(attention, feed, residual, cross)


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention where there is a memory, feed-forward; each inside a `residual`."""

    def __init__(
        self,
        attention: Heads,
        feed: FeedForward,
        residual: Callable[[], Residual],
        cross: Heads | None = None,
    ) -> None:
        super().__init__()
        self.dim = attention.dim
        self.attention, self.around_attention = attention, residual()
        self.cross, self.around_cross = cross, None if cross is None else residual()
        self.feed, self.around_feed = feed, residual()

    def forward(
        self,
        x: Tensor,
        memory: Memory | None = None,
        *,
        mask: MaskLike | None = None,
        caches: tuple[Cache, Cache] | None = None,
    ) -> Tensor:
        for residual, sublayer in self.sublayers(memory, mask=mask, caches=caches):
            x = residual(x, sublayer)
        return x

    def sublayers(
        self,
        memory: Memory | None = None,
        *,
        mask: MaskLike | None = None,
        caches: tuple[Cache, Cache] | None = None,
    ) -> list[Sublayer]:
        """The sublayers in order: each a residual connection and the function inside it."""
        self_cache, cross_cache = (None, None) if caches is None else caches
        sublayers: list[Sublayer] = [
            (self.around_attention, lambda x: self.attention(x, mask=mask, cache=self_cache))
        ]
        if self.cross is not None and self.around_cross is not None and memory is not None:
            cross, states, padding = self.cross, memory.states, memory.finite_mask
            sublayers.append((self.around_cross, lambda x: cross(x, states, mask=padding, cache=cross_cache)))
        return [*sublayers, (self.around_feed, self.feed)]


class TransformerStack(nn.Module):
    """Base class of encoder and decoder: position encoding, dropout, layers and the final norm."""

    def __init__(
        self,
        layers: Sequence[TransformerLayer],
        *,
        position: nn.Module,
        norm: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.position, self.dropout, self.norm = position, Dropout(dropout), norm
        self.layers = nn.ModuleList(layers)
        self.width = layers[0].dim

    def run_layers(
        self,
        x: Tensor,
        memory: Memory | None = None,
        *,
        mask: MaskLike | None = None,
        state: DecoderState | None = None,
    ) -> Tensor:
        """The layers and the final norm; on a GPU with fused residual connections where they can run."""
        if state is None and (sublayers := self._fusible_sublayers(x, memory, mask)):
            return run_sublayers(x, sublayers, self.norm)
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, mask=mask, caches=None if state is None else state.caches[i])
        return self.norm(x)

    def _fusible_sublayers(
        self, x: Tensor, memory: Memory | None, mask: MaskLike | None
    ) -> list[Sublayer] | None:
        """All sublayers in order if the fused path can run them, which does not call their layers."""
        if not is_enabled("residual") or not x.is_cuda:
            return None
        for layer in self.layers:  # FSDP and activation checkpointing hook or replace layers
            if type(layer) is not TransformerLayer or not has_plain_call(layer):
                return None
        sublayers = [s for layer in self.layers for s in layer.sublayers(memory, mask=mask)]  # type: ignore[operator]
        return sublayers if can_fuse(x, [residual for residual, _ in sublayers], self.norm) else None


class TransformerEncoder(TransformerStack):
    """Encoder of Transformer layers: (batch, S, dim), lengths → Memory."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        x = self.dropout(self.position(x))
        mask = None if lengths is None else finite_padding(lengths)
        return Memory(self.run_layers(x, mask=mask), lengths)


class TransformerDecoder(TransformerStack):
    """Decoder of Transformer layers with causal self-attention and, given a memory, cross-attention."""

    can_join = False  # all rows of a cache have one length, so new sentences cannot join a running batch

    def forward(
        self, x: Tensor, memory: Memory | None = None, state: DecoderState | None = None
    ) -> tuple[Tensor, DecoderState | None]:
        start = 0 if state is None else state.length
        x = self.dropout(self.position(x, start))
        x = self.run_layers(x, memory, mask=CAUSAL, state=state)
        if state is not None:
            state.length += x.shape[1]
        return x, state

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        return DecoderState(memory, caches=[(Cache(), Cache()) for _ in self.layers])

    def step(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        features, _ = self.forward(x[:, None], state.memory, state)
        return features[:, 0], state
