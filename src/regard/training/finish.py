"""The end of a run: the best checkpoints averaged into one model, scored on text it never saw, written with its card."""

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
from regard.training import checkpoint, plot
from regard.training.average import mean, save
from regard.training.loop import TrainingLoop
from regard.training.run_folder import Result
from regard.training.step_folders import RESUME, folder_name
from regard.training.validate import validate
from regard.version import __version__


def finish(session: TrainingLoop, reason: str) -> Result:
    """Write model/, report.json and curves.png of a run that has come to its end."""
    run, recipe, progress, world = session.run, session.recipe, session.progress, session.world
    weights, used = final_weights(session)
    model = session.filled(weights)
    scores = final_scores(session, model)
    report = describe(session, reason, used, scores)
    if world.first:
        shell = session.shell({name: p.detach().to("cpu") for name, p in model.named_parameters()})
        write_folder(run.model, lambda place: save(place, shell, report), RESUME)
        run.write_report(report)
        plot.draw(run.log, run.curves, recipe.name, session.task)
    world.barrier()
    return Result(run.folder, True, reason, progress.step, scores, progress.seconds, progress.flops, report)


def final_scores(session: TrainingLoop, model: Any) -> dict[str, Any]:
    """Scores of the finished model on the validation set and every test set; the first of these is `test` as well."""
    recipe, material, show = session.recipe, session.material, session.show
    scores: dict[str, Any] = {}
    for split in [*(["validation"] if material.has("validation") else []), *material.corpus.test_names]:
        show.say(f"scoring {split}{session.task.how(recipe)}")
        scores[split] = validate(
            model, material, split, recipe, session.world, recipe.decoding.beam, not show.quiet
        )
        scores[split].pop("sample", None)
    for split in material.corpus.test_names[:1]:
        scores.setdefault("test", scores[split])
    return scores


def final_weights(session: TrainingLoop) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The mean of the `average` best checkpoints on process 0, and their steps; the last weights where nothing was validated."""
    folders: list[Path] = []
    if session.world.first:
        for entry in session.progress.best[: session.recipe.training.average]:
            folder = session.run.best / folder_name(entry["step"])
            try:
                verify_complete(folder)
                folders.append(folder)
            except FolderError as error:
                session.show.say(f"{error}; it is left out of the finished model")
    names = session.world.together(lambda: [folder.name for folder in folders])
    if not names:
        return checkpoint.weights(session.model, session.stepper.ema, session.world), [session.progress.step]
    steps = [int(name.removeprefix("step-")) for name in names]
    return (mean([(folder / "model.safetensors", "") for folder in folders]) if folders else {}), steps


def describe(session: TrainingLoop, reason: str, used: list[int], scores: dict[str, Any]) -> dict[str, Any]:
    """What was trained on what, for how long, at what cost, and how good it is: the report, and the model's card."""
    progress, world, recipe = session.progress, session.world, session.recipe
    cuda = world.device.type == "cuda"
    memory = (
        torch.cuda.max_memory_allocated()
        if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {
        "name": recipe.name,
        "task": recipe.task,
        "finished": True,
        "ended_by": reason,
        "steps": progress.step,
        "epochs": round(session.feed.epochs, 4),
        "averaged_steps": used,
        "scores": scores,
        "best": progress.best[0] if progress.best else None,
        "parameters": sum(p.numel() for p in session.model.parameters()),
        "flops": progress.flops,
        "seconds": round(progress.seconds, 3),
        "tokens": progress.tokens,
        "source_tokens": progress.source_tokens,
        "sentences": progress.sentences,
        "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
        "peak_memory": memory,
        "device": torch.cuda.get_device_name()
        if cuda
        else f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "processes": world.size,
        "data": session.material.summary(),
        "command": session.command,
        "recipe": recipe.model_dump(),
        "versions": {"regard": __version__, "torch": torch.__version__, "python": sys.version.split()[0]},
    }
