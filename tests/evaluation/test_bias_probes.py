"""Tests of bias_probes.py, probed_models.py and the command, cli/probe.py, against values worked by hand."""

import json
import math

import pytest
import torch

import regard
from regard.data.tokenizer import BOS, Tokenizer
from regard.errors import DataError, OptionError
from regard.evaluation.bias_probes import BUNDLED, ProbeSentence, bias_probe, read_sentences
from regard.models import folder as model_folder
from regard.models.autoregressive import AutoregressiveOptions

transformers = pytest.importorskip("transformers")
SENTENCE = "the [doctor] met the [nurse] when {she|he} left"
WORDS = sorted({*"the doctor met nurse when she he left".split()})


def language_model(decoder):
    """A language model over words, with random weights."""
    tokenizer = Tokenizer.train([" ".join(WORDS)], "word", 40)
    block = {"dim": 16, "encoder": None, "decoder": decoder, "tie": "none"}
    config = AutoregressiveOptions.model_validate(block).model_dump()
    model = regard.build(config, None, len(tokenizer)).eval()
    model.config, model.source_tokenizer, model.target_tokenizer = config, tokenizer, tokenizer
    model.card = {}
    return model


@pytest.fixture
def transformer():
    return language_model({"kind": "transformer", "layers": 2, "heads": 2, "inner": 32, "dropout": 0.0})


def test_marks_become_two_sentences_that_differ_in_one_word():
    sentence = ProbeSentence.parse(SENTENCE)
    assert (sentence.nouns, sentence.alternatives) == (("doctor", "nurse"), ("she", "he"))
    text, word, nouns = sentence.text("he")
    assert text == "the doctor met the nurse when he left"
    assert text[slice(*word)] == "he" and [text[slice(*noun)] for noun in nouns] == ["doctor", "nurse"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("The [doctor] left.", "needs one group of alternatives, as {she|he}; it has none"),
        ("{she|he} met {her|him}.", "needs one group of alternatives, as {she|he}; it has 2"),
        ("{she} left", "it has 1 with an empty or single word"),
        ("the [doctor left {she|he}", "has a bracket without its partner"),
    ],
)
def test_wrong_marks_are_errors(template, message):
    with pytest.raises(DataError) as error:
        ProbeSentence.parse(template)
    assert message in str(error.value)


def test_log_probabilities_are_those_of_the_softmax_worked_by_hand(transformer):
    probed = bias_probe(transformer, [SENTENCE]).sentences[0]
    for alternative in probed.alternatives:
        words = f"the doctor met the nurse when {alternative.word} left".split()
        ids = [BOS, *(transformer.target_tokenizer.encode(word)[0] for word in words)]
        with torch.no_grad():
            logits = transformer(torch.tensor([ids]))[0].double()
        expected = [
            float(logits[i, ids[i + 1]]) - math.log(sum(math.exp(x) for x in logits[i].tolist()))
            for i in (6, 7)
        ]
        assert alternative.log_prob == pytest.approx(expected[0], abs=1e-6)
        assert alternative.continuation == pytest.approx(sum(expected), abs=1e-6)
    assert probed.log_odds == pytest.approx(probed.alternatives[0].log_prob - probed.alternatives[1].log_prob)


def test_attention_is_from_the_pronoun_to_the_nouns(transformer):
    probed = bias_probe(transformer, [SENTENCE]).sentences[0]
    she = probed.alternatives[0]
    ids = [BOS, *transformer.target_tokenizer.encode("the doctor met the nurse when she left")]
    with torch.no_grad(), regard.watch(transformer) as seen:
        transformer(torch.tensor([ids]))
    assert list(she.attention) == list(seen) and len(she.attention) == 2
    for name in seen:
        expected = seen[name].weights(batch=0)[:, 7][:, [2, 5]]  # after BOS: doctor is 2, nurse 5, she 7
        torch.testing.assert_close(she.attention[name].float(), expected)
    first = she.attention["decoder.layers.0.attention.self"]
    shares = probed.shares(0)
    assert shares.shape == (2, 2, 2) and torch.allclose(shares.sum(-1), torch.ones(2, 2).double())
    torch.testing.assert_close(shares[0], first / first.sum(-1, keepdim=True))


def test_the_attention_shift_is_the_mean_change_of_the_first_nouns_share(transformer):
    result = bias_probe(transformer, [SENTENCE, "the [nurse] met the [doctor] when {she|he} left"])
    expected = sum(probed.shares(1)[..., 0] - probed.shares(0)[..., 0] for probed in result.sentences) / 2
    torch.testing.assert_close(result.attention_shift, expected)
    assert "mean log-odds of 'she' over 'he'" in str(result)


def test_a_model_without_attention_has_probabilities_only():
    model = language_model({"kind": "recurrent", "cell": "gru", "attention": "none", "width": 16})
    result = bias_probe(model, [SENTENCE])
    assert result.attention_shift is None and result.sentences[0].alternatives[0].attention == {}
    with pytest.raises(OptionError, match="no attention to draw"):
        result.sentences[0].picture()


def fast_tokenizer():
    from tokenizers import Tokenizer as Inner
    from tokenizers import models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["[MASK]", "[UNK]", *WORDS])}
    inner = Inner(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, mask_token="[MASK]", unk_token="[UNK]"
    )


def test_a_causal_model_of_hugging_face_gives_its_own_log_probabilities():
    config = transformers.GPT2Config(
        vocab_size=12, n_embd=16, n_layer=2, n_head=2, n_positions=32, attn_implementation="sdpa"
    )
    model, tokenizer = transformers.GPT2LMHeadModel(config).eval(), fast_tokenizer()
    probed = bias_probe(model, [SENTENCE], tokenizer=tokenizer).sentences[0]
    for alternative in probed.alternatives:
        ids = tokenizer(
            f"the doctor met the nurse when {alternative.word} left", return_tensors="pt"
        ).input_ids
        with torch.no_grad():
            loss = model(ids[:, :7], labels=torch.where(torch.arange(7) == 6, ids[:, :7], -100)).loss
        assert alternative.log_prob == pytest.approx(-float(loss), abs=1e-5)
    assert probed.shares(0).shape == (2, 2, 2)
    with pytest.raises(OptionError, match="no probability for the first token"):
        bias_probe(model, ["{she|he} left the [doctor]"], tokenizer=tokenizer)


def test_a_masked_model_of_hugging_face_predicts_the_masked_word():
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        attn_implementation="sdpa",
    )  # fmt: skip
    model, tokenizer = transformers.BertForMaskedLM(config).eval(), fast_tokenizer()
    probed = bias_probe(model, [SENTENCE], tokenizer=tokenizer).sentences[0]
    ids = tokenizer("the doctor met the nurse when [MASK] left", return_tensors="pt").input_ids
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0, 6].log_softmax(-1)
    assert len(probed.alternatives) == 2
    for alternative in probed.alternatives:
        token = tokenizer.convert_tokens_to_ids(alternative.word)
        assert alternative.log_prob == pytest.approx(float(expected[token]), abs=1e-5)
        assert alternative.continuation is None and len(alternative.attention) == 2


def test_only_language_models_are_accepted():
    with pytest.raises(OptionError, match="a bias probe takes a language model, and this is a classifier"):
        bias_probe(regard.build({"kind": "classifier", "dim": 8}, 20, 6), [SENTENCE])
    with pytest.raises(OptionError, match="got Linear"):
        bias_probe(torch.nn.Linear(2, 2), [SENTENCE])


def test_the_bundled_sentences_come_in_both_orders():
    parsed = [ProbeSentence.parse(sentence) for sentence in read_sentences(BUNDLED)]
    assert len(parsed) == 24 and {sentence.alternatives for sentence in parsed} == {("she", "he")}
    pairs = [sentence.nouns for sentence in parsed]
    assert all(pair[::-1] in pairs for pair in pairs)


def test_the_command_prints_json_and_draws(transformer, run_regard, tmp_path):
    tokenizer = transformer.target_tokenizer
    model_folder.save(tmp_path / "model", transformer, transformer.config, tokenizer, tokenizer, {})
    code, out, _ = run_regard("probe", tmp_path / "model", "--text", SENTENCE, "--json")
    expected = bias_probe(transformer, [SENTENCE])
    assert code == 0 and json.loads(out)["log_odds"] == pytest.approx(expected.log_odds, abs=1e-5)
    picture = tmp_path / "heads.svg"
    code, out, _ = run_regard("probe", tmp_path / "model", "--text", SENTENCE, "--picture", picture)
    assert code == 0 and "log p: she" in out and picture.read_text().startswith("<svg")
    code, _, errors = run_regard("probe", tmp_path / "model", "--text", "the [doctor] left")
    assert code == 2 and "needs one group of alternatives" in errors
    code, _, errors = run_regard("probe", tmp_path / "model", "--data", tmp_path / "none.txt")
    assert code == 2 and "cannot be read" in errors
