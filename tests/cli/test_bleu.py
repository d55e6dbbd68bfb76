"""Tests of bleu.py: real files, exit codes, errors in one sentence."""

import gzip
import json
import lzma
import subprocess
import sys
from functools import partial

import pytest

from regard.evaluation.translation import translation_scores
from tests.evaluation.test_input_checks import HYPOTHESIS, REFERENCE


@pytest.fixture
def run(run_regard):
    return partial(run_regard, "bleu")


def join(lines):
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def files(tmp_path):
    """A hypothesis and its reference (also compressed), the example of the lecture, and invalid files."""
    (tmp_path / "hyp").write_bytes(join(HYPOTHESIS))
    (tmp_path / "ref.gz").write_bytes(gzip.compress(join(REFERENCE)))
    (tmp_path / "ref.xz").write_bytes(lzma.compress(join(REFERENCE)))
    (tmp_path / "moved").write_bytes(join([*HYPOTHESIS[1:], HYPOTHESIS[0]]))
    (tmp_path / "short").write_bytes(join(HYPOTHESIS[1:]))
    (tmp_path / "lecture.ref").write_bytes(b"hello world how do you do\nhello world\n")
    (tmp_path / "lecture.hyp").write_bytes(b"hello world how do going\nhello hello\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "zeros").write_bytes(bytes(50))
    return tmp_path


def test_scores_with_signatures_from_packed_files(run, files):
    code, out, err = run(files / "hyp", files / "ref.gz")
    assert code == 0, err
    assert out.strip() == str(translation_scores(HYPOTHESIS, REFERENCE))
    assert "warning" not in err
    code, out, _ = run(
        files / "hyp", files / "ref.gz", files / "ref.xz", "--json", "--tokenize", "intl", "--lowercase"
    )
    record = json.loads(out)
    assert record["signatures"]["bleu"].startswith("nrefs:2|case:lc|eff:no|tok:intl|")
    assert record["bleu"] == translation_scores(HYPOTHESIS, REFERENCE, tokenize="intl", lowercase=True).bleu


def test_by_length_prints_a_table_and_draws_a_picture(run, files):
    code, out, err = run(
        files / "hyp", files / "ref.gz", "--by-length", files / "ref.xz", "--plot", files / "lengths.png"
    )
    assert code == 0, err
    assert "words of source" in out
    assert "11–20" in out
    assert (files / "lengths.png").read_bytes().startswith(b"\x89PNG")
    _, out, _ = run(files / "hyp", files / "ref.gz", "--by-length", files / "ref.xz", "--json")
    assert sum(bucket["lines"] for bucket in json.loads(out)["by_length"]["buckets"]) == 120


def test_two_translations_are_compared_by_both_tests(run, files):
    code, out, err = run(files / "hyp", files / "ref.gz", "--against", files / "ref.xz")
    assert code == 0, err
    assert f"compared with {files / 'ref.xz'}" in out and "p randomisation" in out
    code, _, err = run(files / "hyp", files / "ref.gz", "--against", files / "lecture.hyp")
    assert code == 2 and "compared on the same sentences, got 120 and 2 lines" in err


def test_the_lectures_formula_line_by_line(run, files):
    assert run(files / "lecture.hyp", files / "lecture.ref", "--sentence")[1].split() == ["0.5475", "0.0000"]
    record = json.loads(
        run(files / "lecture.hyp", files / "lecture.ref", "--sentence", "--json", "--tokenize", "none")[1]
    )
    assert record["sentence_bleu"][1] == 0
    assert record["mean"] == pytest.approx(0.5475182535 / 2, abs=1e-9)


def test_suspicious_files_give_warnings_beside_the_scores(run, files):
    code, out, err = run(files / "moved", files / "ref.gz")
    assert code == 0
    assert out.startswith("BLEU")
    assert (
        "regard: warning: lines 1 to 119 of the hypothesis match the reference 1 line after their own" in err
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("missing", "ref.gz"), "missing"),
        (("short", "ref.gz"), "the hypothesis has 119 lines but the reference has 120"),
        (("binary", "ref.gz"), "is not UTF-8 text; is it a binary file?"),
        (("zeros", "ref.gz"), "line 1 of"),
        (("hyp", "ref.gz", "--tokenize", "13"), "did you mean 13a?"),
        (("hyp", "ref.gz", "--plot", "p.png"), "--by-length SRC"),
        (
            ("hyp", "ref.gz", "ref.xz", "--sentence"),
            "--sentence is for one reference",
        ),
        (("hyp", "ref.gz", "--by-length", "short"), "the source has 119 lines but the hypothesis has 120"),
        (("hyp", "ref.gz", "--by-length", "ref.gz", "--plot", "nowhere/p.png"), "cannot be written"),
        (("hyp", "ref.gz", "--by-length", "ref.gz", "--plot", "p.doc"), ".png, .svg or .pdf"),
    ],
)
def test_bad_input_is_an_error_of_one_sentence_and_exit_code_two(run, files, args, message):
    code, out, err = run(*(arg if arg.startswith("--") or arg == "13" else files / arg for arg in args))
    assert code == 2
    assert message in err
    assert "Traceback" not in err + out
    assert err.strip().count("\n") == 0
    assert out == ""


@pytest.mark.slow
def test_a_separate_process_prints_the_same(files):
    command = [sys.executable, "-m", "regard", "bleu", str(files / "hyp")]
    done = [
        subprocess.run(
            [*command, str(files / name)], capture_output=True, text=True, encoding="utf-8", timeout=120
        )
        for name in ("ref.gz", "short")
    ]
    assert [d.returncode for d in done] == [0, 2]
    assert done[0].stdout.strip() == str(translation_scores(HYPOTHESIS, REFERENCE))
    assert done[1].stderr.strip().startswith("regard: the hypothesis has 120 lines but the reference has 119")
