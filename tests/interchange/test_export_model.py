"""Tests of export_model.py and format.py: the registry, and no files after a failed export.

Covers libraries.py, readme.py, tokenizer_files.py.
"""

import inspect

import pytest

from regard.cli import export as command
from regard.errors import OptionError
from regard.interchange.export.compare import UnequalError
from regard.interchange.export.export_model import FORMATS, ExportFormat, export_model
from tests.interchange.small_models import LAYER, make


class GeneratesNothing(ExportFormat):
    """A format whose runtime generates nothing."""

    title = "nowhere"

    def check_supported(self, model):
        pass

    def write(self, model, folder):
        (folder / "weights").write_text("none")

    def load(self, model, folder):
        return self

    def generate(self, prompt, limit):
        return []

    def log_probs(self, prompt, tokens):
        return [0.0] * len(tokens)


def test_a_model_whose_outputs_differ_is_not_kept(tmp_path):
    with pytest.raises(UnequalError, match="the model in nowhere does not give regard's outputs"):
        export_model(make(LAYER, LAYER), tmp_path / "out", GeneratesNothing())
    assert list(tmp_path.iterdir()) == []


def test_formats_are_found_by_name_and_unknown_names_list_the_available_formats(tmp_path):
    assert set(FORMATS) == {"ctranslate2", "huggingface", "onnx"}
    with pytest.raises(OptionError, match="one of .*onnx.*, got 'onx'; did you mean 'onnx'"):
        export_model(make(LAYER, LAYER), tmp_path / "out", "onx")


def test_the_help_of_the_command_names_every_format():
    help = str(
        inspect.signature(command.command, eval_str=True).parameters["to"].annotation.__metadata__[0].help
    )
    assert all(name in help for name in FORMATS), help


def test_only_some_formats_take_a_quantization():
    assert FORMATS["ctranslate2"]("int8").exact.quantization == "float32"
    with pytest.raises(OptionError, match="ONNX takes --quantization float32, got 'int8'"):
        FORMATS["onnx"]("int8")
