"""The module list of a watched model is cached and updated after every change."""

import gc
import weakref

from torch import nn

from regard.attention.watched_model import named_modules


def test_changes_of_a_watched_model_are_detected():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    assert list(named_modules(model)) == ["", "0", "1", "1.0", "1.1"]
    assert named_modules(model) == named_modules(model)
    model[1][0] = nn.Tanh()  # replaced
    assert named_modules(model)["1.0"] is model[1][0]
    model[1].append(nn.Linear(2, 2))  # added
    assert "1.2" in named_modules(model)
    del model[1][2]  # removed
    assert "1.2" not in named_modules(model)
    model[0].inside = nn.ReLU()  # a leaf gets a child
    assert named_modules(model)["0.inside"] is model[0].inside
    children = model[1]._modules  # renamed: same modules, another order of names
    children["a"] = children.pop("0")
    assert "1.a" in named_modules(model) and "1.0" not in named_modules(model)


def test_a_watched_model_is_not_kept_alive():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    named_modules(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
