# %% [markdown]
# # Lesson 5: Order lost and regained
#
# Attention treats its input as a set: permute the words and the outputs are permuted in the same way;
# positions have to be put in.
#
# Sources: Lars Schmidt-Thieme, *Deep Learning: Attention Layers* (separable and equivariant layers); Kenneth
# Enevoldsen, *Natural Language Processing, lecture 5: Attention* (the two examples with words).

# %%
import math
from collections import Counter

import torch
from torch import nn

import regard
from regard.evaluation import is_equivariant, is_separable
from regard.lessons import by_size, expect, show
from regard.pictures import LineChart, MatrixPicture

torch.manual_seed(0)

# %% [markdown]
# ## Two properties
# A layer is *separable* if output t depends on input t alone, and *equivariant* if permuting the inputs
# permutes the outputs and does nothing else. The functions draw random inputs and permutations and report the
# largest violation.

# %%
layers = {
    "convolution, kernel 1": regard.layers.Convolution(16, kernel=1),
    "attention": regard.MultiHead(16, heads=2),
    "attention, causal": regard.MultiHead(16, heads=2, mask=regard.Causal()),
    "attention, window of 3": regard.MultiHead(16, heads=2, mask=regard.Window(1, 1)),
    "attention, ALiBi": regard.MultiHead(16, heads=2, bias=regard.ALiBi(2)),
    "convolution, kernel 3": regard.layers.Convolution(16, kernel=3),
    "recurrence": regard.layers.Recurrence(16),
}
properties = {}
for name, layer in layers.items():
    properties[name] = bool(is_separable(layer)), bool(is_equivariant(layer))
    print(f"{name:24} separable {properties[name][0]!s:6} equivariant {properties[name][1]}")
assert properties.pop("convolution, kernel 1") == (True, True)
assert properties.pop("attention") == (False, True)
assert set(properties.values()) == {(False, False)}

# %% [markdown]
# The first two rows are Schmidt-Thieme's: a convolution with kernel 1 is both, attention is equivariant and
# not separable. The masks of a decoder, windows and ALiBi depend on positions, so they already break the
# symmetry: a causal language model knows something about the order even without position vectors.
#
# ## The same set of words
# "Are you happy today" and "you are happy today" are a question and a statement with the same four words. The
# outputs of attention without positions are the same vectors in another order, so any mean over them is the
# same.

# %%
vocabulary = {word: torch.randn(16) for word in ("are", "you", "happy", "today")}
question, statement = ("are", "you", "happy", "today"), ("you", "are", "happy", "today")


def encode(words):
    return torch.stack([vocabulary[word] for word in words])[None]  # (1, 4, 16)


blind = layers["attention"]
difference = (blind(encode(question)).mean(1) - blind(encode(statement)).mean(1)).abs().max().item()
expect(
    "difference of the two sentences",
    difference,
    0.0,
    within=1e-5,
    source="Enevoldsen: lack of positional information",
)

position = regard.Sinusoidal(16)
seen = (
    (blind(position(encode(question))).mean(1) - blind(position(encode(statement))).mean(1))
    .abs()
    .max()
    .item()
)
print(f"with sinusoidal positions: {seen:.3f}")
assert seen > 1e-3

# %% [markdown]
# Enevoldsen's other example: guess the next word of "the teacher told the students to open their". A model
# without order gets the same input for every arrangement of these eight words, and "the" occurs twice.

# %%
words = ["the", "teacher", "told", "the", "students", "to", "open", "their"]
orders = math.factorial(len(words)) // math.prod(math.factorial(n) for n in Counter(words).values())
expect("arrangements with the same input", orders, 20_160, within=0, source="8!/2!")

# %% [markdown]
# ## A task that needs order
# Does token A stand before token B? Eight positions, A and B at random places among other tokens. Swapping A
# and B turns the answer around and leaves the set of tokens as it is, so a model without positions gives both
# the same answer: exactly half of a test set of such pairs is right, whatever it has learned.

# %%
LENGTH, TOKENS = 8, 10  # token 0 is A, token 1 is B


def sequences(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (2·rows, LENGTH) and whether A comes first; the second half has A and B swapped."""
    tokens = torch.randint(2, TOKENS, (rows, LENGTH))
    places = torch.rand(rows, LENGTH).argsort(1)[:, :2]
    tokens.scatter_(1, places, torch.tensor([0, 1]).expand(rows, 2))
    swapped = torch.where(tokens < 2, 1 - tokens, tokens)
    first = places[:, 0] < places[:, 1]
    return torch.cat([tokens, swapped]), torch.cat([first, ~first]).long()


class Reader(nn.Module):
    """Embedding, positions, one attention layer with a residual, mean, two classes."""

    def __init__(self, position: nn.Module) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(TOKENS, 32), position
        self.attend, self.feed = regard.MultiHead(32, heads=4), regard.layers.FeedForward(32, 64)
        self.read = nn.Linear(32, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.position(self.embed(tokens))
        x = x + self.attend(x)
        return self.read((x + self.feed(x)).mean(1))


def train(position: nn.Module) -> tuple[float, list[tuple[float, float]]]:
    """The accuracy on new pairs, and the curve of the loss."""
    torch.manual_seed(2)
    model, curve = Reader(position), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(by_size(full=300, small=120)):
        tokens, first = sequences(64)
        loss = nn.functional.cross_entropy(model(tokens), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            curve.append((step, loss.item()))
    tokens, first = sequences(1000)
    with torch.no_grad():
        return (model(tokens).argmax(1) == first).float().mean().item(), curve


schemes = {
    "none": nn.Identity(),
    "sinusoidal": regard.Sinusoidal(32),
    "learned": regard.attention.Learned(LENGTH, 32),
}
results = {name: train(position) for name, position in schemes.items()}
show(
    LineChart({name: curve for name, (_, curve) in results.items()}, "Does A stand before B?", "step", "loss")
)
expect("accuracy without positions", results["none"][0], 0.5, within=0.02, source="both orders are one input")
for name in ("sinusoidal", "learned"):
    expect(
        f"accuracy, {name}",
        results[name][0],
        1.0,
        within=by_size(full=0.05, small=0.15),
        source="the task is solvable",
    )

# %% [markdown]
# What is left to say: this is a toy. In real text the order matters less often than one would think, so
# models without positions are not hopeless there, only worse.
#
# ## What positions say
# A position encoding gives each place its own vector; places are similar or not before any word is read.
# Lesson 6 compares the schemes.

# %%
table = regard.Sinusoidal(32).table(LENGTH)
places = [str(t) for t in range(LENGTH)]
show(
    MatrixPicture(
        table @ table.T / 16,
        places,
        places,
        title="Similarity of sinusoidal positions",
        row_title="position",
        column_title="position",
    )
)
similarity = (table @ table.T).diagonal()
expect(
    "PE(t)·PE(t), width 32", similarity.mean().item(), 16.0, within=1e-3, source="sin² + cos² = 1, 16 times"
)

# %% [markdown]
# ## Exercises
# 1. Write `equivariance_violation(layer, X, order)`: the largest absolute difference between "permute, then
#    apply" and "apply, then permute" for X (T, M), a permutation `order` (T,) of positions, and any function
#    `layer` from (T, M) to (T, K). It returns a number.
# 2. Write `position_channel(X)`: X (T, M) with the position t = 1 … T as one more feature, of shape (T, M +
#    1): the simplest of Schmidt-Thieme's encodings.
#
# Put both into a file and run `regard lessons check 5 answer.py`.
