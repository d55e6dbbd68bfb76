"""The training loop: steps, what is due after a step, and why training ends."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import torch

from regard.errors import DataError
from regard.files.background import Background
from regard.models.build import build
from regard.optimization.optimizers import make_optimizer
from regard.optimization.schedules import LearningRate
from regard.recipe.schema import Recipe
from regard.tasks import get_task
from regard.training import checkpoint, rng_state
from regard.training.display import Display
from regard.training.distributed import World, distribute
from regard.training.ema import Ema
from regard.training.nonfinite import raise_non_finite
from regard.training.pretrained import Pretrained
from regard.training.run_folder import RunFolder
from regard.training.run_log import RunLog
from regard.training.signals import StopSignals
from regard.training.step import Stepper
from regard.training.step_iterator import StepBatches, StepIterator
from regard.training.tensorboard import TensorBoardLog
from regard.training.trainer_state import TrainerState
from regard.training.training_data import TrainingData
from regard.training.validation import Validator


class TrainingLoop:
    """Model, data, optimizer and log of a run, and the loop over steps."""

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        world: World,
        data: TrainingData,
        display: Display,
        command: str = "",
        pretrained: Pretrained | None = None,
    ) -> None:
        self.run_folder, self.recipe, self.world, self.data = run, recipe, world, data
        self.display, self.command = display, command
        self.task = get_task(recipe.task)
        rng_state.seed_all(recipe.seed)  # the same initial weights on every process
        self.model = self.build().to(world.device).train()
        self.stepper = self._make_stepper(pretrained)
        stream = data.training_batches(recipe, world)
        self.steps = StepIterator(stream, world, recipe.batch.accumulate, self._forward_flops)
        self.learning_rate = LearningRate(recipe.schedule, recipe.optimizer.lr, self.max_steps())
        self.state = TrainerState()
        self.background = Background()  # writes checkpoints and best models
        self.validator = Validator(run, recipe, data, self.stepper, self.build, self.background)
        self.checkpoints = checkpoint.Checkpoints(run, self.background)
        self.log: RunLog | None = None
        self.tensorboard: TensorBoardLog | None = None
        self.signal: int | None = None  # the signal that interrupted the loop
        self._started = time.monotonic()
        self._speed = Speed()
        rng_state.seed_all(recipe.seed + 1_000_003 * world.rank)  # dropout differs between processes

    def build(self) -> Any:
        """Return the recipe's model, randomly initialized, with its tokenizers and config."""
        source, target = self.data.source_tokenizer, self.data.target_tokenizer
        config = self.recipe.model.model_dump()
        model: Any = build(config, None if source is None else len(source), len(target))
        model.source_tokenizer, model.target_tokenizer, model.config = source, target, config
        return model

    def _make_stepper(self, pretrained: Pretrained | None) -> Stepper:
        recipe, training = self.recipe, self.recipe.training
        new: set[str] = set()
        if pretrained is not None:
            new = pretrained.initialize(self.model, self.task)
            self.display.print(pretrained.describe(self.model, new))
        self.task.initialize(self.model, recipe)
        self.model.flops(1, 1)  # counts parameters, so before FSDP shards them
        module = distribute(self.model, self.world, training.strategy, training.agreement)
        optimizer = make_optimizer(self.model, recipe.optimizer, new)
        ema = Ema(self.model, training.ema) if training.ema else None
        return Stepper(self.model, module, optimizer, recipe, self.world, ema)

    def _forward_flops(self, source_length: int, target_length: int) -> int:
        """FLOPs of the forward passes of one row in training; R-Drop has two."""
        return self.model.flops(source_length, target_length) * (2 if self.recipe.training.agreement else 1)

    def max_steps(self) -> int | None:
        """Return the length of the run, if steps or epochs limit it."""
        training = self.recipe.training
        by_epochs = None if training.epochs is None else self.steps.steps_in(training.epochs)
        return min((n for n in (training.steps, by_epochs) if n is not None), default=None)

    def seconds(self) -> float:
        """Return the training time, over all resumptions."""
        return time.monotonic() - self._started

    # Start and end

    def open(self, resumed: Path | None) -> None:
        """Open the log, and restore the checkpoint `resumed` if there is one."""
        log_position = 0 if resumed is None else self._restore(resumed)
        if self.world.is_main:
            self.checkpoints.open(resumed)
            self.log = RunLog(self.run_folder.log, log_position, self.state.step, self.display.print)
            if self.end_reason() is None:  # a finished run is continued
                self.run_folder.report.unlink(missing_ok=True)
            if self.recipe.training.tensorboard:
                self.tensorboard = TensorBoardLog(self.run_folder.folder, self.state.step)
        self._started = time.monotonic() - self.state.seconds
        self._speed = Speed(self.state.tokens)

    def _restore(self, folder: Path) -> int:
        """Restore a checkpoint; return the position in the log."""
        state = self.world.run_on_main(lambda: checkpoint.read_state(folder))
        self._check_data(state.get("data_checksums") or {})
        self.steps.set_batches_per_step(state["batches_per_step"])
        with checkpoint.readable(folder):
            self.steps.restore(checkpoint.restore(folder, state, self.stepper, self.recipe.seed))
            self.learning_rate.restore(state["schedule"])
            self.state = TrainerState(**state["trainer_state"])
        self.checkpoints.last_step, self.command = self.state.step, state["command"]
        return state["log_position"]

    def _check_data(self, before: dict[str, Any]) -> None:
        """Refuse to resume if the training or validation set is not the one of the checkpoint."""
        now, data = self.data.checksums(), self.recipe.data
        for split, files in (("training", data.train), ("validation", data.validation)):
            if before.get(split, now[split]) != now[split]:
                names = [name for item in files for name in ([item] if isinstance(item, str) else item)]
                if split == "training" and self.recipe.distillation.teacher is not None:
                    names.append(self.recipe.distillation.teacher)
                raise DataError(
                    f"the {split} set of {self.run_folder.folder} is not the one of its checkpoint (checksum "
                    f"{str(before[split])[:8]}, now {str(now[split])[:8]}); put "
                    f"{', '.join(names) or 'the old files'} back as before, or start a run of another name"
                )

    def close(self) -> None:
        """Wait for background writes and close the logs."""
        try:
            self.background.wait()
        finally:
            for log in (self.log, self.tensorboard):
                if log is not None:
                    log.close()

    # The loop

    def run(self) -> str:
        """Train until something ends it; return the reason."""
        with StopSignals(self.display.print) as signals:
            while (reason := self.end_reason()) is None:
                step = self.step(signals.stop_requested, not signals.stop_requested and self._time_is_up())
                alone = self.world.size == 1  # a signal during the step stops after it
                stop_requested = step.stop_requested or (alone and signals.stop_requested)
                self.after_step(is_last=self.end_reason() is not None or step.time_is_up)
                if stop_requested or step.time_is_up:
                    reason = self.end_reason() or ("minutes" if step.time_is_up else "interrupted")
                    break
            if reason == "interrupted":
                self.signal = signals.signal or signal.SIGTERM  # another process may have received it
            self.check_finite()
            if self.state.step > self.checkpoints.last_step:
                self.save()
            self.background.wait()
        return reason

    def end_reason(self) -> str | None:
        """Return why training is over, or None; the same on every process."""
        training, state = self.recipe.training, self.state
        if training.steps is not None and state.step >= training.steps:
            return "steps"
        if training.epochs is not None and self.steps.epochs >= training.epochs - 1e-9:
            return "epochs"
        if training.patience is not None and state.without_improvement >= training.patience:
            return "patience"
        return None

    def _time_is_up(self) -> bool:
        minutes = self.recipe.training.minutes
        return minutes is not None and self.seconds() >= 60 * minutes

    def step(self, stop_requested: bool = False, time_is_up: bool = False) -> StepBatches:
        """Train one step and count it."""
        state = self.state
        step = self.steps.next(stop_requested, time_is_up)
        state.step += 1
        self.stepper.step(state.step, step, self.learning_rate.at(state.step))
        state.tokens += step.tokens
        state.logged_tokens += step.tokens
        state.source_tokens += step.source_tokens
        state.sentences += step.sentences
        state.flops += step.flops
        return step

    def after_step(self, is_last: bool) -> None:
        """Do what is due after a step: a log line, a validation, a checkpoint."""
        training, step = self.recipe.training, self.state.step
        if step % training.log_every == 0:
            self.check_finite()
            self._log_training()
        elif self.display.is_due and self.world.size == 1:
            self.check_finite()
            self._update_display(self.stepper.loss_sums)
        if self.data.has("validation") and (is_last or step % training.validate_every == 0):
            self.check_finite()
            self.validate()
        if step % training.save_every == 0 and not is_last:  # the last step is saved at the end of the loop
            self.check_finite()
            self.save()

    def check_finite(self) -> None:
        """Raise an error if a loss or gradient was not finite."""
        non_finite = self.stepper.check()
        if non_finite is not None:
            raise_non_finite(non_finite, self.run_folder, self.data, self.world)

    def validate(self) -> None:
        """Validate, log the scores, update the schedule and keep the model if it is among the best."""
        state, task = self.state, self.task
        scores = self.validator.validate()
        sample = scores.pop("sample", None)
        metric = task.metric if task.higher_is_better else None
        is_kept, improved = state.add_validation(scores, self.recipe.training.keep, metric)
        self.learning_rate.observe(improved)
        if is_kept:
            self.validator.save_best(state, scores, self.seconds())
        if self.log is not None:
            shown = {} if sample is None else {"sample": sample}
            seconds = round(self.seconds(), 3)
            self.log.add("validation", step=state.step, **scores, **shown, seconds=seconds, flops=state.flops)
        if self.tensorboard is not None:
            self.tensorboard.add(state.step, {f"validation/{name}": x for name, x in scores.items()})
        text = ", ".join(self._format_score(name, x) for name, x in scores.items() if name != "loss")
        self.display.score = f"{text} at {state.step:,}"
        best = " (best)" if improved else ""
        self.display.print(f"validation at step {state.step:,}: loss {scores['loss']:.3f}, {text}{best}")

    def _format_score(self, name: str, value: float) -> str:
        task = self.task
        shown = task.metric_name if name == task.metric else name
        return f"{shown} {value:{'.4f' if task.metric_is_fraction else '.2f'}}"

    def save(self) -> None:
        """Write a checkpoint of the current state in the background."""
        self.state.seconds = self.seconds()
        values = {
            "command": self.command,
            "recipe": self.recipe.model_dump(),
            "trainer_state": self.state.as_dict(),
            "schedule": self.learning_rate.state(),
            "log_position": self.log.sync() if self.log is not None else 0,
            "batches_per_step": self.steps.batches_per_step,
            "data_checksums": self.data.checksums(),
            "threads": torch.get_num_threads(),
        }
        self.checkpoints.save(self.stepper, self.steps.state(), values)

    # Log and display

    def _log_training(self) -> None:
        state = self.state
        sums = self.world.sum_(self.stepper.loss_sums.clone())
        values = {**self._training_values(sums), "seconds": round(self.seconds(), 3), "flops": state.flops}
        if self.log is not None:
            self.log.add("train", **values)
        if self.tensorboard is not None:
            names = ("loss", "nll", "norm", "rate", "tokens_per_second")
            self.tensorboard.add(state.step, {name: values[name] for name in names})
        if self.world.is_main and self.display.is_due:
            self._update_display(sums)
        self.stepper.loss_sums.zero_()
        state.logged_tokens = 0

    def _training_values(self, sums: torch.Tensor) -> dict[str, Any]:
        """Means over the steps since the last log line; `sums` has loss and −log p."""
        state = self.state
        loss, nll = (sums / max(1, state.logged_tokens)).tolist()
        return {
            "step": state.step,
            "epochs": round(self.steps.epochs, 4),
            "loss": loss,
            "nll": nll,
            "norm": float(self.stepper.norm),
            "rate": self.learning_rate.at(state.step),
            "tokens": state.tokens,
            "tokens_per_second": round(self._speed.update(state.tokens), 1),
        }

    def _update_display(self, sums: torch.Tensor) -> None:
        minutes, step = self.recipe.training.minutes, self.state.step
        max_steps, seconds = self.max_steps(), self.seconds()
        left = [] if max_steps is None else [(max_steps - step) * seconds / max(1, step)]
        left += [] if minutes is None else [max(0.0, 60 * minutes - seconds)]
        values = self._training_values(sums)
        loss = values["loss"] or None
        self.display.update({**values, "loss": loss, "steps": max_steps, "left": min(left, default=None)})


class Speed:
    """Tokens per second over the last seconds."""

    def __init__(self, tokens: int = 0) -> None:
        self._since, self._tokens, self._last = time.monotonic(), tokens, 0.0

    def update(self, tokens: int) -> float:
        """Return the speed, given the tokens so far; every five seconds a new measurement starts."""
        now, speed = time.monotonic(), self._last
        if tokens > self._tokens:
            speed = (tokens - self._tokens) / max(now - self._since, 1e-9)
        if now - self._since > 5:
            self._since, self._tokens, self._last = now, tokens, speed
        return speed
