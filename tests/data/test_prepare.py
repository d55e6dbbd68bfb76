"""Preparation: kept and dropped rows, their counts, and a cache of complete and matching sets."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from regard.data import readers
from regard.data.chunk_encoder import EncodingSettings
from regard.data.prepare import Prepared, prepare
from regard.data.readers import LinePairs, Table, TextLines
from regard.data.tokenizer import EOS, Tokenizer
from regard.errors import DataError, OptionError
from tests import forked

WORDS = "the cat sees a dog and runs home now . we go , too !".split(" ")


def sentences(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(sentences(500, 0), "bpe", 80)


@pytest.fixture
def pairs(tmp_path):
    for name, seed in (("en", 1), ("de", 2)):
        (tmp_path / f"a.{name}").write_text(
            "".join(text + "\n" for text in sentences(300, seed)), encoding="utf-8"
        )
    return LinePairs(tmp_path / "a.en", tmp_path / "a.de")


def test_every_row_is_its_tokens_and_eos(pairs, tokenizer):
    prepared = prepare(pairs, tokenizer, tokenizer)
    assert prepared.rows == len(prepared) == 300
    for i, (source, target) in enumerate(pairs):
        assert prepared.source(i).tolist() == [*tokenizer.encode(source), EOS]
        assert prepared.target(i).tolist() == [*tokenizer.encode(target), EOS]
        assert prepared.source_lengths[i] == len(prepared.source(i)) and prepared.target_lengths[i] == len(
            prepared.target(i)
        )
    assert prepared.source(0).dtype == np.uint16
    assert prepared.report.source_tokens == prepared.source_lengths.sum()


def test_tokens_are_memory_mapped(pairs, tokenizer):
    prepared = prepare(pairs, tokenizer, tokenizer)
    tokens = prepared.arrays("target")[0]
    assert tokens.base is not None and not tokens.flags.owndata


def test_unusable_rows_are_dropped_and_counted(tmp_path, tokenizer):
    rows = [
        b"good\tgut", b"\tleer", b"  \tblank", b"bad \xff\tx", b"only one column", b"the cat\tthe cat",
        b"x" * 200_000 + b"\ty",
        b"the cat sees a dog and runs home now\tgo", b"a " * 300 + b"\t" + b"a " * 300,
    ]  # fmt: skip
    (tmp_path / "a.tsv").write_bytes(b"\n".join(rows) + b"\n")
    prepared = prepare(
        Table(tmp_path / "a.tsv"), tokenizer, tokenizer, EncodingSettings(max_length=100, max_ratio=3.0)
    )
    report = prepared.report
    assert (report.read, report.kept) == (9, 2)
    assert (report.empty, report.bad_utf8, report.missing, report.long_line, report.long, report.ratio) == (
        2,
        1,
        1,
        1,
        1,
        1,
    )
    assert prepared.lines.tolist() == [0, 5]
    assert (
        "2 of 9 rows" in str(report) and "2 empty on a side" in str(report) and "1 not UTF-8" in str(report)
    )


def test_an_error_says_why_no_row_is_left(tmp_path, tokenizer, cache):
    (tmp_path / "a.tsv").write_text("\tx\ny\t\n", encoding="utf-8")
    with pytest.raises(DataError, match="none of the 2 rows of .* can be used: 2 empty on a side"):
        prepare(Table(tmp_path / "a.tsv"), tokenizer, tokenizer)
    assert not list((cache / "prepared").glob("*/meta.json"))


def test_sides_of_different_length_leave_no_files(tmp_path, pairs, tokenizer, cache):
    with pairs.target.open("a", encoding="utf-8") as file:
        file.write("one more\n")
    with pytest.raises(DataError, match="300 lines and .* has 301"):
        prepare(pairs, tokenizer, tokenizer)
    assert [path.suffix for path in (cache / "prepared").iterdir()] == [".lock"]


def test_a_limit_keeps_the_first_rows(pairs, tokenizer):
    prepared = prepare(pairs, tokenizer, tokenizer, EncodingSettings(limit=17))
    assert prepared.rows == 17 and prepared.report.read == 17
    assert tokenizer.decode(prepared.source(16)) == list(pairs)[16][0]


def test_the_text_of_a_language_model_keeps_its_empty_lines(tmp_path, tokenizer):
    (tmp_path / "a").write_text("the cat\n\na dog\n", encoding="utf-8")
    prepared = prepare(TextLines(tmp_path / "a"), None, tokenizer, EncodingSettings(max_length=1))
    assert [tokenizer.decode(prepared.target(i)) for i in range(3)] == ["the cat", "", "a dog"]
    assert prepared.target(1).tolist() == [EOS]
    with pytest.raises(DataError, match="no source side"):
        prepared.source(0)


def test_a_character_model_keeps_the_text_unchanged(tmp_path):
    text = "To be,\nor not\n\nto be.\n"
    (tmp_path / "a").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train(text.splitlines(), "character", 40)
    prepared = prepare(TextLines(tmp_path / "a"), None, tokenizer)
    assert tokenizer.decode(prepared.arrays("target")[0]) == text


def test_equal_data_and_settings_use_the_cache(pairs, tokenizer):
    first = prepare(pairs, tokenizer, tokenizer)
    written = (first.folder / "meta.json").stat().st_mtime_ns
    again = prepare(pairs, tokenizer, tokenizer)
    assert again.checksum == first.checksum and (again.folder / "meta.json").stat().st_mtime_ns == written


def test_other_data_or_settings_are_prepared_again(pairs, tokenizer):
    other = Tokenizer.train(sentences(500, 0), "bpe", 40)
    sums = [
        prepare(pairs, tokenizer, tokenizer).checksum,
        prepare(pairs, tokenizer, tokenizer, EncodingSettings(max_length=9)).checksum,
        prepare(pairs, tokenizer, tokenizer, EncodingSettings(limit=9)).checksum,
        prepare(pairs, tokenizer, other).checksum,
        prepare(LinePairs(*pairs.files[::-1]), tokenizer, tokenizer).checksum,
        prepare(pairs, tokenizer, tokenizer, EncodingSettings(dropout=0.1, variants=2)).checksum,
        prepare(pairs, tokenizer, tokenizer, EncodingSettings(dropout=0.1, variants=2, seed=1)).checksum,
    ]
    pairs.source.write_text(pairs.source.read_text(encoding="utf-8").replace("cat", "dog"), encoding="utf-8")
    sums.append(prepare(pairs, tokenizer, tokenizer).checksum)
    assert len(set(sums)) == len(sums)


def test_without_dropout_the_seed_is_not_part_of_the_cache_key(pairs, tokenizer):
    assert (
        prepare(pairs, tokenizer, tokenizer, EncodingSettings(seed=1, variants=8)).checksum
        == prepare(pairs, tokenizer, tokenizer).checksum
    )


def test_variants_differ_in_tokens_and_not_in_text(pairs, tokenizer):
    prepared = prepare(pairs, tokenizer, tokenizer, EncodingSettings(dropout=0.3, variants=3, seed=1))
    assert prepared.variants == 3
    for i, (source, target) in enumerate(pairs):
        assert {tokenizer.decode(prepared.source(i, v)) for v in range(3)} == {source}
        assert {tokenizer.decode(prepared.target(i, v)) for v in range(3)} == {target}
        assert all(prepared.target(i, v)[-1] == EOS for v in range(3))
    assert len({prepared.arrays("source", v)[0].tobytes() for v in range(3)}) == 3


def test_workers_change_nothing(pairs, tokenizer, monkeypatch, tmp_path):
    settings = EncodingSettings(dropout=0.3, variants=2, seed=1)
    monkeypatch.setattr(readers, "ROWS", 70)
    results = []
    for workers in ("1", "2"):
        monkeypatch.setenv("REGARD_WORKERS", workers)
        monkeypatch.setenv("REGARD_CACHE", str(tmp_path / f"cache{workers}"))
        prepared = prepare(pairs, tokenizer, tokenizer, settings)
        results.append({path.name: path.read_bytes() for path in prepared.folder.glob("*.npy")})
    assert results[0] == results[1] and len(results[0]) == 9
    monkeypatch.setenv("REGARD_WORKERS", "many")
    with pytest.raises(OptionError, match="REGARD_WORKERS must be an integer, got 'many'"):
        prepare(pairs, tokenizer, tokenizer, EncodingSettings(limit=3))


def test_a_damaged_set_is_prepared_again(pairs, tokenizer):
    first = prepare(pairs, tokenizer, tokenizer)
    tokens = first.folder / "target.0.npy"
    good = tokens.read_bytes()
    tokens.write_bytes(good[:-10])
    assert np.array_equal(
        prepare(pairs, tokenizer, tokenizer).target(299),
        np.frombuffer(good, np.uint16)[-first.target_lengths[299] :],
    )
    (first.folder / "meta.json").write_text("{", encoding="utf-8")
    assert prepare(pairs, tokenizer, tokenizer).rows == 300


def test_pairs_need_two_tokenizers(pairs, tokenizer):
    with pytest.raises(OptionError, match="need a source tokenizer"):
        prepare(pairs, None, tokenizer)


@pytest.mark.parametrize(
    ("name", "value"), [("max_length", 0), ("limit", 0), ("variants", 0), ("max_ratio", 0.5), ("seed", -1)]
)
def test_settings_are_checked(name, value):
    with pytest.raises(OptionError, match=name):
        EncodingSettings(**{name: value})


PREPARE = """
import sys
from pathlib import Path
from regard.data.prepare import EncodingSettings, prepare
from regard.data.readers import LinePairs
from regard.data.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1] + "/t.json")
print("starting", flush=True)
big = Path(sys.argv[1])
prepared = prepare(LinePairs(big / "big.en", big / "big.de"), tokenizer, tokenizer,
                   EncodingSettings(dropout=0.1, variants=4))
print(prepared.checksum, prepared.rows, flush=True)
"""


@pytest.fixture
def big(tmp_path, tokenizer):
    for name, seed in (("en", 1), ("de", 2)):
        (tmp_path / f"big.{name}").write_text(
            "".join(text + "\n" for text in sentences(5000, seed)) * 6, encoding="utf-8"
        )
    tokenizer.save(tmp_path / "t.json")
    return tmp_path


def start(folder):
    return forked.Popen(folder, code=PREPARE)


def test_two_processes_may_prepare_the_same_data(big, cache):
    processes = [start(big) for _ in range(2)]
    results = [process.communicate(timeout=100)[0].splitlines()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert results[0] == results[1] and results[0].endswith(" 30000")
    assert len(list((cache / "prepared").glob("*/meta.json"))) == 1
    assert not list((cache / "prepared").glob("*.tmp-*"))


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_leaves_no_incomplete_set(big, cache, sign):
    process = start(big)
    assert process.stdout is not None and process.stdout.readline() == "starting\n"
    for _ in range(5000):  # until it has started to write
        if list((cache / "prepared").glob("*.tmp-*/lines.npy")):
            break
        time.sleep(0.005)
    process.send_signal(sign)
    process.communicate()
    assert process.returncode != 0
    assert not list((cache / "prepared").glob("*/meta.json"))
    if sign == signal.SIGINT:
        assert not list((cache / "prepared").glob("*.tmp-*"))
    again = start(big)
    printed = again.communicate(timeout=100)[0].splitlines()
    assert again.returncode == 0 and printed[1].endswith(" 30000")
    assert not list((cache / "prepared").glob("*.tmp-*"))
    prepared = Prepared(next((cache / "prepared").glob("*/meta.json")).parent)
    assert json.loads((prepared.folder / "meta.json").read_text(encoding="utf-8"))["rows"] == 30000


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.slow
def test_europarl_is_prepared_within_one_and_a_half_gibibytes(real_data):
    if not (real_data / "europarl-en-de").is_dir():
        pytest.skip("europarl-en-de is not there")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.prepare"], capture_output=True, text=True, cwd=root, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("load, empty cache"))
    assert "1,123,463 of 1,123,463 rows" in line
    assert int(line.split("peak ")[1].split(" MiB")[0]) < 1536, line
