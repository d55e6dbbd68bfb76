"""The engine: a standard Transformer computed by native code, in float32, bfloat16 or int8, offered to the
one search.
"""

from regard.decoding.engine.cpp_engine import Engine, fast, why_not

__all__ = ["Engine", "fast", "why_not"]
