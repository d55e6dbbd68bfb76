"""Export to ONNX: encoder.onnx encodes a source, decoder.onnx computes one decoder step."""

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
from regard.interchange.export.compare import Model
from regard.interchange.export.format import FORMATS, ExportFormat
from regard.interchange.export.libraries import require_library
from regard.interchange.export.onnx_graphs import DecoderGraph, EncoderGraph, Named, example_state
from regard.interchange.export.onnx_recurrence import translations, with_operators
from regard.interchange.export.readme import write_readme
from regard.interchange.export.tokenizer_files import save_tokenizers
from regard.models.translator import Translator

BATCH = 2  # of the traced example; torch.export treats a size of 1 as a constant

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
    for x in decoder.get_inputs():  # empty key/value caches
        if x.name not in given:
            shape = [n if isinstance(n, int) else int(i == 0) for i, n in enumerate(x.shape)]
            given[x.name] = np.zeros(shape, np.float32)
    tokens = [BOS]
    while tokens[-1] != EOS and len(tokens) < 2 * len(ids) + 20:
        outputs = run(decoder, given | {"tokens": np.array(tokens[-1:])})
        scores = outputs.pop("scores")[0]
        scores[[PAD, BOS]] = -np.inf  # never generated
        tokens.append(int(scores.argmax()))
        given |= {name.removesuffix("_after"): x for name, x in outputs.items()}
    print(target.decode([token for token in tokens if token > EOS], skip_special_tokens=False))
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
    given = {}  # empty caches, or zero states
    for x in inputs:
        shape = [n if isinstance(n, int) else int(i == 0) for i, n in enumerate(x.shape)]
        given[x.name] = np.zeros(shape, np.float32)
    tokens, read = [BOS] + tokenizer.encode(line.rstrip("\\n"), add_special_tokens=False).ids, 0
    while tokens[-1] != EOS and read < 60:
        outputs = dict(zip(names, decoder.run(names, given | {"tokens": np.array([tokens[read]])})))
        scores = outputs.pop("scores")[0]
        scores[[PAD, BOS]] = -np.inf  # never generated
        given |= {name.removesuffix("_after"): x for name, x in outputs.items()}
        read += 1
        if read == len(tokens):
            tokens.append(int(scores.argmax()))
    print(tokenizer.decode([token for token in tokens if token > EOS], skip_special_tokens=False))
"""


@FORMATS.add("onnx")
class Onnx(ExportFormat):
    """A folder with encoder.onnx (translators) and decoder.onnx, in float32."""

    title = "ONNX"

    def check_supported(self, model: Model) -> None:
        for library in ("onnx", "onnxscript", "onnxruntime"):
            require_library(library, "onnx")

    def write(self, model: Model, folder: Path) -> None:
        config: dict[str, Any] = model.config  # type: ignore[assignment]
        memory: Named = {}
        state = example_state(model, BATCH, example_length(config["decoder"]))
        inputs: dict[str, Any] = {"tokens": torch.full((BATCH,), BOS), "lengths": None}
        if isinstance(model, Translator):
            longest = example_length(config["encoder"]) + 1
            source = torch.full((BATCH, longest), EOS)
            lengths = inputs["lengths"] = torch.tensor([longest, longest - 1])
            with torch.inference_mode():
                memory, first = EncoderGraph(model)(source, lengths)
            state |= {name: x.contiguous() for name, x in first.items()}  # strides would become constants
            encoder = EncoderGraph(with_operators(model))
            _save_graph(
                encoder, {"source": source, "lengths": lengths}, [*memory, *first], folder / "encoder.onnx"
            )
        outputs = ["scores", *(f"{name}_after" for name in state)]
        inputs |= {"memory": memory, "state": state}
        _save_graph(DecoderGraph(model), inputs, outputs, folder / "decoder.onnx")
        save_tokenizers(model, folder)
        write_readme(model, folder, self.title, TRANSLATE if isinstance(model, Translator) else GENERATE)

    def load(self, model: Model, folder: Path) -> OnnxRunner:
        return OnnxRunner(folder)


def example_length(spec: dict[str, Any]) -> int:
    """Return the length of the traced example, long enough that every mask hides something.

    torch.export would drop a mask that hides nothing.
    """
    room = spec["max_positions"] - 2 if spec.get("position") in ("learned", "learned-norm") else 1 << 30
    reach = _mask_reach(spec.get("mask")) + _mask_reach((spec.get("above") or {}).get("mask"))
    return max(2, min(room, 4 + reach))


def _mask_reach(mask: Any) -> int:
    """Return the sum of all sizes in a mask, an upper bound on its reach."""
    if isinstance(mask, dict | list):
        return sum(map(_mask_reach, mask.values() if isinstance(mask, dict) else mask))
    return mask if isinstance(mask, int) and not isinstance(mask, bool) else 0


def _save_graph(module: nn.Module, inputs: dict[str, Any], outputs: list[str], path: Path) -> None:
    """Trace a module with example inputs (tensors, None, or dicts of tensors) and save it as ONNX."""
    names = [
        name
        for key, value in inputs.items()
        if value is not None
        for name in (value if isinstance(value, dict) else [key])
    ]
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module.eval(),
                (),
                kwargs=inputs,
                dynamo=True,
                input_names=names,
                output_names=outputs,
                verbose=False,
                dynamic_shapes={key: _dynamic_axes(value) for key, value in inputs.items()},
                external_data=False,
                custom_translation_table=translations(),
            )
            assert program is not None
            program.save(str(path), external_data=False)
    except Exception as error:  # torch.onnx raises its own errors, torch's and Python's
        message = str(error).partition("Exception summary")[2] or str(error)
        reason = next((line for line in message.splitlines() if line.strip()), type(error).__name__)
        raise OptionError(
            f"torch.onnx cannot export this model's {path.stem} ({reason}); "
            "export --to ctranslate2 or huggingface"
        ) from None


def _dynamic_axes(x: Any) -> Any:
    """Mark batch and time as dynamic axes.

    Shapes: ids (batch, time), states (batch, time, ·), keys and values (batch, heads, time, ·).
    """
    if not isinstance(x, torch.Tensor):
        return None if x is None else {name: _dynamic_axes(value) for name, value in x.items()}
    time = {2: 1 if x.dtype == torch.long else None, 3: 1, 4: 2}.get(x.ndim)
    return {axis: torch.export.Dim.DYNAMIC for axis in (0, time) if axis is not None}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch.onnx, which warns about optional libraries and unused names."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class OnnxRunner:
    """The graphs in onnxruntime, one sentence at a time."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1

        def session(path: Path) -> Any:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        self.encoder = session(folder / "encoder.onnx") if (folder / "encoder.onnx").is_file() else None
        self.decoder = session(folder / "decoder.onnx")

    def generate(self, prompt: list[int], limit: int) -> list[int]:
        inputs, token, tokens = *self._start(prompt), []
        while len(tokens) < limit:
            scores = self._step(inputs, token)
            scores[[PAD, BOS]] = -np.inf
            token = int(scores.argmax())
            if token == EOS:
                break
            tokens.append(token)
        return tokens

    def log_probs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        inputs, last = self._start(prompt)
        log_probs = []
        for previous, token in zip([last, *tokens], tokens, strict=False):
            scores = torch.from_numpy(self._step(inputs, previous))
            scores[[PAD, BOS]] = -torch.inf
            log_probs.append(float(torch.log_softmax(scores, -1)[token]))
        return log_probs

    def _start(self, prompt: list[int]) -> tuple[dict[str, Any], int]:
        """Return the decoder's inputs besides the token, and the first token it reads."""
        inputs: dict[str, Any] = {}
        if self.encoder is not None:
            given = {"source": np.array([prompt]), "lengths": np.array([len(prompt)])}
            given = {x.name: given[x.name] for x in self.encoder.get_inputs()}
            names = [x.name for x in self.encoder.get_outputs()]
            inputs = given | dict(zip(names, self.encoder.run(names, given), strict=True))
        for x in self.decoder.get_inputs():  # empty caches, zero states
            if x.name not in inputs:
                shape = [n if isinstance(n, int) else int(axis == 0) for axis, n in enumerate(x.shape)]
                inputs[x.name] = np.zeros(shape, np.float32)
        if self.encoder is not None:
            return inputs, BOS
        for token in prompt[:-1]:
            self._step(inputs, token)
        return inputs, prompt[-1]

    def _step(self, inputs: dict[str, Any], token: int) -> np.ndarray:
        """Return the scores of the next token, (vocabulary,), and replace the state in `inputs`."""
        names = [x.name for x in self.decoder.get_outputs()]
        given = {x.name: inputs[x.name] for x in self.decoder.get_inputs()} | {"tokens": np.array([token])}
        outputs: dict[str, Any] = dict(zip(names, self.decoder.run(names, given), strict=True))
        inputs |= {name.removesuffix("_after"): x for name, x in outputs.items() if name != "scores"}
        return outputs["scores"][0].copy()
