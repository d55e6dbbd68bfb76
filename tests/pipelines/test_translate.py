"""Tests of translate.py and decoding/token_stream.py: translations, streams and errors."""

import pickle
import threading

import pytest
import torch

import regard
from regard.attention import Learned
from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints, TokenConstraints
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.errors import OptionError
from regard.pipelines.translate import Translation, stream, translate
from tests.decoding.small_models import LINES, translator


def test_a_translation_is_its_best_hypothesis_and_has_the_others():
    model = translator()
    for text, translations in zip(LINES, translate(LINES, model, beam=4, nbest=3), strict=True):
        assert isinstance(translations, str) and translations == translations.hypotheses[0].text
        assert len(translations.hypotheses) == 3
        assert all(h.text == model.target_tokenizer.decode(h.tokens) for h in translations.hypotheses)
        assert [h.score for h in translations.hypotheses] == sorted(
            (h.score for h in translations.hypotheses), reverse=True
        )
        assert translations.source_tokens == model.source_tokenizer.encode(text)


def test_empty_texts_stay_empty_in_order():
    translations = translate(["", "the cat", "", "a dog"], translator(), beam=2)
    assert (
        translations[0] == translations[2] == ""
        and translations[0].hypotheses == []
        and translations[1].hypotheses
    )
    assert translate([], translator()) == []


def test_the_best_hypothesis_does_not_depend_on_nbest():
    model = translator()
    assert translate(LINES, model, beam=4) == translate(LINES, model, beam=4, nbest=4)


def test_a_translation_survives_a_pickle():
    translation = translate(["the cat"], translator(), beam=3, nbest=3)[0]
    again = pickle.loads(pickle.dumps(translation))
    assert isinstance(again, Translation) and again == translation
    assert again.hypotheses == translation.hypotheses and again.source_tokens == translation.source_tokens


def test_beam_is_short_for_a_beam_strategy():
    model = translator()
    assert translate(LINES, model, beam=3) == translate(LINES, model, strategy=regard.Beam(3))


def test_one_prefix_and_one_list_of_required_words_apply_to_all_texts():
    constraints = Constraints("die", ["Hund"])
    for translation in translate(LINES[:3], translator(), beam=2, constraints=constraints):
        assert translation.startswith("die") and " Hund" in translation


def test_prefixes_and_required_phrases_are_texts():
    translations = translate(
        LINES[:2],
        translator(),
        beam=3,
        nbest=3,
        constraints=Constraints(prefix=["die Katze", ""], required=[[], ["Hund", "the"]]),
    )
    assert all(h.text.startswith("die Katze") for h in translations[0].hypotheses)
    assert all(" Hund" in " " + h.text and " the" in " " + h.text for h in translations[1].hypotheses)


def test_forbidden_phrases_are_texts():
    model = translator()
    word = translate(LINES[:1], model)[0].split()[0]
    tokens = model.target_tokenizer.encode(word)
    translations = translate(LINES, model, beam=3, nbest=3, constraints=Constraints(forbidden=[word]))
    hypotheses = [h for t in translations for h in t.hypotheses]
    assert len(hypotheses) == 3 * len(LINES)
    for h in hypotheses:
        assert not any(h.tokens[i : i + len(tokens)] == tokens for i in range(len(h.tokens)))


def test_attention_is_stored_in_every_hypothesis_on_request():
    translations = translate(LINES[:2], translator(), beam=2, nbest=2, attention=True)
    for translation in translations:
        for h in translation.hypotheses:
            assert h.attention.cross().shape == (len(h.tokens) + h.ended, len(translation.source_tokens) + 1)
    assert translate(LINES[:1], translator())[0].hypotheses[0].attention is None


def test_the_coverage_penalty_of_wu_et_al_reranks_hypotheses():
    model = translator()
    plain = {h.text: h for h in translate(LINES[:1], model, beam=6, nbest=6, attention=True)[0].hypotheses}
    translation = translate(LINES[:1], model, strategy=Beam(6, coverage_penalty=2.0), nbest=6)[0]
    words = len(translation.source_tokens)
    for h in translation.hypotheses:
        covered = plain[h.text].attention.cross().sum(0)[:words].clamp(max=1).log().sum()
        assert h.score == pytest.approx(plain[h.text].score + 2.0 * float(covered), abs=1e-9)
    assert [h.score for h in translation.hypotheses] == sorted(
        (h.score for h in translation.hypotheses), reverse=True
    )


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "word", "character"])
@pytest.mark.parametrize("sample", [None, Sample(seed=4), Sample(seed=9, temperature=3.0)])
def test_the_pieces_of_a_stream_join_to_the_translation(kind, sample):
    model = translator(kind=kind)
    for text in LINES:
        pieces = list(stream(text, model, strategy=sample, limits=Limits(max_length=30)))
        assert "".join(pieces) == translate([text], model, strategy=sample, limits=Limits(max_length=30))[0]
        assert all(pieces)
    assert list(stream("", model)) == []


def test_a_stream_never_yields_an_incomplete_character():
    model = translator(kind="byte-bpe")
    target = "süß 🐱 日本"
    pieces = list(
        stream(
            "the cat",
            model,
            constraints=Constraints(prefix=target),
            limits=Limits(max_length=len(model.target_tokenizer.encode(target))),
        )
    )
    assert "".join(pieces) == target and "\ufffd" not in "".join(pieces) and len(pieces) > 3


def test_a_stream_yields_tokens_before_the_search_ends():
    model, steps = translator(), []
    step = model.step
    model.step = lambda *given: (steps.append(1), step(*given))[1]
    pieces = stream(
        "the cat sat", model, constraints=Constraints(min_length=20), limits=Limits(max_length=20)
    )
    next(pieces)
    assert 1 <= len(steps) <= 3


def test_a_stream_does_not_change_the_inference_mode_of_the_caller():
    pieces = stream("the cat", translator(), limits=Limits(max_length=5))
    next(pieces)
    assert not torch.is_inference_mode_enabled()


def test_many_workers_keep_the_order(monkeypatch):
    model = translator()
    lines = [f"{line} {n}" for n in range(8) for line in LINES]
    before = threading.active_count()
    assert translate(lines, model, beam=2, limits=Limits(workers=4, batch_tokens=200)) == translate(
        lines, model, beam=2, limits=Limits(workers=1)
    )
    assert threading.active_count() == before


def test_progress_is_shown_only_on_request(capsys, monkeypatch):
    monkeypatch.setattr("regard.files.progress.DELAY", 0.0)
    translate(LINES, translator())
    assert capsys.readouterr().err == ""
    translate(LINES * 40, translator(), progress=True)
    assert "translate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(beam=4, nbest=5), "nbest 5 needs a beam of at least 5, got 4"),
        (dict(strategy=Sample(count=2), nbest=3), "nbest 3 needs at least 3 samples, got a count of 2"),
        (dict(nbest=0), "nbest must be .* of at least 1, got 0"),
        (dict(beam=2, strategy=Beam(2)), "give beam or strategy, not both"),
        (dict(strategy=4), r"strategy must be a strategy such as Beam\(4\) .*, got 4"),
        (dict(constraints="cat"), "constraints must be a Constraints object .*, got 'cat'"),
        (dict(limits=9), "limits must be a Limits object .*, got 9"),
        (dict(constraints=Constraints(prefix=["a"])), "prefix has 1 entries for 2 texts"),
        (dict(constraints=Constraints(required=[["a"]] * 3)), "required has 3 entries for 2 texts"),
        (
            dict(constraints=Constraints("\u0416")),
            "the prefix '\u0416' has characters that are not in the vocab",
        ),
        (dict(strategy=Sample(), constraints=Constraints(required=["cat"])), "needs a beam without groups"),
    ],
)
def test_a_wrong_option_is_an_error_in_one_sentence(options, message):
    with pytest.raises(OptionError, match=message):
        translate(["the cat", "a dog"], translator(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(required="cat"), "required is a list of words"),
        (dict(required=["cat", ["dog"]]), "required is a list of words, got one string"),
        (dict(forbidden="cat"), r"forbidden is a list of words, got one string; write \[word\]"),
        (dict(forbidden=["cat", ""]), "forbidden is a list of words, got '' among them"),
        (dict(prefix=4), "prefix is a list of texts, got 4"),
        (dict(no_repeat=-1), "no_repeat must be .* of at least 0, got -1"),
    ],
)
def test_a_wrong_constraint_is_an_error_in_one_sentence(options, message):
    with pytest.raises(OptionError, match=message):
        Constraints(**options)


@pytest.mark.parametrize("texts", [[None], [b"the cat"]])
def test_other_types_than_texts_are_errors(texts):
    with pytest.raises(OptionError, match="texts is a text or a list of texts"):
        translate(texts, translator())


def test_learned_positions_bound_source_and_output():
    model = translator(dim=32)
    learned = Learned(12, 32).double()
    model.decoder.position = learned
    hypothesis = translate(["the cat"], model, constraints=Constraints(min_length=11))[0].hypotheses[0]
    assert len(hypothesis.tokens) <= 12
    model.encoder.position = learned
    with pytest.raises(OptionError, match="sentence 2 has .* tokens and this model has 12 positions"):
        translate(["the cat", "the cat sat on the mat and ran to the house"], model)


def test_empty_constraints_filter_no_tokens():
    assert not TokenConstraints().filters_tokens and TokenConstraints(no_repeat=1).filters_tokens
