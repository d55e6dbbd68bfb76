"""Tests of frames.py: models that read numbers, against torch's Transformer and a formula."""

import pytest
import torch
from torch import nn

import regard
from regard.attention.position import Sinusoidal
from regard.errors import OptionError, RegardError
from regard.models.frames import FrameProjection, require_text
from regard.models.options import ModelOptions
from regard.recipe.loading import load_recipe

ENCODER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32, "dropout": 0.0}


def test_a_frame_is_mapped_by_a_matrix_and_a_bias():
    layer, x = FrameProjection(3, 8), torch.randn(2, 5, 3)
    expected = torch.einsum("btm,km->btk", x, layer.projection.weight) + layer.projection.bias
    torch.testing.assert_close(layer(x), expected)
    assert FrameProjection(3, 8, bias=False).projection.bias is None


def test_a_classifier_of_frames_equals_torchs_transformer_with_the_same_weights():
    block = {"kind": "classifier", "dim": 16, "input": "frames", "encoder": ENCODER, "pooling": "mean"}
    model = regard.build(block, 5, 7).double().eval()
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    torch_encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for theirs, ours in zip(torch_encoder.layers, model.encoder.layers, strict=True):
        parts = [ours.attention.Wq, ours.attention.Wk, ours.attention.Wv]
        attention = theirs.self_attn
        attention.in_proj_weight.data = torch.cat([part.weight for part in parts])
        attention.in_proj_bias.data = torch.cat(
            [part.bias if part.bias is not None else torch.zeros(16).double() for part in parts]
        )
        attention.out_proj.load_state_dict(_with_bias(ours.attention.Wo))
        theirs.linear1.load_state_dict(_with_bias(ours.feed.W1))
        theirs.linear2.load_state_dict(_with_bias(ours.feed.W2))
        theirs.norm1.load_state_dict(ours.around_attention.norm.state_dict())
        theirs.norm2.load_state_dict(ours.around_feed.norm.state_dict())
    x, lengths = torch.randn(2, 6, 5, dtype=torch.float64), torch.tensor([6, 4])
    padding = torch.arange(6) >= lengths[:, None]
    mapped = model.source.projection(x) + Sinusoidal(16).double()(torch.zeros(2, 6, 16, dtype=torch.float64))
    states = torch_encoder(mapped, src_key_padding_mask=padding)
    pooled = torch.stack([row[:n].mean(0) for row, n in zip(states, lengths.tolist(), strict=True)])
    torch.testing.assert_close(model(x, lengths), model.head.labels(pooled))


def _with_bias(linear):
    bias = torch.zeros(linear.out_features).double() if linear.bias is None else linear.bias
    return {"weight": linear.weight, "bias": bias}


def test_flops_count_the_linear_map_of_the_frames():
    block = {"kind": "classifier", "dim": 8, "input": "frames", "encoder": {"kind": "embedding"}}
    sizes = [regard.build(block, channels, 6).flops(10, 2) for channels in (3, 4)]
    assert sizes[1] - sizes[0] == 2 * 10 * 8  # a multiplication and an addition for each frame and width


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("classify", {"word_dropout": 0.1}, "model.word_dropout is for text, and model.input is frames"),
        ("classify", {"prepend_bos": True}, "model.prepend_bos is for text"),
        ("tag", {"characters": {}}, "model.characters is for text"),
        ("embed", {}, "model.input is frames, and an embedder reads text"),
        ("translate", {"tie": "all"}, "model.tie is all, and frames have no embedding table to share"),
        ("language", {}, "model.input is frames and model.encoder is null"),
    ],
)
def test_options_that_do_not_apply_to_frames_are_errors(task, changes, message):
    data = {"train": ["x.csv"], "hold_out": 0.1}
    recipe = {"task": task, "data": data, "model": {"input": "frames", **changes}}
    with pytest.raises(RegardError) as error:
        load_recipe(recipe)
    assert message in str(error.value)


def test_an_unknown_input_is_an_error_that_names_the_key():
    with pytest.raises(RegardError, match="model.input"):
        load_recipe({"task": "classify", "data": {"train": ["x.csv"]}, "model": {"input": "pixels"}})


def test_uses_that_need_text_refuse_a_model_of_frames():
    model = regard.build({"kind": "classifier", "dim": 8, "input": {"kind": "frames"}}, 3, 6)
    with pytest.raises(OptionError, match="serving takes a model that reads text, and this classifier reads"):
        require_text(model, "serving")
    options = {"dim": 8, "tie": "all", "input": "frames", "encoder": ENCODER, "decoder": ENCODER}
    with pytest.raises(OptionError, match="tie: all shares an embedding table"):
        ModelOptions.model_validate(options).build(9, 9)
