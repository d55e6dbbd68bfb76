"""Run commands in this process; `run_regard` is in tests/conftest.py."""

import pytest
import typer

from regard.files import progress


@pytest.fixture
def regard(run_regard, monkeypatch, tmp_path):
    """`run_regard` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return run_regard


@pytest.fixture
def run_command(monkeypatch, capfdbinary):
    """A function that runs the function of one command, as `run_regard`; its errors are raised."""
    monkeypatch.setattr(progress, "DELAY", 3600)

    def run(command, *args):
        app = typer.Typer()
        app.command()(command)
        capfdbinary.readouterr()
        code = app([str(arg) for arg in args], standalone_mode=False)
        return code or 0, *(text.decode() for text in capfdbinary.readouterr())

    return run
