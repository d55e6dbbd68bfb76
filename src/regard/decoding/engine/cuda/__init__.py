"""The CUDA engine: Transformers on a GPU with fixed shapes, CUDA graphs, and beam search on the device.

A step of a small model is a hundred kernels, each shorter than its launch; a captured step is one launch
(`graphs`). What changes between steps (tokens, position, scores, backpointers) is in the tensors of
`Buffers`, at fixed addresses and in few sizes. Without graphs the same code runs on any device, which is how
it is tested without a GPU.

Beam search does not reorder the cache: the rows of a sentence share one cache in which each row writes its
own column, and a table of ancestors says which columns a row may attend to.
"""

from __future__ import annotations

import sys
from typing import Any

from regard.decoding.engine.cuda.cuda_engine import engine
from regard.decoding.engine.cuda.packed_weights import PRECISIONS
from regard.decoding.engine.layout import Unsupported


def on_cuda(model: Any, precision: str = "auto") -> Any:
    """Return the engine of a model on a GPU; the model itself if unsupported.

    The precision "auto" is the dtype of the weights.
    """
    if precision not in ("auto", *PRECISIONS):
        print(
            f"regard: float32 instead of {precision}: the GPU engine runs {' or '.join(PRECISIONS)}",
            file=sys.stderr,
        )
        precision = "float32"
    try:
        return engine(model, PRECISIONS.get(precision))
    except Unsupported as reason:
        if precision == "bfloat16":
            print(f"regard: float32 instead of {precision}: {reason}", file=sys.stderr)
        return model
