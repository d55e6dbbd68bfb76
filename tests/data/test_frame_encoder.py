"""Tests of frame_encoder.py: standardization against NumPy, and wrong sequences."""

import pickle

import numpy as np
import pytest
import torch

from regard.data.frame_encoder import FrameEncoder
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError, OptionError


@pytest.fixture
def files(tmp_path):
    draw = np.random.default_rng(0)
    arrays = [draw.normal(5, 3, (length, 2)).astype(np.float32) for length in (4, 9)]
    for name, array in zip("ab", arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    return [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")], arrays


def test_channels_are_standardized_by_mean_and_deviation_over_all_frames(files):
    references, arrays = files
    encoder = FrameEncoder.fit(references)
    together = np.concatenate(arrays)
    expected = (arrays[0] - together.mean(0)) / together.std(0)
    np.testing.assert_allclose(encoder.encode(references[0]), expected, rtol=1e-5)
    np.testing.assert_allclose(encoder.encode(torch.tensor(arrays[0])), expected, rtol=1e-5)


def test_a_constant_channel_becomes_zero(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, 7], [2, 7], [3, 7]]))
    encoded = FrameEncoder.fit([str(tmp_path / "a.npy")]).encode(str(tmp_path / "a.npy"))
    assert encoded[:, 1].tolist() == [0, 0, 0] and abs(encoded[:, 0].std() - 1) < 1e-6


def test_its_file_is_read_as_a_tokenizer_file_and_it_is_pickled(files, tmp_path):
    encoder = FrameEncoder.fit(files[0])
    encoder.save(tmp_path / "source.json")
    for copy in (Tokenizer.load(tmp_path / "source.json"), pickle.loads(pickle.dumps(encoder))):
        assert copy.kind == "frames" and len(copy) == 2 and copy.fingerprint == encoder.fingerprint


def test_another_number_of_channels_is_refused(files, tmp_path):
    np.save(tmp_path / "wide.npy", np.zeros((3, 5)))
    with pytest.raises(DataError, match=r"wide.npy has 5 channels, and this model was trained on 2; give"):
        FrameEncoder.fit(files[0]).encode(str(tmp_path / "wide.npy"))
    with pytest.raises(DataError, match=r"wide.npy has 5 channels and .*a.npy has 2; all sequences"):
        FrameEncoder.fit([*files[0], str(tmp_path / "wide.npy")])


def test_one_array_or_path_is_one_input_and_a_list_is_several(files):
    encoder = FrameEncoder.fit(files[0])
    assert encoder.inputs(files[1][0])[1] and encoder.inputs("a.npy") == (["a.npy"], True)
    assert encoder.inputs(files[1]) == (files[1], False)
    with pytest.raises(OptionError, match="give a file, an array"):
        encoder.inputs(5)


def test_a_damaged_file_is_refused():
    for text in ('{"frames": {"mean": [1]}}', '{"frames": {"mean": [1], "deviation": [0]}}', '{"frames": 1}'):
        with pytest.raises(DataError, match="train the model again"):
            Tokenizer.read(text)
