"""Tests of padding.py."""

import numpy as np

from regard.data.padding import pad_sources
from regard.data.tokenizer import EOS, PAD


def test_token_ids_get_eos_and_padding_and_are_truncated():
    ids, lengths = pad_sources([[7, 8, 9], [], [5]], longest=3)
    assert ids.tolist() == [[7, 8, EOS], [EOS, PAD, PAD], [5, EOS, PAD]] and lengths.tolist() == [3, 1, 2]


def test_frames_are_padded_with_zeros_and_have_no_eos():
    one, two = np.ones((2, 3), np.float32), 2 * np.ones((4, 3), np.float32)
    frames, lengths = pad_sources([one, list(two)])
    assert lengths.tolist() == [2, 4] and frames.shape == (2, 4, 3)
    assert frames[0].tolist() == [*one.tolist(), [0, 0, 0], [0, 0, 0]] and (frames[1] == 2).all()
