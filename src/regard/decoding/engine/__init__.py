"""Engines: faster decoders for standard Transformers, in float32, bfloat16 or int8, for the same search."""

from regard.decoding.engine.cpp_engine import Engine, fast, why_not

__all__ = ["Engine", "fast", "why_not"]
