"""A run at work: model, data, optimizer and log together, and the loop over steps."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from regard.errors import DataError
from regard.files.atomic import write_folder
from regard.files.background import Background
from regard.models.build import build
from regard.models.folder import read_json
from regard.recipe.schema import Recipe
from regard.recipe.start import Start
from regard.tasks import task_of
from regard.training import checkpoint, optimizer, rng_state, schedule
from regard.training.average import save
from regard.training.datasets import Datasets
from regard.training.display import Display
from regard.training.distributed import World, fill, spread
from regard.training.ema import Ema
from regard.training.log import Log
from regard.training.nonfinite import stop_at
from regard.training.position import TrainingPosition
from regard.training.run_folder import RunFolder
from regard.training.signals import StopSignals
from regard.training.step import Stepper
from regard.training.step_folders import RESUME, folder_name, remove_except, step_folders
from regard.training.step_iterator import StepIterator
from regard.training.tensorboard import TensorBoardLog
from regard.training.validate import validate

KEPT = 2  # checkpoints to resume from
MINUTES = 1 << 20  # in the count of wishes to stop, one of these is a clock's


class TrainingLoop:
    """Everything between the first step and the last."""

    def __init__(
        self,
        run: RunFolder,
        recipe: Recipe,
        world: World,
        material: Datasets,
        show: Display,
        command: str = "",
        start: Start | None = None,
    ) -> None:
        self.run, self.recipe, self.world, self.material, self.show, self.command = (
            run,
            recipe,
            world,
            material,
            show,
            command,
        )
        self.task = task_of(recipe.task)
        rng_state.seed(recipe.seed)  # the same first weights on every process
        self.model = self.build().to(world.device).train()
        new = set() if start is None else start.fill(self.model)
        if start is not None:
            show.say(start.line(self.model, new))
        self.task.prepare(self.model, recipe)
        self.model.flops(1, 1)  # counted before the weights are cut in parts
        module = spread(self.model, world, recipe.training.strategy, recipe.training.agreement)
        opt = optimizer.make(self.model, recipe.optimizer, new)
        ema = Ema(self.model, recipe.training.ema) if recipe.training.ema else None
        self.stepper = Stepper(self.model, module, opt, recipe, world, ema)
        self.feed = StepIterator(material.stream(recipe, world), world, recipe.batch.accumulate, self._flops)
        self.schedule = schedule.make(recipe.schedule, recipe.optimizer.lr, self.length())
        self.progress = TrainingPosition()
        self.writer = Background()
        self.log: Log | None = None
        self.board: TensorBoardLog | None = None
        self.saved = 0  # the step of the last checkpoint
        self.signal: int | None = None  # the one that stopped the loop
        self.checkpoints: dict[str, list[str]] = {}  # those on the disk, with the best folders each one names
        self._since = time.monotonic()
        self._speed = (
            time.monotonic(),
            0,
            0.0,
        )  # since when it is measured, the tokens then, and what it was before
        self._plain: Any = None
        self._shell = (
            self.build()
        )  # now: in the writing thread, drawing weights would disturb what training draws
        rng_state.seed(recipe.seed + 1_000_003 * world.rank)  # dropout differs between processes

    def _flops(self, source_length: int, target_length: int) -> int:
        """Operations of the forward passes of one sentence in training: two when two readings should agree."""
        return self.model.flops(source_length, target_length) * (2 if self.recipe.training.agreement else 1)

    def build(self) -> Any:
        """The recipe's model with fresh weights, its tokenizers and config on it."""
        source, target = self.material.source_tokenizer, self.material.target_tokenizer
        config = self.recipe.model.model_dump()
        model: Any = build(config, None if source is None else len(source), len(target))
        model.source_tokenizer, model.target_tokenizer, model.config = source, target, config
        return model

    def length(self) -> int | None:
        """Steps of the whole run, where steps or epochs decide."""
        training = self.recipe.training
        by_epochs = None if training.epochs is None else self.feed.steps(training.epochs)
        known = [n for n in (training.steps, by_epochs) if n is not None]
        return min(known, default=None)

    # — begin and go on —

    def open(self, folder: Path | None) -> None:
        """Start the log, or go on from a checkpoint."""
        position = 0
        if folder is not None:
            found = self.world.together(lambda: checkpoint.read_state(folder))
            self._check_data(found)
            self.feed.keep_together(found["together"])
            with checkpoint.readable(folder):
                self.feed.restore(checkpoint.restore(folder, found, self.stepper, self.recipe.seed))
                self.schedule.restore(found["schedule"])
                self.progress = TrainingPosition.restored(found["progress"])
            self.saved, position = self.progress.step, found["log"]
            self.command = found["command"]
        if self.world.first:
            self.checkpoints = {
                f.name: _best_in(f) for f in step_folders(self.run.checkpoints) if _older(f, folder)
            }
            self._cleaning()()
            self.log = Log(self.run.log, position, self.progress.step, self.show.say)
            if self.ended() is None:  # what was finished is being made longer
                self.run.report.unlink(missing_ok=True)
            self.board = (
                TensorBoardLog(self.run.folder, self.progress.step)
                if self.recipe.training.tensorboard
                else None
            )
        self._since = time.monotonic() - self.progress.seconds
        self._speed = (time.monotonic(), self.progress.tokens, 0.0)

    def _check_data(self, found: dict[str, Any]) -> None:
        """The files must be those the run was trained and validated on so far."""
        before, now = found.get("data") or {}, self.material.set_checksums()
        for split, files in (
            ("training", self.recipe.data.train),
            ("validation", self.recipe.data.validation),
        ):
            if before.get(split, now[split]) != now[split]:
                names = (
                    ", ".join(name for item in files for name in ([item] if isinstance(item, str) else item))
                    or "the old files"
                )
                raise DataError(
                    f"the {split} set of {self.run.folder} is not the one of its checkpoint (checksum {str(before[split])[:8]}, "
                    f"now {str(now[split])[:8]}); put {names} back as before, or start a run of another name"
                )

    def close(self) -> None:
        """Wait for what is being written."""
        try:
            self.writer.wait()
        finally:
            for part in (self.log, self.board):
                if part is not None:
                    part.close()

    # — the loop —

    def loop(self) -> str:
        """Train until something ends it; the reason."""
        with StopSignals(self.show.say) as interrupt:
            while (reason := self.ended()) is None:
                wish = 1 if interrupt.wanted else MINUTES if self._time_is_over() else 0
                stops = self.step(wish)
                if self.world.size == 1 and interrupt.wanted:
                    stops |= 1
                last = self.ended() is not None or stops >= MINUTES
                self.look(last)
                if stops:
                    reason = self.ended() or ("minutes" if stops >= MINUTES else "interrupted")
                    break
            if reason == "interrupted":
                self.signal = interrupt.signal or signal.SIGTERM  # another process may have received it
            self._end_of_loop()
        return reason

    def ended(self) -> str | None:
        """Why training is over, or None. The same on every process."""
        training, progress = self.recipe.training, self.progress
        if training.steps is not None and progress.step >= training.steps:
            return "steps"
        if training.epochs is not None and self.feed.epochs >= training.epochs - 1e-9:
            return "epochs"
        if training.patience is not None and progress.waited >= training.patience:
            return "patience"
        return None

    def _time_is_over(self) -> bool:
        minutes = self.recipe.training.minutes
        return minutes is not None and self.seconds() >= 60 * minutes

    def seconds(self) -> float:
        """Of training, over all resumptions."""
        return time.monotonic() - self._since

    def step(self, wish: int) -> int:
        """One step; the wishes to stop of all processes."""
        progress = self.progress
        portion = self.feed.next(wish)
        progress.step += 1
        self.stepper.step(progress.step, portion, self.schedule.rate(progress.step))
        progress.tokens += portion.tokens
        progress.logged_tokens += portion.tokens
        progress.source_tokens += portion.source_tokens
        progress.sentences += portion.sentences
        progress.flops += portion.flops
        return portion.stops

    def look(self, last: bool) -> None:
        """What is due after a step: a line of the log, a validation, a checkpoint."""
        training, step = self.recipe.training, self.progress.step
        validating = self.material.has("validation") and (last or step % training.validate_every == 0)
        saving_now = step % training.save_every == 0 and not last  # the last is saved at the end of the loop
        if step % training.log_every == 0:
            self.check()
            self._log_train()
        elif self.show.due and self.world.size == 1:
            self.check()
            self._show(self.stepper.sums)
        if validating:
            self.check()
            self.validate()
        if saving_now:
            self.check()
            self.save()

    def check(self) -> None:
        """Stop when a loss or gradient was not finite."""
        trouble = self.stepper.check()
        if trouble is not None:
            stop_at(trouble, self.run, self.material, self.world)

    def _end_of_loop(self) -> None:
        self.check()
        if self.progress.step > self.saved:
            self.save()
        self.writer.wait()

    # — the log —

    def _log_train(self) -> None:
        progress = self.progress
        sums = self.world.sum_(self.stepper.sums.clone())
        values = {**self._rates(sums), "seconds": round(self.seconds(), 3), "flops": progress.flops}
        if self.log is not None:
            self.log.add("train", **values)
        if self.board is not None:
            self.board.add(
                progress.step, {k: values[k] for k in ("loss", "nll", "norm", "rate", "tokens_per_second")}
            )
        if self.world.first and self.show.due:
            self._show(sums)
        self.stepper.sums.zero_()
        progress.logged_tokens = 0

    def _rates(self, sums: torch.Tensor) -> dict[str, Any]:
        """The figures of the steps since the last line."""
        progress = self.progress
        loss, nll = (sums / max(1, progress.logged_tokens)).tolist()
        now, (then, tokens, speed) = time.monotonic(), self._speed
        if progress.tokens > tokens:
            speed = (progress.tokens - tokens) / max(now - then, 1e-9)
        if now - then > 5:
            self._speed = (now, progress.tokens, speed)
        return {
            "step": progress.step, "epochs": round(self.feed.epochs, 4), "loss": loss, "nll": nll, "norm": float(self.stepper.norm),
            "rate": self.schedule.rate(progress.step), "tokens": progress.tokens, "tokens_per_second": round(speed, 1),
        }  # fmt: skip

    def _show(self, sums: torch.Tensor) -> None:
        training, progress = self.recipe.training, self.progress
        steps, seconds = self.length(), self.seconds()
        left = [] if steps is None else [(steps - progress.step) * seconds / max(1, progress.step)]
        left += [] if training.minutes is None else [max(0.0, 60 * training.minutes - seconds)]
        values = self._rates(sums)
        self.show.line(
            {**values, "loss": values["loss"] or None, "steps": steps, "left": min(left, default=None)}
        )

    # — validation —

    @contextmanager
    def evaluated(self) -> Iterator[Any]:
        """A whole model with the weights to look at: the exponential mean where there is one. Leaves no trace in training."""
        with rng_state.undisturbed(self.world.device):
            if self.recipe.training.strategy == "fsdp" and self.world.size > 1:
                yield self.filled(checkpoint.weights(self.model, self.stepper.ema, self.world))
            elif self.stepper.ema is not None:
                with self.stepper.ema.swapped():
                    yield self.model
            else:
                yield self.model

    def filled(self, weights: dict[str, torch.Tensor]) -> Any:
        """A second model on every process's device, with process 0's weights."""
        if self._plain is None:
            self._plain = self.build().to(self.world.device).eval()
        for name, p in self._plain.named_parameters():
            fill(p.data, weights.get(name), self.world)
        return self._plain

    def validate(self) -> None:
        """Score the model, enter it in the log and among the best."""
        recipe, progress = self.recipe, self.progress
        with self.evaluated() as model:
            scores = validate(
                model, self.material, "validation", recipe, self.world, recipe.decoding.validation_beam
            )
        sample = scores.pop("sample", None)
        kept, better = progress.consider(
            scores, recipe.training.keep, self.task.figure if self.task.higher else None
        )
        self.schedule.observe(better)
        if kept:
            self._keep_best(scores)
        if self.log is not None:
            more = {"sample": sample} if sample is not None else {}
            seconds = round(self.seconds(), 3)
            self.log.add(
                "validation", step=progress.step, **scores, **more, seconds=seconds, flops=progress.flops
            )
        if self.board is not None:
            self.board.add(progress.step, {f"validation/{k}": v for k, v in scores.items()})
        text = ", ".join(self._figure(k, v) for k, v in scores.items() if k != "loss")
        self.show.score = f"{text} at {progress.step:,}"
        self.show.say(
            f"validation at step {progress.step:,}: loss {scores['loss']:.3f}, {text}{' (best)' if better else ''}"
        )

    def _figure(self, name: str, value: float) -> str:
        """A score in words; shares get a digit more than points."""
        return f"{self.task.title if name == self.task.figure else name} {value:{'.4f' if self.task.shares else '.2f'}}"

    def _keep_best(self, scores: dict[str, Any]) -> None:
        """Write the weights of this step as a model folder, beside the training."""
        weights = checkpoint.weights(self.model, self.stepper.ema, self.world)
        if self.world.first:
            target = self.run.best / folder_name(self.progress.step)
            card = {
                "name": self.recipe.name, "task": self.recipe.task, "step": self.progress.step, "validation": scores,
                "flops": self.progress.flops, "seconds": round(self.seconds(), 3), "processes": self.world.size,
                "recipe": self.recipe.model_dump(),
            }  # fmt: skip
            self.writer.start(
                lambda: write_folder(target, lambda place: save(place, self.shell(weights), card), RESUME)
            )

    def shell(self, weights: dict[str, torch.Tensor]) -> Any:
        """A model whose tensors are these, to be written."""
        for name, p in self._shell.named_parameters():
            p.data = weights[name]
        return self._shell

    # — checkpoints —

    def save(self) -> None:
        """A checkpoint of this moment; written beside the training, after which older ones go."""
        progress = self.progress
        progress.seconds = self.seconds()
        values = {
            "command": self.command,
            "recipe": self.recipe.model_dump(),
            "progress": progress.state(),
            "schedule": self.schedule.state(),
            "log": self.log.sync() if self.log is not None else 0,
            "together": self.feed.together,
            "data": self.material.set_checksums(),
            "threads": torch.get_num_threads(),
        }
        write = checkpoint.collect(self.stepper, self.feed.state(), values)
        self.saved = progress.step
        if not self.world.first:
            return
        target = self.run.checkpoints / folder_name(progress.step)
        self.checkpoints[target.name] = [folder_name(b["step"]) for b in progress.best]
        clean = self._cleaning()

        def job() -> None:
            write_folder(target, write, RESUME)
            clean()

        self.writer.start(job)

    def _cleaning(self) -> Callable[[], None]:
        """Removes all but the newest checkpoints and the best that any of them names; a resumption from either finds all it
        knows of.
        """
        keep = sorted(self.checkpoints)[-KEPT:]
        self.checkpoints = {name: self.checkpoints[name] for name in keep}
        best = {name for names in self.checkpoints.values() for name in names}

        def clean() -> None:
            remove_except(self.run.checkpoints, keep)
            remove_except(self.run.best, best)

        return clean


def _older(folder: Path, than: Path | None) -> bool:
    """Whether a checkpoint is the one that is resumed from, or before it."""
    return than is not None and folder.name <= than.name


def _best_in(folder: Path) -> list[str]:
    """The names of the best folders that a checkpoint knows of; none if it cannot be read."""
    try:
        return [folder_name(b["step"]) for b in read_json(folder / checkpoint.STATE)["progress"]["best"]]
    except (ValueError, KeyError, TypeError):  # RegardError is a ValueError
        return []
