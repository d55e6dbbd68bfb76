"""Encoding workers: equal results, no import of torch, and no process that outlives its parent."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.data import encoding_workers as workers
from regard.data.chunk_encoder import EncodingSettings
from regard.data.encoding_workers import encode_all
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError


def chunks(count=5, rows=200):
    draw = random.Random(4)
    words = "the cat sat on a mat , naïve 😀\u2028 über “quotes” x\ty".split(" ")
    for _ in range(count):
        yield tuple(
            [" ".join(draw.choices(words, k=draw.randint(1, 20))) for _ in range(rows)] for _ in range(2)
        )


@pytest.fixture(scope="module")
def tokenizers():
    lines = [text for chunk in chunks() for column in chunk for text in column]
    return [Tokenizer.train(lines, "bpe", 120), Tokenizer.train(lines, "byte-bpe", 300)]


@pytest.mark.parametrize(
    "settings",
    [
        EncodingSettings(max_length=30, max_ratio=2.0),
        EncodingSettings(max_length=30, dropout=0.2, variants=3, seed=7),
    ],
)
def test_two_workers_give_the_result_of_one_process(tokenizers, settings):
    alone, shared = (list(encode_all(chunks(), tokenizers, settings, count)) for count in (1, 2))
    assert len(alone) == len(shared) == 5
    for a, b in zip(alone, shared, strict=True):
        assert a.counts == b.counts and a.counts["long"] > 0
        assert np.array_equal(a.keep, b.keep)
        for one, other in zip(a.sides, b.sides, strict=True):
            assert len(one) == len(other) == settings.variants
            assert all(
                np.array_equal(x, y)
                for p, q in zip(one, other, strict=True)
                for x, y in zip(p, q, strict=True)
            )


def test_a_worker_does_not_import_torch():
    code = workers._BOOT.replace("serve()\n", "print('torch' in sys.modules, 'numpy' in sys.modules)\n")
    command = [sys.executable, "-c", code, str(Path(regard.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True"]


def test_a_killed_worker_is_an_error_of_one_sentence(tokenizers):
    started = []
    original = subprocess.Popen

    class Remembering(original):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    subprocess.Popen = Remembering
    try:
        encoded = encode_all(chunks(), tokenizers, EncodingSettings(), 2)
        next(encoded)
        started[1].kill()
        with pytest.raises(DataError, match="ended early .* REGARD_WORKERS"):
            list(encoded)
    finally:
        subprocess.Popen = original
    assert all(process.poll() is not None for process in started)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    code = (
        "import sys, time; from regard.data.chunk_encoder import EncodingSettings\n"
        "from regard.data.tokenizer import Tokenizer\n"
        "from regard.data.encoding_workers import encode_all\n"
        "def forever():\n"
        "    while True: yield (['a b'], ['c'])\n"
        "t = Tokenizer.train(['a b c'], 'bpe', 20)\n"
        "for i, _ in enumerate(encode_all(forever(), [t, t], EncodingSettings(), 2)):\n"
        "    if i == 3: print('working', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{child}") for child in children):
            break
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{child}") for child in children)
