"""Tests of train.py, resume.py, average.py, runs.py and evaluate.py: real training, exit codes."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.recipe.loading import included_folder
from tests import forked

TINY = [
    "model.dim=32", "model.encoder={layers: 1, heads: 2, inner: 32}",
    "model.decoder={layers: 1, heads: 2, inner: 32}",
    "data.limit=300", "tokenizer.size=300", "batch.tokens=400", "schedule.warmup=5", "decoding.beam=2",
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 20 steps on the bundled sample, and what it prints."""
    folder = tmp_path_factory.mktemp("trained")
    changes = [
        *TINY,
        "training.steps=20",
        "training.validate_every=10",
        "training.save_every=10",
        "training.keep=2",
    ]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["regard", "train", "small", *changes])
        with pytest.raises(SystemExit) as stopped:
            main.run()
    assert not stopped.value.code, err.getvalue()
    return folder / "runs" / "small", out.getvalue(), err.getvalue()


def error_of(regard, *args):
    """The one line that a command with wrong input prints."""
    code, out, err = regard(*args)
    assert code == 2, out + err
    assert "Traceback" not in out + err
    assert err.strip().count("\n") == 0, err
    return err


def test_training_prints_scores_cost_and_the_model_folder(trained):
    run, out, err = trained
    assert re.search(r"validation: .*BLEU \d", out)
    assert re.search(r"20 steps in \d+:\d\d, \d\.\d+e\+\d+ FLOPs", out)
    assert "runs/small/model" in out
    assert 'regard translate "a sentence" --model runs/small' in out
    assert "validation at step 10" in err  # plain lines, since stderr is not a terminal
    for name in (
        "recipe.yaml",
        "report.json",
        "curves.png",
        "model/config.json",
        "model/card.json",
        "log.jsonl",
    ):
        assert (run / name).is_file(), name
    assert "steps: 20" in (run / "recipe.yaml").read_text(encoding="utf-8")


def test_a_dry_run_prints_size_cost_memory_and_time_and_trains_nothing(regard, tmp_path):
    code, out, err = regard("train", "small", *TINY, "--dry-run")
    assert code == 0, err
    for word in ("300 training", "parameters", "FLOPs", "activations", "MiB", "about", "500 steps"):
        assert word in out, out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["smal"], ("there is no recipe 'smal'", "did you mean small?")),
        (["nowhere.yaml"], ("no recipe file nowhere.yaml",)),
        (["small", "model.encoder.haeds=2"], ("no key 'haeds'", "model.encoder.heads")),
        (["small", "model.encoder.heads=3"], ("heads is 3", "128")),
        (["small", "tokenizer.joint=false"], ("separate vocabularies", "tie: target")),
        (["small", "training"], ("'training' is not key=value",)),
        (["small", "data.corpus=tatoeba-sampel"], ("tatoeba-sampel", "tatoeba-sample")),
        (["small", "data={train: [[a.en, a.de]], validation: [v.tsv]}"], ("no file", "v.tsv")),
        (["small", "tokenizer.size=20", "data.limit=300"], ("20", "characters")),
        (
            ["small", "task=language", "data={corpus: tatoeba-sample}", "model.encoder=null"],
            ("tatoeba-sample", "translate"),
        ),
    ],
)
@pytest.mark.parametrize("dry", [False, True], ids=["train", "dry run"])
def test_invalid_recipes_are_errors_of_one_sentence_before_training(regard, tmp_path, args, message, dry):
    error = error_of(regard, "train", *args, *(["--dry-run"] if dry else []))
    assert all(words in error for words in message), error
    assert not (tmp_path / "runs").exists()


def test_an_empty_file_is_named(regard, tmp_path):
    (tmp_path / "e.tsv").write_text("", encoding="utf-8")
    (tmp_path / "v.tsv").write_text("a\tb\n" * 5, encoding="utf-8")
    error = error_of(regard, "train", "small", "data={train: [e.tsv], validation: [v.tsv]}")
    assert "e.tsv is empty" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_an_error_of_one_sentence(regard):
    error = error_of(regard, "train", "small", "training.device=cuda")
    assert "the device is cuda" in error and "no GPU" in error and "choose cpu" in error


def test_a_run_is_replaced_only_with_overwrite(regard, trained):
    run = trained[0]
    error = error_of(regard, "train", "small", *TINY, "--run", run)
    assert "holds a run already" in error and "--overwrite" in error
    assert "exists and is not a run" in error_of(regard, "train", "small", *TINY, "--run", run / "model")


def test_resuming_with_changed_training_keys_names_them(regard, trained):
    error = error_of(regard, "resume", trained[0], "model.dim=64", "optimizer.lr=0.1")
    assert "model.dim" in error and "optimizer.lr" in error and "another name" in error
    assert "does not exist" in error_of(regard, "resume", trained[0].parent / "other")


def test_runs_lists_state_step_score_time_and_cost(regard, trained):
    code, out, err = regard("runs", trained[0].parent)
    assert code == 0, err
    assert re.search(r"small +finished +20 +\d+\.\d+ +\d+\.\d+ BLEU +test +\d+:\d\d +\d\.\de\+\d+", out), out
    assert re.search(r"run +state +step +val loss +score +of", out), out
    record = json.loads(regard("runs", trained[0], "--json")[1])
    assert [(run["name"], run["state"], run["step"], run["score_split"]) for run in record] == [
        ("small", "finished", 20, "test")
    ]
    error = error_of(regard, "runs", trained[0].parent / "none")
    assert "there is no folder" in error and "regard train" in error


def test_runs_labels_the_score_of_an_unfinished_run_as_validation(regard, trained, tmp_path):
    (tmp_path / "runs" / "half").mkdir(parents=True)
    for name in ("recipe.yaml", "log.jsonl"):
        (tmp_path / "runs" / "half" / name).write_bytes((trained[0] / name).read_bytes())
    assert re.search(r"half +started +20 +\d+\.\d+ +\d+\.\d+ BLEU +validation ", regard("runs")[1])


def test_runs_reports_a_damaged_run_and_lists_the_others(regard, trained, tmp_path):
    for name in ("good", "bad"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.yaml").write_bytes((trained[0] / "recipe.yaml").read_bytes())
    (tmp_path / "runs" / "bad" / "recipe.yaml").write_text("model: [", encoding="utf-8")
    code, out, _ = regard("runs")
    assert code == 0
    assert re.search(r"bad +damaged", out)
    assert re.search(r"good +started", out)
    assert "not YAML" in out


def test_evaluate_scores_the_models_own_test_set_and_saves_translations(regard, trained, tmp_path):
    code, out, err = regard(
        "evaluate", trained[0], "-o", "out.txt", "--by-length", "--plot", "lengths.png", "--beam", "1"
    )
    assert code == 0, err
    report = json.loads((trained[0] / "report.json").read_text(encoding="utf-8"))
    for word in ("tok:13a", "chrF", "TER", "words of source", "beam 1"):
        assert word in out, out
    assert "Transformer (base model)" not in out
    assert f"{report['flops']:.1e}" in out
    assert len((tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()) == json.loads(regard(
        "evaluate", trained[0], "--beam", "1", "--json")[1])["lines"]  # fmt: skip
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = regard("evaluate", trained[0], "--beam", "1", "--cost-table")
    assert code == 0 and "Transformer (base model)" in out and "3.3e+18" in out


def test_evaluate_gives_the_score_of_training(regard, trained):
    record = json.loads(regard("evaluate", trained[0] / "model", "--json")[1])
    report = json.loads((trained[0] / "report.json").read_text(encoding="utf-8"))
    assert record["scores"]["13a"]["bleu"] == pytest.approx(report["scores"]["test"]["bleu"], abs=1e-9)


def test_evaluate_on_files_of_ones_own_tokenised_text_both_ways(regard, trained, tmp_path):
    (tmp_path / "t.en").write_text("Come here .\nI am , he said , tired .\n" * 3, encoding="utf-8")
    (tmp_path / "t.de").write_text("Komm her .\nIch bin , sagte er , müde .\n" * 3, encoding="utf-8")
    code, out, err = regard("evaluate", trained[0], "--data", "t.en", "--data", "t.de", "--beam", "1")
    assert code == 0, err
    assert "tok:13a" in out
    assert "tok:none" in out
    assert "the text is tokenised" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], ("there is no folder nowhere",)),
        (["MODEL", "--data", "nowhere.en", "--data", "nowhere.de"], ("no file", "nowhere.en")),
        (["MODEL", "--split", "dev"], ("no split 'dev'",)),
        (["MODEL", "--output", "no/where.txt"], ("no/where.txt", "folder")),
        (["MODEL", "--device", "tpu"], ("tpu", "auto, cpu or cuda")),
    ],
)
def test_invalid_input_to_evaluate_is_an_error_of_one_sentence(regard, trained, args, message):
    error = error_of(regard, "evaluate", *(trained[0] if arg == "MODEL" else arg for arg in args))
    assert all(words in error for words in message), error


def test_average_makes_a_model_that_can_be_evaluated(regard, trained, tmp_path):
    best = sorted((trained[0] / "best").iterdir())
    assert len(best) == 2
    code, _, err = regard("average", *best, "-o", "mean")
    assert code == 0, err
    assert regard("evaluate", "mean", "--data", "tatoeba-sample", "--beam", "1")[0] == 0
    error = error_of(regard, "average", tmp_path, "-o", "other")
    assert "neither a model folder nor a checkpoint" in error
    error = error_of(regard, "average", *best, "-o", "mean")
    assert "mean already exists" in error and "--overwrite" in error
    assert regard("average", *best, "-o", "mean", "--overwrite")[0] == 0


def test_a_language_model_is_trained_and_measured(regard, tmp_path):
    text = "to be or not to be\nthat is the question\n" * 60
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    recipe = """
task: language
data: {train: [a.txt], validation: [a.txt], test: [a.txt]}
tokenizer: {kind: character, size: 60}
model: {dim: 16, dropout: 0.0, decoder: {kind: recurrent, cell: gru}}
batch: {length: 16, sentences: 4}
schedule: {kind: constant}
training: {steps: 12, validate_every: 6, save_every: 6, smoothing: 0.0}
"""
    (tmp_path / "letters.yaml").write_text(recipe, encoding="utf-8")
    code, out, err = regard("train", "letters.yaml", "--quiet")
    assert (code, out) == (0, ""), err
    code, out, err = regard("evaluate", "runs/letters")
    assert code == 0, err
    assert "bits per character" in out
    assert "perplexity per word" in out
    record = json.loads(regard("evaluate", "runs/letters", "--json")[1])["scores"]
    assert record["tokens"] == record["characters"] == len(text)
    assert record["bits_per_character"] == pytest.approx(record["nll"] / len(text) / 0.6931471805599453)
    error = error_of(regard, "evaluate", "runs/letters", "--beam", "3")
    assert "language model" in error and "beam" in error
    assert re.search(r"letters +finished +12 .*perplexity", regard("runs")[1])


def test_recipes_are_listed_and_printed_unchanged(regard):
    code, out, _ = regard("recipes")
    assert code == 0
    assert all(name in out for name in ("small", "transformer-base", "wikitext-2", "multi30k-de-en-bahdanau"))
    names = re.findall(r"^([a-z][a-z0-9-]+) {2,}(translate|classify|tag|language|embed) ", out, re.MULTILINE)
    assert [name for name, _ in names] == sorted(path.stem for path in included_folder().glob("*.yaml"))
    assert "# included in the package" in regard("recipes", "small")[1]
    keys = regard("recipes", "--keys")[1]
    assert "max_ratio" in keys
    assert "did you mean small?" in error_of(regard, "recipes", "smal")


def test_a_recipe_is_listed_without_the_packages_and_files_that_it_needs(regard, tmp_path, monkeypatch):
    recipe = {"task": "classify", "about": "an example", "model": {"pretrained": "no-such-folder"}}
    (tmp_path / "tuned.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    monkeypatch.setenv("REGARD_RECIPES", str(tmp_path))
    assert re.search(r"^tuned +classify +an example *$", regard("recipes")[1], re.MULTILINE)


def test_a_recipe_whose_files_have_to_be_made_says_where_to_read_how(regard, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("data: {train: [../made/train.tsv], hold_out: 0.1}", encoding="utf-8")
    monkeypatch.setenv("REGARD_RECIPES", str(tmp_path))
    error = error_of(regard, "train", "mine")
    assert re.search(r"mine reads .*made.train\.tsv, which does not exist; `regard recipes mine` says", error)
    assert ".." not in error
    assert "there is no file" in error_of(regard, "train", "mine", "data.train=[other.tsv]")


def test_a_recipe_whose_first_model_has_to_be_made_says_where_to_read_how(regard, tmp_path, monkeypatch):
    recipe = {"data": {"train": ["rows.tsv"], "hold_out": 0.1}, "training": {"start": "../made/first"}}
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    monkeypatch.setenv("REGARD_RECIPES", str(tmp_path))
    for name in ("mine", str(tmp_path / "mine.yaml")):
        error = error_of(regard, "train", name)
        assert re.search(r"there is no folder .*made.first; .*; `regard recipes mine` says how", error)
        assert ".." not in error
    for change in ("training.start=other", "training={start: other}"):
        error = error_of(regard, "train", "mine", change)
        assert re.search(r"there is no folder .*other; ", error) and "says how" not in error
    for change in ("training.start=tatoeba-en-de-bahdanau", "training={start: tatoeba-en-de-bahdanau}"):
        assert "there is no file" in error_of(regard, "train", "mine", change)
    assert "data.hold_out" in error_of(regard, "train", "mine", change, "data.hold_out=null")


def test_the_first_sigint_saves_prints_how_to_resume_and_exits_with_130(tmp_path):
    changes = [*TINY, "training.steps=100000", "training.log_every=1"]
    with forked.Popen("train", "small", *changes, cwd=tmp_path) as running:
        log = tmp_path / "runs" / "small" / "log.jsonl"
        end = time.monotonic() + 200
        while (
            not (log.is_file() and log.stat().st_size) and running.poll() is None and time.monotonic() < end
        ):
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=200)
    assert running.returncode == 130, err
    assert "resume with `regard resume runs/small`" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_run_stopped_by_a_signal_exits_with_its_code(regard, monkeypatch, number, code):
    """So `regard train … && regard evaluate …` does not evaluate an incomplete run; also with --quiet, and at
    the second signal.
    """
    from regard.training import trainer
    from regard.training.run_folder import Result
    from regard.training.signals import StopNow

    monkeypatch.setattr(
        trainer, "train", lambda *a, **k: Result(Path("runs/x"), False, "interrupted", 7, signal=number)
    )
    exit_code, out, err = regard("train", "small")
    assert (
        (exit_code, out) == (code, "") and "stopped after step 7" in err and "`regard resume runs/x`" in err
    )
    assert regard("train", "small", "--quiet") == (code, "", "")

    def at_once(*args, **options):
        raise StopNow(number)

    monkeypatch.setattr(trainer, "resume", at_once)
    exit_code, _, err = regard("resume", "runs/x")
    assert exit_code == code and "without saving" in err


def test_a_stopped_demo_prints_one_sentence(regard, monkeypatch):
    import regard as package
    from regard.training.run_folder import Result

    monkeypatch.setattr(
        package,
        "train",
        lambda *a, **k: Result(Path("/gone"), False, "interrupted", 7, signal=signal.SIGTERM),
    )
    code, _, err = regard("demo", "ab", "--train", "--steps", "1")
    assert code == 143 and err.count("\n") == 1 and "stopped at step 7" in err and "/gone" not in err


def test_bad_input_to_a_process_of_its_own_is_one_line_and_exit_code_two(tmp_path):
    command = [sys.executable, "-m", "regard", "train", "small", "model.encoder.haeds=2"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().count("\n") == 0
    assert done.stderr.startswith("regard: ")
    assert "did you mean model.encoder.heads (integer ≥ 1)?" in done.stderr


def test_a_dry_run_shows_the_columns_and_the_first_row_as_read(regard, tmp_path):
    (tmp_path / "deu.tsv").write_text(
        "Go.\tGeh.\tCC-BY\nHi.\tHallo!\tCC-BY\nRun!\tLauf!\tCC-BY\n" * 40, encoding="utf-8"
    )
    tiny = [*TINY[:3], *TINY[4:], "tokenizer.size=60", "--dry-run"]
    code, out, err = regard(
        "train", "small", "data={train: [deu.tsv], hold_out: 0.3}", "data.source=1", "data.target='2'", *tiny
    )
    assert code == 0, err
    assert "deu.tsv: 3 columns separated by tabs, no header; source = column 1, target = column 2" in out
    assert re.search(r"first row +(Go\. → Geh\.|Hi\. → Hallo!|Run! → Lauf!)\n", out), out
    (tmp_path / "my.csv").write_text(
        "".join(f"{'yes' if i % 2 else 'no'};film {i}, fine\n" for i in range(60)), encoding="utf-8"
    )
    words = [
        "task=classify",
        "model={encoder: {kind: embedding}, pooling: mean}",
        "tokenizer.kind=word",
        "training.steps=5",
    ]
    code, out, err = regard(
        "train", "small", "data={train: [my.csv], hold_out: 0.2}", *words, "schedule.warmup=1", "--dry-run"
    )
    assert code == 0, err
    assert "semicolons, no header; text = column 2, label = column 1" in out and re.search(
        r"film \d+, fine → (yes|no)\n", out
    )
    assert " rows per step" in out and "target token" not in out
    assert "warning: 48 training rows for 2 labels are few" in out
