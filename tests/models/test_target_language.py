"""The target language of multilingual models: API, engines, file jobs, alignment, evaluation, server."""

import json
from types import SimpleNamespace

import pytest
import torch

import regard
from regard.data.tokenizer import BOS
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda import engine as cuda_engine
from regard.errors import OptionError
from regard.models import target_language
from regard.models.folder import load
from regard.models.target_language import (
    add_target,
    check_target,
    source_of,
    target_languages,
    target_of,
    warn_of_wrong_language,
)
from regard.pipelines.align import View, align_words
from regard.pipelines.align_file import Aligner, TextPairs, ViewChoice, learn_heads
from regard.pipelines.alignment_head import AlignmentHead, HeadTraining, train_alignment_head
from regard.pipelines.input import Chunk, Row
from regard.pipelines.translate import stream
from regard.pipelines.translate_file import TranslateOptions, make_job
from regard.pipelines.word_links import LinkSelection, flipped, grow_diag, pharaoh, strongest
from regard.serving.request_limits import RequestLimits
from regard.serving.text_services import make_service
from tests.models.multilingual import TRANSFORMER, multilingual
from tests.serving.server import running

GERMAN, FRENCH, ENGLISH = "Wo ist der Bahnhof?", "Je ne sais pas.", "Where is the station?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return multilingual(tmp_path_factory.mktemp("several") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


def test_the_language_is_a_token_in_front_of_the_source(model):
    assert target_languages(model) == ("de", "en", "fr")
    translation = regard.translate(ENGLISH, model, to="de")
    assert (
        translation
        == regard.translate(f">>de<< {ENGLISH}", model)
        != regard.translate(ENGLISH, model, to="fr")
    )
    assert model.source_tokenizer.tokens(translation.source_tokens)[0] == ">>de<<"
    assert regard.translate(["", ENGLISH], model, to="de") == ["", translation]
    assert "".join(stream(ENGLISH, model, "de")) == translation


def test_a_text_in_another_language_is_translated_into_english(model):
    assert add_target([GERMAN, FRENCH], model) == [f">>en<< {GERMAN}", f">>en<< {FRENCH}"]
    assert regard.translate(GERMAN, model) == regard.translate(GERMAN, model, to="en")


def test_english_text_without_a_target_language_is_an_error(model):
    message = (
        r"the target language of 'Where is the station\?' is missing: .* into de, en, fr; name one with --to"
    )
    with pytest.raises(OptionError, match=message):
        regard.translate(ENGLISH, model)
    with pytest.raises(OptionError, match=message):
        stream(ENGLISH, model)
    with pytest.raises(OptionError, match="begins with >>de<<, and to is 'fr'"):
        regard.translate(f">>de<< {ENGLISH}", model, to="fr")
    with pytest.raises(OptionError, match="translates into de, en, fr, got to='es'; give one of these"):
        regard.translate(ENGLISH, model, to="es")


def test_a_model_of_two_languages_needs_no_target_language(tmp_path):
    model = load(multilingual(tmp_path / "two", languages=("de", "en")))
    assert add_target([ENGLISH, GERMAN, ""], model) == [f">>de<< {ENGLISH}", f">>en<< {GERMAN}", ""]
    with pytest.raises(OptionError, match="target language of .* is missing"):
        add_target(["17"], model)


def test_texts_for_models_of_one_direction_are_unchanged(model):
    class Plain:
        encode, source_tokenizer, card = None, None, {"recipe": {"data": {"target": "de"}}}

    assert add_target([ENGLISH], Plain(), None) == [ENGLISH] and target_of([GERMAN], Plain()) is None
    check_target(Plain(), "de")


@pytest.mark.parametrize(
    "make", [lambda model: regard.fast(model, "float32"), cuda_engine], ids=["cpp", "cuda"]
)
def test_engines_and_ensembles_read_the_same_language_token(tmp_path, make):
    model = load(multilingual(tmp_path / "model", layer=TRANSFORMER))  # the CUDA engine runs on a CPU too
    decoder = make(model)
    assert target_languages(decoder) == target_languages(regard.Ensemble([decoder])) == ("de", "en", "fr")
    limits = regard.Limits(max_length=1)
    first, second = (
        regard.translate(ENGLISH, decoder, to, limits=limits).hypotheses[0].log_p for to in ("de", "fr")
    )
    assert abs(first - second) > 1e-3  # the language changes the score
    for other in (model, regard.Ensemble([decoder])):
        (best,) = regard.translate(ENGLISH, other, "de", limits=limits).hypotheses
        assert best.log_p == pytest.approx(first, abs=1e-4)


def chunk(*texts):
    return Chunk(0, [Row(text, text) for text in texts], "")


def test_a_file_job_adds_the_language_token_to_every_piece_of_a_line(folder, model):
    long_line = "Tom is here. " * 6
    job = make_job([folder], TranslateOptions(to="fr", output="-"))
    with_option = job.translate(chunk(ENGLISH, long_line))
    with_token = job.translate(chunk(f">>fr<< {ENGLISH}", f">>fr<< {long_line}"))
    assert [r.text for r in with_option] == [r.text for r in with_token]
    assert len(with_option[1].pieces) > 1
    assert with_option[0].text == regard.translate(ENGLISH, model, to="fr")
    limit = 40  # max_length in the card
    assert all(len(part.source_tokens) <= limit for part in with_option[1].translations)


def test_the_lines_of_a_file_have_one_language(folder, model):
    lines = [GERMAN, "Wir haben keine Zeit.", "Tom ist fair.", "", " ", "42"]
    tagged = add_target(lines, model, one_language=True)
    assert tagged == [f">>en<< {line}" if line.strip() else line for line in lines]
    assert add_target([GERMAN, "42"], model)[1] == ">>en<< 42"  # an ambiguous text follows the others
    job = make_job([folder], TranslateOptions(output="-"))
    assert [r.text for r in job.translate(chunk(*lines))][:2] == regard.translate(lines[:2], model, "en")
    long_line = GERMAN + " 42! " * 20
    assert {part.source_tokens[0] for r in job.translate(chunk(long_line)) for part in r.translations} == {
        model.source_tokenizer.encode(">>en<< a")[0]
    }


def test_alignments_do_not_count_the_language_token(folder):
    job = make_job([folder], TranslateOptions(to="fr", align=True, output="-"))
    (line,) = job.translate(chunk(ENGLISH))
    alignment = line.alignments[0]
    assert alignment.source_words == ENGLISH.split()
    assert alignment.weights.shape == (len(alignment.target_words), 4)


def test_align_detects_the_language_of_the_translation(model):
    links = regard.align(ENGLISH, GERMAN, model, to="de")
    assert regard.align(ENGLISH, GERMAN, model) == links and max(i for i, _ in links) < 4
    aligners = [
        Aligner(model, model, TextPairs([ENGLISH], [GERMAN]), ViewChoice(), LinkSelection(), to)
        for to in (None, "de")
    ]
    first, second = ([pair.links for pair in a([ENGLISH], [GERMAN], lambda n: None)] for a in aligners)
    assert first == second
    with pytest.raises(OptionError, match="got to='es'"):
        regard.align(ENGLISH, GERMAN, model, to="es")


def test_the_source_language_is_one_that_the_model_also_translates_into(monkeypatch, capsys):
    monkeypatch.setattr(target_language, "_warned", set())

    def make(codes, directions=None):
        tokenizer = SimpleNamespace(languages=codes)
        return SimpleNamespace(source_tokenizer=tokenizer, encode=None, card={"directions": directions})

    both = make(("de", "en", "fr"), ["en-de", "de-en", "en-fr", "fr-en"])
    assert source_of([ENGLISH], both, "de") == source_of([f">>de<< {ENGLISH}"], both, "de") == "en"
    assert source_of(["42"], both, "de") == "en"  # only English has both directions with German
    assert source_of([FRENCH], both, "de") is None  # not trained for French to German
    assert source_of([GERMAN], both, "en") == "de"
    assert source_of([ENGLISH], make(("de", "en"), ["en-de"]), "de") is None
    assert source_of([ENGLISH], make(("de", "fr")), "de") is None  # no token for English
    assert source_of([ENGLISH], make(("de", "en")), "de") == "en"
    assert source_of([ENGLISH], make(()), None) is None
    assert capsys.readouterr().err == ""
    assert source_of(["42"], both, "en") is source_of(["43"], both, "en") is None
    assert capsys.readouterr().err == "regard: the source may be in de or fr; only one direction is used\n"


def test_align_joins_both_directions_of_one_model(folder, model, run_regard, tmp_path):
    pairs = [ENGLISH, "We have no time.", ""], [GERMAN, "Wir haben keine Zeit.", ""]
    files = [tmp_path / "en", tmp_path / "de"]
    for path, texts in zip(files, pairs, strict=True):
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    forward = dict(align_words(add_target(pairs[0], model, "de"), pairs[1], model))
    backward = dict(align_words(add_target(pairs[1], model, "en"), pairs[0], model))
    weights = [(forward[i].weights, backward[i].weights) for i in range(3)]
    one = [strongest(a) for a, _ in weights]
    joined = {
        None: [LinkSelection().joined(a, b) for a, b in weights],
        "grow-diag": [grow_diag(strongest(a), flipped(strongest(b))) for a, b in weights],
        "none": one,
    }
    assert joined[None] != one != joined["grow-diag"]
    for method, expected in joined.items():
        assert regard.align(*pairs, model, symmetrize=method) == expected
        assert regard.align(pairs[0][0], pairs[1][0], model, symmetrize=method) == expected[0]
        options = [] if method is None else ["--symmetrize", method]
        code, out, err = run_regard("align", "-i", *files, "--model", folder, *options)
        assert (code, err) == (0, "") and out == "".join(f"{pharaoh(links)}\n" for links in expected)
    # A language code in front of a source is not read as a word of the reverse direction's target.
    assert regard.align([f">>de<< {ENGLISH}"], [GERMAN], model) == joined[None][:1]
    aligner = Aligner(model, None, TextPairs([f">>de<< {ENGLISH}"], [GERMAN]), ViewChoice(), LinkSelection())
    assert aligner.passes == 2
    assert [p.links for p in aligner([f">>de<< {ENGLISH}"], [GERMAN], lambda n: None)] == joined[None][:1]


def test_options_of_two_directions_need_two_directions(folder, model, run_regard):
    one = ["align", ENGLISH, GERMAN, "--model", folder]
    code, _, err = run_regard(*one, "--reverse", folder, "--symmetrize", "none")
    assert code == 2 and "--symmetrize none uses one direction; leave out --reverse" in err
    english = [ENGLISH, "What is this? I do not know it."]  # both sides in English: no reverse direction
    with pytest.raises(OptionError, match="symmetrize='union' joins two directions, and this model has one"):
        regard.align(english, english, model, to="en", symmetrize="union")
    assert regard.align(english, english, model, to="en") == regard.align(
        english, english, model, to="en", symmetrize="none", view=View()
    )


def test_an_evaluation_uses_the_language_of_its_data(model, tmp_path):
    from regard.evaluation.evaluate import evaluate

    rows = [(ENGLISH, GERMAN), ("We have no time.", "Wir haben keine Zeit.")]
    (tmp_path / "test.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    result = evaluate(model, {"test": [str(tmp_path / "test.tsv")]}, beam=2)
    assert result.predictions == regard.translate([a for a, _ in rows], model, "de", strategy=Beam(2))


def test_attention_maps_include_the_language_token(model):
    (best,) = regard.translate(ENGLISH, model, to="fr", attention=True).hypotheses
    cross = best.attention.cross()
    assert cross.shape[1] == len(model.source_tokenizer.encode(ENGLISH)) + 2  # the language token and EOS
    torch.testing.assert_close(cross.sum(1), torch.ones(len(cross), dtype=cross.dtype))
    assert best.all_tokens[0] != BOS


def test_a_text_already_in_the_target_language_is_reported_once(model, capsys, monkeypatch):
    monkeypatch.setattr(target_language, "_warned", set())
    for text, to in ((ENGLISH, "de"), (GERMAN, None), (f">>de<< {GERMAN}", "de"), (GERMAN, "de")):
        regard.translate(text, model, to)
    assert capsys.readouterr().err == "regard: the text seems to be in 'de' already, the target language\n"


def test_a_text_in_another_language_than_the_model_reads_is_reported_once(capsys, monkeypatch):
    monkeypatch.setattr(target_language, "_warned", set())
    model = SimpleNamespace(card={"recipe": {"data": {"source": "1"}}, "languages": {"source": "fr"}})
    for text in (FRENCH, "2 + 2", GERMAN, GERMAN):
        warn_of_wrong_language([text], model, None)
    assert capsys.readouterr().err == (
        "regard: the text seems to be in 'de', and this model translates from 'fr'; name another model\n"
    )
    warn_of_wrong_language([ENGLISH], SimpleNamespace(card={}), None)
    assert capsys.readouterr().err == ""


def test_a_direction_that_the_model_was_not_trained_for_is_reported_in_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(target_language, "_warned", set())
    model = SimpleNamespace(card={"directions": ["en-de", "de-en", "en-fr", "fr-en"]})
    for text, to in ((ENGLISH, "fr"), (FRENCH, "en"), (GERMAN, None), (GERMAN, "fr"), (GERMAN, "fr")):
        warn_of_wrong_language([text], model, to)
    assert capsys.readouterr().err == (
        "regard: the text seems to be in 'de', and this model translates en-de, de-en, en-fr, fr-en, "
        "not de-fr; translate it into 'en' first\n"
    )
    warn_of_wrong_language([GERMAN], SimpleNamespace(card={}), "fr")  # its directions are not known
    assert capsys.readouterr().err == ""


def test_the_server_accepts_a_target_language(model):
    service = make_service(model, "several", RequestLimits(), workers=1)
    assert json.loads(service.example[1])["to"] == "de"
    expected, german = regard.translate(ENGLISH, model, "fr"), regard.translate(GERMAN, model, "en")
    with running(service) as client:
        for body, text in (({"text": ENGLISH, "to": "fr"}, expected), ({"text": GERMAN}, german)):
            assert client.post("/translate", body)[1]["translations"][0]["text"] == text
        status, error = client.post("/translate", {"text": ENGLISH})
        assert status == 422 and "translates into de, en, fr" in str(error)
        for body, text, code in (({"to": "fr"}, expected, "fr"), ({"target": GERMAN}, GERMAN, "de")):
            _, attention = client.post("/attention", {"text": ENGLISH, "kinds": ["cross"], **body})
            assert attention["text"] == text and attention["attention"][0]["columns"][0] == f">>{code}<<"


def test_alignment_heads_learn_from_sources_with_their_language_token(tmp_path):
    """As they align: a head that is trained without the token has other weights."""
    folder = multilingual(tmp_path / "model", layer=TRANSFORMER)
    model, pairs = load(folder), TextPairs([ENGLISH, "Where?"], [GERMAN, "Wo?"])
    aligner = Aligner(model, None, pairs, ViewChoice(), LinkSelection(), "de")
    options = HeadTraining(steps=2)
    learn_heads(aligner, pairs, [folder], options)
    links = [pair.links for pair in aligner(pairs.sources, pairs.targets, lambda count: None)]
    tagged = add_target(pairs.sources, model, "de")
    expected = train_alignment_head(model, tagged, pairs.targets, links, options)
    learned = AlignmentHead.load(folder, model)
    assert all(p.equal(q) for p, q in zip(learned.parameters(), expected.parameters(), strict=True))
