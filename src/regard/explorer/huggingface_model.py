"""A Hugging Face model behind the explorer: run one text, plain or with changed attention.

The maps are named as those of our models (encoder.layers.0.attention.self, decoder.layers.0.cross),
so that views and edits treat both alike.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.edits import Edit
from regard.attention.intervening import intervene
from regard.attention.watching import Seen, watch
from regard.decoding.attention_weights import AttentionMaps
from regard.errors import OptionError
from regard.explorer.explored_model import EXAMPLES, MAX_BEAM, TASK_EXAMPLES
from regard.explorer.huggingface_folder import load_folder
from regard.explorer.huggingface_tokens import TokenNames
from regard.explorer.run import Run, Side
from regard.explorer.run_job import MAX_TOKENS, Job, check_tokens
from regard.explorer.text_search import GENERATED
from regard.huggingface.interface import CROSS_NAMES
from regard.serving.http_errors import client_left

TOP = 6  # tokens that a masked language model proposes


class HuggingFaceModel:
    """Runs texts through a Hugging Face model on regard's attention. One text runs at a time."""

    def __init__(self, model: Any, tokenizer: Any, task: str, name: str) -> None:
        self.model, self.tokenizer, self.task, self.name = model, tokenizer, task, name
        self.tokens = TokenNames(tokenizer)
        self._lock = threading.Lock()
        self.modules = self._modules()  # the model's own names by those of the maps
        if task == "embed" and any(name.startswith("decoder") for name in self.modules):
            raise OptionError(
                f"{name} holds a {type(model).__name__} without output layer, which generates nothing; save "
                "the model with it (…ForCausalLM)"
            )

    @classmethod
    def of_folder(cls, folder: Path) -> HuggingFaceModel:
        return cls(*load_folder(folder), folder.resolve().name)

    def describe(self) -> dict[str, Any]:
        """What the page shows of the model before a text is run."""
        examples = TASK_EXAMPLES.get(self.task, EXAMPLES["en"])
        if self.task == "fill":
            mask = self.tokenizer.mask_token
            examples = [f"Paris is the {mask} of France.", f"The cat {mask} on the mat."]
        return {
            "name": self.name,
            "kind": type(self.model).__name__,
            "task": self.task,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "languages": {"source": None, "target": None, "choices": []},
            "examples": examples,
            "limits": {"tokens": self.longest, "beam": MAX_BEAM},
            "can": ["diversity", "gold", "export"],
            "mask": getattr(self.tokenizer, "mask_token", None),
            "views": ["alignment", "heads", "whatif", "compare", "mechanism"],
        }

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or MAX_TOKENS
        return min(MAX_TOKENS, positions, self.tokenizer.model_max_length)

    @torch.no_grad()
    def run(self, job: Job) -> Run:
        """Run one text; with a `base` run, also score both outputs with and without the edits."""
        if not job.text.strip():
            raise OptionError("there is no text; type some")
        if job.prefix or job.target:
            raise OptionError("tokens can be forced on regard's own models only")
        ids: list[int] = self.tokenizer(job.text)["input_ids"]
        if not ids:
            raise OptionError("the tokenizer makes no token of this text; type another")
        check_tokens(len(ids), self.longest)
        with self._lock:
            with self._changed(job.edits):
                run = RUNNERS[self.task](self, job, ids)
            if job.base is not None:
                self._compare(job.base, run, job.edits)
        if job.cancelled():
            raise client_left()
        return run

    @contextmanager
    def _changed(self, edits: dict[str, list[Edit]]) -> Iterator[None]:
        """Change attention inside the block; the edits have the names of the maps."""
        if not edits:
            yield
            return
        for name in edits:
            if name not in self.modules:
                raise OptionError(
                    f"intervene: there is no attention {name!r}; there are {', '.join(self.modules)}"
                )
        with intervene(self.model, {self.modules[name]: given for name, given in edits.items()}):
            yield

    def _inputs(self, ids: Sequence[int], target: Sequence[int] | None = None) -> dict[str, Tensor]:
        row = torch.tensor([list(ids)], device=self.model.device)  # (1, T)
        inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        if target is not None:
            read = [self.first, *target[:-1]]
            inputs["decoder_input_ids"] = torch.tensor([read], device=self.model.device)
        return inputs

    @property
    def first(self) -> int:
        """The token that the decoder of an encoder-decoder reads first."""
        return int(self.model.config.decoder_start_token_id)

    def _forward(self, ids: Sequence[int], target: Sequence[int] | None = None) -> tuple[Any, Seen]:
        with watch(self.model) as seen:
            output = self.model(**self._inputs(ids, target), use_cache=False, return_dict=True)
        return output, seen

    def _modules(self) -> dict[str, str]:
        """Run a few tokens and name the attention that was seen."""
        ids = (self.tokenizer("a b c")["input_ids"] or [0])[:8]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about the dummy text
            output, seen = self._forward(ids, ids if self.task == "translate" else None)
        del output
        if not seen:
            raise OptionError(
                f"{type(self.model).__name__} has no attention that can be shown: {seen._why_missing('')}"
            )
        names, counts = {}, {"encoder": 0, "decoder": 0, "cross": 0}
        for path in seen:
            kind = self._kind(path, seen[path].weights(batch=0))
            layer = counts[kind]
            counts[kind] += 1
            end = (
                f"decoder.layers.{layer}.cross"
                if kind == "cross"
                else f"{kind}.layers.{layer}.attention.self"
            )
            names[end] = path
        return names

    def _kind(self, path: str, weights: Tensor) -> str:
        if self.task == "translate":
            if any(part in path.lower() for part in CROSS_NAMES):
                return "cross"
            return "encoder" if "encoder" in path.split(".")[:2] else "decoder"
        causal = bool((weights.triu(1) == 0).all()) and weights.shape[-1] > 1  # (heads, T, T)
        return "decoder" if causal else "encoder"

    def _maps(self, seen: Seen, source: list[str], target: list[str], inputs: list[str]) -> AttentionMaps:
        weights = {name: seen[path].weights(batch=0).float().cpu() for name, path in self.modules.items()}
        return AttentionMaps(source, target, inputs, weights)

    def _log_probabilities(self, logits: Tensor, target: Sequence[int]) -> list[float]:
        """Log probability of each target token, from logits (T, vocabulary)."""
        log_p = logits.double().log_softmax(-1)
        return log_p[torch.arange(len(target)), torch.tensor(list(target))].tolist()

    def _generate(self, ids: list[int], job: Job, longest: int) -> list[list[int]]:
        """The generated tokens of each hypothesis, the best first; the end token is the last if it ended."""
        inputs = self._inputs(ids)
        sequences = self.model.generate(
            **inputs,
            num_beams=job.beam,
            num_return_sequences=job.beam,
            do_sample=False,
            max_new_tokens=longest,
            max_length=None,
            stopping_criteria=[lambda ids, _, **__: torch.full((len(ids),), job.cancelled())],
        ).tolist()
        if job.cancelled():
            raise client_left()
        start = 1 if self.task == "translate" else len(ids)
        return [self._until_end(sequence[start:]) for sequence in sequences]

    def _until_end(self, tokens: list[int]) -> list[int]:
        for i, token in enumerate(tokens):
            if token in self.ends:
                return tokens[: i + 1]
        return tokens

    @property
    def ends(self) -> set[int]:
        end = self.model.generation_config.eos_token_id
        return set() if end is None else {end} if isinstance(end, int) else set(end)

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _one_token(self, word: str) -> int:
        """The token of a word inside a sentence; GPT-like tokenizers mark the space before it."""
        for text in (f" {word}", word):
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) == 1 and ids[0] != self.tokenizer.unk_token_id:
                return ids[0]
        raise OptionError(f"{word[:40]!r} is not one token of this model; choose another word")

    def _sum_log_p(self, source: list[int] | None, target: Sequence[int], skipped: int) -> float:
        """Log probability of the target; `skipped` tokens of a prompt do not count."""
        if source is None:
            logits = self.model(**self._inputs(target[:-1]), use_cache=False).logits[0]
            return sum(self._log_probabilities(logits, target[1:])[skipped:])
        logits = self.model(**self._inputs(source, target), use_cache=False).logits[0]
        return sum(self._log_probabilities(logits, target))

    def _compare(self, base: Run, run: Run, edits: dict[str, list[Edit]]) -> None:
        """Add to the output of `run` how likely each of the two outputs is with and without the edits."""
        if "vector" in run.private and "vector" in base.private:
            run.output["cosine"] = float(np.dot(base.private["vector"], run.private["vector"]))
        if "target" not in run.private or "target" not in base.private:
            return
        source, skipped = run.private["source"], run.private["prompt"]
        outputs = [base.private["target"], run.private["target"]]
        with self._changed(edits):
            edited = [self._sum_log_p(source, target, skipped) for target in outputs]
        plain = [self._sum_log_p(source, target, skipped) for target in outputs]
        run.output["comparison"] = {
            name: {"plain": plain[i], "edited": edited[i]} for i, name in enumerate(("original", "changed"))
        }

    def _side(self, ids: Sequence[int]) -> Side:
        return self.tokens.side(ids)


def _translate(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    longest = min(2 * len(ids) + 20, explored.longest - 1)
    hypotheses = explored._generate(ids, job, longest)
    target = hypotheses[0]
    output, seen = explored._forward(ids, target)
    log_p = explored._log_probabilities(output.logits[0], target)
    sides = {
        "source": explored._side(ids),
        "target": explored._side(target),
        "inputs": explored._side([explored.first, *target[:-1]]),
    }
    result = {
        "text": explored._text(target),
        "logP": sum(log_p),
        "ended": target[-1] in explored.ends,
        "tokenLogP": log_p,
        "hypotheses": _hypotheses(explored, ids, hypotheses, 0),
    }
    maps = explored._maps(seen, sides["source"].tokens, sides["target"].tokens, sides["inputs"].tokens)
    read = [explored.first, *target[:-1]]
    private = {"source": ids, "target": target, "prompt": 0, "ids": (ids, read)}
    return Run("translate", job.text, result, sides, maps, private)


def _continue(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    longest = min(GENERATED, explored.longest - len(ids))
    if longest < 1:
        raise OptionError(f"the text fills all {explored.longest} positions of this model; shorten it")
    hypotheses = explored._generate(ids, job, longest)
    tokens, skipped = [*ids, *hypotheses[0]], len(ids) - 1
    output, seen = explored._forward(tokens[:-1])
    log_p = explored._log_probabilities(output.logits[0], tokens[1:])
    sides = {"target": explored._side(tokens[1:]), "inputs": explored._side(tokens[:-1])}
    result = {
        "text": explored._text(hypotheses[0]),
        "prompt": job.text,
        "promptTokens": skipped,
        "logP": sum(log_p[skipped:]),
        "ended": hypotheses[0][-1] in explored.ends,
        "tokenLogP": log_p,
        "hypotheses": _hypotheses(explored, None, [[*ids, *tail] for tail in hypotheses], skipped),
    }
    maps = explored._maps(seen, [], sides["target"].tokens, sides["inputs"].tokens)
    private = {"source": None, "target": tokens, "prompt": skipped, "ids": (tokens[:-1],)}
    return Run("generate", job.text, result, sides, maps, private)


def _hypotheses(
    explored: HuggingFaceModel, source: list[int] | None, targets: list[list[int]], skipped: int
) -> list[dict[str, Any]]:
    """Text, log probability and score (log probability per token) of each hypothesis."""
    rows = []
    for target in targets:
        log_p, tail = (
            explored._sum_log_p(source, target, skipped),
            target if source else target[skipped + 1 :],
        )
        rows.append({"text": explored._text(tail), "logP": log_p, "score": log_p / max(1, len(tail))})
    return rows


def _encode(explored: HuggingFaceModel, ids: list[int]) -> tuple[Any, dict[str, Side], AttentionMaps]:
    output, seen = explored._forward(ids)
    side = explored._side(ids)
    sides = {"source": side, "target": side, "inputs": side}  # a causal classifier's maps use target, inputs
    return output, sides, explored._maps(seen, side.tokens, side.tokens, side.tokens)


def _classify(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    output, sides, maps = _encode(explored, ids)
    names = explored.model.config.id2label
    p = output.logits[0].double().softmax(-1)
    order = p.argsort(descending=True).tolist()
    result = {"label": names[order[0]], "probabilities": {names[i]: float(p[i]) for i in order}}
    return Run("classify", job.text, result, sides, maps)


def _tag(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    output, sides, maps = _encode(explored, ids)
    predicted = output.logits[0].argmax(-1).tolist()  # (T,)
    words = [word for word in sides["source"].words if not word["special"]]
    tags = [explored.model.config.id2label[predicted[word["tokens"][0]]] for word in words]
    texts = [word["text"] for word in words]
    shown = " ".join(texts)
    return Run("tag", job.text, {"words": texts, "tags": tags, "text": shown}, sides, maps)


def _fill(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    """Fill the first masked token; a text without one gives a vector."""
    mask = explored.tokenizer.mask_token_id
    if mask not in ids:
        return _embed(explored, job, ids)
    output, sides, maps = _encode(explored, ids)
    p = output.logits[0, ids.index(mask)].double().softmax(-1)
    best = p.topk(min(TOP, len(p)))
    names = [explored._text([token]) or explored.tokens.label(token) for token in best.indices.tolist()]
    filled = job.text.replace(explored.tokenizer.mask_token, names[0].strip(), 1)
    result = {"label": filled, "probabilities": dict(zip(names, best.values.tolist(), strict=True))}
    if job.candidates:
        result["candidates"] = {word: float(p[explored._one_token(word)]) for word in job.candidates}
    return Run("classify", job.text, result, sides, maps)


def _embed(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    """The mean of the last layer, of length 1: what sentence-transformers computes for MiniLM."""
    with watch(explored.model) as seen:
        base = getattr(explored.model, explored.model.base_model_prefix, explored.model)
        states = explored.model(**explored._inputs(ids), output_hidden_states=base is not explored.model)
    hidden = states.last_hidden_state if base is explored.model else states.hidden_states[-1]
    vector = torch.nn.functional.normalize(hidden[0].double().mean(0), dim=-1).cpu().numpy()
    side = explored._side(ids)
    maps = explored._maps(seen, side.tokens, side.tokens, side.tokens)
    result = {"width": len(vector), "vector": [round(float(x), 4) for x in vector[:64]]}
    sides = {"source": side, "target": side, "inputs": side}
    return Run("embed", job.text, result, sides, maps, {"vector": vector, "ids": (ids,)})


RUNNERS: dict[str, Callable[[HuggingFaceModel, Job, list[int]], Run]] = {
    "translate": _translate,
    "generate": _continue,
    "classify": _classify,
    "tag": _tag,
    "fill": _fill,
    "embed": _embed,
}
