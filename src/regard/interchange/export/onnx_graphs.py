"""A model as two functions of tensors alone, which torch can write down as ONNX: read a source, and write one word more.

What a decoder keeps between steps has two parts here: `memory`, which the source decides once, and `state`, which every step
replaces: keys and values so far, or the hidden states of a recurrence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.cache import Cache
from regard.models.decoder import DecoderState, TransformerDecoder
from regard.models.memory import Memory

Named = dict[str, Tensor]


class Growing(Cache):
    """Keys and values as plain tensors; a step puts its own behind them."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self._key, self._value = key, value
        self.length = key.shape[-2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        assert self._key is not None and self._value is not None
        self._key, self._value = torch.cat([self._key, key], -2), torch.cat([self._value, value], -2)
        self.length = self._key.shape[-2]
        return self._key, self._value


class EncoderGraph(nn.Module):
    """Source and lengths → memory, and a recurrent decoder's first state."""

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
        carried = self.model.start(memory, source[:, 0])
        found = {"states": memory.states}
        if carried.projected is not None:
            found["projected"] = carried.projected
        return found, _state(carried)


class DecoderGraph(nn.Module):
    """The last word, memory and state → the scores of the next word, and the state after."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, lengths: Tensor | None, memory: Named, state: Named
    ) -> tuple[Tensor, Named]:
        carried = self._carried(lengths, memory, state)
        scores, carried = self.model.step(tokens, carried)
        return scores, _state(carried)

    def _carried(self, lengths: Tensor | None, memory: Named, state: Named) -> DecoderState:
        decoder = self.model.decoder
        if isinstance(decoder, TransformerDecoder):
            own = [Growing(state[f"key_{i}"], state[f"value_{i}"]) for i in range(len(decoder.layers))]
            if not memory:
                return DecoderState(None, caches=[(cache, Cache()) for cache in own], length=own[0].length)
            cross = [Growing(memory[f"cross_key_{i}"], memory[f"cross_value_{i}"]) for i in range(len(own))]
            # Keys and values of the source are there, so its states are not looked at any more.
            seen = Memory(memory["cross_key_0"], lengths)
            return DecoderState(seen, caches=list(zip(own, cross, strict=True)), length=own[0].length)
        parts = 2 if decoder.stack.cell == "lstm" else 1
        hidden = [
            tuple(state[f"hidden_{i}_{j}"] for j in range(parts)) for i in range(len(decoder.stack.widths))
        ]
        seen = Memory(memory["states"], lengths) if memory else None
        return DecoderState(seen, hidden, context=state.get("context"), projected=memory.get("projected"))


def _state(carried: DecoderState) -> Named:
    found: Named = {}
    for i, (own, _) in enumerate(carried.caches):
        assert own.key is not None and own.value is not None
        found |= {f"key_{i}": own.key, f"value_{i}": own.value}
    found |= {f"hidden_{i}_{j}": x for i, layer in enumerate(carried.hidden) for j, x in enumerate(layer)}
    return found if carried.context is None else found | {"context": carried.context}


def example_state(model: Any, batch: int, past: int) -> Named:
    """A state of the right sizes, to be traced with."""
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
