"""The two graphs of an ONNX export as modules with tensor inputs: encoder, and one decoder step.

The decoder state is split in two: `memory` depends on the source only; `state` (keys and values so far, or
recurrent states) is replaced by every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.kv_cache import Cache
from regard.models.memory import DecoderState, Memory
from regard.models.transformer import TransformerDecoder

Named = dict[str, Tensor]


class TensorCache(Cache):
    """A key/value cache that concatenates instead of writing in place, so that it can be traced."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self._key, self._value = key, value
        self.length = key.shape[-2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        assert self._key is not None and self._value is not None
        self._key, self._value = torch.cat([self._key, key], -2), torch.cat([self._value, value], -2)
        self.length = self._key.shape[-2]
        return self._key, self._value


class EncoderGraph(nn.Module):
    """Source and lengths → memory, and the initial state of a recurrent decoder."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor | None) -> tuple[Named, Named]:
        memory = self.model.encode(source, lengths)
        if isinstance(self.model.decoder, TransformerDecoder):
            layers: Any = self.model.decoder.layers
            pairs = [layer.cross.keys_values(memory.states, memory.states) for layer in layers]
            return {
                f"cross_{part}_{i}": x
                for i, pair in enumerate(pairs)
                for part, x in zip(("key", "value"), pair, strict=True)
            }, {}
        state = self.model.start(memory, source[:, 0])
        tensors = {"states": memory.states}
        if state.projected is not None:
            tensors["projected"] = state.projected
        return tensors, _state_tensors(state)


class DecoderGraph(nn.Module):
    """Last tokens, memory and state → scores of the next tokens, and the new state."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, lengths: Tensor | None, memory: Named, state: Named
    ) -> tuple[Tensor, Named]:
        scores, new_state = self.model.step(tokens, self._decoder_state(lengths, memory, state))
        return scores, _state_tensors(new_state)

    def _decoder_state(self, lengths: Tensor | None, memory: Named, state: Named) -> DecoderState:
        decoder = self.model.decoder
        if isinstance(decoder, TransformerDecoder):
            own = [TensorCache(state[f"key_{i}"], state[f"value_{i}"]) for i in range(len(decoder.layers))]
            if not memory:
                return DecoderState(None, caches=[(cache, Cache()) for cache in own], length=own[0].length)
            cross = [
                TensorCache(memory[f"cross_key_{i}"], memory[f"cross_value_{i}"]) for i in range(len(own))
            ]
            # Cross-attention uses these keys and values; the encoder states themselves are not needed.
            encoded = Memory(memory["cross_key_0"], lengths)
            return DecoderState(encoded, caches=list(zip(own, cross, strict=True)), length=own[0].length)
        parts = 2 if decoder.stack.cell == "lstm" else 1
        hidden = [
            tuple(state[f"hidden_{i}_{j}"] for j in range(parts)) for i in range(len(decoder.stack.widths))
        ]
        encoded = Memory(memory["states"], lengths) if memory else None
        return DecoderState(encoded, hidden, context=state.get("context"), projected=memory.get("projected"))


def _state_tensors(state: DecoderState) -> Named:
    tensors: Named = {}
    for i, (own, _) in enumerate(state.caches):
        assert own.key is not None and own.value is not None
        tensors |= {f"key_{i}": own.key, f"value_{i}": own.value}
    tensors |= {f"hidden_{i}_{j}": x for i, layer in enumerate(state.hidden) for j, x in enumerate(layer)}
    return tensors if state.context is None else tensors | {"context": state.context}


def example_state(model: Any, batch: int, past: int) -> Named:
    """Return a decoder state of the right shapes, for tracing."""
    decoder, like = model.decoder, next(model.parameters())
    if isinstance(decoder, TransformerDecoder):
        layer: Any = decoder.layers[0]
        tokens = like.new_zeros(batch, past, decoder.width)
        key, value = layer.attention.keys_values(tokens, tokens)
        return {
            f"{part}_{i}": x
            for i in range(len(decoder.layers))
            for part, x in (("key", key.detach()), ("value", value.detach()))
        }
    return {
        f"hidden_{i}_{j}": h
        for i, layer in enumerate(decoder.stack.zero_state(like.new_zeros(batch, 1)))
        for j, h in enumerate(layer)
    }
