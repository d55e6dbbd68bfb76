"""Tests of options.py and attention_options.py: registries find blocks by kind."""

from typing import Literal

import pytest
from pydantic import ValidationError

from regard.attention.position_masks import Causal, Window
from regard.models.attention_options import ENERGIES, MASKS, POSITIONS, AndMask, MaskOptions
from regard.models.build import MODELS, ModelOptions
from regard.models.encoder import TextCnnEncoderOptions
from regard.models.options import POOLINGS, EncoderOptions, PoolingOptions
from regard.models.pooling import MaxPooling, MaxPoolingOptions
from regard.models.transformer import TransformerOptions


def test_a_block_is_the_registered_class_of_its_kind_and_has_a_default():
    assert isinstance(EncoderOptions.model_validate({"kind": "text-cnn"}), TextCnnEncoderOptions)
    assert isinstance(EncoderOptions.model_validate({}), TransformerOptions)
    assert EncoderOptions.model_validate(TextCnnEncoderOptions(width=7)).width == 7


def test_some_blocks_can_be_written_as_their_kind_alone():
    assert PoolingOptions.model_validate("max") == MaxPoolingOptions()
    assert isinstance(PoolingOptions.model_validate("max").build(3), MaxPooling)
    with pytest.raises(ValidationError, match="tag"):
        EncoderOptions.model_validate("text-cnn")


def test_an_error_names_the_kind_the_key_and_the_available_kinds():
    with pytest.raises(ValidationError) as error:
        ModelOptions.model_validate({"kind": "classifier", "pooling": {"kind": "attention", "head": 2}})
    assert error.value.errors()[0]["loc"] == ("classifier", "pooling", "attention", "head")
    with pytest.raises(ValidationError, match="'mean', 'sum', 'max'"):
        PoolingOptions.model_validate("median")
    with pytest.raises(ValidationError, match="'dot', 'scaled-dot', 'cosine', 'additive' or 'bilinear'"):
        TransformerOptions(energy="linear")


def test_registering_and_removing_a_kind_takes_effect_at_once():
    @POOLINGS.add("first")
    class First(PoolingOptions):
        kind: Literal["first"] = "first"

    assert isinstance(PoolingOptions.model_validate("first"), First)
    config = ModelOptions.model_validate({"kind": "embedder", "pooling": "first"})
    assert config.model_dump()["pooling"] == {"kind": "first"}
    POOLINGS.remove("first")
    with pytest.raises(ValidationError):
        PoolingOptions.model_validate("first")


@pytest.mark.parametrize("kind", MODELS)
def test_a_dumped_model_block_is_read_back_unchanged(kind):
    block = ModelOptions.model_validate({"kind": kind})
    assert ModelOptions.model_validate(block.model_dump()) == block


def test_masks_combine_as_the_objects_do():
    block = MaskOptions.model_validate({"kind": "and", "of": ["causal", {"kind": "window", "left": 2}]})
    assert isinstance(block, AndMask) and {"and", "or", "not"} <= set(MASKS)
    assert repr(block.build()) == repr(Causal() & Window(2, 0))


def test_every_energy_and_position_can_be_built():
    assert all(make(4, 2) is not None for make in ENERGIES.values())
    parts = {  # bias, rotary encoding and encoding of the inputs of each scheme
        name: (position.bias(2, 4, True), position.rotary(4), position.inputs(8, 5))
        for name, position in POSITIONS.items()
    }
    assert parts["alibi"][0] is not None and parts["rotary"][1] is not None
    assert parts["none"][:2] == (None, None)
