"""--picture, --view, --layer and --head of every command that shows attention. Covers pictures.py,
pipelines/encoder_attention.py."""

import re
from xml.etree import ElementTree

import pytest
import torch

import regard
from regard.cli import main
from regard.data.tokenizer import Tokenizer
from regard.errors import OptionError
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.models.folder import load, save
from regard.models.tagger import TaggerOptions
from regard.pictures import picture as picture_module
from tests.decoding.model_folders import classifier

TEXTS = ["ein kleiner Hund läuft", "a small dog runs", "zwei Hunde"]
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models with random weights, two layers and two heads each."""
    path = tmp_path_factory.mktemp("pictures")
    torch.manual_seed(1)
    tokenizer = Tokenizer.train(TEXTS, "bpe", 60)
    for name, encoder in (("translate", TRANSFORMER), ("generate", None)):
        config = AutoregressiveOptions.model_validate(
            {"dim": 8, "encoder": encoder, "decoder": TRANSFORMER, "dropout": 0.0}
        ).model_dump()
        model = build(config, len(tokenizer) if encoder else None, len(tokenizer))
        save(path / name, model, config, tokenizer if encoder else None, tokenizer, {})
    words, tags = Tokenizer.train(TEXTS, "word", 60), Tokenizer.train(["O B-A I-A"], "word", 10)
    given = {"kind": "tagger", "dim": 8, "dropout": 0.0, "encoder": TRANSFORMER}
    config = TaggerOptions.model_validate(given).model_dump()
    save(path / "tag", build(config, len(words), len(tags)), config, words, tags, {})
    classifier(path / "classify")
    classifier(path / "blind", pooling="mean")
    classifier(path / "layers", encoder=TRANSFORMER, pooling="mean")
    return path


@pytest.fixture
def run(capfd):
    """Run `regard …` in this process; return standard output and standard error."""

    def call(*arguments):
        capfd.readouterr()
        main.app([str(argument) for argument in arguments], standalone_mode=False)
        return tuple(capfd.readouterr())

    return call


COMMANDS = {
    "translate": ("translate", "ein Hund"),
    "generate": ("generate", "ein", "--length", "4", "--seed", "1"),
    "classify": ("classify", "a small dog"),
    "tag": ("tag", "a small dog"),
    "align": ("align", "ein Hund", "a dog"),
}


def numbers(path):
    return [float(n) for n in re.findall(r"→ [^<]*: (-?[\d.]+)</title>", path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_every_command_draws_and_still_prints_its_result(folders, run, tmp_path, command, suffix):
    model = folders / ("translate" if command == "align" else command)
    path = tmp_path / f"x.{suffix}"
    plain, _ = run(*COMMANDS[command], "--model", model)
    out, err = run(*COMMANDS[command], "--model", model, "--picture", path)
    assert out == plain and f"the attention is drawn in {path}" in err
    if suffix == "svg":
        ElementTree.parse(path)
    assert "<svg" in path.read_text(encoding="utf-8")


def test_the_picture_of_a_translation_has_the_weights_of_its_layer_and_head(folders, run, tmp_path):
    model = folders / "translate"
    run("translate", "ein Hund", "--model", model, "--picture", tmp_path / "x.svg", "--layer", 1, "--head", 0)
    maps = regard.translate("ein Hund", load(model), attention=True).attention
    assert numbers(tmp_path / "x.svg") == pytest.approx(maps.cross(1, 0).flatten().tolist(), abs=5e-5)
    run("translate", "ein Hund", "--model", model, "--picture", tmp_path / "x.svg", "--kind", "encoder")
    encoder = torch.cat([maps[name] for name in maps.names("encoder")]).mean(0)
    assert numbers(tmp_path / "x.svg") == pytest.approx(encoder.flatten().tolist(), abs=5e-5)


def test_the_picture_of_a_generation_is_of_the_text_that_was_printed(folders, run, tmp_path):
    arguments = ("generate", "ein", "--length", "4", "--seed", "1", "--model", folders / "generate")
    run(*arguments, "--picture", tmp_path / "x.svg", "--layer", 0, "--head", 1)
    options = {"strategy": regard.Sample(seed=1), "limits": regard.Limits(max_length=4)}
    maps = regard.generate("ein", load(folders / "generate"), attention=True, **options).attention
    weights = maps[maps.names("decoder")[0]][1]
    assert numbers(tmp_path / "x.svg") == pytest.approx(weights.flatten().tolist(), abs=5e-5)
    assert torch.allclose(weights.sum(-1), torch.ones(len(weights))) and not weights.triu(1).any()


def test_the_picture_of_a_tagger_has_its_words(folders, run, tmp_path):
    options = ["--model", folders / "tag", "--picture", tmp_path / "x.svg", "--layer", 0, "--head", 1]
    run("tag", "a small dog", *options)
    maps = regard.tag("a small dog", load(folders / "tag"), attention=True).attention
    assert maps.source == ["a", "small", "dog"]
    weights = maps[maps.names("encoder")[0]][1]
    assert numbers(tmp_path / "x.svg") == pytest.approx(weights.flatten().tolist(), abs=5e-5)
    assert regard.tag(["", "dog"], load(folders / "tag"), attention=True)[0].attention is None


def test_the_picture_of_a_classifier_is_that_of_its_pooling_or_its_layers(folders, run, tmp_path):
    run("classify", "a dog", "--model", folders / "classify", "--picture", tmp_path / "x.svg")
    labels = regard.classify(["a dog", " "], load(folders / "classify"), attention=True)
    (name,) = labels[0].attention.names("pooling")
    shown = [
        float(n) for n in re.findall(r"<title>[^<→]*: ([\d.]+)</title>", (tmp_path / "x.svg").read_text())
    ]
    assert shown == pytest.approx(labels[0].attention[name].flatten().tolist(), abs=5e-5)
    assert labels[1].attention is None and len(shown) == len("a dog") + 1
    run("classify", "a dog", "--model", folders / "layers", "--picture", tmp_path / "x.svg", "--view", "grid")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").count(">layer ") == 2


def test_several_texts_fit_into_a_page(folders, run, tmp_path):
    run("classify", "a dog", "two", "--model", folders / "classify", "--picture", tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text(encoding="utf-8").count("<svg") == 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--picture", "x.gif"), r"ends in \.svg, \.html, \.png or \.pdf, got 'x\.gif'"),
        (("--picture", "missing/x.svg"), "its folder does not exist"),
        (("--picture", "x.svg", "--view", "circles"), "--view .*heatmap"),
        (("--view", "lines"), "--view is for --picture FILE"),
    ],
)
def test_wrong_options_are_refused_before_the_model_is_loaded(
    tmp_path, monkeypatch, run, command, options, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=message):
        run(*COMMANDS[command], "--model", "no-such-folder", *options)


@pytest.mark.parametrize("command", ["translate", "generate", "tag", "layers"])
@pytest.mark.parametrize(
    ("option", "value"), [("--layer", 2), ("--head", 2), ("--kind", "pooling"), ("--kind", "x")]
)
def test_a_layer_head_or_kind_that_the_model_lacks_is_refused_before_work_starts(
    folders, run, tmp_path, capfd, command, option, value
):
    arguments = COMMANDS["classify" if command == "layers" else command]
    with pytest.raises(OptionError, match=rf"{option[2:]} {value} does not exist|this model has no|kinds of"):
        run(*arguments, "--model", folders / command, "--picture", tmp_path / "x.svg", option, value)
    assert capfd.readouterr().out == "" and not (tmp_path / "x.svg").exists()


def test_pictures_that_cannot_be_drawn_are_refused(folders, run, tmp_path, monkeypatch):
    path = tmp_path / "x.svg"
    (tmp_path / "in.txt").write_text("a\nb\n")
    with pytest.raises(OptionError, match="no attention"):
        run("classify", "a", "--model", folders / "blind", "--picture", path)
    with pytest.raises(OptionError, match="such as that of the recipe wnut17-transformer"):  # a tagger's
        run("tag", "Ada met Bob.", "--model", "tweet-names", "--picture", path)
    with pytest.raises(OptionError, match="leave out -i"):
        run("classify", "-i", tmp_path / "in.txt", "--model", folders / "classify", "--picture", path)
    with pytest.raises(OptionError, match="holds one picture, and there are 2 texts"):
        run("tag", "a", "b", "--model", folders / "tag", "--picture", path)
    with pytest.raises(OptionError, match="give TEXT"):
        run("translate", " ", "--model", folders / "translate", "--picture", path)
    with pytest.raises(OptionError, match="one matrix of words"):
        run("align", "a", "b", "--model", folders / "translate", "--picture", path, "--view", "grid")
    both = ("--model", folders / "translate", "--with", folders / "translate")
    with pytest.raises(OptionError, match="leave out --with"):
        run("translate", "a", *both, "--picture", path)
    monkeypatch.setattr(picture_module, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'writing x\.png needs matplotlib; pip install "regard\[plot\]"'):
        run("translate", "a", "--model", folders / "translate", "--picture", tmp_path / "x.png")
