"""Evaluate a model on a split over all processes, and keep the best models of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from regard.files.atomic import write_folder
from regard.files.background import Background
from regard.recipe.schema import Recipe
from regard.tasks import Evaluation, Predictions, get_task
from regard.training.average import save_model
from regard.training.checkpoint import evaluation_weights
from regard.training.distributed import copy_from_main
from regard.training.rng_state import preserve_rng_state
from regard.training.run_folder import RunFolder
from regard.training.step import Stepper
from regard.training.step_folders import RESUME, folder_name
from regard.training.trainer_state import TrainerState
from regard.training.training_data import TrainingData


def evaluate_split(evaluation: Evaluation) -> dict[str, Any]:
    """Return loss (nats per target) and metrics of the task on a split.

    The processes share the work; all return the result.
    """
    world, task = evaluation.world, get_task(evaluation.recipe.task)
    shard = json.dumps(asdict(task.evaluate_shard(evaluation))).encode()
    shards = [Predictions(**json.loads(content)) for content in world.gather(shard)]

    def scores() -> dict[str, Any]:
        predictions = merge_shards(shards)
        return {"loss": predictions.nll / predictions.count, **task.metrics(predictions, evaluation)}

    return world.run_on_main(scores)


def merge_shards(shards: list[Predictions]) -> Predictions:
    """Sum the losses of all processes and put the outputs back in order; process r has rows r, r + size, …"""
    outputs: list[Any] = [None] * sum(len(shard.outputs) for shard in shards)
    for rank, shard in enumerate(shards):
        outputs[rank :: len(shards)] = shard.outputs
    return Predictions(sum(s.nll for s in shards), sum(s.count for s in shards), outputs)


class Validator:
    """Validates the model of a run without changing its training, and saves the best models."""

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        data: TrainingData,
        stepper: Stepper,
        build: Callable[[], Any],
        background: Background,
    ) -> None:
        self.run, self.recipe, self.data, self.stepper = run, recipe, data, stepper
        self.world, self._build, self._background = stepper.world, build, background
        self._full_model: Any = None
        # Built now: in the background thread its random initialization would disturb training's generators.
        self._cpu_model = build()

    def validate(self) -> dict[str, Any]:
        """Return the scores on the validation set."""
        with self.evaluation_model() as model:
            return self.evaluate(model, "validation", self.recipe.decoding.validation_beam)

    def evaluate(self, model: Any, split: str, beam: int, progress: bool = False) -> dict[str, Any]:
        """Return the scores of a model on a split."""
        return evaluate_split(Evaluation(model, self.data, split, self.recipe, self.world, beam, progress))

    @contextmanager
    def evaluation_model(self) -> Iterator[Any]:
        """A complete model with the weights to evaluate: the moving averages if there are any."""
        stepper, fsdp = self.stepper, self.recipe.training.strategy == "fsdp"
        with preserve_rng_state(self.world.device):
            if fsdp and self.world.size > 1:
                yield self.model_with(evaluation_weights(stepper.model, stepper.ema, self.world))
            elif stepper.ema is not None:
                with stepper.ema.applied():
                    yield stepper.model
            else:
                yield stepper.model

    def model_with(self, weights: dict[str, torch.Tensor]) -> Any:
        """Return a second model on the device of every process, with process 0's weights."""
        if self._full_model is None:
            self._full_model = self._build().to(self.world.device).eval()
        for name, p in self._full_model.named_parameters():
            copy_from_main(p.data, weights.get(name), self.world)
        return self._full_model

    def cpu_model_with(self, weights: dict[str, torch.Tensor]) -> Any:
        """Return a model on the CPU whose parameters are these tensors, for saving."""
        for name, p in self._cpu_model.named_parameters():
            p.data = weights[name]
        return self._cpu_model

    def save_best(self, state: TrainerState, scores: dict[str, Any], seconds: float) -> None:
        """Write the current weights as a model folder in the background."""
        weights = evaluation_weights(self.stepper.model, self.stepper.ema, self.world)
        if not self.world.is_main:
            return
        target = self.run.best / folder_name(state.step)
        card = {
            "name": self.recipe.name,
            "task": self.recipe.task,
            "step": state.step,
            "validation": scores,
            "flops": state.flops,
            "seconds": round(seconds, 3),
            "processes": self.world.size,
            "recipe": self.recipe.model_dump(),
        }
        self._background.start(
            lambda: write_folder(
                target, lambda folder: save_model(folder, self.cpu_model_with(weights), card), RESUME
            )
        )
