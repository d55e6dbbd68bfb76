"""Tests of checks.py: every mistake in a recipe is one sentence with its fix."""

import pytest

from regard.errors import RecipeError
from regard.recipe.checks import SYNONYMS
from regard.recipe.loading import load_recipe
from regard.recipe.schema import all_keys
from tests.recipe.messages import message_of, write


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (
            "model.encoder.haeds=2",
            ("model.encoder has no key 'haeds'", "did you mean model.encoder.heads (integer ≥ 1)?"),
        ),
        ("traning.steps=3", ("no key 'traning'", "did you mean training?")),
        ("model.heads=2", ("model has no key 'heads'", "model.encoder.heads", "model.decoder.heads")),
        ("model.colour=red", ("model has no key 'colour'", "dim, tie")),
        ("schedule={kind: cosine, flor: 2}", ("schedule has no key 'flor'", "schedule.floor")),
        (
            "model.encoder={kind: stacked, below: {kind: convolutional, kernl: 2}}",
            ("encoder.below", "'kernl'", "below.kernel"),
        ),
        (
            "model.encoder.mask={kind: and, of: [diagonal, {kind: window, lef: 3}]}",
            ("mask.of[1]", "'lef'", "of[1].left"),
        ),
        (
            "model.decoder={kind: bahdanau, input_feeding: true}",
            ("input_feeding", "enters the recurrence already", "kind: recurrent"),
        ),
    ],
)
def test_an_unknown_key_is_reported_with_its_block_and_a_similar_key(override, parts):
    message = message_of(override)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("overrides", "message_part"),
    [
        (
            ["model.decoder={heads: 2}", "model.decoder.kind=bahdanau"],
            "model.decoder of kind bahdanau has no key 'heads' (transformer has it); its keys are cell, "
            "layers, width, attention_width, normalize, initial_state, dropout; for another kind replace the "
            "block: model.decoder='{kind: bahdanau}'",
        ),
        (["model.decoder={kind: recurrent, norm: pre}"],
         "model.decoder of kind recurrent has no key 'norm'"),
        (["model.decoder=bahdanau"], "model.decoder is 'bahdanau', and must be a block of keys with a kind: "
         "write model.decoder='{kind: bahdanau}'"),
        (["optimizer=adamw"], "optimizer is 'adamw', and must be a block of keys with a kind: "
         "write optimizer='{kind: adamw}'"),
        (["model.kind=bahdanau"], "model.kind is 'bahdanau', and must be one of autoregressive, "
         "classifier, embedder, tagger; bahdanau is a kind of model.decoder"),
    ],
)  # fmt: skip
def test_a_key_or_kind_in_the_wrong_place_names_the_right_place(overrides, message_part):
    assert message_part in message_of(*overrides)


@pytest.mark.parametrize(
    ("key_of_others", "our_key"),
    [
        ("learning_rate", "optimizer.lr (number > 0)"),
        ("optimizer.learning_rate", "optimizer.lr (number > 0)"),
        ("training.lr", "optimizer.lr (number > 0)"),
        ("batch_size", "batch.tokens (integer ≥ 1) or batch.sentences (integer ≥ 1 or null)"),
        ("training.batch_size", "batch.tokens (integer ≥ 1) or batch.sentences (integer ≥ 1 or null)"),
        ("epochs", "training.epochs (number > 0 or null)"),
        ("layers", "model.encoder.layers (integer ≥ 1) or model.decoder.layers (integer ≥ 1)"),
        ("heads", "model.encoder.heads (integer ≥ 1) or model.decoder.heads (integer ≥ 1)"),
        ("dropout", "model.dropout (number ≥ 0, < 1)"),
        ("hidden_size", "model.dim (integer ≥ 1)"),
        ("model.encoder.d_model", "model.dim (integer ≥ 1)"),
        ("warmup", "schedule.warmup (integer ≥ 1)"),
        ("warmup_steps", "schedule.warmup (integer ≥ 1)"),
        ("normalize", "model.encoder.normalize (softmax, sparsemax, entmax, sigmoid, none) or "
         "model.decoder.normalize (softmax, sparsemax, entmax, sigmoid, none)"),
        ("validate_evry", "training.validate_every (integer ≥ 1)"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_suggest_our_keys(key_of_others, our_key):
    block, _, key = key_of_others.rpartition(".")
    expected = f"{block or 'a recipe'} has no key {key!r}; did you mean {our_key}?"
    assert message_of(f"{key_of_others}=1") == expected


def test_only_keys_of_this_recipes_kinds_are_suggested():
    gru = "model.encoder={kind: recurrent}", "model.decoder={kind: bahdanau}"
    assert message_of(*gru, "hidden=1").endswith("did you mean model.encoder.width (integer ≥ 1 or null) or "
                                           "model.decoder.width (integer ≥ 1 or null)?")  # fmt: skip
    assert "its keys are" in message_of(*gru, "model.encoder.colour=1")
    assert {key for keys in SYNONYMS.values() for key in keys} <= set(all_keys())


def test_a_wrong_override_does_not_name_the_file(tmp_path):
    path = write(tmp_path, "data: multi30k")
    with pytest.raises(RecipeError, match=r"^a recipe has no key 'lr'"):
        load_recipe(path, ["lr=1"])
    with pytest.raises(RecipeError, match=r"mine.yaml: a recipe has no key 'lr'"):
        load_recipe(write(tmp_path, "data: multi30k\nlr: 1"), ["seed=2"])
    # This recipe is valid only with the override.
    assert load_recipe(write(tmp_path, "seed: 3"), ["data.corpus=multi30k"]).seed == 3


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("model.encoder.heads=eight", ("model.encoder.heads is 'eight'", "an integer")),
        ("model.encoder.heads=true", ("is true", "an integer")),
        ("model.dim=1.5", ("model.dim is 1.5", "an integer")),
        ("model.dim=0", ("model.dim is 0", "at least 1")),
        ("batch.tokens=-5", ("batch.tokens is -5", "at least 1")),
        ("model.dropout=1", ("model.dropout is 1", "less than 1")),
        ("optimizer.lr=.nan", ("optimizer.lr is nan", "finite")),
        ("optimizer.lr=0", ("optimizer.lr is 0", "more than 0")),
        ("optimizer.betas=[0.9]", ("optimizer.betas", "list of 2")),
        ("model.tie=null", ("model.tie is null", "all, target, none")),
        ("task=lang", ("task is 'lang'", "'language'")),
        ("model.encoder.kind=recurent", ("model.encoder.kind is 'recurent'", "'recurrent'")),
        ("model.encoder.mask=windo", ("model.encoder.mask.kind", "'window'")),
        ("model.encoder.mask={kind: centered}", ("model.encoder.mask needs the key width",)),
        ("model=3", ("model is 3", "block of keys")),
        ("model.encoder=3", ("model.encoder is 3", "block of keys")),
        ("seed=-1", ("seed is -1", "at least 0")),
        ("name=../up", ("name is '../up'", "letters")),
        ("data.version=2016", ("data.version is 2016", "quotes")),
        ("data.train=[3]", ("data.train[0] is 3", "a file name")),
    ],
)
def test_a_wrong_value_names_key_value_and_allowed_values(override, parts):
    message = message_of(override)
    assert all(part in message for part in parts), message


def test_of_several_problems_the_first_is_reported_and_the_rest_counted():
    assert message_of("model.dim=0", "seed=-1", "batch.tokns=3").endswith("(and 2 more)")


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["model.encoder.heads=3"], ("model.encoder.heads is 3", "512", "2 heads")),
        (["model.decoder.heads=7"], ("model.decoder.heads is 7",)),
        (["model.encoder.key_heads=3"], ("key_heads is 3", "8 heads")),
        (["tokenizer.joint=false"], ("model.tie is all", "separate vocabularies", "tie: target")),
        (["model.dim=65", "model.encoder.heads=5", "model.decoder.heads=5"], ("sinusoidal", "even", "65")),
        (
            ["model.dim=60", "model.encoder={heads: 4, position: rotary}", "model.decoder={heads: 4}"],
            ("rotary", "15 wide"),
        ),
        (
            ["model.decoder={kind: recurrent, attention: dot, width: 100}"],
            ("dot", "512", "100", "attention: projected"),
        ),
        (["model.encoder={kind: recurrent, width: 31}"], ("width is 31", "even")),
        (["model.decoder={kind: recurrent, input_feeding: true}"], ("input_feeding", "nothing to feed")),
        (
            ["model.decoder={kind: recurrent, initial_state: copy}"],
            ("initial_state is copy", "no final state"),
        ),
        (
            [
                "model.encoder={kind: recurrent, cell: lstm}",
                "model.decoder={kind: bahdanau, initial_state: copy}",
            ],
            ("initial_state is copy", "cell is lstm", "gru"),
        ),
        (
            ["model.decoder={kind: recurrent, shared_recurrence: true}"],
            ("shared_recurrence", "of kind recurrent"),
        ),
        (
            [
                "model.encoder={kind: recurrent}",
                "model.decoder={kind: recurrent, shared_recurrence: true}",
            ],
            ("shared_recurrence", "bidirectional: false"),
        ),
        (
            ["model.encoder={}", "model.decoder={kind: recurrent, temporal_penalty: 1.0}"],
            ("model.decoder.temporal_penalty is 1,", "only language models have it", "set it to 0"),
        ),
        (["batch.mode=crops"], ("batch.mode is crops", "lines")),
        (["schedule.warmup=20000"], ("schedule.warmup is 20000", "10000")),
        (["training.steps=null"], ("never end",)),
        (
            ["training.steps=null", "training.minutes=3", "schedule={kind: cosine}"],
            ("cosine", "training.steps"),
        ),
        (["training.average=5"], ("average is 5", "keep 3")),
        (["optimizer.decay_embeddings=true"], ("decay_embeddings is true", "weight_decay is 0")),
        (["tokenizer.kind=byte-bpe", "tokenizer.size=100"], ("tokenizer.size is 100", "alphabet", "260")),
        (["tokenizer.kind=word", "tokenizer.dropout=0.1"], ("tokenizer.dropout", "word")),
        (["data.source=de", "data.target=de"], ("both 'de'",)),
        (["data.corpus=null"], ("neither a corpus nor train files",)),
        (["data.train=[a.tsv]"], ("data.corpus is multi30k", "keep one")),
    ],
)
def test_contradicting_blocks_are_errors_with_a_fix(overrides, parts):
    message = message_of(*overrides)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["model.encoder={}"], ("model.encoder", "decoder alone")),
        (["data.source=en"], ("data.source", "language model")),
        (["model.decoder={kind: bahdanau}"], ("bahdanau", "nothing to attend to")),
        (
            ["model.decoder={kind: recurrent, attention: dot}"],
            ("attention is dot", "nothing to attend to"),
        ),
        (["batch.mode=stream"], ("stream", "Transformer")),
        (
            ["model.decoder={kind: transformer, activation_penalty: 2.0}"],
            ("of kind transformer has no key 'activation_penalty'", "recurrent has it"),
        ),
        (
            ["model.decoder={kind: recurrent, temporal_penalty: -1.0}"],
            ("model.decoder.temporal_penalty is -1.0", "at least 0"),
        ),
        (["batch.tokens=100"], ("batch.tokens 100", "window of batch.length 256")),
    ],
)
def test_a_language_model_is_a_decoder_without_an_encoder(overrides, parts):
    message = message_of(*overrides, base={"task": "language", "data": "tiny-shakespeare"})
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "key",
    ["model.dim", "tokenizer.size", "batch.tokens", "batch.accumulate", "training.steps", "schedule.warmup"],
)
def test_a_huge_size_is_an_error_of_one_sentence(key):
    """Without a limit it would overflow in torch and numpy."""
    with pytest.raises(RecipeError, match=rf"{key} is 1180591620717411303424, and must be at most \d+"):
        load_recipe("small", [f"{key}={2**70}"])
