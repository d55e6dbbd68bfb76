"""Reading text files line by line, compressed or damaged, and errors of one sentence."""

import gc
import gzip
import lzma
import os
import subprocess
import sys
import threading

import pytest

from regard.data import text_files
from regard.data.text_files import BAD, LONG, lines
from regard.errors import DataError


def read(path, **options):
    return [line for block in lines(path, **options) for line in block]


def write(path, data):
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(packed(data))
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz"])
def test_plain_gzip_and_xz_give_the_same_lines(tmp_path, name):
    assert read(write(tmp_path / name, "eins\nzwei 😀\n\nvier".encode())) == ["eins", "zwei 😀", "", "vier"]


def test_the_first_bytes_decide_the_compression_and_not_the_name(tmp_path):
    path = tmp_path / "really.gz"
    path.write_bytes(b"plain\n")
    assert read(path) == ["plain"]
    path.write_bytes(lzma.compress(b"packed\n"))
    assert read(path) == ["packed"]


def test_only_a_line_feed_ends_a_line(tmp_path):
    text = "a\u2028b\x85c\x0bd\x0ce\x1cf\rg\nsecond\n"
    assert read(write(tmp_path / "a", text.encode())) == ["a\u2028b\x85c\x0bd\x0ce\x1cf\rg", "second"]


def test_windows_line_ends_and_a_byte_order_mark_are_removed(tmp_path):
    assert read(write(tmp_path / "a", b"\xef\xbb\xbfone\r\ntwo\r\n")) == ["one", "two"]


def test_lines_that_are_not_utf8_keep_their_line_number(tmp_path):
    assert read(write(tmp_path / "a", b"one\nbad \xff\xfe\nthree\ncut \xe2\x82\n")) == [
        "one",
        BAD,
        "three",
        BAD,
    ]


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_may_end_anywhere(tmp_path, monkeypatch, block):
    expected = ["", "ä" * 9, "x" * 40, "", "long\t tail 😀"]
    path = write(tmp_path / "a", "\r\n".join(expected).encode())
    monkeypatch.setattr(text_files, "BLOCK", block)
    assert read(path) == expected


@pytest.mark.parametrize("block", [5, 64, 1 << 20])
def test_a_line_beyond_the_limit_keeps_its_line_number(tmp_path, monkeypatch, block):
    path = write(tmp_path / "a", b"\n".join([b"short", b"x" * 11, b"y" * 10, b"z" * 500, b"end", b"w" * 300]))
    monkeypatch.setattr(text_files, "BLOCK", block)
    assert read(path, max_characters=10) == ["short", LONG, "y" * 10, LONG, "end", LONG]


@pytest.mark.slow
def test_a_giant_line_is_never_held_in_memory(tmp_path):
    path = tmp_path / "giant.xz"
    with lzma.open(path, "wb", preset=0) as file:  # 400 MB in one line
        for _ in range(400):
            file.write(b"x" * 1_000_000)
        file.write(b"\nend\n")
    code = (
        "import sys, resource; from pathlib import Path\n"
        "from regard.data import text_files as files; files.MAX_EXPANSION = 10**9\n"
        # a child process starts with the peak memory of its parent
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print([line for block in files.lines(Path(sys.argv[1])) for line in block])\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert out[0] == str([LONG, "end"])
    assert int(out[1]) < 200, f"{out[1]} MiB"


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "ALWAYS_ALLOWED", 1 << 20)
    for packed in (gzip.compress, lzma.compress):
        path = tmp_path / "bomb"
        path.write_bytes(packed(b"a\n" * (8 << 20)))
        with pytest.raises(DataError, match="more than 300 times its size"):
            read(path)


def test_a_repetitive_small_file_is_accepted(tmp_path):
    assert len(read(write(tmp_path / "a.xz", b"same line\n" * 100_000))) == 100_000


@pytest.mark.skipif(sys.platform != "linux", reason="counts file handles by /proc")
def test_closing_early_leaves_no_thread_and_no_open_file(tmp_path):
    path = write(tmp_path / "a.gz", b"line\n" * 3_000_000)
    gc.collect()  # close handles of earlier tests before counting
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    result = lines(path)
    next(result)
    assert threading.active_count() == before[0] + 1
    result.close()
    gc.collect()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_several_compressed_members_are_one_text(tmp_path):
    path = tmp_path / "a"
    for packed in (gzip.compress, lzma.compress):
        path.write_bytes(packed(b"one\ntw") + packed(b"o\nthree\n") + b"\0" * 8)
        assert read(path) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty", b"", "is empty"),
        ("cut.gz", gzip.compress(b"text\n" * 9999, mtime=0)[:-20], "ends in the middle"),
        ("cut.xz", lzma.compress(b"text\n" * 9999)[:-20], "ends in the middle"),
        ("torn.gz", gzip.compress(bytes(range(256)) * 99, mtime=0)[:60] + b"?" * 90, "is damaged"),
        ("torn.xz", lzma.compress(bytes(range(256)) * 99)[:60] + b"?" * 90, "is damaged"),
        ("a.zip", b"PK\x03\x04....", "is a zip archive"),
        ("utf16", "text\n".encode("utf-16"), "is UTF-16"),
    ],
)
def test_an_unreadable_file_is_an_error_of_one_sentence(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(DataError, match="there is no file .*nowhere"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a folder"):
        read(tmp_path)


def test_progress_reports_every_byte(tmp_path):
    path = write(tmp_path / "a.gz", b"line\n" * 100_000)
    reported = []
    read(path, advance=reported.append)
    assert sum(reported) == path.stat().st_size
