"""Tests of ray.py: the same job on a Ray cluster of two workers on this machine."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.errors import OptionError
from regard.pipelines.ray import run_on_ray
from regard.pipelines.translate_file import TranslateOptions
from tests.decoding.model_folders import translator

pytest.importorskip("ray")

CHUNKS = (
    "import sys; from regard.pipelines import input as source; source.CHUNK_LINES = {}; "
    "from regard.cli.main import run; run()"
)


def write_lines(path, count):
    draw = random.Random(1)
    lines = [
        " ".join("".join(draw.choices("abcdefgh", k=4)) for _ in range(draw.randint(0, 6)))
        for _ in range(count)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def command(chunk, model, *args):
    return [sys.executable, "-c", CHUNKS.format(chunk), "translate", "--model", str(model), *map(str, args)]


@pytest.fixture
def environment():
    """The environment of a separate local cluster."""
    return {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"OMP_NUM_THREADS": "1"}


def workers(process):
    """Process ids of the Ray workers of this cluster that are computing a chunk."""
    parents, titles = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            titles[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
            parents[int(pid)] = int(stat.rpartition(")")[2].split()[1])
        except OSError:  # the process has ended
            continue

    def under(pid):
        return pid == process.pid or (pid in parents and under(parents[pid]))

    return [pid for pid in parents if titles[pid].startswith(b"ray::Map(_translate)") and under(pid)]


@pytest.mark.slow
def test_the_output_is_that_of_one_machine_even_when_workers_die(tmp_path, environment):
    folder, path = translator(tmp_path / "model"), write_lines(tmp_path / "in.txt", 1500)
    options = ["-i", path, "--beam", "2", "--align"]
    subprocess.run(
        command(20, folder, *options, "-o", tmp_path / "here"), env=environment, check=True, timeout=200
    )
    there = command(20, folder, *options, "-o", tmp_path / "there", "--on", "ray")
    killed, deadline = set(), time.monotonic() + 200
    with subprocess.Popen(there, env=environment, stderr=subprocess.PIPE) as process:
        try:
            while process.poll() is None and len(killed) < 2 and time.monotonic() < deadline:
                for pid in workers(process)[:1]:
                    os.kill(pid, 9)  # in the middle of a chunk
                    killed.add(pid)
                    time.sleep(2)
                time.sleep(0.01)
            _, err = process.communicate(timeout=200)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert killed
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()


@pytest.mark.slow
def test_an_unreachable_cluster_is_an_error_in_one_sentence(tmp_path, environment):
    folder = translator(tmp_path / "model")
    done = subprocess.run(
        command(20, folder, "x", "--on", "ray"),
        env=environment | {"RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 2
    assert "the cluster at RAY_ADDRESS=127.0.0.1:1 cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_ray_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r'this needs ray; pip install "regard\[ray\]"'):
        run_on_ray([tmp_path], TranslateOptions())
