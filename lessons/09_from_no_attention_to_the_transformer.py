# %% [markdown]
# # Lesson 9: From no attention to the Transformer
#
# Six translators, each a small step from the one before: no attention, raw scores, softmax, parameterised,
# Bahdanau, Transformer. On one task and with the same training, the first steps gain most.
#
# Sources: *Deep Learning IX* for the first four, Bahdanau et al. 2015, Vaswani et al. 2017.

# %%
import torch
from torch import nn

import regard
from regard.lessons import by_size, expect, read_log, show
from regard.lessons.poster import Poster
from regard.pictures import LineChart
from regard.recipe import load_recipe

# %% [markdown]
# ## A few keys of a recipe
# Each step is a recipe (`regard train multi30k-de-en-dot` and so on). These are the keys of the decoder:

# %%
STEPS = {
    "no attention": ("no-attention", []),
    "raw scores": ("dot", ["model.decoder.normalize=none"]),
    "softmax": ("dot", []),
    "parameterised": ("projected", []),
    "Bahdanau": ("bahdanau", []),
    "Transformer": ("transformer", []),
}
for title, (name, overrides) in STEPS.items():
    decoder = load_recipe(f"multi30k-de-en-{name}", overrides).model.decoder
    shown = {
        key: getattr(decoder, key) for key in ("kind", "attention", "normalize") if hasattr(decoder, key)
    }
    print(f"{title:14}", *(f"{key}: {value:12}" for key, value in shown.items()))

# %% [markdown]
# Up to *parameterised*, only the attention of the decoder changes:
#
# | model | attention of the decoder at step t |
# |---|---|
# | no attention | none: the output is computed from the state y^d(t) |
# | raw scores | a(t) = [y^e]ᵀ y^d(t), y^a(t) = [y^e] a(t), output from [y^d(t); y^a(t)] |
# | softmax | a₁(t) = softmax(a(t)) instead of a(t) |
# | parameterised | W^Q y^d(t), W^K [y^e] and W^V [y^e] instead of the states |
# | Bahdanau | additive energy, and the context is an input of the recurrence |
# | Transformer | self-attention instead of the recurrence |

# %% [markdown]
# ## Why raw scores are not enough
# Raw scores have no scale: y^a(t) sums over all words, so it grows with the sentence and with the states.
# Softmax makes it a mean, which has the size of one state however long the sentence is. Here with random
# states of width 64:

# %%
torch.manual_seed(0)
LENGTHS = (4, 8, 16, 32, 64)
size = {"raw scores": [], "softmax": []}
for length in LENGTHS:
    states, query = torch.randn(2000, length, 64), torch.randn(2000, 1, 64)
    for name, normalize in (("raw scores", regard.attention.Raw()), ("softmax", regard.Softmax())):
        context = regard.attend(query, states, states, energy=regard.attention.Dot(), normalize=normalize)
        size[name].append((length, float(context.norm(dim=-1).square().mean().sqrt())))
title = "Size of y^a(t) by sentence length (one state has 8)"
show(LineChart(size, title, "words", "norm (root mean square)", log_x=True, log_y=True))
growth = {name: points[-1][1] / points[0][1] for name, points in size.items()}
expected = (64 * (64 + 64 + 1) / (4 * (4 + 64 + 1))) ** 0.5
source = "E‖Σ s (s·q)‖² = T (T + d + 1) ‖q‖² for T normal states of width d"
expect("raw scores, 64 words against 4", growth["raw scores"], expected, within=0.4, source=source)
expect("softmax, 64 words against 4", growth["softmax"], 1.0, within=0.2, source="a mean keeps its size")

# %% [markdown]
# ## The six on a task that takes seconds
# Reverse a sequence of 4 to 12 symbols. It needs what translation needs, a different source position at every
# step, and no vocabulary. The models have the decoders of the recipes at width 64.

# %%
SYMBOLS, COUNT = 16, by_size(full=200, small=100)
ENCODER = {"kind": "recurrent", "cell": "gru", "width": 64, "bidirectional": True}
RECURRENT = {"kind": "recurrent", "cell": "gru", "width": 64, "initial_state": "final"}
STACK = {"kind": "transformer", "layers": 2, "heads": 4, "inner": 64, "norm": "pre"}
PARTS = {
    "no attention": (ENCODER, {**RECURRENT, "attention": "none"}),
    "raw scores": (ENCODER, {**RECURRENT, "attention": "dot", "normalize": "none"}),
    "softmax": (ENCODER, {**RECURRENT, "attention": "dot"}),
    "parameterised": (ENCODER, {**RECURRENT, "attention": "projected", "attention_width": 32}),
    "Bahdanau": (ENCODER, {**RECURRENT, "kind": "bahdanau", "attention_width": 32}),
    "Transformer": (STACK, STACK),
}
CHOSEN = by_size(full=tuple(PARTS), small=("no attention", "raw scores", "softmax"))


def batch(count: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Source, decoder input (2 is BOS) and target."""
    source = torch.randint(4, 4 + SYMBOLS, (count, length), generator=generator)
    target = source.flip(1)
    return source, torch.cat([torch.full((count, 1), 2), target[:, :-1]], 1), target


def trained(title: str) -> nn.Module:
    torch.manual_seed(0)
    encoder, decoder = PARTS[title]
    options = {"dim": 32, "dropout": 0.0, "encoder": encoder, "decoder": decoder}
    model = regard.build(options, 4 + SYMBOLS, 4 + SYMBOLS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003 if title == "Transformer" else 0.005)
    generator = torch.Generator().manual_seed(1)
    for _ in range(COUNT):
        length = int(torch.randint(4, 13, (1,), generator=generator))
        source, inputs, target = batch(64, length, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(source, inputs).flatten(0, 1), target.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def accuracy(model: nn.Module, length: int) -> float:
    source, inputs, target = batch(200, length, torch.Generator().manual_seed(2))
    with torch.no_grad():
        return float((model(source, inputs).argmax(-1) == target).float().mean())


right = {}
for title in CHOSEN:
    model = trained(title)
    right[title] = {length: accuracy(model, length) for length in (4, 8, 12)}
print(f"right symbols after {COUNT} steps; length  4     8    12")
for title, row in right.items():
    print(f"{title:34}", *(f"{value:5.2f}" for value in row.values()))
assert right["no attention"][12] + 0.05 < right["raw scores"][12] < right["softmax"][12] - 0.1

# %% [markdown]
# Raw scores already help, and softmax helps more. The Transformer learns this in more steps than the
# recurrent models, which have the order of the sequence built in: it has to find out what its position
# encodings mean.

# %% [markdown]
# ## The six on a corpus
# `python -m benchmarks.progression` trains the recipes above on one corpus and measures BLEU, BLEU by length,
# alignment error (lesson 11), faithfulness (lesson 18) and FLOPs. The log here is that of Europarl
# English-French: 400,000 pairs, 4,000 steps of 16,384 tokens for each model, on one H200.

# %%
EUROPARL = "python -m benchmarks.progression --corpus europarl --size full --steps 4000 --jobs 6"


def print_steps(log):
    """BLEU of each model, and the paired bootstrap beside the model before, on the same test sentences."""
    for model in log["models"].values():
        text = f"{model['title']:14} BLEU {model['bleu']:5.2f}  {model['parameters'] / 1e6:.2f} M parameters"
        if "before" in model:
            step = model["before"]
            text += f"  step {step['difference']:+5.2f} [{step['low']:+5.2f}, {step['high']:+5.2f}]"
            text += f"  p = {step['p_bootstrap']:.3f}"
        print(text)


log = read_log("progression-europarl", EUROPARL)
if log:
    show(Poster(log))
    print_steps(log)
    steps = [model["before"] for model in log["models"].values() if "before" in model]
    assert all(step["significant"] and step["difference"] > 0 for step in steps), "a step does not go up"

# %% [markdown]
# Every step goes up. Most of it is the first one: raw scores gain 16 points, although a sum weighted by raw
# scores can grow without limit. Softmax gains two more, parameters two and a half, Bahdanau's energy half a
# point, the Transformer three. A small p says that the choice of test sentences hardly explains the
# difference between these two trained models. It says nothing about training them again with another seed.
#
# A small version runs on a CPU in a few minutes: everyday sentences of the most frequent words, a quarter of
# the width, 500 steps.

# %%
small = read_log("progression-tatoeba", "python -m benchmarks.progression")
if small:
    print_steps(small)
    bleu = {name: model["bleu"] for name, model in small["models"].items()}
    assert bleu["none"] + 3 < bleu["raw"] < bleu["softmax"] - 3, "the first two steps are not visible"
    first = [small["models"][name].get("before", {}) for name in ("raw", "softmax")]
    assert all(step.get("significant") for step in first), "the first two steps are not significant"

# %% [markdown]
# There, raw scores and softmax gain six points each, and the later models gain nothing that lasts. The
# Transformer is behind: 500 steps are too few for it, as for the reversed sequences above.

# %% [markdown]
# ## The papers' values beside ours
# | | no attention | Bahdanau | Transformer |
# |---|---|---|---|
# | WMT-2014 English-French (Bahdanau et al. 2015, table 1, up to 50 words; Vaswani et al. 2017) | 17.8 | 26.8 | 38.1 (base) |
# | Europarl English-French, the log above (0.5.0, 2026-11-18) | 10.5 | 32.1 | 35.3 |
# | Multi30k German-English, test 2016 (`regard train multi30k-de-en-…`, 0.3.0, 2026-11-15, [results](../results.md)) | 26.9 | 41.3 | 43.0 |
#
# Bahdanau's BLEU is 1.50 times that of no attention in the paper, 1.53 times on the short captions of Multi30k, and three
# times on Europarl, whose sentences are long. The systems of the first row had different data and sizes.

# %% [markdown]
# ## What this does not show
# All results are of one seed, and no model is trained to its end: 4,000 steps are four and a half passes over
# the pairs. Attention that translates better does not always align better: Bahdanau's has a higher alignment
# error than softmax (lesson 11).

# %% [markdown]
# ## Exercises
# 1. Write `simple_attention(states, query)` for `states` (T, d) and `query` (d,): y^a with softmax, (d,).
# 2. Write `raw_attention(states, query)`: the raw scores above, without softmax, as one matrix product [y^e]ᵀ[y^e]
#    applied to the query.
#
# Put both into a file and run `regard lessons check 9 answer.py`.
