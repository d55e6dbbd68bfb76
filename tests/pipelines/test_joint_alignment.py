"""Tests of joint_alignment.py: its weights by hand, learning known links, files. Covers pair_states.py."""

import pytest
import torch

import regard
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.errors import DataError, FolderError, OptionError
from regard.evaluation.alignment import Gold, score
from regard.pipelines.alignment_head import HeadTraining
from regard.pipelines.joint_alignment import JointAlignmentHead, train_joint_head
from regard.pipelines.word_links import LinkSelection
from tests.pipelines.test_alignment_head import WORDS, reversed_pairs

LAYER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32, "dropout": 0.0}


@pytest.fixture
def models():
    """Two translators with random weights; the tokenizers cut words at different places."""
    torch.manual_seed(0)
    made = []
    for size, dim in ((40, 32), (30, 24)):
        tokenizer = Tokenizer.train([" ".join(WORDS)], "bpe", size)
        model = regard.build({"dim": dim, "encoder": LAYER, "decoder": LAYER}, len(tokenizer), len(tokenizer))
        model.source_tokenizer = model.target_tokenizer = tokenizer
        made.append(model.eval())
    return made


def states(model, source, target, layer):
    """The mean state of each word: of the encoder for the source, of the decoder for the target."""
    source_ids = torch.tensor([[*model.source_tokenizer.encode(source), EOS]])
    target_ids = torch.tensor([[BOS, *model.target_tokenizer.encode(target)]])
    memory = model.encode(source_ids)
    x = model.decoder.position(model.target(target_ids))
    for block in model.decoder.layers[: layer + 1]:
        x = block(x, memory, mask=regard.Causal())
    of_words = []
    for tokens, text, tokenizer in (
        (memory.states[0], source, model.source_tokenizer),
        (x[0, 1:], target, model.target_tokenizer),
    ):
        word_of = [len(text[:end].split()) - 1 for _, end in tokenizer.spans(text)]  # of each token
        rows = [[i for i, w in enumerate(word_of) if w == word] for word in range(len(text.split()))]
        of_words.append(torch.stack([tokens[row].mean(0) for row in rows]))
    return of_words


def test_weights_are_the_softmax_of_the_states_of_both_models_by_hand(models):
    forward, backward = models
    head = JointAlignmentHead.of(forward, backward, (0, 1))
    source, target = "red dog", "large cat house"
    ((_, by_target, by_source),) = head.align_words([source], [target], forward, backward)
    with torch.no_grad():
        source_encoder, target_decoder = states(forward, source, target, 0)
        target_encoder, source_decoder = states(backward, target, source, 1)
        query = head.query(torch.cat([target_encoder, target_decoder], 1))
        key = head.key(torch.cat([source_encoder, source_decoder], 1))
        scores = (query @ key.T / query.shape[1] ** 0.5).double()
    assert by_target.shape == (3, 2) and by_source.shape == (2, 3)
    assert torch.allclose(by_target, scores.softmax(1), atol=1e-5)
    assert torch.allclose(by_source, scores.T.softmax(1), atol=1e-5)


def test_a_batch_is_its_pairs_one_by_one(models):
    head = JointAlignmentHead.of(*models)
    sources, targets, _ = reversed_pairs(12, seed=3)
    sources[4] = ""
    together = {i: pair for i, *pair in head.align_words(sources, targets, *models)}
    assert sorted(together) == list(range(12))
    assert together[4][0].shape == (len(targets[4].split()), 0)
    for i in (0, 7):
        ((_, *alone),) = head.align_words([sources[i]], [targets[i]], *models)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(alone, together[i], strict=True))


def test_a_joint_head_learns_links_and_leaves_the_models_alone(models):
    sources, targets, links = reversed_pairs(120, seed=1)
    before = [{name: p.clone() for name, p in model.named_parameters()} for model in models]
    losses = []
    options = HeadTraining(steps=120, lr=0.01, batch_tokens=400, layer=0)
    head = train_joint_head(*models, sources, targets, links, options, lambda step, loss: losses.append(loss))
    for model, old in zip(models, before, strict=True):
        assert all(p.equal(old[name]) for name, p in model.named_parameters())
    new_sources, new_targets, new_links = reversed_pairs(40, seed=2)
    gold = [Gold(x, x) for x in new_links]

    def error(head):
        weights = {i: pair for i, *pair in head.align_words(new_sources, new_targets, *models)}
        return score([LinkSelection().joined(*weights[i]) for i in range(40)], gold).aer

    assert len(losses) == 120 and losses[-1] < 0.5 * losses[0]
    assert error(head) < 0.2 and error(head) < error(JointAlignmentHead.of(*models)) - 0.2


def test_a_joint_head_is_saved_and_loaded_for_its_models(models, tmp_path):
    head = JointAlignmentHead.of(*models, (0, 1))
    head.save(tmp_path / "head.safetensors")
    again = JointAlignmentHead.load(tmp_path / "head.safetensors", *models)
    assert again.layers == (0, 1)
    assert all(p.equal(q) for p, q in zip(head.parameters(), again.parameters(), strict=True))
    with pytest.raises(FolderError, match="of other models"):
        JointAlignmentHead.load(tmp_path / "head.safetensors", models[0], models[0])
    (tmp_path / "other").write_text("no head")
    with pytest.raises(FolderError, match="is no joint alignment head"):
        JointAlignmentHead.load(tmp_path / "other", *models)
    with pytest.raises(FolderError, match="there is no joint alignment head"):
        JointAlignmentHead.load(tmp_path / "missing", *models)


def test_wrong_models_and_links_are_named(models):
    recurrent = regard.build(
        {"dim": 8, "encoder": {"kind": "recurrent"}, "decoder": {"kind": "bahdanau"}}, 9, 9
    )
    with pytest.raises(OptionError, match="needs a translator with a Transformer decoder"):
        JointAlignmentHead.of(models[0], recurrent)
    with pytest.raises(DataError, match="1 sources, 1 targets and links of 0 pairs"):
        train_joint_head(*models, ["a"], ["b"], [])
    with pytest.raises(DataError, match="none of the pairs has a link"):
        train_joint_head(*models, ["red"], ["dog"], [frozenset()], HeadTraining(steps=2))
