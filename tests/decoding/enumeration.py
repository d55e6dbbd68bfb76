"""All outputs of a tiny model with their log p by teacher forcing, to compare with searches."""

import itertools

import torch

from regard.data.tokenizer import BOS, EOS
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask
from regard.models.autoregressive import log_probabilities
from tests.models.small import DECODERS, ENCODERS, make

VOCAB = 7
WORDS = [1, 4, 5, 6]
SOURCE = [4, 5, 6]


def tiny(decoder="transformer"):
    return make(ENCODERS["gru"], DECODERS[decoder], vocab=VOCAB).eval()


@torch.no_grad()
def every_text(model, limit, source=SOURCE):
    """(words, ended) → log p, for every output of up to `limit` tokens with the end-of-sentence token."""
    source = torch.tensor([[*source, EOS]])
    result = {}
    for n in range(limit + 1):
        texts = torch.tensor(list(itertools.product(WORDS, repeat=n)), dtype=torch.long).reshape(
            len(WORDS) ** n, n
        )
        target = torch.cat([torch.full((len(texts), 1), BOS), texts], 1)
        log_p = log_probabilities(model(source.expand(len(texts), -1), target))
        before = log_p[:, :n].gather(-1, texts[..., None])[..., 0].sum(1)
        for text, p, end in zip(
            texts.tolist(), before.tolist(), (before + log_p[:, n, EOS]).tolist(), strict=True
        ):
            if n < limit:
                result[(*text,), True] = end
            else:
                result[(*text,), False] = p
    return result


def ranked(texts, penalty=1.0):
    """Best first by log p / lengthᵃ, as (words, ended), score."""
    scores = {(text, ended): p / max(1, len(text) + ended) ** penalty for (text, ended), p in texts.items()}
    return sorted(scores.items(), key=lambda item: -item[1])


@torch.inference_mode()
def search(model, memory, first, max_lengths, strategy):
    """The hypotheses of sentences that are encoded already, one batch."""
    tasks = [SearchTask(max_length, index=i) for i, max_length in enumerate(max_lengths)]
    running = Search(model, strategy)
    running.add(tasks, model.start(memory, first), first)
    while running:
        running.step()
    return [task.hypotheses for task in tasks]


def near_ties(ours, theirs, best_two):
    """How many outputs differ, and how many of these where the two best scores lie within 1e-4 of each
    other.
    """
    differ = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    return len(differ), sum(best_two[i] < 1e-4 for i in differ)
