# %% [markdown]
# # Lesson 16: WMT-2014, and what a BLEU point costs
#
# One test set made translation models comparable: newstest2014. The Transformer reached the best score on it
# for a fraction of the training cost of what came before. This lesson reads that table, and checks what its
# costs mean.
#
# Source: Schmidt-Thieme's lecture, *WMT-2014 Task* and *Evaluation on WMT-2014*, which quotes table 2 of
# Vaswani et al. (2017).

# %%
import torch

import regard
from regard.evaluation import RATES, TrainingCost, estimated_flops, training_cost
from regard.lessons import by_size, expect, show
from regard.pictures import LineChart
from regard.recipe import load_recipe

# %% [markdown]
# ## The corpora
# The shared task of 2014 gave everyone the same parallel data. The sizes are those of the lecture, of the
# archives to download. Vaswani et al. count sentence pairs: about 4.5 million English–German and 36 million
# English–French.

# %%
corpora = {  # MB, languages beside English
    "Europarl v7": (628, "fr de"),
    "Common Crawl": (876, "fr de"),
    "UN": (2300, "fr"),
    "News Commentary": (77, "fr de"),
    "10⁹ French–English": (2300, "fr"),
}
for name, (size, languages) in corpora.items():
    print(f"{name:19} {size:5} MB   {languages}")
total = {
    language: sum(size for size, names in corpora.values() if language in names) for language in ("fr", "de")
}
print(f"English–French {total['fr']} MB, English–German {total['de']} MB")
assert total == {"fr": 6181, "de": 1581}

# %% [markdown]
# Eight times the sentence pairs are one reason why BLEU is 41 for French and 28 for German. The other is the
# language: German compounds and word order. **Scores of two language pairs, or of two test sets, are not
# comparable.**

# %% [markdown]
# ## The table

# %%
print(training_cost.table())
german = {row.model: row for row in training_cost.WMT_2014 if row.bleu_de and row.flops_de}
show(
    LineChart(
        {
            "Transformer": [(row.flops_de, row.bleu_de) for name, row in german.items() if "Transf" in name],
            "one model before it": [
                (german[name].flops_de, german[name].bleu_de) for name in ("ConvS2S", "MoE", "GNMT + RL")
            ],
            "ensembles": [(row.flops_de, row.bleu_de) for name, row in german.items() if "Ensemble" in name],
        },
        "WMT-2014 English–German",
        "training cost, FLOPs",
        "BLEU",
        log_x=True,
        connect=False,
    )
)

# %% [markdown]
# ## What the comparison says
# The base model beats every earlier one, ensembles included, and costs less than each. That is what made the
# paper famous: not only the score.

# %%
base, big = german["Transformer (base model)"], german["Transformer (big)"]
earlier = [row for name, row in german.items() if "Transformer" not in name]
assert all(base.bleu_de > row.bleu_de and base.flops_de < row.flops_de for row in earlier)
best = max(earlier, key=lambda row: row.bleu_de)
print(
    f"best before: {best.model}, {best.bleu_de} BLEU, {best.flops_de / base.flops_de:.0f} × the cost of base"
)
source = "Vaswani et al. 2017, 'more than 2.0 BLEU'"
expect("big − best before", big.bleu_de - best.bleu_de, 2.0, within=0.1, source=source)
rise = big.bleu_de - base.bleu_de
times = big.flops_de / base.flops_de
expect(
    f"{rise:.1f} more BLEU, from base to big: cost times",
    times,
    2.3e19 / 3.3e18,
    within=0.1,
    source="table 2",
)

# %% [markdown]
# ## What a cost is here
# The column is an estimate: training time × number of devices × an assumed sustained rate, 9.5·10¹²
# operations per second for a P100. The base model trained for 12 hours on 8 of them, the big one for 3.5
# days.

# %%
for name, hours, published in (("base", 12, 3.3e18), ("big", 84, 2.3e19)):
    cost = estimated_flops(hours, devices=8, rate=RATES["P100"])
    expect(f"{name}: hours × devices × rate", cost, published, within=0.02 * published, source="table 2")

# %% [markdown]
# ## What the model computes
# We can count instead: matrix products of a forward pass, times three for training. One step has 25 000
# source and 25 000 target tokens, here as 1000 sentences of 25; base takes 100 000 steps, big 300 000. The
# models are those of the recipes `transformer-base` and `transformer-big`; on the `meta` device they have
# shapes and no weights.

# %%
counted, sizes = {}, [("base", 100_000, 65), ("big", 300_000, 213)]
for name, steps, millions in sizes[: by_size(full=2, small=1)]:
    with torch.device("meta"):
        model = regard.build(load_recipe(f"transformer-{name}").model.model_dump(), 37_000, 37_000)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    expect(f"{name}: million parameters", parameters, millions, within=2.5, source="table 3")
    counted[name] = 3 * model.flops(25, 25) * 1000 * steps

# %%
published = {"base": (12, base.bleu_de), "big": (84, big.bleu_de)}
for name, flops in counted.items():
    hours, bleu = published[name]
    run = TrainingCost(name, "WMT-2014 en-de", flops, hours, devices=8, rate=RATES["P100"], bleu=bleu)
    print(f"{name}: {flops:.1e} of an estimated {run.estimated_flops:.1e}, {run.utilization:.0%} of the rate")
    assert 0.2 < run.utilization < 0.5

encoder, decoder, output = 6 * (4 * 512**2 + 2 * 512 * 2048), 6 * (8 * 512**2 + 2 * 512 * 2048), 37_000 * 512
by_hand = 6 * (encoder + decoder + output) * 25_000 * 100_000  # without the products between tokens
source = "6 × weights × tokens, by hand"
expect("base: counted", counted["base"], by_hand, within=0.02 * by_hand, source=source)

# %% [markdown]
# So 3.3·10¹⁸ is what eight P100 could have computed in that time; the model needed less than a third of it.
# Both numbers are called "training cost" in papers. Before you compare two, ask which one they are. (The
# paper's parameter counts, 65 M and 213 M, differ a little from ours: 63.1 M and 214.2 M. The paper does not
# say how it counts, and no size of the vocabulary explains both:
# [evaluation](../evaluation.md#training-cost).)

# %% [markdown]
# ## After the table
# The lecture's slide *Leaderboard* is a picture of a web page. Some published scores on newstest2014
# English–German since then, all in tokenized BLEU as in the table:

# %%
later = [
    ("Vaswani et al. 2017, big", 28.4, ""),
    ("Shaw et al. 2018, relative positions", 29.2, ""),
    ("Ott et al. 2018, large batches", 29.3, ""),
    ("Wu et al. 2019, dynamic convolutions", 29.7, "convolutions in place of self-attention"),
    ("Edunov et al. 2018, back-translation", 35.0, "over 200 M sentences more"),
]
for paper, bleu, note in later:
    print(f"{paper:38} {bleu:.1f}   {note}")
assert later[-1][1] - later[0][1] > 5 * (later[2][1] - later[0][1])  # data moves more than architecture

# %% [markdown]
# In this list, changes of model and training after 2017 gave 1.3 points and more data gave five. All but
# Shaw's are also in [NLP-progress](https://nlpprogress.com/english/machine_translation.html). The way of
# scoring changes as much as a paper claims: the same output of a base model has 29.02 by the scripts of
# tensor2tensor and 27.52 by sacreBLEU ([its issue
# 317](https://github.com/tensorflow/tensor2tensor/issues/317)). `regard bleu` prints sacreBLEU's signature
# for that reason.
#
# Two scores of our own (regard 0.5.0, 2026-11-19): the bundled translator, 23.5 million parameters trained on
# everyday sentences and a part of Europarl, has 15.5 BLEU on newstest2014 for 2.1·10¹⁷ operations, `regard
# evaluate tatoeba-en-de-fr --data wmt-newstest --split newstest2014 --cost-table`. A base model of the
# paper's size, trained on Europarl alone, has 19.9 for 1.5·10¹⁷, nine minutes on one GPU
# ([results](../results.md#translation-transformer-base-on-europarl)). **What this lesson does not show:** a
# base model on the paper's data. It needs 10¹⁸ operations, months on a CPU. `regard train transformer-base`
# trains one on Europarl.

# %% [markdown]
# ## Exercises
# 1. Write `training_flops(parameters, tokens)`: the rule of thumb for training, two operations per weight and
#    token in the forward pass and twice that in the backward pass.
# 2. Write `undominated(models)` for a dictionary name → (BLEU, FLOPs): the set of names for which no other
#    model has at least the BLEU for at most the FLOPs, one of them strictly better.
#
# Put both into a file and run `regard lessons check 16 answer.py`.
