"""Without attention BLEU falls with sentence length, with attention it does not.

Row 39 of docs/lectures.md. Covers decoder.py.
"""

import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.evaluation import bleu_by_length
from regard.models.build import build

TOKENS, SHORTEST, LONGEST = 16, 4, 16


def draw(count, length, generator):
    """Copy task: sources (count, length), and targets with BOS and EOS."""
    source = torch.randint(4, 4 + TOKENS, (count, length), generator=generator)
    bos, eos = (torch.full((count, 1), token) for token in (BOS, EOS))
    return source, torch.cat([bos, source, eos], 1)


def train_to_copy(decoder, steps):
    torch.manual_seed(0)
    encoder = {"kind": "recurrent", "width": 64}
    model = build({"dim": 32, "dropout": 0.0, "encoder": encoder, "decoder": decoder}, 4 + TOKENS, 4 + TOKENS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        length = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=generator))
        source, target = draw(32, length, generator)
        scores = model(source, target[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def greedy(model, source):
    """Greedy search for as many tokens as the source has; returns texts."""
    state, token, tokens = model.start(model.encode(source), source), torch.full((len(source),), BOS), []
    for _ in range(source.shape[1]):
        scores, state = model.step(token, state)
        token = scores.argmax(-1)
        tokens.append(token)
    return [" ".join(f"w{token}" for token in row) for row in torch.stack(tokens, 1).tolist()]


def bleu_of(model):
    """BLEU of short and of long sentences."""
    generator = torch.Generator().manual_seed(1)
    outputs, references = [], []
    for length in (4, 5, 6, 14, 15, 16):
        source, _ = draw(40, length, generator)
        outputs += greedy(model, source)
        references += [" ".join(f"w{token}" for token in row) for row in source.tolist()]
    return [bucket.bleu for bucket in bleu_by_length(outputs, references, references, edges=(10,)).buckets]


@pytest.mark.slow
def test_attention_removes_the_bottleneck():
    """Both learn to repeat short sentences; only the decoder with attention also repeats long ones."""
    short, long = bleu_of(train_to_copy({"kind": "recurrent", "width": 64}, steps=500))
    assert short > 35 and long < short / 2
    short, long = bleu_of(train_to_copy({"kind": "bahdanau", "width": 64}, steps=500))
    assert short > 80 and long > 0.65 * short
