"""faithfulness.py, measures.py, adversary.py and erasure.py: metrics by hand, by loops, by construction."""

import json
import math
from itertools import product

import numpy as np
import pytest
import torch

import regard
from regard.attention import Weights
from regard.errors import DataError, OptionError
from regard.evaluation import MEASURES, MeasureOptions, faithfulness
from regard.evaluation.explanation import probe as probes
from regard.evaluation.explanation.adversary import adversarial_attention
from regard.evaluation.explanation.comparisons import jensen_shannon, total_variation
from regard.evaluation.explanation.erasure import erasure, flip_share, without_weights
from regard.evaluation.explanation.explained_models import explained_model
from regard.evaluation.explanation.measures import METRICS, weight_gradient
from regard.evaluation.explanation.probe import Probe
from tests.evaluation.explanation import small_models
from tests.evaluation.explanation.small_models import BILSTM, TRANSFORMER

TEXT = "three one seven two five"
QUICK = MeasureOptions(permutations=9, adversary_steps=4)


def probe_of(model, text=TEXT, **options):
    return Probe(explained_model(model), text, **options)


def test_attention_that_is_the_explanation_has_a_rank_correlation_of_one():
    result = faithfulness(small_models.exposed_classifier(), TEXT, measures=["correlation"])
    metrics = result.examples[0].metrics
    for name in ("tau_gradient", "tau_integrated_gradients", "tau_leave_one_out"):
        assert metrics[name] == pytest.approx(1)


def test_attention_that_is_ignored_changes_nothing():
    model = small_models.exposed_classifier(eos_value=1.0)
    measures = ["permuted", "uniform", "adversary", "flips"]
    metrics = faithfulness(model, TEXT, measures=measures, options=QUICK).examples[0].metrics
    assert metrics["change_permuted"] == pytest.approx(0, abs=1e-6)
    assert metrics["change_uniform"] == pytest.approx(0, abs=1e-6)
    assert metrics["adversarial_change"] == pytest.approx(0, abs=1e-6)
    assert metrics["adversarial_divergence"] > 0.4  # all weight on the least attended token
    assert metrics["flip_top"] == 0


def test_permuted_and_uniform_attention_by_hand():
    """p(yes) = σ(3 a), where a is the attention to words and 1 − a that to EOS."""
    model = small_models.exposed_classifier()
    probe = probe_of(model)
    weights = next(iter(probe.weights.values()))[0, 0]  # five words, EOS

    def p_yes(a):
        return 1 / (1 + math.exp(-3 * float(a)))

    assert float(probe.distribution[1]) == pytest.approx(p_yes(1 - weights[-1]), abs=1e-6)
    metrics = faithfulness(model, TEXT, measures=["permuted", "uniform"]).examples[0].metrics
    expected = abs(p_yes(5 / 6) - p_yes(1 - weights[-1]))
    assert metrics["change_uniform"] == pytest.approx(expected, abs=1e-6)
    changes = {abs(p_yes(1 - w) - p_yes(1 - weights[-1])) for w in weights}  # EOS gets any of the weights
    assert min(abs(metrics["change_permuted"] - change) for change in changes) < 1e-6
    assert metrics["max_weight"] == pytest.approx(float(weights[:5].max()))


def test_erasure_is_a_loop_over_shorter_texts():
    model = small_models.classifier(BILSTM)
    probe = probe_of(model)
    scores = torch.tensor([0.1, 0.9, 0.3, 0.5, 0.2])
    result = erasure(probe, scores, (0.2, 0.4, 1.0))
    order, ids = [1, 3, 2, 4, 0], probe.given.inputs

    def p(positions):
        with torch.no_grad():
            scores = model(torch.tensor([[*(ids[at] for at in sorted(positions)), ids[-1]]]))[0]
        return float(scores.double().softmax(-1)[probe.predicted])

    full = p(range(5))
    for at, count in enumerate((1, 2, 5)):
        assert result.comprehensiveness[at] == pytest.approx(full - p(order[count:]), abs=1e-6)
        assert result.sufficiency[at] == pytest.approx(full - p(order[:count]), abs=1e-6)


def test_removed_weights_are_rescaled():
    model = small_models.classifier(labels=("a", "b", "c"))
    probe = probe_of(model)
    weights = next(iter(probe.weights.values())).clone()
    weights[..., [1, 3]] = 0
    weights /= weights.sum(-1, keepdim=True)
    with torch.no_grad(), regard.intervene(model, {"pooling.attention.cross": Weights(weights)}):
        expected = model(probe.inputs).double().softmax(-1)
    torch.testing.assert_close(without_weights(probe, [[1, 3]]), expected, atol=1e-6, rtol=1e-5)


def test_a_long_text_runs_in_parts_with_the_same_metrics(monkeypatch):
    model = small_models.classifier(BILSTM)
    measures = ["uniform", "flips", "adversary", "erasure"]
    full = faithfulness(model, TEXT, measures=measures, options=QUICK).examples[0]
    monkeypatch.setattr(probes, "BATCH_WEIGHTS", 12)  # two copies of six weights
    assert probe_of(model).batch == 2
    parts = faithfulness(model, TEXT, measures=[*measures, "permuted"], options=QUICK).examples[0]
    for name, value in full.metrics.items():
        assert parts.metrics[name] == pytest.approx(value, abs=1e-5)
    assert 0 < parts.metrics["change_permuted"] < 1


def test_the_share_removed_until_a_decision_flips_by_hand():
    """Without attention to words p(yes) is σ(0): it never flips from yes. With a bias it does."""
    model = small_models.exposed_classifier()
    probe = probe_of(model)
    assert probe.predicted == 1 and flip_share(probe, probe.attention) == 1.0
    with torch.no_grad():
        model.head.labels.bias.copy_(torch.tensor([2.0, 0.0]))  # yes if the attention to words exceeds 2/3
    probe = probe_of(model)
    weights = next(iter(probe.weights.values()))[0, 0]
    assert probe.predicted == 1
    order = weights[:5].argsort(descending=True).tolist()
    for count in range(1, 6):
        remaining = weights.clone()
        remaining[order[:count]] = 0
        if float(remaining[:5].sum() / remaining.sum()) < 2 / 3:
            break
    assert flip_share(probe, probe.attention) == pytest.approx(count / 5)
    metrics = faithfulness(model, TEXT, measures=["flips"]).examples[0].metrics
    assert metrics["flip_share"] == pytest.approx(count / 5)


def test_the_gradient_of_weights_by_finite_differences():
    model = small_models.classifier(BILSTM, labels=("a", "b", "c"))
    probe = probe_of(model)
    name, weights = next(iter(probe.weights.items()))
    gradient, step = weight_gradient(probe), 1e-3
    for at in range(5):
        changed = weights.clone()
        changed[..., at] += step
        with torch.no_grad(), regard.intervene(model, {name: Weights(changed)}):
            p = model(probe.inputs).double().softmax(-1)[0, probe.predicted]
        slope = float(p - probe.distribution[probe.predicted]) / step
        assert float(gradient[at]) == pytest.approx(abs(slope * float(weights[..., at])), abs=2e-4)


def test_adversarial_attention_is_close_to_the_best_of_a_grid():
    model = small_models.exposed_classifier()
    probe = probe_of(model, "two five")
    original = next(iter(probe.weights.values()))[0, 0]  # two words, EOS
    adversary = adversarial_attention(probe, steps=60)
    assert adversary.change <= 0.01
    best = 0.0
    for i, j in product(range(101), repeat=2):  # all distributions in steps of 0.01
        if i + j <= 100:
            other = torch.tensor([i, j, 100 - i - j], dtype=torch.float64) / 100
            p = torch.sigmoid(3 * other[:2].sum())
            if abs(float(p - probe.distribution[1])) <= 0.01:
                best = max(best, float(jensen_shannon(other, original)))
    assert adversary.divergence == pytest.approx(best, abs=0.03) and best > 0.1
    (weights,) = adversary.weights.values()
    with torch.no_grad(), regard.intervene(model, {"pooling.attention.cross": Weights(weights)}):
        output = model(probe.inputs).double().softmax(-1)[0]
    assert float(total_variation(output, probe.distribution)) == pytest.approx(adversary.change, abs=1e-6)


MODELS = {
    "embedding": small_models.classifier,
    "transformer": lambda: small_models.classifier(TRANSFORMER, "mean"),
    "tagger": small_models.tagger,
    "translator": lambda: small_models.translator({"kind": "bahdanau"}),
    "language model": small_models.language_model,
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_measure_runs_on_every_kind_of_model(kind):
    model = MODELS[kind]()
    before = {name: p.clone() for name, p in model.named_parameters()}
    result = faithfulness(model, [TEXT, "two", "four two eight"], options=QUICK)
    again = faithfulness(model, ["four two eight"], options=QUICK)
    assert [len(example.attention) for example in result.examples] == [5, 1, 3]
    assert again.examples[0] == result.examples[2]  # the metrics of a text do not depend on the other texts
    assert set(result.means) <= set(METRICS) and result.means["change_uniform"].count == 3
    assert 0 <= result.means["adversarial_change"].value <= 0.01
    assert ("tau_rollout_gradient" in result.means) == (kind != "embedding")
    assert math.isnan(result.examples[1].metrics["tau_gradient"])  # one token
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in model.named_parameters())
    json.dumps(result.as_dict(), allow_nan=False)
    assert "Kendall's τ" in str(result)


FRAME_MODELS = {
    "classifier": small_models.frame_classifier,
    "transformer": lambda: small_models.frame_classifier(TRANSFORMER, "mean"),
    "tagger": small_models.frame_tagger,
    "translator": small_models.frame_translator,
}


@pytest.mark.parametrize("kind", FRAME_MODELS)
def test_every_measure_runs_on_every_model_of_frames(kind, tmp_path):
    model, long, short = FRAME_MODELS[kind](), small_models.frames(9), small_models.frames(1)
    np.save(tmp_path / "long.npy", long)
    result = faithfulness(model, [tmp_path / "long.npy", short], options=QUICK)
    array = faithfulness(model, long, options=QUICK).examples[0]
    assert array.metrics == result.examples[0].metrics  # random choices depend on the frames, not on a name
    assert array.text == "9 frames of 3 channels" and result.examples[0].text == str(tmp_path / "long.npy")
    assert result.examples[0].tokens == list("012345678") and len(result.examples[1].attention) == 1
    assert set(array.metrics) - {"flip_random"} <= set(result.means)
    assert ("tau_rollout_gradient" in result.means) == (kind != "classifier")
    assert 0 <= result.means["adversarial_change"].value <= 0.01
    assert not any(math.isnan(value) for value in array.metrics.values())
    json.dumps(result.as_dict(), allow_nan=False)  # without its only frame, a sequence has no output
    assert "2 sequences" in str(result) and "token" not in str(result) and "text" not in str(result)


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        ([], DataError, "there are no sequences to measure"),
        (np.zeros((4, 2)), DataError, "has 2 channels, and this model was trained on 3"),
        (np.full((4, 3), np.nan), DataError, "has nan at frame 0"),
        (np.zeros((0, 3)), DataError, "has no frames"),
        ("none.npy", DataError, "there is no file none.npy"),
        (3, OptionError, "give a file, an array"),
    ],
)
def test_wrong_sequences_are_errors_of_one_sentence(sequences, error, message):
    with pytest.raises(error, match=message):
        faithfulness(small_models.frame_classifier(), sequences)


def test_a_model_of_text_refuses_an_array():
    with pytest.raises(OptionError, match="texts is a text or a list of texts"):
        faithfulness(small_models.classifier(), small_models.frames(3))


def test_the_seed_changes_what_is_random():
    model = small_models.classifier(BILSTM)
    one, same, other = (
        faithfulness(model, TEXT, measures=["erasure"], seed=seed).examples[0].metrics for seed in (0, 0, 5)
    )
    assert one == same and one["comprehensiveness"] == other["comprehensiveness"]
    assert one["comprehensiveness_random"] != other["comprehensiveness_random"]


def test_a_measure_can_be_added():
    from regard.evaluation.explanation.measures import Measured, Metric

    @MEASURES.add("length")
    def length(probe, options):
        return Measured({"length": float(probe.count)})

    METRICS["length"] = Metric("length", "A text has {value} tokens.", "")
    try:
        result = faithfulness(small_models.classifier(), ["one", "one two three"], measures=["length"])
        assert result.means["length"].value == 2 and "A text has 2.00 tokens" in str(result)
    finally:
        MEASURES.remove("length")
        del METRICS["length"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"texts": []}, DataError, "no texts"),
        ({"texts": ["one", ""]}, DataError, "has no tokens"),
        ({"texts": 3}, OptionError, "texts"),
        ({"measures": ["corelation"]}, OptionError, "measure must be one of"),
        ({"measures": "flips"}, OptionError, "list of names"),
        ({"seed": -1}, OptionError, "seed"),
        ({"attention": 3}, OptionError, "attention"),
        ({"options": 3}, OptionError, "MeasureOptions"),
    ],
)
def test_wrong_arguments_are_errors(options, error, message):
    with pytest.raises(error, match=message):
        faithfulness(small_models.classifier(), **{"texts": TEXT, **options})


@pytest.mark.parametrize(
    "options", [{"permutations": 0}, {"tolerance": 2.0}, {"shares": ()}, {"shares": (3,)}]
)
def test_wrong_options_of_measures_are_errors(options):
    with pytest.raises(OptionError):
        MeasureOptions(**options)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "kind", ["embedding", "bilstm", "transformer", "tagger", "translator", "language model"]
)
def test_metrics_on_a_gpu_are_those_on_a_cpu(kind):
    make = MODELS.get(kind, lambda: small_models.classifier(BILSTM))
    on_cpu, on_gpu = (
        faithfulness(make().to(device), TEXT, options=QUICK).examples[0] for device in ("cpu", "cuda")
    )
    assert on_gpu.prediction == on_cpu.prediction
    assert on_gpu.attention == pytest.approx(on_cpu.attention, abs=1e-5)
    for name, value in on_cpu.metrics.items():
        tolerance = 0.1 if name.startswith("adversarial") else 1e-3  # a search amplifies differences
        assert on_gpu.metrics[name] == pytest.approx(value, abs=tolerance, nan_ok=True), name


def test_a_negative_fall_of_the_probability_is_a_rise():
    say = METRICS["sufficiency"].say
    assert "probability rises by 0.18 (mean" in say(-0.18)
    assert "probability falls by 0.18 (mean" in say(0.18)
    assert "probability falls by 0.00 (mean" in METRICS["comprehensiveness"].say(-0.001).replace("-", "")
