"""Tests of keyword_signals.py: the recordings hold the words that their targets say."""

import numpy as np
import pytest

from regard.data.keyword_signals import LENGTH, WORDS, main, recordings
from regard.data.tag_schemes import spans
from regard.errors import OptionError


def test_the_words_of_a_recording_are_where_its_tags_are():
    x, words, tags = recordings(200, seed=3)
    loudest, elsewhere = [], []
    for frames, spoken, frame_tags in zip(x, words, tags, strict=True):
        tagged = spans(frame_tags)
        assert [span.type for span in tagged] == spoken
        for span in tagged:
            assert span.stop - span.start == LENGTH
            loudest.append(frames[np.arange(span.start, span.stop), WORDS[span.type]].mean())
        elsewhere.append(frames[[tag == "O" for tag in frame_tags]].mean())
    assert abs(np.mean(loudest) - 1.5) < 0.05 and abs(np.mean(elsewhere)) < 0.05


def test_the_same_seed_gives_the_same_recordings():
    assert np.array_equal(recordings(5, 1)[0], recordings(5, 1)[0])
    assert not np.array_equal(recordings(5, 1)[0], recordings(5, 2)[0])


def test_an_option_is_not_the_name_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["--help"], ["signals", "-1"], []):
        with pytest.raises(OptionError, match="usage: python -m"):
            main(arguments)
    assert list(tmp_path.iterdir()) == []
