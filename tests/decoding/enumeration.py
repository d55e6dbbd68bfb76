"""All outputs of a tiny model with their log p by teacher forcing, to compare with searches."""

import itertools

import torch

from regard.data.tokenizer import BOS, EOS
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask
from regard.models.autoregressive import log_probabilities
from tests.models.small import DECODERS, ENCODERS, make

VOCAB = 7
TOKENS = [1, 4, 5, 6]
SOURCE = [4, 5, 6]


def tiny(decoder="transformer"):
    return make(ENCODERS["gru"], DECODERS[decoder], vocab=VOCAB).eval()


@torch.no_grad()
def all_outputs(model, limit, source=SOURCE):
    """(tokens, ended) → log p, for every output of up to `limit` tokens with the end-of-sentence token."""
    source = torch.tensor([[*source, EOS]])
    result = {}
    for n in range(limit + 1):
        outputs = torch.tensor(list(itertools.product(TOKENS, repeat=n)), dtype=torch.long).reshape(
            len(TOKENS) ** n, n
        )
        target = torch.cat([torch.full((len(outputs), 1), BOS), outputs], 1)
        log_p = log_probabilities(model(source.expand(len(outputs), -1), target))
        before = log_p[:, :n].gather(-1, outputs[..., None])[..., 0].sum(1)
        for output, p, end in zip(
            outputs.tolist(), before.tolist(), (before + log_p[:, n, EOS]).tolist(), strict=True
        ):
            if n < limit:
                result[(*output,), True] = end
            else:
                result[(*output,), False] = p
    return result


def ranked(outputs, penalty=1.0):
    """Best first by log p / lengthᵃ, as (tokens, ended), score."""
    scores = {
        (output, ended): p / max(1, len(output) + ended) ** penalty for (output, ended), p in outputs.items()
    }
    return sorted(scores.items(), key=lambda item: -item[1])


@torch.inference_mode()
def search(model, memory, first, max_lengths, strategy):
    """Search one batch of encoded sentences and return their hypotheses."""
    tasks = [SearchTask(max_length, index=i) for i, max_length in enumerate(max_lengths)]
    running = Search(model, strategy)
    running.add(tasks, model.start(memory, first), first)
    while running:
        running.step()
    return [task.hypotheses for task in tasks]


def near_ties(ours, theirs, best_two):
    """Count the outputs that differ, and those of them whose two best scores are within 1e-4."""
    differ = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    return len(differ), sum(best_two[i] < 1e-4 for i in differ)
