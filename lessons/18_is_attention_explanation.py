# %% [markdown]
# # Lesson 18: Is attention explanation?
#
# A picture of attention shows where a model looks. Whether that is why it decided can be tested: change the
# attention, or remove a word, and watch the output. Without context attention passes most of these tests;
# over a recurrent layer it does not.
#
# Sources: Jain and Wallace 2019, *Attention is not Explanation*; Wiegreffe and Pinter 2019, *Attention is not
# not Explanation*. [Faithfulness](../faithfulness.md) has all metrics and larger models.

# %%
import csv
import random
import re
import tempfile
from pathlib import Path

import torch

import regard
from regard.evaluation import MeasureOptions, faithfulness
from regard.lessons import by_size, expect, show
from regard.lessons.texts import pairs
from regard.pictures import LineChart, MatrixPicture

COUNT = by_size(full=1500, small=500)
STEPS = by_size(full=150, small=80)
EXPLAINED = by_size(full=100, small=25)

# %% [markdown]
# ## A task whose answer we can see
# Does the German translation of an English sentence negate? The label comes from the German side (*nicht,
# kein, nie, …*); the model reads only English. Mostly one word decides: *don't*, *no*, *never*. So we know
# what a good explanation points to.

# %%
NEGATION = re.compile(r"\b(nicht|kein\w*|nie|niemals|nichts|niemand\w*)\b", re.IGNORECASE)
labelled = [(english, "negated" if NEGATION.search(german) else "plain") for english, german in pairs()]
rows = []
for label in ("negated", "plain"):
    with_label = [row for row in labelled if row[1] == label]
    rows += random.Random(0).sample(with_label, COUNT)
random.Random(1).shuffle(rows)
folder = Path(tempfile.mkdtemp())
test = rows[:200]
for name, part in (("train", rows[200:]), ("test", test)):
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *part])
print(*rows[:4], sep="\n")

# %% [markdown]
# ## Two models that differ in one word
# Both read the words, pool them by attention with one query (additive energy, as Bahdanau's), and decide. One
# pools the word vectors themselves, the other the states of a bidirectional LSTM, each of which has seen the
# whole sentence.


# %%
def trained(name: str, encoder: dict):
    recipe = {
        "task": "classify",
        "data": {
            "train": [str(folder / "train.csv")],
            "validation": [str(folder / "test.csv")],
            "source": "text",
            "target": "label",
        },
        "tokenizer": {"kind": "word", "lowercase": True},
        "model": {
            "dim": 32,
            "dropout": 0.1,
            "encoder": encoder,
            "pooling": {"kind": "attention", "energy": "additive"},
        },
        "batch": {"tokens": 1024},
        "optimizer": {"lr": 0.01},
        "schedule": {"kind": "constant"},
        "training": {"steps": STEPS, "validate_every": STEPS, "save_every": STEPS, "device": "cpu"},
    }
    result = regard.train(recipe, folder=folder / name, quiet=True)
    print(f"{name}: {result.scores['validation']['accuracy']:.1%} of 200 test sentences right")
    return result.load()


models = {
    "embeddings": trained("embeddings", {"kind": "embedding"}),
    "BiLSTM": trained("BiLSTM", {"kind": "recurrent", "cell": "lstm", "width": 64, "bidirectional": True}),
}

# %% [markdown]
# Both are good. This is what their attention shows for a sentence that negates and for one that does not:

# %%
texts = [text for text, _ in test]
results = {
    name: faithfulness(model, texts[:EXPLAINED], measures=["correlation", "permuted", "uniform"])
    for name, model in models.items()
}
for label in ("negated", "plain"):
    place = next(
        i
        for i, example in enumerate(results["embeddings"].examples)
        if test[i][1] == label and len(example.tokens) >= 6
    )
    examples = {name: result.examples[place] for name, result in results.items()}
    weights = torch.tensor([example.attention for example in examples.values()])
    rows = [f"{name}: {example.prediction}" for name, example in examples.items()]
    tokens = examples["embeddings"].tokens
    show(MatrixPicture(weights, rows, tokens, title=f"A sentence that is {label}", row_title="model"))

# %% [markdown]
# Such pictures convince: a word that negates gets the weight. But they show one word of some sentences. What
# about the others?

# %% [markdown]
# ## Test 1: does attention rank words as their removal does?
# Leave a word out and measure how far the output moves. Kendall's τ compares that ranking with the one by
# attention: 1 is the same order, 0 unrelated. Jain and Wallace report for SST and tanh attention (their
# result files and table 2): 0.62 without context ("average"), 0.27 and 0.32 for a BiLSTM (negative and
# positive sentences).

# %%
tau = {name: result.means["tau_leave_one_out"] for name, result in results.items()}
for name, mean in tau.items():
    print(f"{name:10} τ = {mean.value:5.2f}, 95 % confidence interval {mean.low:5.2f} to {mean.high:5.2f}")
source = "Jain and Wallace 2019, SST"
expect("τ with leave-one-out, embeddings", tau["embeddings"].value, 0.62, within=0.3, source=source)
expect("τ with leave-one-out, BiLSTM", tau["BiLSTM"].value, 0.29, within=0.29, source=source)
assert tau["embeddings"].value > tau["BiLSTM"].value + 0.1, "context did not break the correlation"

# %% [markdown]
# ## Test 2: does the output depend on the attention at all?
# Put the weights in random order, or make them equal, and compare the outputs (total variation: 0 the same, 1
# another certain answer). If nothing happens, the picture cannot be the reason.

# %%
change = {name: result.means["change_uniform"].value for name, result in results.items()}
for name, result in results.items():
    shuffled = result.means["change_permuted"].value
    print(f"{name:10} permuted: {shuffled:.3f}   uniform: {change[name]:.3f}")
points = {
    name: [(example.metrics["max_weight"], example.metrics["change_permuted"]) for example in result.examples]
    for name, result in results.items()
}
title = "One dot per sentence: how much permuted attention changes the output"
show(LineChart(points, title, "largest weight of the sentence", "output change", connect=False))
assert change["embeddings"] > 1.2 * change["BiLSTM"] > 0

# %% [markdown]
# The LSTM has moved the information: every state has seen the whole sentence, so it matters less which one is
# read, and a large weight on a word need not mean that the word itself decided. Wiegreffe and Pinter answer
# the first paper with this test: where equal weights would do, attention cannot explain anything, so ask that
# first (their section 3.2). Here they would not do for either.

# %% [markdown]
# ## Test 3: an adversary
# Search for attention as different as possible (Jensen–Shannon divergence, at most log 2 = 0.69) that changes
# the output by at most 0.01. Finding some does not make the model's own attention wrong: it says that the
# output does not determine it.

# %%
few = by_size(full=20, small=3)
options = MeasureOptions(adversary_steps=20)
adversary = {
    name: faithfulness(model, texts[:few], measures=["adversary"], options=options)
    for name, model in models.items()
}
for name, result in adversary.items():
    far, near = (result.means[f"adversarial_{what}"].value for what in ("divergence", "change"))
    print(f"{name:10} divergence {far:.2f} of 0.69 at an output change of {near:.3f}")
    assert near <= 0.01

# %% [markdown]
# ## What small data does not show
# These sentences have 3 to 7 words and one decisive word, so the model without context looks better here than
# on film reviews, and τ of six words is coarse. On SST-2 with the same two models the [page on
# faithfulness](../faithfulness.md) has τ = 0.58 and 0.06 (regard 0.5.0, 2026-11-16), and tests of Serrano and
# Smith, DeYoung et al., Abnar and Zuidema, and Wiegreffe and Pinter's other tests. The papers agree on the
# advice: show the number beside the picture.

# %% [markdown]
# ## Exercises
# 1. Write `kendall(a, b)` for two lists of numbers without ties: (concordant − discordant pairs) / all pairs.
# 2. Write `total_variation(p, q)` for two lists of probabilities: the distance of test 2, between 0 and 1.
#
# Put both into a file and run `regard lessons check 18 answer.py`.
