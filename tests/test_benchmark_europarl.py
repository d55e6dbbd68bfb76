"""benchmarks/europarl: both systems see the same batches, and the log has scores, cost and significance."""

import json
from itertools import islice

import pytest
import torch
from benchmarks.europarl import __main__ as europarl
from benchmarks.europarl import marian, scores
from benchmarks.europarl.experiment import Experiment

from regard.data.tokenizer import BOS, EOS, PAD
from regard.tasks import get_task
from regard.training.distributed import World


@pytest.fixture
def experiment(tmp_path):
    return Experiment(tmp_path, 0.02, tiny=True)


def test_the_rows_are_those_of_the_batches_of_training(experiment):
    world = World(torch.device("cpu"))
    batches = get_task("translate").training_batches(experiment.corpus.train, experiment.recipe, world)
    count = batches.per_epoch() + 2  # into the second epoch
    for rows in islice(experiment.batch_rows(), count):
        assert rows.tolist() == next(batches).rows.tolist()


def test_a_batch_of_marian_is_padded_and_shifted(experiment):
    rows = next(experiment.batch_rows())
    pairs = marian.Pairs(experiment.corpus.train)
    batch = marian.collate([pairs[row] for row in rows])
    lengths = experiment.corpus.train.target_lengths[rows]
    assert batch["labels"].shape == (len(rows), lengths.max())
    for i, length in enumerate(lengths):
        labels = batch["labels"][i]
        assert labels[length - 1] == EOS and (labels[length:] == marian.IGNORED).all()
        assert batch["decoder_input_ids"][i, :length].tolist() == [BOS, *labels[: length - 1].tolist()]
        assert (batch["attention_mask"][i] == (batch["input_ids"][i] != PAD)).all()


def test_regard_is_trained_scored_and_its_cost_is_that_of_its_batches(tmp_path, capsys):
    arguments = ["--tiny", "--minutes", "0.02", "--runs", str(tmp_path)]
    assert europarl.main(["prepare", "regard", "score", *arguments]) == 0
    experiment = Experiment(tmp_path / "tiny", 0.02, tiny=True)
    record = experiment.read("regard")
    assert record is not None and record["steps"] > 1
    assert experiment.cost(record["steps"]).items() <= record.items()
    log = json.loads((tmp_path / "tiny" / "europarl-base.json").read_text(encoding="utf-8"))
    assert list(log["systems"]) == ["regard", "regard-single"] and log["lines"] == {"tatoeba": 20}
    assert log["wmt2014"][0]["flops"] == record["flops"] and "tok:13a" in log["signature"]
    assert "| regard " in capsys.readouterr().out
    assert europarl.main(["regard", *arguments]) == 0  # nothing is left to train
    assert "validation at" not in capsys.readouterr().out


@pytest.mark.slow
def test_marian_trains_resumes_and_is_compared(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    arguments = ["--tiny", "--runs", str(tmp_path)]
    assert europarl.main(["marian", "--minutes", "0.02", *arguments]) == 0
    experiment = Experiment(tmp_path / "tiny", 0.05, tiny=True)
    first = experiment.read("marian")
    assert first is not None and not first["settings"]["torch_compile"]
    (tmp_path / "tiny" / "marian.json").unlink()  # as if it had been stopped before the minutes were over
    assert europarl.main(["marian", "regard", "score", "--minutes", "0.05", *arguments]) == 0
    resumed = experiment.read("marian")
    assert resumed is not None and resumed["steps"] > first["steps"] and resumed["seconds"] > first["seconds"]
    log = json.loads((tmp_path / "tiny" / "europarl-base.json").read_text(encoding="utf-8"))
    assert list(log["systems"]) == list(scores.SYSTEMS)
    comparison = log["compared_with_marian"]["regard"]["tatoeba"]
    assert {"difference", "p_bootstrap", "low", "high"} <= comparison.keys()
    sizes = {log["systems"][name]["parameters"] for name in ("regard", "marian")}
    assert len(sizes) == 1  # as large as each other


def test_an_unknown_step_is_reported(capsys):
    with pytest.raises(SystemExit):
        europarl.main(["train"])
    assert "STEP must be one of prepare, regard, marian, score" in capsys.readouterr().err
