"""Weights in int8: the stored file, restored weights, and the precision of the engine."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.decoding.engine import why_not
from regard.errors import FolderError
from regard.models import int8
from regard.models.folder import load
from tests.models.multilingual import TRANSFORMER, multilingual


def weights(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) * torch.logspace(
        -6, 3, shape[0]
    ).view(-1, *[1] * (len(shape) - 1))


@pytest.mark.parametrize("shape", [(300, 40), (50, 3, 7)])
def test_a_row_is_rounded_to_a_254th_of_its_range_at_most(shape):
    weight = weights(*shape)
    values, scale = int8.quantize(weight)
    restored = torch.empty_like(weight)
    int8.restore(values, scale, restored)
    largest = weight.flatten(1).abs().amax(1)
    assert values.dtype == torch.int8 and values.shape == weight.shape and scale.shape == shape[:1]
    assert ((restored - weight).flatten(1).abs().amax(1) <= largest / 253).all()


def test_restored_weights_give_the_same_integers_and_scales_in_the_arithmetic_of_the_engine():
    values, scale = int8.quantize(weights(2000, 33))
    restored = torch.empty(2000, 33)
    int8.restore(values, scale, restored)
    largest = restored.abs().amax(1)
    assert torch.equal(largest / 127, scale)
    # As pack_int8 of engine.cpp computes it.
    assert torch.equal((restored * (127 / largest)[:, None]).round(), values.float())
    for requantized, expected in zip(int8.quantize(restored), (values, scale), strict=True):
        assert torch.equal(requantized, expected)


def test_a_row_of_zeros_stays_zero():
    values, scale = int8.quantize(torch.zeros(2, 3))
    assert not values.any() and scale.tolist() == [1.0, 1.0]


def test_small_tensors_and_vectors_are_not_quantized():
    stored = int8.quantized(
        {"matrix": torch.ones(64, 64), "small": torch.ones(4, 4), "bias": torch.ones(9999)}
    )
    assert {name: x.dtype for name, x in stored.items()} == {
        "matrix": torch.int8, "matrix.scale": torch.float32, "small": torch.float32, "bias": torch.float32,
    }  # fmt: skip


LAYER = TRANSFORMER | {"inner": 512, "heads": 1}


@pytest.fixture
def folders(tmp_path):
    return [multilingual(tmp_path / p, layer=LAYER, precision=p) for p in ("float32", "int8")]


def test_a_folder_in_int8_is_loaded_with_restored_weights(folders):
    plain, quantized_model = map(load, folders)
    assert (plain.stored_precision, quantized_model.stored_precision) == ("float32", "int8")
    quantized = 0
    for (name, p), q in zip(plain.named_parameters(), quantized_model.parameters(), strict=True):
        assert q.dtype == torch.float32
        if int8.is_quantized(p):
            expected = torch.empty_like(p)
            int8.restore(*int8.quantize(p), expected)
            assert torch.equal(q, expected), name
            quantized += 1
        else:
            assert torch.equal(q, p), name
    assert quantized == 4  # the feed-forward matrices of encoder and decoder; the others are too small


def test_the_engine_computes_in_int8_by_default(folders):
    plain, quantized_model = map(load, folders)
    if why_not(quantized_model, "int8") is not None:
        pytest.skip("no int8 engine here")
    assert regard.fast(quantized_model).precision == "int8" and regard.fast(plain).precision == "float32"
    assert regard.fast(quantized_model, "float32").precision == "float32"
    texts = ["Tom is here.", "a b c", "9"]
    translations = regard.translate(texts, regard.fast(quantized_model), "de", beam=2)
    assert translations == regard.translate(texts, regard.fast(quantized_model, "int8"), "de", beam=2)


def drop_scales(tensors):
    del tensors["decoder.layers.0.feed.W1.weight.scale"]


def shorten_scales(tensors):
    tensors["decoder.layers.0.feed.W1.weight.scale"] = torch.ones(3)


def nan_scales(tensors):
    tensors["decoder.layers.0.feed.W1.weight.scale"][0] = torch.nan


def half_scales(tensors):
    tensors["decoder.layers.0.feed.W1.weight.scale"] = tensors["decoder.layers.0.feed.W1.weight.scale"].half()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop_scales, "as torch.int8, which is not a dtype of weights"),
        (shorten_scales, r"holds 512 rows of 'decoder.layers.0.feed.W1.weight' and \(3,\) scales"),
        (nan_scales, "NaN or infinity"),
        (half_scales, "with scales in torch.float16, and int8 with float32 is expected"),
    ],
)
def test_a_damaged_file_is_refused(folders, edit, message):
    path = folders[1] / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
    with pytest.raises(FolderError, match=message):
        load(folders[1])
