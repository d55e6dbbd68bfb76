"""The wheel, built and installed in a clean environment, runs three lines."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.models.multilingual import catalogued

ROOT = Path(__file__).parent.parent


def run(*args, **kwargs):
    """Run a command, which must succeed; return its standard output."""
    done = subprocess.run(args, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("dependencies", ["shared", pytest.param("installed", marks=pytest.mark.slow)])
def test_the_wheel_installs_in_a_clean_environment_and_runs(tmp_path, dependencies):
    """shared: only the wheel is installed, its dependencies are this environment's; installed: all by pip."""
    pip = ["--quiet", "--disable-pip-version-check", *(["--no-deps"] if dependencies == "shared" else [])]
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT))
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
    run(sys.executable, "-m", "venv", str(tmp_path / "env"))
    if dependencies == "shared":
        (place,) = (tmp_path / "env").glob("lib/python*/site-packages")
        (place / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    run(python, "-m", "pip", "install", *pip, "-c", str(ROOT / "constraints.txt"), str(wheel))
    lines = (
        "import torch, regard\nq, k, v = torch.randn(3, 2, 4, 100, 16)\n"
        "print(regard.attend(q, k, v, mask=regard.Causal()).shape)"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    assert "torch.Size([2, 4, 100, 16])" in run(python, "-c", lines, cwd=tmp_path, env=clean)
    assert "regard 0" in run(str(tmp_path / "env" / "bin" / "regard"), "--version", cwd=tmp_path, env=clean)
    where = run(python, "-c", "import regard; print(regard.__file__)", cwd=tmp_path, env=clean)
    assert where.startswith(str(tmp_path))
    assert "soft lookup" in run(
        str(tmp_path / "env" / "bin" / "regard"), "lessons", "1", cwd=tmp_path, env=clean
    )
    review = ("classify", "A gripping story, wonderfully acted.")
    assert "positive\t" in run(str(tmp_path / "env" / "bin" / "regard"), *review, cwd=tmp_path, env=clean)
    (tmp_path / "models").mkdir()
    catalogued(tmp_path / "models")
    named = clean | {"REGARD_MODELS": str(tmp_path / "models")}
    assert "tiny" in run(str(tmp_path / "env" / "bin" / "regard"), "models", cwd=tmp_path, env=named)
    lines = (
        "import regard\nprint(len(regard.translate('Wo ist er?')), regard.data.guess_language('Wo ist er?'))"
    )
    assert "de" in run(python, "-c", lines, cwd=tmp_path, env=named)
    assert "multi30k-en-de" in run(
        str(tmp_path / "env" / "bin" / "regard"), "recipes", cwd=tmp_path, env=clean
    )
