"""A Hugging Face model behind the explorer: run one text, plain or with changed attention.

The maps are named as those of our models (encoder.layers.0.attention.self, decoder.layers.0.cross),
so that views and edits treat both alike.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.edits import Edit
from regard.attention.intervening import intervene
from regard.attention.watching import Seen, watch
from regard.decoding.attention_weights import AttentionMaps
from regard.decoding.beam import Beam
from regard.decoding.search_trace import TracedBeam
from regard.decoding.strategy import Hypothesis
from regard.errors import OptionError
from regard.explorer.explored_model import EXAMPLES, MAX_BEAM, TASK_EXAMPLES, TASK_VIEWS, VIEWS, can_do
from regard.explorer.huggingface_folder import load_folder
from regard.explorer.huggingface_search import check_prefix, search, spell
from regard.explorer.huggingface_tokens import TokenNames
from regard.explorer.huggingface_trust import make_probe
from regard.explorer.run import Run, Side, float32
from regard.explorer.run_job import MAX_TOKENS, Job, check_tokens
from regard.explorer.text_search import GENERATED, tree_as_json
from regard.explorer.trust import Cancelled, trust
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
            "can": can_do(self.task),
            "mask": getattr(self.tokenizer, "mask_token", None),
            "views": TASK_VIEWS.get(self.task, VIEWS),
        }

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or MAX_TOKENS
        return min(MAX_TOKENS, positions, self.tokenizer.model_max_length)

    @torch.no_grad()
    def run(self, job: Job) -> Run:
        """Run one text; with a `base` run, also score both outputs with and without the edits."""
        ids = self._read(job.text)
        job = self._forced(job)
        with self._lock:
            with self._changed(job.edits):
                run = RUNNERS[self.task](self, job, ids)
            run.private["edits"] = job.edits
            if job.base is not None:
                self._compare(job.base, run, job.edits)
        if job.cancelled():
            raise client_left()
        return run

    @torch.no_grad()
    def search_tree(self, job: Job, then: str = "") -> dict[str, Any]:
        """The tree of the search of a text; `then` is text that is forced after the prefix."""
        self._require_decoder("there is no search")
        ids, strategy = self._read(job.text), TracedBeam(job.beam, pruned=max(job.beam, 4))
        added = spell(self.tokenizer, then, self.tokens.byte_level)
        job = self._forced(replace(job, prefix=(*job.prefix, *added)))
        with self._lock:
            hypotheses = self._search(ids, job, strategy)
        names = [self.tokens.label(max(0, node.token)) for node in strategy.trace.nodes]
        return tree_as_json(job, strategy.trace, hypotheses, names, self.end)

    def trust(self, run: Run, row: int | None, attention: str | None, cancelled: Cancelled) -> dict[str, Any]:
        """How far attention explains one output of a run; see `trust`."""
        if self.task == "fill" and run.task == "embed":
            mask = self.tokenizer.mask_token
            return {"reason": f"Without {mask} the model chooses nothing; put {mask} in place of a word."}
        with self._lock:
            result = trust(run, lambda: make_probe(self, run, row, attention), attention, cancelled)
        if "attention" in result:
            names = {path: name for name, path in self.modules.items()}
            result["attention"] = [names[path] for path in result["attention"]]
        return result

    @torch.no_grad()
    def stage(self, run: Run, index: int, head: int, stage: str) -> bytes:
        """One head of a map at a stage of `regard.attention`: float32, (rows, columns); masked: −∞."""
        run.check_head(index, head)
        path = self.modules[run.names[index]]
        with self._lock, self._changed(run.private["edits"]), watch(self.model, only=path) as seen:
            self.model(**run.private["inputs"], use_cache=False)
        return float32(seen[path].weights(batch=0, head=head, stage=stage).cpu())

    def _read(self, text: str) -> list[int]:
        """The token ids of a text."""
        if not text.strip():
            raise OptionError("there is no text; type some")
        ids: list[int] = self.tokenizer(text)["input_ids"]
        if not set(ids) - self.tokens.markers:
            raise OptionError("the tokenizer makes no token of this text; type another")
        check_tokens(len(ids), self.longest)
        return ids

    def _require_decoder(self, otherwise: str) -> None:
        if self.task not in ("translate", "generate"):
            raise OptionError(f"this model generates no text, so {otherwise}")

    def _forced(self, job: Job) -> Job:
        """The job with checked tokens that its output starts with: those of `target`, if there is one."""
        if not job.prefix and not job.target:
            return job
        self._require_decoder("no token can be forced")
        if job.target:
            if self.task != "translate":
                raise OptionError("a translation can be forced on a translator only")
            tokens = spell(self.tokenizer, job.target, self.tokens.byte_level, complete=True)
            check_tokens(len(tokens), name="the translation")
            job = replace(job, prefix=(*(token for token in tokens if token not in self.ends), self.end))
        check_prefix(self.tokenizer, job.prefix, self.model.config.vocab_size, self.ends)
        return job

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

    def _forward(
        self, ids: Sequence[int], target: Sequence[int] | None = None, **options: bool
    ) -> tuple[Any, Seen]:
        with watch(self.model) as seen:
            output = self.model(**self._inputs(ids, target), use_cache=False, return_dict=True, **options)
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

    def _search(self, ids: list[int], job: Job, strategy: Beam | None = None) -> list[Hypothesis]:
        """The hypotheses, best first, with their texts."""
        if self.task == "translate":
            longest = min(max(2 * len(ids) + 20, len(job.prefix)), self.longest - 1)
        else:
            longest = min(GENERATED + len(job.prefix), self.longest - len(ids))
        if longest < 1:
            raise OptionError(f"the text fills all {self.longest} positions of this model; shorten it")
        strategy = Beam(job.beam) if strategy is None else strategy
        hypotheses = search(self.model, self._inputs(ids), job, strategy, self.ends, longest)
        for hypothesis in hypotheses:
            hypothesis.text = self._text(hypothesis.tokens)
        return hypotheses

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text; a search shows the first of them for all."""
        end = self.model.generation_config.eos_token_id
        return () if end is None else (end,) if isinstance(end, int) else tuple(end)

    @property
    def end(self) -> int:
        return self.ends[0] if self.ends else -1

    def _true_end(self, best: Hypothesis, logits: Tensor) -> list[int]:
        """The tokens of a hypothesis with the likeliest of the end tokens, from logits (T, vocabulary)."""
        if not best.ended:
            return best.tokens
        return [*best.tokens, self.ends[int(logits[-1, list(self.ends)].argmax())]]

    def _described(
        self, job: Job, hypotheses: list[Hypothesis], log_p: list[float], skipped: int
    ) -> dict[str, Any]:
        """The output as JSON; `log_p` of each token, of which `skipped` tokens of a prompt do not count."""
        return {
            "text": hypotheses[0].text,
            "logP": sum(log_p[skipped:]),
            "ended": hypotheses[0].ended,
            "tokenLogP": log_p,
            "hypotheses": [{"text": h.text, "logP": h.log_p, "score": h.score} for h in hypotheses],
            "forced": self._text(job.prefix),
        }

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
    hypotheses = explored._search(ids, job)
    target = hypotheses[0].tokens + [explored.end] * hypotheses[0].ended
    output, seen = explored._forward(ids, target)
    target = explored._true_end(hypotheses[0], output.logits[0])
    read = [explored.first, *target[:-1]]
    sides = {name: explored._side(x) for name, x in (("source", ids), ("target", target), ("inputs", read))}
    result = explored._described(job, hypotheses, explored._log_probabilities(output.logits[0], target), 0)
    maps = explored._maps(seen, sides["source"].tokens, sides["target"].tokens, sides["inputs"].tokens)
    private = {"source": ids, "target": target, "prompt": 0, "inputs": explored._inputs(ids, target)}
    return Run("translate", job.text, result, sides, maps, private)


def _continue(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    hypotheses = explored._search(ids, job)
    tokens = [*ids, *hypotheses[0].tokens, *[explored.end] * hypotheses[0].ended]
    output, seen = explored._forward(tokens[:-1])
    tokens, skipped = [*ids, *explored._true_end(hypotheses[0], output.logits[0])], len(ids) - 1
    log_p = explored._log_probabilities(output.logits[0], tokens[1:])
    sides = {"target": explored._side(tokens[1:]), "inputs": explored._side(tokens[:-1])}
    result = explored._described(job, hypotheses, log_p, skipped)
    result |= {"prompt": job.text, "promptTokens": skipped}
    maps = explored._maps(seen, [], sides["target"].tokens, sides["inputs"].tokens)
    private = {"source": None, "target": tokens, "prompt": skipped, "inputs": explored._inputs(tokens[:-1])}
    return Run("generate", job.text, result, sides, maps, private)


def _encode(
    explored: HuggingFaceModel, ids: list[int], **options: bool
) -> tuple[Any, dict[str, Side], AttentionMaps, dict[str, Any]]:
    """The output, its sides and maps, and what the run keeps."""
    output, seen = explored._forward(ids, None, **options)
    side = explored._side(ids)
    sides = {"source": side, "target": side, "inputs": side}  # a causal classifier's maps use target, inputs
    maps = explored._maps(seen, side.tokens, side.tokens, side.tokens)
    return output, sides, maps, {"ids": ids, "inputs": explored._inputs(ids)}


def _classify(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    output, sides, maps, private = _encode(explored, ids)
    names = explored.model.config.id2label
    p = output.logits[0].double().softmax(-1)
    order = p.argsort(descending=True).tolist()
    result = {"label": names[order[0]], "probabilities": {names[i]: float(p[i]) for i in order}}
    return Run("classify", job.text, result, sides, maps, private)


def _tag(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    output, sides, maps, private = _encode(explored, ids)
    predicted = output.logits[0].argmax(-1).tolist()  # (T,)
    words = [word for word in sides["source"].words if not word["special"]]
    tags = [explored.model.config.id2label[predicted[word["tokens"][0]]] for word in words]
    texts = [word["text"] for word in words]
    shown = " ".join(texts)
    return Run("tag", job.text, {"words": texts, "tags": tags, "text": shown}, sides, maps, private)


def _fill(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    """Fill the first masked token; a text without one gives a vector."""
    mask = explored.tokenizer.mask_token_id
    if mask not in ids:
        return _embed(explored, job, ids)
    output, sides, maps, private = _encode(explored, ids)
    p = output.logits[0, ids.index(mask)].double().softmax(-1)
    best = p.topk(min(TOP, len(p)))
    names = [explored._text([token]) or explored.tokens.label(token) for token in best.indices.tolist()]
    filled = job.text.replace(explored.tokenizer.mask_token, names[0].strip(), 1)
    result = {"label": filled, "probabilities": dict(zip(names, best.values.tolist(), strict=True))}
    if job.candidates:
        result["candidates"] = {word: float(p[explored._one_token(word)]) for word in job.candidates}
    return Run("classify", job.text, result, sides, maps, private)


def _embed(explored: HuggingFaceModel, job: Job, ids: list[int]) -> Run:
    """The mean of the last layer, of length 1: what sentence-transformers computes for MiniLM."""
    base = getattr(explored.model, explored.model.base_model_prefix, explored.model)
    is_base = base is explored.model
    output, sides, maps, private = _encode(explored, ids, output_hidden_states=not is_base)
    hidden = output.last_hidden_state if is_base else output.hidden_states[-1]
    vector = torch.nn.functional.normalize(hidden[0].double().mean(0), dim=-1).cpu().numpy()
    result = {"width": len(vector), "vector": [round(float(x), 4) for x in vector[:64]]}
    return Run("embed", job.text, result, sides, maps, private | {"vector": vector})


RUNNERS: dict[str, Callable[[HuggingFaceModel, Job, list[int]], Run]] = {
    "translate": _translate,
    "generate": _continue,
    "classify": _classify,
    "tag": _tag,
    "fill": _fill,
    "embed": _embed,
}
