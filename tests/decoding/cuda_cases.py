"""Models, sentences and comparisons for the tests of engine/cuda."""

import pytest
import torch

from regard.data.tokenizer import EOS
from tests.models.small import make

LAYERS = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 48}
VOCAB = 150  # more than two chunks of the vocabulary
SENTENCES = [[4 + (7 * i + 3 * j) % 140 for j in range(1 + 5 * i % 17)] for i in range(20)]
VARIANTS = {
    "post": {},
    "pre": {"norm": "pre"},
    "no norm": {"norm": "none"},
    "rms": {"norm": "pre", "norm_kind": "rms"},
    "learned positions": {"position": "learned", "max_positions": 50},
    "no positions": {"position": "none"},
    "gelu": {"activation": "gelu"},
    "swiglu": {"activation": "swiglu"},
    "untied": {"tie": "none"},
    "output bias": {"output_bias": True},
    "unscaled embeddings": {"scale_embeddings": False},
    "one layer, one head": {"layers": 1, "heads": 1},
}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def small(*, vocab=VOCAB, language=False, **changes):
    """A model in float64."""
    rest = {key: changes.pop(key) for key in ("tie", "output_bias", "scale_embeddings") if key in changes}
    spec = {**LAYERS, **changes}
    return make(None if language else spec, spec, vocab=vocab, **rest).eval()


def ends_early(**changes):
    """A model that favours the end-of-sentence token: outputs have many lengths, and some do not end."""
    model = small(output_bias=True, tie="none", **changes)
    with torch.no_grad():
        model.output.projection.bias[EOS] += 2
    return model


def as_tuples(results):
    return [[(h.tokens, h.ended, h.score, h.log_p) for h in texts] for texts in results]


def as_approx_tuples(results):
    """Expected value for `as_tuples`, with a tolerance on scores."""
    approx = lambda x: pytest.approx(x, abs=1e-10)  # noqa: E731
    return [[(h.tokens, h.ended, approx(h.score), approx(h.log_p)) for h in texts] for texts in results]


def padded(sentences):
    rows = [torch.tensor([*s, EOS]) for s in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(r) for r in rows])
