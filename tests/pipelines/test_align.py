"""Tests of align.py, token_words.py and word_links.py; align_file.py is tested by tests/cli/test_align.py."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.data.tokenizer import EOS, UNK, Tokenizer
from regard.data.tokenizer_training import TOKENIZERS as KINDS
from regard.decoding.attention_weights import AttentionMaps, attention_maps
from regard.errors import DataError, OptionError
from regard.pipelines.align import View, align, best_view, clearest_view
from regard.pipelines.token_words import Words, word_weights
from regard.pipelines.word_links import (
    SYMMETRIZATIONS,
    LinkSelection,
    at_least,
    balanced,
    flipped,
    grow_diag,
    grow_diag_final_and,
    intersection,
    mutual,
    pharaoh,
    strongest,
    union,
)
from tests.models.small import DECODERS, ENCODERS, make

LINES = [
    "ein kleiner Hund läuft über die Straße",
    "a small dog's run, 12 times",
    "犬が 走る 🐕 👩‍🚀",
    "zwei  Leerzeichen\tund Tab",
]
TOKENIZERS = {kind: Tokenizer.train(LINES, kind, 300) for kind in KINDS if kind != "word-characters"} | {
    "lower": Tokenizer.train(LINES, "bpe", 90, lowercase=True)
}
TEXTS = st.one_of(
    st.text(),
    st.text(st.sampled_from("aeHu läßß犬が🐕👩‍🚀é\u0301İ.,'-12  \t\u00a0\u3000\u2028\x1c\x00"), max_size=30),
    st.lists(st.sampled_from(" ".join(LINES).split()), max_size=8).map(" ".join),
)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=TEXTS)
def test_words_of_a_text_have_their_tokens(tokenizer, text):
    tokenizer = TOKENIZERS[tokenizer]
    result = Words.of_text(tokenizer, text)
    assert result.words == text.split()
    assert result.owner.shape == (len(tokenizer.encode(text)), len(result.words))
    assert (result.owner.sum(0) > 0).all()  # every word has a token
    owners = [row.nonzero().flatten().tolist() for row in result.owner]
    while owners and not owners[-1]:
        owners.pop()
    assert all(owners)  # no piece without a word, but for spaces at the end
    assert owners == sorted(owners)  # in the order of the text


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=TEXTS)
def test_words_of_tokens_are_those_of_the_decoded_text(tokenizer, text):
    tokenizer = TOKENIZERS[tokenizer]
    tokens = tokenizer.encode(text)
    result = Words.of_tokens(tokenizer, [*tokens, EOS])
    assert result.words == tokenizer.decode(tokens).split()
    assert result.owner[-1].sum() == 0  # the end-of-sentence token belongs to no word
    if UNK not in tokens and not tokenizer.lowercase:
        assert torch.equal(result.owner[:-1], Words.of_text(tokenizer, text).owner)


@given(tokens=st.lists(st.integers(0, 299), max_size=20))
def test_tokens_of_invalid_bytes_belong_to_words(tokens):
    tokenizer = TOKENIZERS["byte-bpe"]
    tokens = [t for t in tokens if t < len(tokenizer)]
    result = Words.of_tokens(tokenizer, tokens)
    assert result.words == tokenizer.decode(tokens).split()
    assert (result.owner.sum(0) > 0).all()


def test_a_token_of_space_belongs_to_the_next_word():
    tokenizer = TOKENIZERS["character"]
    result = Words.of_text(tokenizer, "ab c ")
    assert result.owner.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 0]]


def test_word_weights_sum_source_tokens_and_average_target_tokens():
    source = Words(["der", "Hund"], torch.tensor([[1, 0], [0, 1], [0, 1]]).double())
    target = Words(["the", "dog"], torch.tensor([[1, 0], [1, 0], [0, 1]]).double())
    cross = torch.tensor(
        [[0.5, 0.1, 0.2, 0.2], [0.3, 0.3, 0.3, 0.1], [0.1, 0.4, 0.4, 0.1], [0, 0, 0, 1]]
    )  # end-of-sentence tokens last
    result = word_weights(cross, source, target)
    torch.testing.assert_close(result, torch.tensor([[0.4, 0.45], [0.1, 0.8]]).double())
    assert pharaoh(strongest(result)) == "1-0 1-1"
    assert pharaoh(at_least(result, 0.4)) == "0-0 1-0 1-1"
    assert (
        strongest(torch.zeros(2, 3))
        == strongest(torch.zeros(2, 0))
        == strongest(torch.zeros(0, 3))
        == frozenset()
    )
    assert strongest(torch.tensor([[0.2, 0.4, 0.4]])) == {(1, 0)}  # of equal weights the first


def test_the_shifted_view_uses_the_step_that_reads_a_token():
    rows = torch.arange(6.0).view(1, 3, 2)
    attention = AttentionMaps(
        ["a", "</s>"], ["x", "y", "</s>"], ["<s>", "x", "y"], {"decoder.layers.0.cross": rows}
    )
    assert View()(attention).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert View(shift=True)(attention).tolist() == [[2, 3], [4, 5], [4, 5]]
    assert View(0, 0, True)(attention).tolist() == [[2, 3], [4, 5], [4, 5]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    tokenizer = TOKENIZERS["bpe"]
    model = make(ENCODERS["transformer"], DECODERS["transformer"], vocab=len(tokenizer)).eval()
    model.source_tokenizer = model.target_tokenizer = tokenizer
    return model


SOURCES = ["ein kleiner Hund", "", "die Straße", "🐕 läuft", "Tab"]
TARGETS = ["a small dog's run", "a", "", "犬が 走る", "run"]


def test_batches_change_no_links_and_empty_texts_have_none(model):
    together = align(SOURCES, TARGETS, model)
    assert together == [align([s], [t], model)[0] for s, t in zip(SOURCES, TARGETS, strict=True)]
    assert together[1] == together[2] == frozenset()
    assert [sorted(t for _, t in links) for links in together] == [[0, 1, 2, 3], [], [], [0, 1], [0]]


def test_links_equal_the_strongest_weights_of_attention_maps(model):
    tokenizer = model.source_tokenizer
    source, target = tokenizer.encode(SOURCES[0]), tokenizer.encode(TARGETS[0])
    (attention,) = attention_maps([source], [[*target, EOS]], model)
    weights = word_weights(
        attention.cross(0, 2), Words.of_tokens(tokenizer, source), Words.of_tokens(tokenizer, [*target, EOS])
    )
    assert align(SOURCES[:1], TARGETS[:1], model, view=View(0, 2)) == [strongest(weights)]
    assert align(SOURCES[:1], TARGETS[:1], model, view=View(0, 2), threshold=0.2) == [at_least(weights, 0.2)]
    assert best_view(SOURCES[:1], TARGETS[:1], model, shift=True) == View(*attention.best_head(), True)


def test_unpaired_texts_are_errors(model):
    with pytest.raises(DataError, match="2 sources and 1 targets"):
        align(["a", "b"], ["c"], model)


@pytest.mark.slow
def test_a_model_that_has_learned_to_reverse_words_aligns_them_in_reverse(tmp_path):
    draw = random.Random(0)
    lines = [" ".join(draw.sample("abcdefghijkl", draw.randint(2, 8))) for _ in range(8200)]
    for name, part in (("train", lines[:8000]), ("validation", lines[8000:])):
        (tmp_path / f"{name}.in").write_text("\n".join(part) + "\n", encoding="utf-8")
        (tmp_path / f"{name}.out").write_text(
            "\n".join(" ".join(s.split()[::-1]) for s in part) + "\n", encoding="utf-8"
        )
    recipe = {
        "name": "reverse",
        "data": {
            name: [[str(tmp_path / f"{name}.in"), str(tmp_path / f"{name}.out")]]
            for name in ("train", "validation")
        },
        "tokenizer": {"kind": "word", "size": 20},
        "model": {
            "dim": 64,
            "dropout": 0.0,
            "encoder": {"kind": "recurrent"},
            "decoder": {"kind": "bahdanau"},
        },
        "batch": {"tokens": 1024},
        "optimizer": {"lr": 0.003},
        "schedule": {"kind": "cosine", "warmup": 50},
        "training": {
            "steps": 400,
            "smoothing": 0.0,
            "validate_every": 400,
            "save_every": 400,
            "device": "cpu",
            "threads": 1,
        },
        "decoding": {"beam": 1},
    }
    model = regard.load(regard.train(recipe, folder=tmp_path / "run", quiet=True).folder)
    sources, expected = lines[8000:], []
    links = align(sources, [" ".join(s.split()[::-1]) for s in sources], model)
    for source in sources:
        n = len(source.split())
        expected.append(frozenset((n - 1 - t, t) for t in range(n)))
    right = sum(len(a & b) for a, b in zip(links, expected, strict=True)) / sum(map(len, expected))
    assert right > 0.9  # a random choice is right once in five


# Koehn's example of the idea: forward and backward disagree around a diagonal.
FORWARD = frozenset({(0, 0), (1, 1), (2, 1), (3, 3), (5, 5)})
BACKWARD = frozenset({(0, 0), (1, 1), (3, 2), (3, 3), (4, 3), (6, 4)})


def test_symmetrizations_equal_examples_by_hand():
    assert intersection(FORWARD, BACKWARD) == {(0, 0), (1, 1), (3, 3)}
    assert union(FORWARD, BACKWARD) == FORWARD | BACKWARD
    # (2,1), (3,2), (4,3) touch links of the intersection and have a word without any. (5,5) and (6,4) touch
    # none, so growing leaves them out: 4-3 and 5-5 are not neighbours. Both words of each are free at the
    # end, so both come in.
    assert grow_diag(FORWARD, BACKWARD) == (FORWARD | BACKWARD) - {(5, 5), (6, 4)}
    assert grow_diag_final_and(FORWARD, BACKWARD) == FORWARD | BACKWARD
    # 2-6 is beside nothing and source word 2 is taken when its turn comes: it stays out.
    assert grow_diag_final_and(FORWARD, BACKWARD | {(2, 6)}) == FORWARD | BACKWARD
    # 2-4 is beside 3-3 and takes target word 4, so that 6-4 stays out.
    assert grow_diag_final_and(FORWARD, BACKWARD | {(2, 4)}) == (FORWARD | BACKWARD | {(2, 4)}) - {(6, 4)}
    # A neighbour of which both words have links is not added.
    square = frozenset({(0, 0), (1, 1), (0, 1)})
    assert grow_diag_final_and(square, frozenset({(0, 0), (1, 1)})) == {(0, 0), (1, 1)}
    # Diagonal neighbours count, and growth continues from added links.
    assert grow_diag_final_and(frozenset({(0, 0), (1, 1), (2, 2)}), frozenset({(0, 0)})) == {
        (0, 0),
        (1, 1),
        (2, 2),
    }


@given(
    forward=st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5))),
    backward=st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5))),
)
def test_growing_stays_between_intersection_and_union(forward, backward):
    grown = grow_diag_final_and(forward, backward)
    assert forward & backward <= grown <= forward | backward
    assert grow_diag_final_and(forward, forward) == forward
    for s, t in (
        forward | backward
    ) - grown:  # whatever stays out would join two words of which one is linked
        assert any(s == a or t == b for a, b in grown)
    assert flipped(flipped(forward)) == forward


def test_balanced_weights_discount_a_word_that_attracts_all():
    weights = torch.tensor([[0.6, 0.4, 0.0], [0.6, 0.0, 0.4], [0.9, 0.1, 0.0]], dtype=torch.float64)
    even = balanced(weights)
    torch.testing.assert_close(even[0, 1], (torch.tensor(0.4) * 0.4 / 0.5).sqrt().double())
    assert strongest(weights) == {(0, 0), (0, 1), (0, 2)}
    assert strongest(even) == {(1, 0), (2, 1), (0, 2)}
    assert mutual(weights) == {(1, 0), (2, 1), (0, 2)}
    assert mutual(torch.zeros(0, 3)) == mutual(torch.zeros(3, 0)) == mutual(torch.zeros(2, 2)) == frozenset()


def test_mutual_links_are_one_to_one():
    torch.manual_seed(3)
    for _ in range(50):
        weights = torch.rand(5, 7, dtype=torch.float64).softmax(-1)
        links = mutual(weights)
        assert links and links <= strongest(balanced(weights))
        assert len({s for s, _ in links}) == len({t for _, t in links}) == len(links)
        assert LinkSelection(mutual=True).links(weights) == links
        assert LinkSelection(0.1).links(weights) == at_least(weights, 0.1)


def test_two_directions_are_joined_by_their_weights_or_by_their_links():
    forward = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    backward = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)  # (source words, target words)
    assert LinkSelection().joined(forward, backward) == {(0, 0), (1, 1)}
    assert LinkSelection(0.5).joined(forward, backward) == {(0, 0), (1, 1)}
    assert LinkSelection(0.35).joined(forward, backward) == {(0, 0), (1, 1), (1, 0)}
    for name, way in SYMMETRIZATIONS.items():
        assert LinkSelection(join=name).joined(forward, backward) == way(
            strongest(forward), flipped(strongest(backward))
        )
    with pytest.raises(OptionError, match="join must be one of weights, intersection"):
        LinkSelection(join="grow")


@pytest.mark.parametrize(
    "decoder", [{"kind": "transformer", "layers": 3, "heads": 4, "inner": 64}, DECODERS["bahdanau"]]
)
def test_the_clearest_view_is_the_layer_and_step_that_link_most_words(decoder):
    torch.manual_seed(2)
    model = make(ENCODERS["transformer"], decoder, vocab=len(TOKENIZERS["bpe"])).eval()
    model.source_tokenizer = model.target_tokenizer = TOKENIZERS["bpe"]
    texts = [SOURCES[0], *LINES, *SOURCES[1:]], [TARGETS[0], *LINES[::-1], *TARGETS[1:]]
    view = clearest_view(*texts, model)

    def count(view):
        return sum(map(len, align(*texts, model, view=view, mutual=True)))

    counts = [
        count(View(layer, shift=shift))
        for layer in range(decoder.get("layers", 1))
        for shift in (False, True)
    ]
    assert count(view) == max(counts)
    assert len(counts) == 2 or max(counts) > min(counts)


def test_a_model_without_cross_attention_has_no_clearest_layer():
    model = make(ENCODERS["transformer"], DECODERS["none"], vocab=len(TOKENIZERS["bpe"])).eval()
    model.source_tokenizer = model.target_tokenizer = TOKENIZERS["bpe"]
    assert clearest_view(SOURCES, TARGETS, model) == View()
