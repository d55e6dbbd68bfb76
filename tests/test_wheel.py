"""The wheel, built and installed in a clean environment, runs three lines."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


# One process for all of it, since importing torch takes seconds.
INSTALLED = """
import sys
import torch, regard
from regard.cli import main

print(regard.__file__)
q, k, v = torch.randn(3, 2, 4, 100, 16)
print(regard.attend(q, k, v, mask=regard.Causal()).shape)
print("language", regard.data.guess_language("Wo ist er?"))
print(regard.translate("Wo ist der Bahnhof?"), regard.translate("Where is the station?", to="de"))
review = "A gripping story, wonderfully acted."
for arguments in (["lessons", "1"], ["classify", review], ["models"], ["recipes"]):
    sys.argv = ["regard", *arguments]
    try:
        main.run()
    except SystemExit as stopped:
        assert not stopped.code, arguments
"""


def run(*args, **kwargs):
    """Run a command, which must succeed; return its standard output."""
    done = subprocess.run(args, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("dependencies", ["shared", pytest.param("installed", marks=pytest.mark.slow)])
def test_the_wheel_installs_in_a_clean_environment_and_runs(tmp_path, dependencies):
    """shared: only the wheel is installed, its dependencies are this environment's; installed: all by pip."""
    pip = ["--quiet", "--disable-pip-version-check", *(["--no-deps"] if dependencies == "shared" else [])]
    isolation = ["--no-isolation"] if find_spec("hatchling") else []  # isolated, pip installs hatchling first
    run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", str(tmp_path), str(ROOT))
    wheel = next(tmp_path.glob("regard-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    bundled = {
        "regard/py.typed", "regard/attention/kernels/native.cpp", "regard/data/manifest.json",
        "regard/data/samples/tatoeba-sample.tsv.xz", "regard/recipes/small.yaml",
        "regard/data/language_trigrams.txt",
        "regard/lessons/scripts/01_soft_lookup.py", "regard/lessons/scripts/checks/01.py",
        "regard/lessons/logs/progression-tatoeba.json", "regard/lessons/logs/trainability.json",
        "regard/explorer/page/index.html", "regard/explorer/page/app.js",
    }  # fmt: skip
    models = [path for path in (ROOT / "src/regard/models/bundled").rglob("*") if path.is_file()]
    assert bundled | {str(path.relative_to(ROOT / "src")) for path in models} <= set(names)
    assert not any(name.startswith("tests") for name in names)
    python = str(tmp_path / "env" / "bin" / "python")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env"))
    if dependencies == "shared":
        (place,) = (tmp_path / "env").glob("lib/python*/site-packages")
        (place / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    here = [sys.executable, "-m", "pip", "--python", python]
    run(*here, "install", *pip, "-c", str(ROOT / "constraints.txt"), str(wheel))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "REGARD_MODEL"))}
    assert "regard 0" in run(str(tmp_path / "env" / "bin" / "regard"), "--version", cwd=tmp_path, env=clean)
    out = run(python, "-c", INSTALLED, cwd=tmp_path, env=clean)
    assert out.startswith(f"{tmp_path}/env/")
    assert "torch.Size([2, 4, 100, 16])" in out and "language de" in out
    assert "station" in out and "Bahnhof" in out  # the bundled translator
    for text in ("soft lookup", "positive\t", "tatoeba-en-de-fr", "multi30k-en-de"):  # of the four commands
        assert text in out, text
