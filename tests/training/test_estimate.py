"""Estimates agree with training: sizes exactly, FLOPs and tokens approximately."""

import pytest
import torch

from regard.errors import DataError, RecipeError
from regard.recipe.loading import load_recipe
from regard.training.estimate import SAMPLE_ROWS, estimate
from regard.training.trainer import train

TINY = [
    "model.dim=32",
    "model.encoder={layers: 1, heads: 2, inner: 32}", "model.decoder={layers: 1, heads: 2, inner: 32}",
    "data.limit=400", "tokenizer.size=300", "batch.tokens=400", "schedule.warmup=5", "decoding.beam=1",
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_estimate_agrees_with_the_run(tmp_path):
    changes = [*TINY, "training.steps=15", "training.validate_every=15"]
    estimated = estimate("small", changes)
    run = train("small", folder=tmp_path / "run", overrides=changes, quiet=True)
    assert sum(estimated.parameters.values()) == run.report["parameters"]
    assert estimated.rows["training"] == 400
    assert estimated.read_all
    assert estimated.steps == 15
    assert estimated.flops == pytest.approx(run.flops, rel=0.15)
    assert estimated.tokens_per_step == pytest.approx(run.report["tokens"] / 15, rel=0.15)
    assert estimated.memory["weights"] == 4 * run.report["parameters"]
    assert estimated.memory["optimizer"] == 2 * estimated.memory["weights"]


@pytest.mark.slow
def test_activations_grow_with_the_batch_and_the_depth():
    few, many, deep = (
        estimate("small", [*TINY, *more]).memory["activations"]
        for more in ([], ["batch.tokens=1600"], ["model.encoder.layers=4", "model.decoder.layers=4"])
    )
    assert 3 < many / few < 5
    assert deep > 2 * few


def test_moving_average_and_accumulation_are_included():
    plain = estimate("small", TINY)
    more = estimate("small", [*TINY, "training.ema=0.99", "batch.accumulate=3"])
    assert more.memory["moving average"] == plain.memory["weights"]
    assert more.tokens_per_step == pytest.approx(3 * plain.tokens_per_step, rel=0.1)
    assert more.memory["activations"] == pytest.approx(plain.memory["activations"], rel=0.3)


def test_epochs_and_minutes_limit_the_estimate():
    by_epochs = estimate("small", [*TINY, "training.steps=null", "training.epochs=2"])
    assert by_epochs.steps is not None
    tokens = by_epochs.steps * by_epochs.tokens_per_step
    assert tokens == pytest.approx(2 * 400 * 8, rel=0.35)  # about 8 tokens a sentence
    by_clock = estimate("small", [*TINY, "training.steps=null", "training.minutes=3"])
    assert by_clock.steps is None
    assert by_clock.seconds == 180
    assert "3 min" in str(by_clock)


@pytest.mark.slow
def test_large_data_is_sampled_and_the_vocabulary_size_is_the_recipes():
    estimated = estimate("small", [*TINY, "data.limit=null", "tokenizer.size=5000"])
    assert estimated.rows["training"] > SAMPLE_ROWS
    assert not estimated.read_all
    assert estimated.vocabulary == (5000, 5000)
    assert "by the recipe" in str(estimated)


def test_rows_of_a_users_files_are_counted(tmp_path):
    (tmp_path / "a.tsv").write_text("one two\teins zwei\n" * 70, encoding="utf-8")
    (tmp_path / "v.tsv").write_text("one two\teins zwei\n" * 5, encoding="utf-8")
    data = {
        "train": [str(tmp_path / "a.tsv")] * 2,
        "validation": [str(tmp_path / "v.tsv")],
        "test": [str(tmp_path / "v.tsv")],
    }
    recipe = load_recipe(
        {"data": data}, [change for change in TINY if not change.startswith(("data", "tokenizer"))]
    )
    assert estimate(recipe, ["tokenizer={kind: word, size: 50}"]).rows == {
        "training": 140,
        "validation": 5,
        "test": 5,
    }


def test_a_language_model_and_a_recurrent_translator_are_estimated(tmp_path):
    (tmp_path / "t.txt").write_text("to be or not to be\n" * 200, encoding="utf-8")
    text = {"train": [str(tmp_path / "t.txt")], "validation": [str(tmp_path / "t.txt")]}
    model = {"dim": 16, "decoder": {"kind": "recurrent", "cell": "lstm"}}
    tokenizer, batch = {"kind": "character", "size": 60}, {"length": 20, "sentences": 8}
    estimated = estimate(
        {"task": "language", "data": text, "tokenizer": tokenizer, "model": model, "batch": batch}
    )
    assert estimated.vocabulary[0] is None
    assert estimated.tokens_per_step == 160
    bahdanau = estimate(
        "small",
        [*TINY[3:], "model.dim=32", "model.encoder={kind: recurrent}", "model.decoder={kind: bahdanau}"],
    )
    assert bahdanau.flops_per_token > 0


def test_invalid_recipes_are_refused_and_random_generators_are_unchanged():
    with pytest.raises(RecipeError, match="heads"):
        estimate("small", ["model.encoder.heads=3"])
    with pytest.raises(DataError, match="nowhere"):
        estimate("small", ["data={train: [nowhere.tsv], validation: [nowhere.tsv]}"])
    before = torch.get_rng_state()
    threads = torch.get_num_threads()
    estimate("small", TINY)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
