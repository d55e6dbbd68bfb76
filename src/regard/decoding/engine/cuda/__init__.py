"""The engine on a GPU as a writer: fixed shapes, steps recorded once as CUDA graphs and replayed, whole beams on the device.

A step of a small model is a hundred kernels, each shorter than its launch; a recorded step is one launch (`recording`). What
changes from step to step (words, position, scores, who descends from whom) therefore lies in the tensors of a `Board`, at fixed
addresses, and sizes are rounded up to few. The same code runs without recordings on any device, which is how it is tested where
no GPU is.

No cache is reordered under a beam: the rows of a sentence share one cache in which each row writes its own place, and a table
of ancestors says which places a row may see. Reading costs what it would cost anyway, and nothing is copied.
"""

from __future__ import annotations

import sys
from typing import Any

from regard.decoding.engine.cuda.cuda_engine import engine
from regard.decoding.engine.cuda.packed_weights import PRECISIONS
from regard.decoding.engine.layout import Unsupported


def on_cuda(model: Any, precision: str = "auto") -> Any:
    """The engine for a model that lies on a GPU, or the model itself where it does not fit. auto: as the weights are."""
    if precision not in ("auto", *PRECISIONS):
        print(
            f"regard: float32 instead of {precision}: a GPU computes in {' or '.join(PRECISIONS)} here",
            file=sys.stderr,
        )
        precision = "float32"
    try:
        return engine(model, PRECISIONS.get(precision))
    except Unsupported as reason:
        if precision == "bfloat16":
            print(f"regard: float32 instead of {precision}: {reason}", file=sys.stderr)
        return model
