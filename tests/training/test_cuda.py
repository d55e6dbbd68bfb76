"""Training on a GPU: precisions, non-finite steps, resuming, CUDA graphs."""

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import RegardError
from regard.training.trainer import resume, train
from tests.training import tiny

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
CHANGES = {
    "training__device": "cuda",
    "training__steps": 30,
    "training__validate_every": 15,
    "training__save_every": 10,
}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_every_precision_learns(tmp_path, precision):
    result = train(
        tiny.recipe(tmp_path, **CHANGES, training__precision=precision), folder=tmp_path / "run", quiet=True
    )
    losses = [e["loss"] for e in tiny.log(result.folder)]
    assert losses[-1] < losses[0] - 0.3 and result.finished


def test_a_gpu_learns_what_a_cpu_learns(tmp_path):
    same = {
        "model__dropout": 0.0,
        "training__validate_every": 30,
        "schedule": {"kind": "constant", "warmup": 5},
    }
    curves = []
    for device in ("cpu", "cuda"):
        recipe = tiny.recipe(tmp_path, **{**CHANGES, **same, "training__device": device})
        curves.append(
            [e["loss"] for e in tiny.log(train(recipe, folder=tmp_path / device, quiet=True).folder)]
        )
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=2e-2, atol=0)  # TF32


def test_a_non_finite_step_is_detected_and_not_saved(tmp_path):
    recipe = tiny.recipe(
        tmp_path, **{**CHANGES, "optimizer__lr": 1e30, "optimizer__clip": None}, schedule={"kind": "constant"}
    )
    with pytest.raises(RegardError, match="is not finite"):
        train(recipe, folder=tmp_path / "run", quiet=True)
    for folder in (tmp_path / "run" / "checkpoints").glob("step-*"):
        assert all(bool(torch.isfinite(x).all()) for x in load_file(folder / "tensors.safetensors").values())


def test_a_run_can_be_resumed_and_moved_to_the_cpu(tmp_path):
    train(tiny.recipe(tmp_path, **CHANGES), folder=tmp_path / "run", quiet=True)
    assert resume(tmp_path / "run", overrides=["training.steps=35"], quiet=True).steps == 35
    assert (
        resume(tmp_path / "run", overrides=["training.steps=40", "training.device=cpu"], quiet=True).steps
        == 40
    )


def test_training_with_cuda_graphs_can_be_resumed(tmp_path):
    recipe = tiny.recipe(tmp_path, **{**CHANGES, "training__graph": True, "model__dropout": 0.0})
    train(recipe, folder=tmp_path / "uninterrupted", quiet=True)
    train(recipe, folder=tmp_path / "parts", overrides=["training.steps=20"], quiet=True)
    resume(tmp_path / "parts", overrides=["training.steps=30"], quiet=True)
    curves = [
        torch.tensor([e["loss"] for e in tiny.log(tmp_path / name)]) for name in ("uninterrupted", "parts")
    ]
    assert curves[0][-1] < curves[0][0] - 0.3
    torch.testing.assert_close(*curves, rtol=1e-3, atol=0)  # sums on a GPU have no fixed order


def test_cuda_graphs_with_many_long_sentences(tmp_path):
    text = "".join(f"{' '.join(str(i * j % 97) for j in range(60))}\n" for i in range(1, 300))
    for name in ("long.a", "long.b"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = [[str(tmp_path / "long.a"), str(tmp_path / "long.b")]]
    many = {
        "model__dim": 32,
        "data__train": files,
        "data__validation": files,
        "batch__tokens": 40000,
        "schedule": {"kind": "constant"},
    }
    recipe = tiny.recipe(
        tmp_path, **{**CHANGES, **many, "training__graph": True, "training__precision": "bfloat16"}
    )
    assert train(recipe, folder=tmp_path / "run", quiet=True).finished


@pytest.mark.parametrize("decoder", ["bahdanau", "recurrent"])
def test_recurrent_translators_learn_the_same_with_cuda_graphs(tmp_path, decoder):
    shape = {"cell": "gru", "layers": 1, "width": 16}
    same = {
        "model__dropout": 0.0,
        "model__encoder": {"kind": "recurrent", "bidirectional": True, **shape},
        "model__decoder": {"kind": decoder, **shape},
        "schedule": {"kind": "constant", "warmup": 5},
    }
    curves = []
    for graph in (False, True):
        recipe = tiny.recipe(tmp_path, **{**CHANGES, **same, "training__graph": graph})
        run = train(recipe, folder=tmp_path / f"{graph}", quiet=True)
        curves.append(torch.tensor([e["loss"] for e in tiny.log(run.folder)]))
    assert curves[0][-1] < curves[0][0]
    torch.testing.assert_close(*curves, rtol=2e-2, atol=0)  # TF32
