"""Settings in a model's card.json: the default beam, and the attention that word alignments are from."""

import json
from types import SimpleNamespace

import pytest

import regard
from regard.decoding.beam import GREEDY, default_beam
from regard.errors import OptionError
from regard.models.folder import load
from regard.pipelines.align import View
from regard.serving.request_limits import RequestLimits
from regard.serving.text_services import make_service
from tests.models.multilingual import TRANSFORMER, multilingual
from tests.serving.server import running
from tests.serving.test_events import events

TEXTS = ["Where is the station?", "Tom sat.", "He hit me with a pie.", "I am old", "We go home now."]
PAIRS = (TEXTS, ["Wo ist er?", "Tom", "Er sah mich an", "alt", "Wir gehen nun heim"])
STORED = {"layer": 1, "head": 1, "shift": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    layer = TRANSFORMER | {"layers": 2, "heads": 2}
    folder = multilingual(tmp_path_factory.mktemp("card") / "model", layer=layer)
    card = json.loads((folder / "card.json").read_text())
    card |= {"decoding": {"beam": 3}, "alignment": STORED}
    (folder / "card.json").write_text(json.dumps(card))
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


@pytest.fixture
def output(run_regard):
    """A function that runs a command and returns its standard output."""

    def run(*arguments):
        code, out, err = run_regard(*arguments)
        assert code == 0, err
        return out

    return run


def test_the_default_beam_is_that_of_the_card(folder, model, output):
    greedy, beam = regard.translate(TEXTS, model, "de", beam=1), regard.translate(TEXTS, model, "de", beam=3)
    assert greedy != beam
    assert regard.translate(TEXTS, model, "de") == beam
    assert regard.translate(TEXTS, regard.fast(model), "de") == beam
    assert len(regard.translate(TEXTS[0], model, "de", nbest=3).hypotheses) == 3
    with pytest.raises(OptionError, match="nbest 4 needs a beam of at least 4, got 3"):
        regard.translate(TEXTS[0], model, "de", nbest=4)
    for options, expected in (([], beam), (["--beam", "1"], greedy)):
        lines = [output("translate", text, "--model", folder, "--to", "de", *options) for text in TEXTS]
        assert [line.rstrip("\n") for line in lines] == expected


def test_the_server_uses_the_beam_of_the_card(model):
    greedy, beam = regard.translate(TEXTS, model, "de", beam=1), regard.translate(TEXTS, model, "de", beam=3)
    service = make_service(model, "card", RequestLimits(), workers=1)
    with running(service) as client:
        for options, expected in (({}, beam), ({"beam": 1}, greedy)):
            body = {"texts": TEXTS, "to": "de", **options}
            answers = client.post("/translate", body)[1]["translations"]
            assert [answer["text"] for answer in answers] == expected
        # Tokens can be sent by greedy search only.
        _, streamed = events(client, {"text": TEXTS[0], "to": "de"})
        assert "".join(data.get("text", "") for _, data in streamed) == greedy[0]


@pytest.mark.parametrize("card", [None, {}, {"decoding": {}}, {"decoding": {"beam": 0}}, {"decoding": 4}])
def test_without_a_usable_beam_in_the_card_search_is_greedy(card):
    assert default_beam(card) is GREEDY


def test_alignments_are_by_the_view_of_the_card(folder, model, output, tmp_path):
    stored = regard.align(*PAIRS, model, to="de", view=View(**STORED))
    assert stored != regard.align(*PAIRS, model, to="de", view=View(0, shift=False))
    assert regard.align(*PAIRS, model, to="de") == stored
    files = [tmp_path / "source.txt", tmp_path / "target.txt"]
    for path, texts in zip(files, PAIRS, strict=True):
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    named = ["--model", folder, "--to", "de"]
    by_card = output("align", "-i", *files, *named)
    assert by_card == output("align", "-i", *files, *named, "--layer", "1", "--head", "1", "--shift")
    assert by_card != output("align", "-i", *files, *named, "--layer", "0")
    for text in TEXTS:
        translation, links = output("translate", text, *named, "--align").rstrip("\n").split("\t")
        assert links == output("align", text, translation, *named, "--symmetrize", "none").strip()


@pytest.mark.parametrize("alignment", [None, [], {"layer": "x", "head": 0.5, "shift": "yes"}])
def test_without_a_usable_view_in_the_card_all_layers_and_heads_count(alignment):
    assert View.of(SimpleNamespace(card={"alignment": alignment})) == View()
