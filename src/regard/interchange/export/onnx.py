"""ONNX: encoder.onnx reads a source, decoder.onnx writes one word more; any runtime of ONNX drives them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.data.tokenizer import BOS, EOS, PAD
from regard.errors import OptionError
from regard.interchange.export.check import Model
from regard.interchange.export.libraries import need
from regard.interchange.export.onnx_graphs import DecoderGraph, EncoderGraph, Named, example_state
from regard.interchange.export.onnx_recurrence import translations, with_operators
from regard.interchange.export.readme import write_readme
from regard.interchange.export.tokens import save_tokenizers
from regard.models.translator import Translator

NAME = "ONNX"
BATCH = 2  # of the example that is traced; a size of 1 would be taken for a constant

TRANSLATE = """
import sys
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

PAD, BOS, EOS = 0, 2, 3
folder = sys.argv[1]
source, target = (Tokenizer.from_file(f"{folder}/{name}") for name in (SOURCE_FILE, TARGET_FILE))
encoder, decoder = (onnxruntime.InferenceSession(f"{folder}/{name}.onnx") for name in ("encoder", "decoder"))

def run(graph, given):
    names = [x.name for x in graph.get_outputs()]
    return dict(zip(names, graph.run(names, {x.name: given[x.name] for x in graph.get_inputs()})))

for line in sys.stdin:
    ids = source.encode(line.rstrip("\\n"), add_special_tokens=False).ids + [EOS]
    given = {"source": np.array([ids]), "lengths": np.array([len(ids)])}
    given |= run(encoder, given)
    for x in decoder.get_inputs():  # keys and values of the words so far: none yet
        if x.name not in given:
            given[x.name] = np.zeros([n if isinstance(n, int) else int(i == 0) for i, n in enumerate(x.shape)], np.float32)
    words = [BOS]
    while words[-1] != EOS and len(words) < 2 * len(ids) + 20:
        found = run(decoder, given | {"tokens": np.array(words[-1:])})
        scores = found.pop("scores")[0]
        scores[[PAD, BOS]] = -np.inf  # never written
        words.append(int(scores.argmax()))
        given |= {name.removesuffix("_after"): x for name, x in found.items()}
    print(target.decode([word for word in words if word > EOS], skip_special_tokens=False))
"""
GENERATE = """
import sys
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

PAD, BOS, EOS = 0, 2, 3
folder = sys.argv[1]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
decoder = onnxruntime.InferenceSession(f"{folder}/decoder.onnx")
inputs, names = decoder.get_inputs(), [x.name for x in decoder.get_outputs()]

for line in sys.stdin:
    given = {  # nothing was read so far
        x.name: np.zeros([n if isinstance(n, int) else int(i == 0) for i, n in enumerate(x.shape)], np.float32) for x in inputs
    }
    words, read = [BOS] + tokenizer.encode(line.rstrip("\\n"), add_special_tokens=False).ids, 0
    while words[-1] != EOS and read < 60:
        found = dict(zip(names, decoder.run(names, given | {"tokens": np.array([words[read]])})))
        scores = found.pop("scores")[0]
        scores[[PAD, BOS]] = -np.inf  # never written
        given |= {name.removesuffix("_after"): x for name, x in found.items()}
        read += 1
        if read == len(words):
            words.append(int(scores.argmax()))
    print(tokenizer.decode([word for word in words if word > EOS], skip_special_tokens=False))
"""


class Onnx:
    """A folder with one graph per part, in float32."""

    name = NAME

    @property
    def exact(self) -> Onnx:
        return self

    def refuse(self, model: Model) -> None:
        for library in ("onnx", "onnxscript", "onnxruntime"):
            need(library, "onnx")

    def write(self, model: Model, folder: Path) -> None:
        config: dict[str, Any] = model.config  # type: ignore[assignment]
        memory: Named = {}
        state = example_state(model, BATCH, length(config["decoder"]))
        lengths = None
        if isinstance(model, Translator):
            longest = length(config["encoder"]) + 1
            source, lengths = torch.full((BATCH, longest), EOS), torch.tensor([longest, longest - 1])
            with torch.inference_mode():
                memory, first = EncoderGraph(model)(source, lengths)
            state |= {
                name: x.contiguous() for name, x in first.items()
            }  # strides of a part would become part of the graph
            given = {"source": source, "lengths": lengths}
            _save(
                EncoderGraph(with_operators(model)),
                given,
                [*given],
                [*memory, *first],
                folder / "encoder.onnx",
            )
        given = {"tokens": torch.full((BATCH,), BOS), "lengths": lengths, "memory": memory, "state": state}
        names = ["tokens", "lengths", *memory, *state]
        _save(
            DecoderGraph(model),
            given,
            names,
            ["scores", *(f"{name}_after" for name in state)],
            folder / "decoder.onnx",
        )
        save_tokenizers(model, folder)
        write_readme(model, folder, NAME, TRANSLATE if isinstance(model, Translator) else GENERATE)

    def load(self, model: Model, folder: Path) -> Running:
        return Running(folder)


def length(spec: dict[str, Any]) -> int:
    """Of the example that is traced: so long that every mask hides something, or it would be left out of the graph."""
    room = spec["max_positions"] - 2 if spec.get("position") in ("learned", "learned-norm") else 1 << 30
    return max(2, min(room, 4 + _reach(spec.get("mask")) + _reach((spec.get("above") or {}).get("mask"))))


def _reach(mask: Any) -> int:
    """The sum of all sizes in a mask: no window reaches further."""
    if isinstance(mask, dict | list):
        return sum(map(_reach, mask.values() if isinstance(mask, dict) else mask))
    return mask if isinstance(mask, int) and not isinstance(mask, bool) else 0


def _save(
    module: nn.Module, given: dict[str, Any], inputs: list[str], outputs: list[str], path: Path
) -> None:
    inputs = [name for name in inputs if name != "lengths" or given[name] is not None]
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module.eval(), (), kwargs=given, dynamo=True, input_names=inputs, output_names=outputs, verbose=False,
                dynamic_shapes={name: _dynamic(x) for name, x in given.items()}, external_data=False,
                custom_translation_table=translations(),
            )  # fmt: skip
            assert program is not None
            program.save(str(path), external_data=False)
    except Exception as error:  # torch.onnx raises its own, torch's and Python's
        told = str(error).partition("Exception summary")[2] or str(error)
        reason = next((line for line in told.splitlines() if line.strip()), type(error).__name__)
        raise OptionError(
            f"torch.onnx cannot write this model's {path.stem} as a graph ({reason}); export --to ctranslate2 or huggingface"
        ) from None


def _dynamic(x: Any) -> Any:
    """Batch and time may change from call to call: words (batch, time), states (batch, time, ·), keys (batch, heads, time, ·)."""
    if not isinstance(x, torch.Tensor):
        return None if x is None else {name: _dynamic(value) for name, value in x.items()}
    time = {2: 1 if x.dtype == torch.long else None, 3: 1, 4: 2}.get(x.ndim)
    return {axis: torch.export.Dim.DYNAMIC for axis in (0, time) if axis is not None}


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.onnx tells of libraries it does not find and of names it does not use."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class Running:
    """The graphs in onnxruntime, one sentence at a time."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1

        def make(path: Path) -> Any:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        self.encoder = make(folder / "encoder.onnx") if (folder / "encoder.onnx").is_file() else None
        self.decoder = make(folder / "decoder.onnx")

    def write(self, prompt: list[int], limit: int) -> list[int]:
        feed, word, words = *self._begin(prompt), []
        while len(words) < limit:
            scores = self._step(feed, word)
            scores[[PAD, BOS]] = -np.inf
            word = int(scores.argmax())
            if word == EOS:
                break
            words.append(word)
        return words

    def score(self, prompt: list[int], words: list[int]) -> list[float]:
        feed, last = self._begin(prompt)
        found = []
        for before, word in zip([last, *words], words, strict=False):
            scores = torch.from_numpy(self._step(feed, before))
            scores[[PAD, BOS]] = -torch.inf
            found.append(float(torch.log_softmax(scores, -1)[word]))
        return found

    def _begin(self, prompt: list[int]) -> tuple[dict[str, Any], int]:
        """What the decoder takes beside the word, and the word it takes first."""
        feed: dict[str, Any] = {}
        if self.encoder is not None:
            given = {"source": np.array([prompt]), "lengths": np.array([len(prompt)])}
            given = {x.name: given[x.name] for x in self.encoder.get_inputs()}
            names = [x.name for x in self.encoder.get_outputs()]
            feed = given | dict(zip(names, self.encoder.run(names, given), strict=True))
        for x in self.decoder.get_inputs():  # what no source gives begins empty, or as zeros
            if x.name not in feed:
                sizes = [
                    size if isinstance(size, int) else int(axis == 0) for axis, size in enumerate(x.shape)
                ]
                feed[x.name] = np.zeros(sizes, np.float32)
        if self.encoder is not None:
            return feed, BOS
        for word in prompt[:-1]:
            self._step(feed, word)
        return feed, prompt[-1]

    def _step(self, feed: dict[str, Any], word: int) -> np.ndarray:
        names = [x.name for x in self.decoder.get_outputs()]
        given = {x.name: feed[x.name] for x in self.decoder.get_inputs()} | {"tokens": np.array([word])}
        found: dict[str, Any] = dict(zip(names, self.decoder.run(names, given), strict=True))
        feed |= {name.removesuffix("_after"): x for name, x in found.items() if name != "scores"}
        return found["scores"][0].copy()
