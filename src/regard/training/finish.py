"""The end of a run: average the best checkpoints, evaluate the model, write it with its report.

An interrupted run keeps its best model so far in model/, without scores.
"""

from __future__ import annotations

import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from regard.errors import FolderError
from regard.files.atomic import write_folder
from regard.files.checksums import verify_complete
from regard.training import plot
from regard.training.average import mean_of_files, save_model
from regard.training.checkpoint import evaluation_weights
from regard.training.loop import TrainingLoop
from regard.training.run_folder import Result
from regard.training.step_folders import RESUME, folder_name
from regard.version import __version__


def finish(loop: TrainingLoop, reason: str) -> Result:
    """Write model/, report.json and curves.png of a run that has ended."""
    run, recipe, state, world = loop.run_folder, loop.recipe, loop.state, loop.world
    weights, averaged_steps = final_weights(loop)
    model = loop.validator.model_with(weights)
    scores = final_scores(loop, model)
    report = make_report(loop, reason, averaged_steps, scores)
    if world.is_main:
        write_model(loop, dict(model.named_parameters()), report)
        run.write_report(report)
        plot.draw(run.log, run.curves, recipe.name, loop.task)
    world.barrier()
    return Result(run.folder, True, reason, state.step, scores, state.seconds, state.flops, report)


def finish_interrupted(loop: TrainingLoop) -> Result:
    """Write the best model so far of an interrupted run, if there was a validation, and curves.png."""
    run, state = loop.run_folder, loop.state
    if state.best:
        weights, averaged_steps = final_weights(loop)
        report = make_report(loop, "interrupted", averaged_steps, {}) | {"finished": False}
        if loop.world.is_main:
            write_model(loop, weights, report)
    if loop.world.is_main:
        plot.draw(run.log, run.curves, loop.recipe.name, loop.task)
    loop.world.barrier()
    return Result(
        run.folder, False, "interrupted", state.step, {}, state.seconds, state.flops, signal=loop.signal
    )


def write_model(loop: TrainingLoop, weights: dict[str, torch.Tensor], card: dict[str, Any]) -> None:
    """Write model/ of a run with these weights."""
    on_cpu = {name: p.detach().to("cpu") for name, p in weights.items()}
    to_save = loop.validator.cpu_model_with(on_cpu)
    write_folder(loop.run_folder.model, lambda folder: save_model(folder, to_save, card), RESUME)


def final_scores(loop: TrainingLoop, model: Any) -> dict[str, Any]:
    """Return the scores on the validation set and every test set; the first test set is also `test`."""
    recipe, data, display = loop.recipe, loop.data, loop.display
    scores: dict[str, Any] = {}
    for split in [*(["validation"] if data.has("validation") else []), *data.corpus.test_names]:
        display.print(f"scoring {split}{loop.task.search_description(recipe)}")
        beam, progress = recipe.decoding.beam, not display.quiet
        scores[split] = loop.validator.evaluate(model, split, beam, progress)
        scores[split].pop("sample", None)
    for split in data.corpus.test_names[:1]:
        scores.setdefault("test", scores[split])
    return scores


def final_weights(loop: TrainingLoop) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Return the mean of the `training.average` best checkpoints on process 0, and their steps.

    Without any validation these are the last weights.
    """
    folders: list[Path] = []
    if loop.world.is_main:
        for validation in loop.state.best[: loop.recipe.training.average]:
            folder = loop.run_folder.best / folder_name(validation["step"])
            try:
                verify_complete(folder)
                folders.append(folder)
            except FolderError as error:
                loop.display.print(f"{error}; it is left out of the final model")
    names = loop.world.run_on_main(lambda: [folder.name for folder in folders])
    if not names:
        return evaluation_weights(loop.model, loop.stepper.ema, loop.world), [loop.state.step]
    steps = [int(name.removeprefix("step-")) for name in names]
    weights = mean_of_files([(folder / "model.safetensors", "") for folder in folders]) if folders else {}
    return weights, steps


def make_report(
    loop: TrainingLoop, reason: str, averaged_steps: list[int], scores: dict[str, Any]
) -> dict[str, Any]:
    """Return the report, which is also the model's card: data, cost, scores, versions."""
    state, world, recipe = loop.state, loop.world, loop.recipe
    versions = {"regard": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    return {
        "name": recipe.name,
        "task": recipe.task,
        "finished": True,
        "ended_by": reason,
        "steps": state.step,
        "epochs": round(loop.steps.epochs, 4),
        "averaged_steps": averaged_steps,
        "scores": scores,
        "best": state.best[0] if state.best else None,
        "parameters": sum(p.numel() for p in loop.model.parameters()),
        "flops": state.flops,
        "seconds": round(state.seconds, 3),
        "tokens": state.tokens,
        "source_tokens": state.source_tokens,
        "sentences": state.sentences,
        "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9), 1),
        **_machine(world.device),
        "processes": world.size,
        "data": loop.data.summary(),
        "command": loop.command,
        "recipe": recipe.model_dump(),
        "versions": versions,
    }


def _machine(device: torch.device) -> dict[str, Any]:
    """Peak memory in bytes and the name of the device."""
    if device.type == "cuda":
        return {"peak_memory": torch.cuda.max_memory_allocated(), "device": torch.cuda.get_device_name()}
    cpu = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_memory": memory, "device": cpu}
