"""Tests of catalog.py: models found by name, bundled or in REGARD_MODELS."""

import shutil

import pytest

import regard
from regard.errors import FolderError, OptionError
from regard.models import catalog
from regard.models.catalog import BUNDLED, find_model
from regard.models.default import default_model
from regard.models.folder import load
from tests.decoding import model_folders
from tests.models.multilingual import CARD, catalogued

MAX_BYTES = 34 * 2**20  # of all bundled models
SECTIONS = ("Data", "Scores", "Reproduce", "Limits")


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder in REGARD_MODELS with one translator; nothing is bundled."""
    folder = tmp_path / "models"
    catalogued(folder)
    monkeypatch.setenv("REGARD_MODELS", str(folder))
    monkeypatch.delenv("REGARD_MODEL", raising=False)
    monkeypatch.setattr(catalog, "BUNDLED", tmp_path / "nothing")
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_bundled_models_are_small_and_have_complete_cards(monkeypatch):
    monkeypatch.delenv("REGARD_MODELS", raising=False)
    entries = catalog.known_models()
    assert entries
    assert sum(entry.size for entry in entries.values()) <= MAX_BYTES
    assert {entry.folder.parent for entry in entries.values()} <= {BUNDLED}
    for name, entry in entries.items():
        assert load(name).command.split()[-1] == entry.task
        assert all(f"\n## {section}\n" in entry.card for section in SECTIONS), name
        assert entry.scores and entry.license, name
        card = (entry.folder / "card.json").read_text(encoding="utf-8")
        assert '"/' not in card, f"{name}: a path of a machine; use regard quantize --publish"


def test_a_model_can_be_loaded_by_name(models):
    entry = catalog.known_models()["tiny"]
    assert entry.folder == models / "tiny" and entry.into == ("de", "en", "fr") and entry.default
    assert entry.card == "# Tiny\nNothing to see.\n"
    assert regard.translate("Tom", "tiny", to="de") == regard.translate("Tom", models / "tiny", to="de")
    assert load("tiny").card == load(models / "tiny").card


def test_a_local_folder_of_the_same_name_has_priority(models, tmp_path):
    assert find_model("tiny") == models / "tiny"
    shutil.copytree(models / "tiny", tmp_path / "tiny")
    assert str(find_model("tiny")) == "tiny" and str(find_model("./models/other")) == "models/other"
    assert str(find_model("other")) == "other"
    with pytest.raises(FolderError, match="no folder other; .* or a name that `regard models` lists"):
        load("other")


def test_the_only_model_of_a_task_is_its_default(models):
    for task in (("translate",), ("align", "fr"), ("serve",)):
        assert default_model(*task) == models / "tiny"
    assert regard.translate("Wo ist er?") == regard.translate("Wo ist er?", "tiny", to="en")
    with pytest.raises(OptionError, match="no bundled model translates into 'es', only into de, en, fr"):
        regard.translate("Tom", to="es")
    with pytest.raises(OptionError, match="none is bundled yet to classify"):
        regard.classify("good")


def test_the_default_model_has_priority_unless_another_matches_the_languages(models):
    card = CARD.replace("default: true\n", "").replace("into: [de, en, fr]", "into: [es]")
    catalogued(models, "a", card)
    assert default_model("translate") == models / "tiny" and default_model("translate", "es") == models / "a"


def test_a_model_of_another_task_is_the_default_of_that_task(models, monkeypatch):
    model_folders.classifier(models / "polarity")
    header = "about: x\ntask: classify\nlanguages: [en]\nlicense: CC0\n"
    (models / "polarity" / "card.md").write_text(f"---\n{header}---\n")
    assert regard.classify("good") == regard.classify("good", "polarity")


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("# no header\n", "does not begin with a header between two lines of ---"),
        (CARD.replace("task: translate\n", ""), "the header of .*card.md: task: Field required"),
        (CARD.replace("default: true", "best: true"), "best: Extra inputs are not permitted"),
        (CARD.replace("license: CC0", "license: [:"), "is not YAML"),
        ("---\n---\n---\n", "does not begin|header of"),
    ],
)
def test_a_wrong_card_is_an_error_of_one_sentence(models, card, message):
    (models / "tiny" / "card.md").write_text(card)
    with pytest.raises(FolderError, match=message):
        catalog.known_models()


def test_a_missing_folder_of_models_is_an_error(models, monkeypatch):
    monkeypatch.setenv("REGARD_MODELS", "nowhere")
    with pytest.raises(FolderError, match="REGARD_MODELS names the folder nowhere, which does not exist"):
        default_model("translate")
