"""Two processes under torchrun with gloo: equal to one process with twice the batch, killed, with FSDP."""

import contextlib
import os
import random
import signal
import time

import pytest
import torch

from regard.models.folder import load
from regard.training.distributed import World
from regard.training.step_folders import newest_complete, step_folders
from tests.training import tiny

SINGLE_PROCESS = World(torch.device("cpu"))
# No dropout, which differs between processes: then only rounding differs.
CHANGES = {
    "model__dropout": 0.0, "training__steps": 24, "training__validate_every": 12, "training__save_every": 6,
    "schedule": {"kind": "constant", "warmup": 4},
}  # fmt: skip


def curve(run):
    """The counts (step, epochs, tokens, FLOPs) and the losses in the log of a run."""
    return [(e["step"], e["epochs"], e["tokens"], e["flops"]) for e in tiny.log(run)], [
        e["loss"] for e in tiny.log(run)
    ]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run of two processes with one batch each per step."""
    folder = tmp_path_factory.mktemp("two")
    tiny.finish(
        tiny.torchrun(folder, "train", tiny.recipe(folder, **CHANGES, batch__accumulate=1), folder / "run")
    )
    return folder


def test_two_processes_have_the_loss_curve_of_one_with_twice_the_batch(two):
    tiny.start(two, "train", tiny.recipe(two, **CHANGES, batch__accumulate=2), two / "one").finish()
    (counts, losses), (counts_one, losses_one) = curve(two / "run"), curve(two / "one")
    assert counts == counts_one and len(losses) >= 4  # equal batches in equal steps, over several epochs
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(losses_one), rtol=2e-5, atol=0)
    for a, b in zip(tiny.log(two / "run", "validation"), tiny.log(two / "one", "validation"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["bleu"] == pytest.approx(b["bleu"], abs=5)


@pytest.mark.slow  # kills are in test_resume.py, two processes in the tests above
def test_torchrun_restarts_a_killed_process_and_the_run_is_identical(two, tmp_path):
    process = tiny.torchrun(
        two, "train", tiny.recipe(two, **CHANGES, batch__accumulate=1), tmp_path / "run", restarts=2
    )
    while not step_folders(tmp_path / "run" / "checkpoints") and process.poll() is None:
        time.sleep(0.01)
    victim = int((tmp_path / "pid-1").read_text(encoding="utf-8"))
    os.kill(victim, signal.SIGKILL)
    output = tiny.finish(process)
    assert "resuming after step" in output and int((tmp_path / "pid-1").read_text(encoding="utf-8")) != victim
    assert tiny.differences(tmp_path / "run", two / "run") == []


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_the_resumed_run_is_identical(two, tmp_path):
    """torchrun exits with 1, whatever its processes exit with."""
    recipe = tiny.recipe(two, **CHANGES, batch__accumulate=1)
    process = tiny.torchrun(two, "train", recipe, tmp_path / "run")
    while not step_folders(tmp_path / "run" / "checkpoints") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "stopping after this step" in output, output
    assert newest_complete(tmp_path / "run" / "checkpoints", print) is not None
    assert not (tmp_path / "run" / "model").exists()
    tiny.finish(tiny.torchrun(two, "resume", None, tmp_path / "run"))
    assert tiny.differences(tmp_path / "run", two / "run") == []


@pytest.mark.slow
def test_after_six_random_kills_the_run_is_identical(two, tmp_path):
    recipe = tiny.recipe(two, **{**CHANGES, "training__steps": 400}, batch__accumulate=1)
    tiny.finish(tiny.torchrun(two, "train", recipe, tmp_path / "uninterrupted"))
    process = tiny.torchrun(two, "train", recipe, tmp_path / "run", restarts=9)
    draw = random.Random(5)
    for _ in range(6):
        before = step_folders(tmp_path / "run" / "checkpoints")
        while step_folders(tmp_path / "run" / "checkpoints") == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 1))
        with contextlib.suppress(ProcessLookupError):  # not restarted yet
            os.kill(int((tmp_path / f"pid-{draw.randint(0, 1)}").read_text(encoding="utf-8")), signal.SIGKILL)
    output = tiny.finish(process, 600)
    print(
        f"restarted {output.count('resuming after step') + output.count('starts from the beginning')} times"
    )
    assert tiny.differences(tmp_path / "run", tmp_path / "uninterrupted") == []


def test_one_process_resumes_a_run_of_two_with_the_same_batches(two, tmp_path):
    """A step has the same batches: one process takes those of both."""
    import shutil

    shutil.copytree(two / "run", tmp_path / "run")
    last = step_folders(tmp_path / "run" / "checkpoints")[-1]
    shutil.rmtree(last)
    tiny.start(two, "resume", None, tmp_path / "run").finish()
    (counts, losses), (counts_two, losses_two) = curve(tmp_path / "run"), curve(two / "run")
    assert counts == counts_two
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(losses_two), rtol=2e-5, atol=0)


@pytest.mark.slow
def test_fsdp_trains_like_ddp_and_its_model_folder_has_full_tensors(two, tmp_path):
    recipe = tiny.recipe(two, **CHANGES, batch__accumulate=1, training__strategy="fsdp")
    tiny.finish(tiny.torchrun(two, "train", recipe, tmp_path / "run"))
    (counts, losses), (counts_two, losses_two) = curve(tmp_path / "run"), curve(two / "run")
    assert counts == counts_two
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(losses_two), rtol=2e-4, atol=0)
    model = load(tmp_path / "run")
    plain = load(two / "run")
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert type(a.data) is torch.Tensor and a.shape == b.shape, name
    # One process without sharding resumes it.
    tiny.start(two, "resume", None, tmp_path / "run", "training.steps=30").finish()


def test_collectives_of_a_single_process():
    assert (
        SINGLE_PROCESS.sum([1, 2]) == [1, 2]
        and SINGLE_PROCESS.gather(b"x") == [b"x"]
        and SINGLE_PROCESS.broadcast(b"y") == b"y"
    )
    assert SINGLE_PROCESS.run_on_main(lambda: {"a": [1, None]}) == {"a": [1, None]}
