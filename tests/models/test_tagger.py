"""Taggers with every encoder: inputs, training, and well-formed outputs.

Covers character_features.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.data.tag_schemes import Span
from regard.data.tokenizer import EOS, PAD, UNK, Tokenizer
from regard.data.word_character_tokenizer import WordCharacterTokenizer
from regard.errors import DataError, OptionError
from regard.models.build import build
from regard.models.character_features import CharacterFeatures, drop_words, split_characters, word_shape
from regard.models.crf import rules
from regard.models.tagger import Tagger, TaggerOptions, tag_spans
from tests.decoding.model_folders import TAGGED as ROWS
from tests.models.small import batch_of

TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 16}
ENCODERS: dict[str, Any] = {
    "recurrent": {"kind": "recurrent", "cell": "lstm"},
    "convolutional": {"kind": "convolutional", "layers": 2, "kernel": 3},
    "transformer": TRANSFORMER,
    "stacked": {
        "kind": "stacked",
        "below": {"kind": "recurrent"},
        "above": {**TRANSFORMER, "position": "none"},
    },
}


def make_tagger(
    encoder: str = "recurrent",
    *,
    use_characters: bool = True,
    dtype: torch.dtype = torch.float64,
    **more: Any,
) -> Tagger:
    """A small tagger with its tokenizers, without dropout by default."""
    characters = {"dim": 4, "width": 8, "kernel": 3} if use_characters else None
    options = {
        "kind": "tagger",
        "dim": 20,
        "dropout": 0.0,
        "encoder": ENCODERS[encoder],
        "characters": characters,
        **more,
    }
    config = TaggerOptions.model_validate(options).model_dump()
    source = Tokenizer.train(
        [text for text, _ in ROWS], "word-characters" if use_characters else "word", 100, lowercase=True
    )
    target = Tokenizer.train([tags for _, tags in ROWS], "word", 100)
    model = build(config, len(source), len(target)).to(dtype)
    model.source_tokenizer, model.target_tokenizer = source, target
    return model.eval()


def batch(model: Tagger, rows: list[tuple[str, str]]) -> Batch:
    sources = model.source_tokenizer.encode_batch([text for text, _ in rows])
    return batch_of(sources, model.target_tokenizer.encode_batch([tags for _, tags in rows]))


def test_rows_are_split_into_words_and_characters() -> None:
    tokenizer = Tokenizer.train(["a bc", "bc"], "word-characters", 20)
    assert isinstance(tokenizer, WordCharacterTokenizer)
    rows = [[*tokenizer.encode("bc a"), EOS], [*tokenizer.encode("xyz"), EOS]]
    source = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    words, characters, counts = split_characters(source, len(tokenizer.words))
    known = tokenizer.words.vocabulary
    assert words.tolist() == [[known["bc"], known["a"]], [UNK, PAD]]
    spell = lambda text: [byte + 1 for byte in text] + [0] * (3 - len(text))  # noqa: E731
    assert characters.tolist() == [[spell(b"bc"), spell(b"a")], [spell(b"xyz"), [0, 0, 0]]]
    assert counts.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("word", "flags"),
    [
        ("ada", [0, 0, 0, 0, 0, 0, 0]), ("Ada", [1, 0, 0, 0, 0, 0, 0]), ("UN", [1, 1, 1, 0, 0, 0, 0]),
        ("iPhone6", [0, 1, 0, 1, 0, 0, 0]), ("@x_1", [0, 0, 0, 1, 1, 0, 0]), ("ö", [0, 0, 0, 0, 0, 1, 0]),
        ("!", [0, 0, 0, 0, 1, 0, 1]), ("A", [1, 0, 1, 0, 0, 0, 1]),
    ],
)  # fmt: skip
def test_the_shape_features_of_a_word(word: str, flags: list[int]) -> None:
    characters = torch.tensor([byte + 1 for byte in word.encode()] + [0, 0])
    assert word_shape(characters).int().tolist() == flags


def test_padding_after_the_last_character_of_a_word_changes_nothing() -> None:
    characters = CharacterFeatures(4, 6, 3).double()
    word = torch.tensor([[66, 67, 68]])
    torch.testing.assert_close(characters(word), characters(torch.nn.functional.pad(word, (0, 5))))


def test_word_dropout_has_the_given_rate_and_skips_padding() -> None:
    words = torch.full((100, 100), 9)
    words[:, 50:] = PAD
    result = drop_words(words, 0.3)
    assert (result[:, 50:] == PAD).all()
    assert 0.25 < float((result[:, :50] == UNK).float().mean()) < 0.35


@pytest.mark.parametrize("encoder", sorted(ENCODERS))
@pytest.mark.parametrize(("use_characters", "crf"), [(True, True), (False, False)])
def test_every_encoder_learns_its_training_sentences(encoder: str, use_characters: bool, crf: bool) -> None:
    model = make_tagger(encoder, use_characters=use_characters, crf=crf, dtype=torch.float32).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model.loss(batch(model, ROWS))
        (loss.total / loss.tokens).backward()
        optimizer.step()
    tagged = model.tag([text.split() for text, _ in ROWS])
    assert [" ".join(tags) for tags in tagged] == [tags for _, tags in ROWS]
    assert model.training  # unchanged


@pytest.mark.parametrize("encoder", sorted(ENCODERS))
@pytest.mark.parametrize("crf", [True, False])
def test_the_other_sentences_of_a_batch_change_nothing(encoder: str, crf: bool) -> None:
    model = make_tagger(encoder, crf=crf)
    batched = model.loss(batch(model, ROWS))
    single = [model.loss(batch(model, [row])) for row in ROWS]
    torch.testing.assert_close(batched.total, torch.stack([loss.total for loss in single]).sum())
    assert (
        batched.tokens
        == sum(int(loss.tokens) for loss in single)
        == sum(len(text.split()) for text, _ in ROWS)
    )


@pytest.mark.parametrize("encoder", sorted(ENCODERS))
@pytest.mark.parametrize("crf", [True, False])
def test_outputs_are_well_formed_even_if_the_scores_favour_invalid_tags(encoder: str, crf: bool) -> None:
    model = make_tagger(encoder, crf=crf)
    bias = torch.tensor([20.0 if name[0] == "I" else 0.0 for name in model.tags], dtype=torch.float64)
    with torch.no_grad():
        model.output.bias.copy_(bias)
    sentences = [[f"word{i}", "London", "of"][:n] + ["x"] * (n - 3) for i, n in enumerate((1, 7, 3, 12, 0))]
    tagged = model.tag(sentences)
    assert [len(tags) for tags in tagged] == [1, 7, 3, 12, 0]
    assert all(model.scheme.problems(tags) == [] for tags in tagged)
    assert any(name[0] == "I" for tags in tagged for name in tags)  # allowed inside a span
    words, characters, lengths = model.read(
        torch.tensor([[*model.source_tokenizer.encode("a b"), EOS]]), torch.tensor([5])
    )
    greedy = [model.tags[i] for i in model(words, characters, lengths)[0].argmax(-1).tolist()]
    assert model.scheme.problems(greedy)


def test_tags_have_the_order_of_the_sentences_with_any_batch_size() -> None:
    model = make_tagger()
    sentences = [text.split() for text, _ in ROWS] * 3
    assert (
        model.tag(sentences, batch_tokens=30)
        == model.tag(sentences)
        == [model.tag([words])[0] for words in sentences]
    )


def test_an_unseen_word_is_recognised_by_its_characters() -> None:
    """Two unknown words get different scores; without characters they get the same."""
    scores: dict[bool, Tensor] = {}
    for use_characters in (True, False):
        model = make_tagger(use_characters=use_characters)
        rows = [torch.tensor([*model.source_tokenizer.encode(word), EOS]) for word in ("Zuse", "runs")]
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        words, characters, lengths = model.read(source, torch.tensor([len(row) for row in rows]))
        assert words[:, 0].tolist() == [UNK, UNK]
        scores[use_characters] = model(words, characters, lengths)[:, 0]
    assert not torch.allclose(scores[True][0], scores[True][1])
    torch.testing.assert_close(scores[False][0], scores[False][1])


def test_case_does_not_change_the_word_id_but_changes_the_characters() -> None:
    model = make_tagger()
    words, characters, _ = model.read(
        torch.tensor([[*model.source_tokenizer.encode("London LONDON"), EOS]]), torch.tensor([15])
    )
    assert words[0, 0] == words[0, 1] != UNK
    assert characters is not None and not torch.equal(characters[0, 0], characters[0, 1])


def test_a_sentence_with_an_unknown_tag_is_left_out_of_the_loss() -> None:
    for crf in (True, False):
        model = make_tagger(crf=crf)
        known = model.loss(batch(model, ROWS[:2]))
        more = model.loss(batch(model, [*ROWS[:2], ("a b", "O B-NEW")]))
        torch.testing.assert_close(known.total, more.total)
        assert known.tokens == more.tokens


def test_constrained_training_counts_only_well_formed_paths() -> None:
    unconstrained, constrained = (make_tagger(constrain=constrain) for constrain in (False, True))
    constrained.load_state_dict(unconstrained.state_dict())
    rows = batch(unconstrained, ROWS)
    assert float(constrained.loss(rows).total.detach()) < float(unconstrained.loss(rows).total.detach())
    assert torch.isinf(rules(constrained.tags).between).any()


def test_a_row_with_too_few_tags_is_an_error() -> None:
    model = make_tagger()
    with pytest.raises(DataError, match="row 0 has 2 words and 1 tags"):
        model.loss(batch(model, [("a b", "O")]))


def test_label_smoothing_with_a_crf_is_an_error() -> None:
    model = make_tagger()
    with pytest.raises(OptionError, match="without a CRF"):
        model.loss(batch(model, ROWS), 0.1)
    smooth = make_tagger(crf=False)
    assert smooth.loss(batch(smooth, ROWS), 0.1).total > 0
    assert smooth.loss(batch(smooth, ROWS), agreement=1.0).total > 0


def test_character_features_must_be_narrower_than_the_model() -> None:
    with pytest.raises(OptionError, match="leaves nothing of dim 20"):
        make_tagger(characters={"dim": 4, "width": 20, "kernel": 3})


def test_spans_have_positions_and_types() -> None:
    model = make_tagger(dtype=torch.float32).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(batch(model, ROWS)).total.backward()
        optimizer.step()
    assert tag_spans(model, [ROWS[0][0].split()]) == [[Span(0, 2, "PER"), Span(3, 4, "PER")]]


@pytest.mark.parametrize("use_characters", [True, False])
def test_flops_grow_with_words_and_with_characters(use_characters: bool) -> None:
    model = make_tagger("transformer", use_characters=use_characters, dtype=torch.float32)
    ten_words = model.flops(11 + 50 * use_characters, 11)
    assert model.flops(21 + 100 * use_characters, 21) > 2 * ten_words  # attention is quadratic
    if use_characters:
        per_character = (model.flops(111, 11) - model.flops(61, 11)) / 50
        assert per_character == 2 * 4 * 8 * 3  # dim · width · kernel, multiply and add


@pytest.mark.parametrize("crf", [True, False])
def test_the_recall_margin_applies_to_entity_tokens_in_training_only(crf: bool) -> None:
    """Training adds 2 to the score of O where the gold tag is not O, as a larger bias does."""
    plain, with_margin = make_tagger(crf=crf).train(), make_tagger(crf=crf, recall=2.0).train()
    with_margin.load_state_dict(plain.state_dict())
    missed, empty = batch(plain, [("ada", "B-PER")]), batch(plain, [ROWS[3]])
    torch.testing.assert_close(with_margin.loss(empty).total, plain.loss(empty).total)
    with torch.no_grad():
        with_bias = make_tagger(crf=crf).train()
        with_bias.load_state_dict(plain.state_dict())
        with_bias.output.bias[plain.tags.index("O")] += 2.0
    torch.testing.assert_close(with_margin.loss(missed).total, with_bias.loss(missed).total)
    torch.testing.assert_close(with_margin.eval().loss(missed).total, plain.eval().loss(missed).total)
