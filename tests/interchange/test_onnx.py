"""Tests of onnx.py, onnx_graphs.py and onnx_recurrence.py: outputs in onnxruntime equal regard's."""

import numpy as np
import pytest
import torch

from regard.errors import OptionError
from regard.interchange.export.compare import compare
from regard.interchange.export.export_model import export_model
from regard.interchange.export.onnx import Onnx
from tests.interchange.small_models import ENGLISH, LAYER, make, run_readme

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
ONE_LAYER = {**LAYER, "layers": 1}
MODELS = {
    "gru and Bahdanau": ({"kind": "recurrent"}, {"kind": "bahdanau"}, {}),
    "lstm of two layers, and attention on it": (
        {"kind": "stacked", "below": {"kind": "recurrent", "cell": "lstm", "layers": 2}, "above": ONE_LAYER},
        {"kind": "recurrent", "attention": "projected"},
        {},
    ),
    "rnn in one direction": (
        {"kind": "recurrent", "cell": "rnn", "bidirectional": False},
        {"kind": "recurrent", "cell": "rnn", "initial_state": "copy"},
        {},
    ),
    "convolution and Bahdanau": ({"kind": "convolutional", "layers": 1}, {"kind": "bahdanau"}, {}),
    "input feeding": (
        ONE_LAYER,
        {"kind": "recurrent", "cell": "lstm", "attention": "bilinear", "input_feeding": True},
        {},
    ),
    "windows, sparsemax, cosine": (
        {**ONE_LAYER, "mask": {"kind": "centered", "width": 4}, "normalize": "sparsemax"},
        {**ONE_LAYER, "energy": "cosine"},
        {},
    ),
    "simple attention": (
        {"kind": "recurrent", "cell": "lstm"},
        {"kind": "recurrent", "cell": "lstm", "attention": "dot"},
        {},
    ),
    "additive and bilinear energies, sigmoid": (
        {**ONE_LAYER, "energy": "additive"},
        {**ONE_LAYER, "energy": "bilinear", "normalize": "sigmoid"},
        {},
    ),
    "entmax, sliced heads, relative vectors, channel": (
        {**ONE_LAYER, "normalize": "entmax", "sliced": True, "position": "relative-vectors"},
        {**ONE_LAYER, "position": "channel"},
        {},
    ),
    "rotary": (None, {**ONE_LAYER, "position": "rotary", "norm": "pre", "key_heads": 2}, {"tie": "target"}),
    "alibi": (None, {**ONE_LAYER, "position": "alibi"}, {"tie": "target"}),
    "lstm": (None, {"kind": "recurrent", "cell": "lstm", "layers": 2}, {"tie": "target"}),
}


def test_a_transformer_is_equal_alone_and_in_a_padded_batch_and_its_readme_runs(tmp_path):
    model = make({**ONE_LAYER, "norm": "pre"}, ONE_LAYER)
    assert export_model(model, tmp_path / "out", Onnx()).passed
    graphs = Onnx().load(model, tmp_path / "out")
    assert graphs.encoder is not None
    source = torch.tensor([[5, 6, 7, 8, 9, 3], [5, 6, 3, 0, 0, 0], [9, 8, 7, 3, 0, 0]])
    lengths = torch.tensor([6, 3, 4])
    encoder_inputs = {"source": source.numpy(), "lengths": lengths.numpy()}
    names = [x.name for x in graphs.encoder.get_outputs()]
    inputs = encoder_inputs | dict(zip(names, graphs.encoder.run(names, encoder_inputs), strict=True))
    inputs |= {name: np.zeros((3, 4, 0, 8), np.float32) for name in ("key_0", "value_0")}
    tokens, result = torch.tensor([[2, 7, 9], [2, 8, 4], [2, 5, 5]]), []
    for t in range(3):
        decoder_inputs = {x.name: inputs[x.name] for x in graphs.decoder.get_inputs() if x.name != "tokens"}
        decoder_inputs["tokens"] = tokens[:, t].numpy()
        scores, inputs["key_0"], inputs["value_0"] = graphs.decoder.run(None, decoder_inputs)
        result.append(torch.from_numpy(scores))
    with torch.inference_mode():
        torch.testing.assert_close(torch.stack(result, 1), model(source, tokens, lengths), rtol=0, atol=2e-5)
    assert len(run_readme(tmp_path / "out", ENGLISH[:2])) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_that_only_onnx_supports_are_equal(tmp_path, name):
    encoder, decoder, rest = MODELS[name]
    model = make(encoder, decoder, **rest)
    Onnx().write(model, tmp_path)
    loaded = compare(model, Onnx().load(model, tmp_path))
    assert loaded.passed and loaded.max_difference < 2e-5, loaded
    assert len(run_readme(tmp_path, ENGLISH[:2])) == 2


@pytest.mark.slow
def test_recurrent_encoders_take_padded_batches(tmp_path):
    model = make({"kind": "recurrent", "cell": "lstm"}, {"kind": "bahdanau"})
    Onnx().write(model, tmp_path)
    encoder = Onnx().load(model, tmp_path).encoder
    assert encoder is not None
    source, lengths = torch.tensor([[5, 6, 7, 8, 9, 3], [5, 6, 3, 0, 0, 0]]), torch.tensor([6, 3])
    names = [x.name for x in encoder.get_outputs()]
    result = dict(
        zip(names, encoder.run(names, {"source": source.numpy(), "lengths": lengths.numpy()}), strict=True)
    )
    with torch.inference_mode():
        memory = model.encode(source, lengths)
        first = model.start(memory, source[:, 0]).hidden[0][0]
    torch.testing.assert_close(torch.from_numpy(result["states"]), memory.states, rtol=0, atol=2e-5)
    torch.testing.assert_close(torch.from_numpy(result["hidden_0_0"]), first, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_a_window_longer_than_the_traced_example_is_exported(tmp_path):
    model = make(
        None, {**ONE_LAYER, "position": "none", "mask": {"kind": "window", "left": 30}}, tie="target"
    )
    Onnx().write(model, tmp_path)
    tokens = [2, *range(4, 64)]
    loaded = Onnx().load(model, tmp_path).log_probs(tokens[:1], tokens[1:])
    with torch.inference_mode():
        scores = model(torch.tensor([tokens[:-1]]))[0]
        scores[:, [0, 2]] = -torch.inf
        ours = torch.log_softmax(scores, -1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(loaded), ours, rtol=0, atol=2e-5)


def test_a_model_that_torch_cannot_export_is_refused_with_its_reason(tmp_path):
    with pytest.raises(OptionError, match="torch.onnx cannot export this model's encoder"):
        export_model(make({**ONE_LAYER, "position": "relative-buckets"}, ONE_LAYER), tmp_path / "out", Onnx())
    assert list(tmp_path.iterdir()) == []
