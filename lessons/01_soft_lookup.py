# %% [markdown]
# # Lesson 1: From a dictionary to a soft lookup
#
# Attention is a dictionary that answers with a mixture of its values, weighted by how well each key matches
# the query.
#
# Source: the lecture *Neural Computation: Attention*, which starts from a Python dictionary and a record of a
# person.

# %%
import itertools

import torch

import regard
from regard.attention import lookup_path
from regard.lessons import expect, show
from regard.pictures import LineChart, MatrixPicture

record = {
    "name": "Jane Doe",
    "address": "37 Coronation street",
    "date of birth": "May 5th 2000",
    "place of birth": "Hull",
}
print(record["date of birth"])


# %% [markdown]
# ## Keys become vectors
# A computer compares vectors, so each key becomes one: how often each pair of neighbouring letters occurs,
# scaled to length 1. Values are one-hot vectors here: the answer then shows how much of each value is in it.


# %%
def embed(text: str) -> torch.Tensor:
    vector = torch.zeros(27 * 27)
    codes = [ord(c) - 96 if c.isalpha() else 0 for c in text.lower()]
    for a, b in itertools.pairwise(codes):
        vector[27 * a + b] += 1
    return vector / vector.norm()


names, contents = list(record), list(record.values())
keys = torch.stack([embed(name) for name in names])  # (4, 729)
values = torch.eye(4)  # (4, 4)

# %% [markdown]
# ## Hard lookup
# z = Σⱼ 1[q = kⱼ] vⱼ: every key that equals the query contributes its value. A missing key gives zeros, two
# equal keys add up.

# %%
answer = regard.lookup(embed("date of birth")[None], keys, values)
missing = regard.lookup(embed("date of birht")[None], keys, values)  # a typing error
twice = regard.lookup(embed("name")[None], torch.cat([keys, keys]), torch.cat([values, values]))
print("date of birth →", answer.tolist()[0], contents[answer.argmax()])
print("date of birht →", missing.tolist()[0])
print("name, twice in the dictionary →", twice.tolist()[0])
assert answer.tolist() == [[0, 0, 1, 0]] and missing.sum() == 0 and twice[0, 0] == 2

# %% [markdown]
# ## Soft lookup
# z = Σⱼ softmaxⱼ(similarity(q, kⱼ)/τ) vⱼ. Nothing has to match exactly: the typing error finds the right
# entry, and "place of birth", which shares many letters with it, gets the second largest weight. The
# similarity is −‖q − k‖², τ is the temperature.

# %%
queries = ["date of birth", "date of birht", "adress", "birth place", "nickname"]
query_vectors = torch.stack([embed(query) for query in queries])
weights = regard.lookup(query_vectors, keys, values, temperature=0.3)  # (5, 4)
for query, row in zip(queries, weights, strict=True):
    print(f"{query:14} → {contents[row.argmax()]:22} weight {row.max():.2f}")
show(MatrixPicture(weights, queries, names, title="Soft lookup, temperature 0.3"))
assert weights.argmax(1).tolist() == [2, 2, 1, 3, 0]

# %% [markdown]
# ## The temperature
# As τ → ∞ all weights become 1/4: the answer is the mean of all values. As τ → 0 the largest weight becomes
# 1: the dictionary again. Between them the answer changes smoothly with the query, so it has a gradient, and
# keys and queries can be learned. That is the reason for the soft form.

# %%
temperatures = [10 ** (k / 4) for k in range(-8, 9)]
curves: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
for temperature in temperatures:
    row = regard.lookup(query_vectors[1:2], keys, values, temperature=temperature)[0]
    for name, weight in zip(names, row.tolist(), strict=True):
        curves[name].append((temperature, weight))
show(LineChart(curves, "Weights of 'date of birht' by temperature", "temperature", "weight", log_x=True))
source = "Neural Computation, the limits of the softmax"
expect(
    "weight of 'date of birth' at τ = 100", curves["date of birth"][-1][1], 0.25, within=0.005, source=source
)
expect("the same at τ = 0.01", curves["date of birth"][0][1], 1.0, within=1e-4, source=source)

# %% [markdown]
# ## A dot product is not a dictionary
# Attention usually takes the dot product as its similarity. A long key then wins against the key that equals
# the query: make "place of birth" three times as long, and it answers for "date of birth". With keys of
# length 1 this cannot happen.

# %%
long = keys.clone()
long[3] *= 3
by_distance = regard.lookup(query_vectors[:1], long, values, temperature=0.01)
by_dot = regard.lookup(query_vectors[:1], long, values, temperature=0.01, similarity=regard.attention.Dot())
print("date of birth: by distance", names[by_distance.argmax()], "· by dot product", names[by_dot.argmax()])
assert names[by_distance.argmax()] == "date of birth" and names[by_dot.argmax()] == "place of birth"

# %% [markdown]
# ## Records inside records
# The lecture's JSON example has an address and phone numbers inside the person. A path such as address → city
# is one lookup per level: the value found first is the dictionary of the second. In the soft form an entry
# gets the product of the weights along its path, and all of them together still sum to 1.

# %%
person = {
    "first name": "John",
    "age": "27",
    "address": {"street address": "21 2nd Street", "city": "New York", "postal code": "10021-3100"},
    "phone numbers": {"home": "212 555-1234", "fax": "646 555-4567"},
}
hard = lookup_path(["address", "city"], person, embed)
soft = lookup_path(["adress", "citty"], person, embed, temperature=0.3)  # two typing errors
for path, weight in soft.items():
    print(f"{' → '.join(path):26} hard {hard[path]:.0f}   soft {weight:.3f}")
assert hard["address", "city"] == 1 and max(soft, key=lambda path: soft[path]) == ("address", "city")
expect(
    "sum over all entries",
    float(sum(soft.values())),
    1.0,
    within=1e-4,
    source="weights of a softmax sum to 1",
)

# %% [markdown]
# ## Exercises
# 1. Write `soft_lookup(query, keys, values, temperature)` for one query of shape (d,), keys (n, d) and values
#    (n, m), with the similarity −‖q − k‖² and without `regard`. It returns a tensor of shape (m,).
# 2. Write `temperature_for(query, keys, share)`: the temperature at which the largest weight is `share`,
#    within 0.01. (The largest weight falls as the temperature rises, so halving an interval finds it.)
#
# Put both into a file and run `regard lessons check 1 answer.py`.
