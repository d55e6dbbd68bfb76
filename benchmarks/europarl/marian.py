"""Hugging Face Marian, trained by Seq2SeqTrainer and decoded by generate: same sizes, rows and batches.

The trainer has no batches by tokens, so `get_train_dataloader` gives it regard's batches in regard's order,
as lists of rows; workers read and pad them. Settings are the recipe's where both have them, otherwise the
fast ones of transformers: bf16, torch.compile, fused AdamW (without weight decay, as Adam), no validation
during training, no check of every loss for NaN.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from benchmarks.europarl.experiment import Experiment
from benchmarks.gpu.marian import build_marian
from regard.attention.devices import pick_device
from regard.data.prepare import Prepared
from regard.data.tokenizer import BOS, EOS, PAD

IGNORED = -100  # label of padding
POSITIONS = 512
SENTENCES = 256  # of a batch of generate
SECONDS = "seconds.json"  # in a checkpoint: training time until then


class Pairs(Dataset):
    """The encoded training rows of regard; both sides end with EOS."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    def __len__(self) -> int:
        return self.prepared.rows

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        source, target = self.prepared.source(row), self.prepared.target(row)
        return torch.from_numpy(source.astype("int64")), torch.from_numpy(target.astype("int64"))


class Rows:
    """A batch sampler: the rows of every step of the run."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.steps = experiment.recipe.training.steps or 100_000

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in islice(self.experiment.batch_rows(), self.steps))


def collate(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Pad a batch to its longest rows, (batch, S) and (batch, T)."""
    sources, targets = zip(*pairs, strict=True)
    source = pad_sequence(list(sources), batch_first=True, padding_value=PAD)
    labels = pad_sequence(list(targets), batch_first=True, padding_value=IGNORED)
    shifted = torch.cat([torch.full((len(targets), 1), BOS), labels[:, :-1]], 1)
    return {
        "input_ids": source,
        "attention_mask": (source != PAD).long(),
        "decoder_input_ids": shifted.masked_fill(shifted == IGNORED, PAD),
        "labels": labels,
    }


def build(experiment: Experiment) -> Any:
    """MarianMTModel with the sizes of the recipe and random weights."""
    model, encoder = experiment.recipe.model, experiment.recipe.model.encoder
    return build_marian(
        experiment.vocabulary, model.dim, encoder.layers, encoder.heads, encoder.inner,
        dropout=model.dropout, max_position_embeddings=POSITIONS, use_cache=False, forced_eos_token_id=EOS,
    )  # fmt: skip


def settings(experiment: Experiment, folder: Path, compiled: bool) -> dict[str, Any]:
    """The arguments of Seq2SeqTrainer."""
    recipe, training = experiment.recipe, experiment.recipe.training
    optimizer: Any = recipe.optimizer  # Adam's options
    cuda = pick_device(training.device).type == "cuda"
    workers = 0 if experiment.tiny else max(1, min(8, (os.cpu_count() or 2) - 2))
    return {
        "output_dir": str(folder),
        "seed": recipe.seed,
        "max_steps": training.steps,
        "use_cpu": not cuda,
        "bf16": training.precision == "bfloat16",
        "torch_compile": compiled,
        "optim": "adamw_torch_fused" if cuda else "adamw_torch",
        "learning_rate": optimizer.lr,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": 0.0,
        "max_grad_norm": optimizer.clip,
        "lr_scheduler_type": "inverse_sqrt",
        "warmup_steps": recipe.schedule.warmup,
        "label_smoothing_factor": training.smoothing,
        "dataloader_num_workers": workers,
        "dataloader_prefetch_factor": 4 if workers else None,
        "dataloader_pin_memory": cuda,
        "accelerator_config": {"non_blocking": True},
        "remove_unused_columns": False,
        "eval_strategy": "no",
        "save_steps": training.save_every,
        "save_total_limit": 1,
        "logging_steps": training.log_every,
        "logging_nan_inf_filter": False,  # the check waits for the GPU at every step
        "report_to": "none",
        "disable_tqdm": True,
    }


def train(experiment: Experiment, compiled: bool) -> dict[str, Any]:
    """Train until the minutes are over, or resume; write the model and return its record.

    Seconds count from the call of `Trainer.train` to the end of the last step: start of the workers,
    compilation, steps and checkpoints.
    """
    import transformers

    # TF32, as regard. Before the trainer sets it in torch's new way: the old functions, which torch.compile
    # calls, raise if only the new one was used.
    torch.set_float32_matmul_precision("high")
    if compiled:  # batches have many shapes: one compilation for all of them, not one for the first before it
        os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = "1"
    folder = experiment.folder / "marian"
    arguments = settings(experiment, folder, compiled)
    trainer = make_trainer(experiment, arguments)
    checkpoint = last_checkpoint(folder)
    clock = make_clock(60 * experiment.minutes, checkpoint, folder / "log.jsonl")
    trainer.add_callback(clock)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    model: Any = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    steps = trainer.state.global_step
    model.save_pretrained(folder / "model")
    cost = experiment.cost(steps)
    return {
        "name": f"Hugging Face Marian {transformers.__version__}",
        "steps": steps,
        **cost,
        "seconds": round(clock.end, 3),
        "tokens_per_second": round(cost["tokens"] / clock.end, 1),
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "peak_memory": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        "settings": arguments | {"output_dir": folder.name},
    }


def make_trainer(experiment: Experiment, arguments: dict[str, Any]) -> Any:
    """A Seq2SeqTrainer with regard's batches."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    pairs = Pairs(experiment.corpus.train)

    class Trainer(Seq2SeqTrainer):
        def get_train_dataloader(self) -> Any:
            args = self.args
            loader = DataLoader(
                pairs, batch_sampler=Rows(experiment), collate_fn=collate,
                num_workers=args.dataloader_num_workers, pin_memory=args.dataloader_pin_memory,
                prefetch_factor=args.dataloader_prefetch_factor,
            )  # fmt: skip
            return self.accelerator.prepare(loader)

    return Trainer(
        model=build(experiment),
        args=Seq2SeqTrainingArguments(**arguments),
        train_dataset=pairs,
    )


def make_clock(limit: float, checkpoint: Path | None, log: Path) -> Any:
    """A callback that ends training after `limit` seconds and writes losses to a log as regard's."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        before = 0.0 if checkpoint is None else json.loads((checkpoint / SECONDS).read_text())
        start = time.monotonic()
        end = 0.0  # seconds after the last step

        def seconds(self) -> float:
            return self.before + time.monotonic() - self.start

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.seconds() >= limit:
                control.should_training_stop = True
                control.should_save = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                line = {"step": state.global_step, "loss": logs["loss"], "seconds": round(self.seconds(), 3)}
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / SECONDS).write_text(json.dumps(self.seconds()))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.end = self.seconds()

    return Clock()


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    complete = (path.parent for path in folder.glob(f"checkpoint-*/{SECONDS}"))
    return max(complete, key=lambda path: int(path.name.split("-")[1]), default=None)


@torch.inference_mode()
def translate(experiment: Experiment, sources: list[str], beam: int, length_penalty: float) -> list[str]:
    """Translate by Hugging Face's beam search in float32, sentences of similar length together.

    Hypotheses are scored by log p / length ** penalty and the search ends when `beam` of them have ended, as
    in regard's.
    """
    from transformers import MarianMTModel

    device = pick_device(experiment.recipe.training.device)
    loaded: Any = MarianMTModel.from_pretrained(experiment.folder / "marian" / "model", dtype=torch.float32)
    model = loaded.to(device).eval()
    tokenizer, texts = experiment.corpus.source_tokenizer, [""] * len(sources)
    assert tokenizer is not None
    rows = [torch.tensor([*ids[: POSITIONS - 1], EOS]) for ids in tokenizer.encode_batch(sources)]
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    for start in range(0, len(order), SENTENCES):
        chosen = order[start : start + SENTENCES]
        source = pad_sequence([rows[i] for i in chosen], batch_first=True, padding_value=PAD).to(device)
        longest = min(POSITIONS - 2, math.ceil(1.5 * source.shape[1] + 20))
        output = model.generate(
            input_ids=source, attention_mask=(source != PAD).long(), num_beams=beam, early_stopping=True,
            length_penalty=length_penalty, max_new_tokens=longest, do_sample=False, use_cache=True,
        )  # fmt: skip
        for i, ids in zip(chosen, output.tolist(), strict=True):
            texts[i] = experiment.corpus.target_tokenizer.decode(ids)
    return texts
