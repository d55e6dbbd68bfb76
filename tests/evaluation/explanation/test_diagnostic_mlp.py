"""diagnostic_mlp.py: a perceptron guided by good weights learns what one with uniform weights cannot."""

import numpy as np
import pytest
import torch

from regard.errors import DataError, OptionError
from regard.evaluation import diagnostic_mlp
from tests.evaluation.explanation import small_models
from tests.evaluation.explanation.small_models import WORDS


def texts_and_labels(count, seed):
    """The word with the highest id determines the label; the others are noise."""
    draw = torch.Generator().manual_seed(seed)
    texts, labels = [], []
    for _ in range(count):
        drawn = torch.randint(len(WORDS), (5,), generator=draw).tolist()
        texts.append(" ".join(WORDS[at] for at in drawn))
        labels.append("yes" if max(drawn) % 2 else "no")
    return texts, labels


def test_weights_that_point_at_the_deciding_word_help():
    model = small_models.exposed_classifier()
    with torch.no_grad():
        model.pooling.query.copy_(torch.tensor([[60.0, 0.0]]))  # nearly all weight on the highest id
    train, test = texts_and_labels(300, 0), texts_and_labels(200, 1)
    result = diagnostic_mlp(model, train, test, repeats=1, epochs=12)
    assert result.means["model"] > 0.95 and result.means["model"] > result.means["uniform"] + 0.05
    assert "with the model's attention" in str(result) and set(result.as_dict()) >= {"uniform", "learned"}


def test_weights_that_point_at_the_deciding_frame_help():
    """Channel 0 is 3 in the frame whose sign of channel 1 is the label; the query reads channel 0."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 6, 3)).astype(np.float32)
    x[..., 0] = 0
    x[np.arange(400), draw.integers(0, 6, 400), 0] = 3
    deciding = x[x[..., 0] == 3]
    labels = ["yes" if frame[1] > 0 else "no" for frame in deciding]
    model = small_models.frame_classifier()
    with torch.no_grad():
        model.source.projection.weight.copy_(torch.eye(8, 3))
        model.source.projection.bias.zero_()
        model.pooling.query.copy_(20 * torch.eye(1, 8))
        for name in ("Wq", "Wk"):
            getattr(model.pooling.attention, name).weight.copy_(torch.eye(8))
    train, test = (list(x[:300]), labels[:300]), (list(x[300:]), labels[300:])
    result = diagnostic_mlp(model, train, test, repeats=1, epochs=12)
    assert result.means["model"] > 0.9 and result.means["model"] > result.means["uniform"] + 0.1


def test_wrong_inputs_are_errors():
    model, pair = small_models.exposed_classifier(), (["one"], ["yes"])
    with pytest.raises(OptionError, match="for classifiers"):
        diagnostic_mlp(small_models.tagger(), pair, pair)
    with pytest.raises(DataError, match="'maybe'"):
        diagnostic_mlp(model, (["one"], ["maybe"]), pair)
    with pytest.raises(DataError, match="as many labels"):
        diagnostic_mlp(model, (["one"], []), pair)
