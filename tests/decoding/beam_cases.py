"""The fused update of a beam against the torch code, on random scores. Run by test_beam_kernel.py; without a
GPU, in Triton's interpreter.
"""

import sys
from collections import Counter

import torch

from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.device_beam import extend, extend_fused
from regard.decoding.limits import Limits
from regard.pipelines.translate import translate_tokens
from tests.models.small import make

LAYERS = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32}
LENGTH, START = 96, 62  # the steps cross a block of 64 columns of `past`
UPDATED = (
    "score", "last", "done", "tokens", "ended", "ended_score", "ended_row", "ended_at", "history", "parents",
    "past",
)  # fmt: skip


def start_buffers(fast_model, sentences, width, generator):
    """Buffers in the middle of a search: random scores and ancestors, limits after 1 to 7 steps."""
    buffers = fast_model.pool.take(fast_model, sentences, width, 0, LENGTH)
    limits = (1 + torch.arange(sentences) % 7).tolist()
    buffers.start_search(torch.full((sentences,), 5, device=fast_model.device), limits, START)
    score = -torch.randint(1, 9, (sentences, width), generator=generator) / 2
    buffers.score[:sentences] = score.to(buffers.score)
    past = torch.randint(0, width, (sentences, width, START), generator=generator)
    buffers.past[:sentences, :, :START] = past.to(buffers.past)
    return buffers


def draw_best(rows, k, generator):
    """Log p in steps of 1/2, so that many are equal, some −inf and NaN, and k different tokens per row."""
    log_p = -torch.randint(0, 12, (rows, k), generator=generator) / 2
    unlikely = torch.rand(rows, k, generator=generator)
    log_p[unlikely < 0.1] = -torch.inf
    log_p[unlikely > 0.97] = torch.nan
    log_p[torch.rand(rows, generator=generator) < 0.1] = -torch.inf
    log_p[torch.rand(rows, generator=generator) < 0.02] = torch.nan
    order = torch.rand(rows, 16, generator=generator)
    order[:, 0] -= 0.4  # EOS is more often among the k
    tokens = order.argsort(1)[:, :k] + EOS
    tokens = tokens.gather(1, torch.rand(rows, k, generator=generator).argsort(1))
    return log_p, tokens


def check_updates(sentences, width, k, device, steps=3):
    """Several steps in a row; all buffers are equal after each. Return what happened to sentences."""
    generator, seen = torch.Generator().manual_seed(100 * width + k), Counter()
    fast_model = engine(make(None, LAYERS).eval().float().to(device), torch.float32, fused=False)
    plain = start_buffers(fast_model, sentences, width, generator)
    fused = start_buffers(fast_model, sentences, width, generator.manual_seed(100 * width + k))
    for step in range(steps):
        log_p, tokens = (x.to(device) for x in draw_best(plain.tokens.numel(), k, generator))
        for buffers in (plain, fused):
            buffers.note_writers()
        was_done, ended, before = plain.done.clone(), plain.ended.clone(), plain.score.clone()
        extend(plain, LENGTH, log_p, tokens, EOS)
        extend_fused(fused, log_p, tokens, EOS)
        for name in UPDATED:
            expected, actual = getattr(plain, name), getattr(fused, name)
            if name.startswith("ended_"):  # the last column is scratch space
                expected, actual = expected[:, :-1], actual[:, :-1]
            assert torch.equal(actual, expected), (width, k, step, name)
        possible_ends = (before.flatten()[:, None] + log_p > -torch.inf) & (tokens == EOS)
        seen["end too late"] += int((possible_ends.view(len(ended), -1).sum(1) > plain.ended - ended).sum())
        seen["enough ended"] += int((~was_done & (plain.ended >= width)).sum())
        seen["limit"] += int((~was_done & plain.done & (plain.position + 1 >= plain.limit)).sum())
        seen["none continued"] += int((~was_done & (plain.last == -torch.inf).all(1)).sum())
        seen["continued"] += int((~plain.done).sum())
        for buffers in (plain, fused):
            buffers.position.add_(1)
    return seen


def check_all_updates(sentences, device="cpu"):
    seen = Counter()
    for width in (1, 2, 4, 5):
        for k in (1, 2 * width):
            seen += check_updates(sentences, width, k, device)
    assert len(seen) == 5 and min(seen.values()) >= 5, seen  # each case occurred
    return seen


def check_search(size):
    """Complete searches with the torch code and with the kernel give the same outputs and scores."""
    layers = {**LAYERS, "norm": "pre"}
    model = make(layers, layers, vocab=70, output_bias=True).eval().float()
    with torch.no_grad():
        model.output.projection.bias[EOS] += 2  # outputs of different lengths
    results = []
    for fused_beam in (False, True):
        fast_model = engine(model)
        fast_model.fused_beam = fused_beam
        sentences, limits = [[5, 6, 7], [9], [10, 11]], Limits(max_length=6)
        results.append(translate_tokens(fast_model, sentences, strategy=Beam(size), limits=limits))
    assert results[0] == results[1], (size, results)


if __name__ == "__main__":
    with torch.inference_mode():
        check_all_updates(sentences=7)
        for beam_size in (1, 3):
            check_search(beam_size)
    sys.exit(0)
