"""Tests of generate.py."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest

from regard.cli import generate
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.errors import FolderError, OptionError
from regard.models.folder import load
from regard.pipelines.generate import generate as search
from tests.decoding.model_folders import language_model, translator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return language_model(tmp_path_factory.mktemp("models") / "language")


@pytest.fixture
def regard(run_command):
    return partial(run_command, generate.command)


def test_a_stream_is_the_prompt_and_its_continuation(folder, regard):
    (expected,) = search(
        ["Tom is"], load(folder), strategy=Sample(seed=5, top_k=9), limits=Limits(max_length=30)
    )
    assert regard("Tom is", "--seed", "5", "--top-k", "9", "--length", "30", "--model", folder) == (
        0,
        f"Tom is{expected}\n",
        "",
    )


def test_count_samples_several_texts(folder, regard):
    (expected,) = search(
        ["Tom"], load(folder), strategy=Sample(seed=5, count=3), limits=Limits(max_length=10)
    )
    texts = [h.text for h in expected.hypotheses]
    assert len(set(texts)) > 1
    assert regard("Tom", "--seed", "5", "--count", "3", "--length", "10", "--model", folder)[1] == "".join(
        f"Tom{text}\n" for text in texts
    )
    records = [
        json.loads(line)
        for line in regard(
            "Tom", "--seed", "5", "--count", "3", "--length", "10", "--json", "--model", folder
        )[1].splitlines()
    ]
    assert [record["text"] for record in records] == texts


def test_a_beam_gives_the_most_likely_text(folder, regard):
    (expected,) = search(["Tom"], load(folder), beam=4, limits=Limits(max_length=10))
    assert regard("Tom", "--beam", "4", "--length", "10", "--model", folder)[1] == f"Tom{expected}\n"
    both = regard("Tom", "--beam", "4", "--count", "2", "--length", "10", "--model", folder)[1]
    assert both == "".join(f"Tom{h.text}\n" for h in expected.hypotheses[:2])


def test_without_a_seed_texts_differ(folder, regard):
    assert (
        len({regard("Tom", "--temperature", "3", "--length", "30", "--model", folder)[1] for _ in range(3)})
        > 1
    )


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (["x", "--model", "{folder}/none"], FolderError, "there is no folder"),
        (["x", "--model", "{translator}"], FolderError, "is a translator"),
        (
            ["x", "--beam", "2", "--top-p", "0.5", "--model", "{folder}"],
            OptionError,
            "--top-p is for sampling",
        ),
        (["x", "--beam", "2", "--count", "3", "--model", "{folder}"], OptionError, "give --beam 3"),
    ],
)
def test_invalid_options_are_errors_of_one_sentence(folder, regard, tmp_path, args, error, message):
    where = {"folder": folder, "translator": translator(tmp_path / "t")}
    with pytest.raises(error, match=message):
        regard(*(arg.format(**where) for arg in args))


@pytest.mark.slow
def test_standard_input_is_the_prompt_and_a_closed_pipe_is_no_error(folder):
    run = [sys.executable, "-m", "regard", "generate", "--model", str(folder), "--seed", "1", "--no-lines"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*run, "--length", "5"], input=b"Tom is\n", capture_output=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Tom is")
    process = subprocess.Popen(
        [*run, "x", "--length", "100000", "--min-length", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout.read(1) == b"x"
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
