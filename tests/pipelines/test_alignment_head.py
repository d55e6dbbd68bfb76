"""Tests of alignment_head.py: its weights by hand, learning known links, files."""

import pytest
import torch

import regard
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.errors import DataError, FolderError, OptionError
from regard.evaluation.alignment import Gold, score
from regard.pipelines.alignment_head import AlignmentHead, HeadTraining, train_alignment_head
from regard.pipelines.word_links import strongest

LAYER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32, "dropout": 0.0}
WORDS = "red blue green small large dog cat house".split()


@pytest.fixture
def model():
    tokenizer = Tokenizer.train([" ".join(WORDS)], "bpe", 40)
    made = regard.build({"dim": 32, "encoder": LAYER, "decoder": LAYER}, len(tokenizer), len(tokenizer))
    made.source_tokenizer = made.target_tokenizer = tokenizer
    return made.eval()


def reversed_pairs(count, seed):
    """Sentences, the same words in reverse order, and the links between them."""
    draw = torch.Generator().manual_seed(seed)
    sources, targets, links = [], [], []
    for _ in range(count):
        length = int(torch.randint(2, 6, (), generator=draw))
        words = [WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=draw)]
        sources.append(" ".join(words))
        targets.append(" ".join(words[::-1]))
        links.append(frozenset((i, length - 1 - i) for i in range(length)))
    return sources, targets, links


def test_weights_are_the_softmax_of_projected_states_of_the_step_that_reads(model):
    head = AlignmentHead.of(model, layer=0)
    source, target = "red dog", "large cat house"
    ((_, alignment),) = head.align_words([source], [target], model)
    source_ids = [*model.source_tokenizer.encode(source), EOS]
    target_ids = model.target_tokenizer.encode(target)
    with torch.no_grad():
        memory = model.encode(torch.tensor([source_ids])).states[0]
        x = model.decoder.position(model.target(torch.tensor([[BOS, *target_ids]])))
        state = model.decoder.layers[0](x, model.encode(torch.tensor([source_ids])), mask=regard.Causal())[0]
        query, key = state[1:] @ head.query.weight.T, memory @ head.key.weight.T
        tokens = torch.softmax(query @ key.T / 32**0.5, -1)
    spans = model.source_tokenizer.spans(source)
    of_red = [i for i, (start, _) in enumerate(spans) if start < 3]
    first = [i for i, (start, _) in enumerate(model.target_tokenizer.spans(target)) if start < 5]
    expected = sum(tokens[t, s] for t in first for s in of_red) / len(first)
    assert float(alignment.weights[0, 0]) == pytest.approx(float(expected), abs=1e-5)


def test_a_head_learns_links_that_attention_of_the_model_does_not_have(model):
    sources, targets, links = reversed_pairs(120, seed=1)
    before = {name: p.clone() for name, p in model.named_parameters()}
    losses = []
    options = HeadTraining(steps=150, lr=0.01, batch_tokens=400, layer=0)
    head = train_alignment_head(
        model, sources, targets, links, options, lambda step, loss: losses.append(loss)
    )
    assert all(p.equal(before[name]) for name, p in model.named_parameters())
    new_sources, new_targets, new_links = reversed_pairs(40, seed=2)
    alignments = dict(head.align_words(new_sources, new_targets, model))
    predicted = [strongest(alignments[i].weights) for i in range(40)]
    learned = score(predicted, [Gold(x, x) for x in new_links]).aer
    untrained = dict(AlignmentHead.of(model, 0).align_words(new_sources, new_targets, model))
    start = score([strongest(untrained[i].weights) for i in range(40)], [Gold(x, x) for x in new_links]).aer
    assert len(losses) == 150 and losses[-1] < 0.5 * losses[0]
    assert learned < 0.25 and learned < start - 0.2


def test_a_head_is_saved_and_loaded_for_its_model(model, tmp_path):
    head = AlignmentHead.of(model, layer=1)
    head.save(tmp_path / "head.safetensors")
    again = AlignmentHead.load(tmp_path / "head.safetensors", model)
    assert again.layer == 1 and again.query.weight.equal(head.query.weight)
    (tmp_path / "other").write_text("no head")
    with pytest.raises(FolderError, match="is no alignment head"):
        AlignmentHead.load(tmp_path / "other", model)


def test_wrong_models_layers_and_links_are_named(model):
    recurrent = regard.build(
        {"dim": 8, "encoder": {"kind": "recurrent"}, "decoder": {"kind": "bahdanau"}}, 9, 9
    )
    with pytest.raises(OptionError, match="needs a translator with a Transformer decoder"):
        AlignmentHead.of(recurrent)
    with pytest.raises(OptionError, match="layer 2 does not exist; this decoder has 2 layers"):
        AlignmentHead.of(model, 2)
    with pytest.raises(DataError, match="1 sources, 1 targets and links of 0 pairs"):
        train_alignment_head(model, ["a"], ["b"], [])
    with pytest.raises(DataError, match="none of the pairs has a link"):
        train_alignment_head(model, ["red"], ["dog"], [frozenset()], HeadTraining(steps=2))
