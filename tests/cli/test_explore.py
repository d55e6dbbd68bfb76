"""Tests of explore.py: a real process, its address, errors in one sentence."""

import json
import signal
import webbrowser

import pytest

from regard.cli import explore
from regard.errors import OptionError, RegardError
from regard.models.catalog import known_models
from tests import forked
from tests.decoding import model_folders
from tests.serving.server import Client, process, seeded_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return seeded_folder(tmp_path_factory)


def test_the_page_is_served_until_ctrl_c(folder):
    started = forked.Popen("explore", folder, folder, "--port", 0, "--no-browser")
    try:
        line = started.stdout.readline()
        assert line.startswith("regard: small is at http://127.0.0.1:"), line + started.stderr.read()
        client = Client(line.split(" is at ")[1].split(" ")[0])
        assert client.get("/explore/")[0] == 200
        model = json.loads(client.get("/explore/api/model")[2])
        assert model["name"] == "small" and model["models"] == ["small", "small (second)"]
        started.send_signal(signal.SIGINT)
        assert started.wait(120) == 0
    finally:
        started.kill()
        started.communicate()


def test_errors_are_errors_of_one_sentence(run_regard, tmp_path, folder):
    model_folders.classifier(tmp_path / "labels")
    code, _, err = run_regard("explore", folder, tmp_path / "labels", "--no-browser", "--port", 0)
    assert code == 2 and "models of one task" in err and err.count("\n") == 1
    code, _, err = run_regard("explore", tmp_path / "none", "--no-browser", "--port", 0)
    assert code == 2 and "there is no folder" in err and err.count("\n") == 1


def test_without_a_model_the_page_opens_on_the_mechanism(monkeypatch):
    monkeypatch.delenv("REGARD_MODEL", raising=False)
    monkeypatch.setattr("regard.explorer.bundled_choices.bundled_choices", list)  # none is bundled
    service = explore._service(None, None, explore._choices(None, None))
    assert "regard train small" in service.explored.describe()["notice"]
    monkeypatch.setenv("REGARD_MODEL", "nowhere")  # a wrong name is still an error
    with pytest.raises(RegardError, match="nowhere"):
        explore._service(None, None, explore._choices(None, None))


def test_right_after_installation_the_bundled_models_are_offered(monkeypatch, folder):
    monkeypatch.delenv("REGARD_MODEL", raising=False)
    names = [choice.name for choice in explore._choices(None, None)]
    assert "film-reviews" in names and set(known_models()) <= set(names)
    assert explore._choices(folder, None) == explore._choices(None, folder) == []
    service = explore._service(None, None, explore._choices(None, None))
    assert service.name == names[0]


def test_a_huggingface_folder_is_explored_instead_of_a_model(folder, tmp_path):
    with pytest.raises(OptionError, match="opens one model"):
        explore._service(folder, tmp_path, [])
    with pytest.raises(OptionError, match="no config.json"):
        explore._service(None, tmp_path, [])


def test_a_text_browser_is_not_opened(monkeypatch):
    opened = []

    class Window(webbrowser.BackgroundBrowser):
        def open(self, url, new=0, autoraise=True):
            opened.append(url)
            return True

    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("lynx"))
    explore.open_browser("http://x")
    assert opened == []
    monkeypatch.setattr(webbrowser, "get", lambda: Window("firefox"))
    explore.open_browser("http://x").join(120)
    assert opened == ["http://x"]


def test_a_server_has_the_explorer_on_request(folder):
    with process(folder, "--explorer") as (_, client):
        assert client.get("/explore/")[0] == 200
        assert client.post("/explore/api/runs", {"text": "ein Hund"})[0] == 200
        assert client.post("/translate", {"text": "ein Hund"})[0] == 200
