"""Tests of generation_settings.py: special tokens, excluded tokens and search options of a folder."""

import json

import pytest

from regard.errors import FolderError
from regard.interchange.generation_settings import GenerationSettings


def read(folder, generation=None, **config):
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return GenerationSettings.read(folder, {"eos_token_id": 0})


def test_generation_config_comes_before_config_and_config_before_defaults(tmp_path):
    assert read(tmp_path).token("eos_token_id", 9) == 0
    assert read(tmp_path, eos_token_id=3).token("eos_token_id", 9) == 3
    assert read(tmp_path, {"eos_token_id": [4]}, eos_token_id=3).token("eos_token_id", 9) == 4


@pytest.mark.parametrize("value", [None, -1, 9, "2", True, []])
def test_a_special_token_that_the_model_does_not_have_is_refused(tmp_path, value):
    with pytest.raises(FolderError, match=r"has eos_token_id .* and the model has 9 tokens; correct"):
        read(tmp_path, eos_token_id=value).token("eos_token_id", 9)


def test_two_end_tokens_are_refused(tmp_path):
    with pytest.raises(FolderError, match=r"has eos_token_id \[0, 5\] .* regard has one such token"):
        read(tmp_path, eos_token_id=[0, 5]).token("eos_token_id", 9)


def test_excluded_tokens(tmp_path):
    assert read(tmp_path).excluded(9) == set()
    assert read(tmp_path, bad_words_ids=[], suppress_tokens=None).excluded(9) == set()
    assert read(tmp_path, bad_words_ids=[[8], 7], suppress_tokens=[2, 3]).excluded(9) == {2, 3, 7, 8}
    for value in ([[9]], "x", [[]]):
        with pytest.raises(FolderError, match=r"excludes the token .* and the model has 9 tokens"):
            read(tmp_path, bad_words_ids=value).excluded(9)
    with pytest.raises(FolderError, match="excludes a sequence of tokens"):
        read(tmp_path, bad_words_ids=[[3, 4]]).excluded(9)


def test_the_card_has_the_beam_and_the_options_that_change_outputs(tmp_path):
    assert read(tmp_path, num_beams="4").card() == {"decoding": {"beam": 1}}
    options = {"num_beams": 6, "length_penalty": 1.0, "repetition_penalty": 1.5, "max_length": 512}
    assert read(tmp_path, options).card() == {
        "decoding": {"beam": 6},
        "generation": {"repetition_penalty": 1.5},
    }
