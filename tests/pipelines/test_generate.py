"""Tests of generate.py and decoding/token_stream.py; generate_file.py is tested by
tests/cli/test_generate.py.
"""

import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.decoding.strategy import SearchTask
from regard.errors import OptionError
from regard.models.autoregressive import log_probabilities
from regard.pipelines.generate import PromptEncoder, generate, start, stream
from tests.decoding.small_models import LINES, language_model, translator

DECODERS = ["none", "transformer"]
PROMPTS = ["the cat", "", "a dog ran to the", "der Hund"]


def log_p(model, prompt, tokens):
    """log p of tokens after a prompt, by teacher forcing."""
    result = log_probabilities(model(torch.tensor([[*prompt, *tokens]]))[0]).detach()
    return float(sum(result[len(prompt) - 1 + i, t] for i, t in enumerate(tokens)))


@pytest.mark.parametrize("decoder", DECODERS)
def test_greedy_is_the_loop_without_caches(decoder):
    model = language_model(decoder)
    for prompt, generations in zip(
        PROMPTS, generate(PROMPTS, model, limits=Limits(max_length=15)), strict=True
    ):
        given, text = [BOS, *(model.target_tokenizer.encode(prompt) if prompt else [])], []
        while len(text) < 15:
            token = int(log_probabilities(model(torch.tensor([[*given, *text]])))[0, -1].argmax())
            if token == EOS:
                break
            text.append(token)
        best = generations.hypotheses[0]
        assert best.tokens == text and generations.prompt == prompt
        assert best.log_p == pytest.approx(log_p(model, given, best.all_tokens), abs=1e-9)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_prompt_read_at_once_equals_step_by_step(decoder):
    model = language_model(decoder)
    given = [BOS, *model.target_tokenizer.encode(LINES[0])]
    with torch.inference_mode():
        state, last = start(model, [SearchTask(5, given), SearchTask(5, given)])
        at_once, _ = model.step(last, state)
        state = model.start(None, last)
        for token in given:
            step_by_step, state = model.step(torch.tensor([token, token]), state)
    assert at_once == pytest.approx(step_by_step, abs=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "options", [dict(beam=3), dict(strategy=Sample(count=2, seed=1)), dict(strategy=Beam(4, groups=2))]
)
def test_a_continuation_does_not_depend_on_the_batch(decoder, options):
    model = language_model(decoder)
    tokens = lambda result: [[h.tokens for h in g.hypotheses] for g in result]  # noqa: E731
    alone = [
        tokens(generate([prompt], model, limits=Limits(max_length=12), **options))[0] for prompt in PROMPTS
    ]
    assert tokens(generate(PROMPTS, model, limits=Limits(max_length=12), **options)) == alone
    assert (
        tokens(generate(PROMPTS[::-1], model, limits=Limits(max_length=12, workers=2), **options))[::-1]
        == alone
    )


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "word", "character"])
@pytest.mark.parametrize("mode", [None, "stream"])
def test_the_pieces_of_a_stream_join_to_the_text(kind, mode):
    model = language_model(kind=kind, mode=mode)
    for prompt in ("the cat", "", "die Katze saß — süß"):
        for sample in (None, Sample(seed=2, temperature=2.0)):
            pieces = list(stream(prompt, model, strategy=sample, limits=Limits(max_length=25)))
            assert (
                "".join(pieces) == generate([prompt], model, strategy=sample, limits=Limits(max_length=25))[0]
            )


def test_prompt_and_continuation_decode_as_one_text():
    model = language_model(kind="byte-bpe")
    generation = generate(["the cat"], model, strategy=Sample(seed=3), limits=Limits(max_length=20))[0]
    tokens = [*model.target_tokenizer.encode("the cat"), *generation.hypotheses[0].tokens]
    assert generation.prompt + generation == model.target_tokenizer.decode(tokens)


def test_a_model_trained_on_lines_ends_and_one_trained_on_running_text_continues():
    of_lines, of_running_text = language_model(mode="lines"), language_model(mode="stream")
    options = {"strategy": Sample(count=20, seed=0), "limits": Limits(max_length=200)}
    ended = generate("", of_lines, **options).hypotheses
    assert any(h.ended for h in ended) and not any("\n" in h.text for h in ended)
    unended = generate("", of_running_text, **options).hypotheses
    assert all(len(h.tokens) == 200 and not h.ended for h in unended) and any("\n" in h.text for h in unended)
    one_line = generate("", of_running_text, multiline=False, **options).hypotheses
    assert any(h.ended for h in one_line)


def test_prompts_of_running_text_begin_with_a_line_end():
    text = PromptEncoder(language_model(mode="stream"), None)
    encode = text.tokenizer.encode
    assert text.task("the cat\n\na dog", 0, 5).input_ids == [
        EOS,
        *encode("the cat"),
        EOS,
        EOS,
        *encode("a dog"),
    ]
    assert text.decode(SearchTask(9, [EOS, *encode("the cat")]), [EOS, *encode("a dog")]) == "\na dog"
    letters = PromptEncoder(language_model(kind="character", mode="stream"), None)
    newline = letters.tokenizer.vocabulary["\n"]
    assert letters.task("a\n", 0, 5).input_ids == [newline, letters.tokenizer.vocabulary["a"], newline]


def test_generated_texts_satisfy_constraints():
    model = language_model()
    generations = generate(
        ["the"],
        model,
        beam=3,
        constraints=Constraints(no_repeat=2, min_length=8),
        limits=Limits(max_length=12),
    )[0]
    assert generations.hypotheses
    for h in generations.hypotheses:
        pairs = list(zip(h.tokens, h.tokens[1:], strict=False))
        assert len(h.tokens) >= 8 and len(pairs) == len(set(pairs))


def test_learned_positions_bound_the_length():
    model = language_model(position="learned", max_positions=10)
    given = 1 + len(model.target_tokenizer.encode("the cat"))
    with pytest.raises(
        OptionError,
        match=f"has 10 positions, and prompt 1 has {given} tokens; set max_length to at most {10 - given}",
    ):
        generate(["the cat"], model, limits=Limits(max_length=10))
    assert generate(["the cat"], model, limits=Limits(max_length=10 - given))


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([None], {}, "texts is a text or a list of texts, got None among them"),
        (
            ["the cat"],
            dict(constraints=Constraints(prefix="the")),
            "prefix is for translate; add it to the prompt",
        ),
        (["the cat"], dict(constraints=Constraints(required=["the"])), "required is for translate"),
    ],
)
def test_wrong_arguments_are_errors_in_one_sentence(prompts, options, message):
    with pytest.raises(OptionError, match=message):
        generate(prompts, language_model(), **options)


def test_translators_and_language_models_are_distinguished():
    from regard.pipelines.translate import translate

    with pytest.raises(OptionError, match="for a translator use translate"):
        generate(["the cat"], translator())
    with pytest.raises(OptionError, match="for a language model use generate"):
        translate(["the cat"], language_model())


@pytest.mark.parametrize("function", [generate, stream])
def test_a_minimum_above_the_maximum_is_refused(function):
    constraints, limits = Constraints(min_length=10), Limits(max_length=5)
    with pytest.raises(OptionError, match="min_length 10 is more than max_length 5"):
        function("the", language_model(), constraints=constraints, limits=limits)
