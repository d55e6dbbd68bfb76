"""Tests of job.py and packing.py: outputs that can be interrupted at any moment and resumed."""

import gzip
import io
import lzma
import os
import resource
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from regard.errors import DataError, OptionError
from regard.pipelines.job import Outputs, Stream, open_output

ABOUT = {"model": "m", "beam": 1}


def begin(path, about=ABOUT, restart=False, more=()):
    return Outputs([open_output(item) for item in (path, *more)], about, restart)


def write(outputs, *texts):
    for text in texts:
        packed = [output.packing.pack(text) for output in outputs.outputs]
        outputs.commit(packed, outputs.lines + 1, f"digest {outputs.lines + 1}")


def leave(outputs):
    """Stop as a killed process does: outputs are not finished, files and lock are released."""
    for file in [outputs._journal, *outputs._files]:
        file._file.close()


@pytest.mark.parametrize(
    ("name", "unpack"), [("o.txt", bytes), ("o.gz", gzip.decompress), ("o.txt.xz", lzma.decompress)]
)
def test_a_resumed_job_gives_identical_bytes(tmp_path, name, unpack):
    full = begin(tmp_path / f"full.{name}")
    write(full, b"a\n", b"b\n", b"c\n")
    full.finish()
    path = tmp_path / name
    first = begin(path)
    write(first, b"a\n", b"b\n")
    os.write(first._files[0]._file.fileno(), b"half a chu")  # killed before the journal was updated
    leave(first)
    assert not path.exists()
    second = begin(path)
    assert (second.lines, second.digest) == (2, "digest 2")
    write(second, b"c\n")
    second.finish()
    assert path.read_bytes() == (tmp_path / f"full.{name}").read_bytes()
    assert unpack(path.read_bytes()) == b"a\nb\nc\n"
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"full.{name}"])


def test_a_truncated_journal_line_does_not_count(tmp_path):
    path = tmp_path / "o"
    first = begin(path)
    write(first, b"a\n", b"b\n")
    leave(first)
    journal = tmp_path / "o.progress"
    journal.write_bytes(journal.read_bytes()[:-5])
    second = begin(path)
    assert second.lines == 1
    write(second, b"b\n")
    second.finish()
    assert path.read_bytes() == b"a\nb\n"


def test_a_deeply_nested_journal_is_an_error(tmp_path):
    (tmp_path / "o.progress").write_bytes(b"[" * 100_000 + b"]" * 100_000 + b"\n")
    with pytest.raises(DataError, match="was not written by this command, or is damaged"):
        begin(tmp_path / "o")


def test_a_job_killed_while_renaming_is_resumed(tmp_path):
    path, beside = tmp_path / "o", tmp_path / "o.align"
    first = begin(path, more=(beside,))
    write(first, b"a\n")
    first._journal.add({"finished": True})
    os.replace(tmp_path / "o.part", path)
    leave(first)
    second = begin(path, more=(beside,))
    assert second.lines == 1
    second.finish()
    assert path.read_bytes() == beside.read_bytes() == b"a\n"
    assert sorted(os.listdir(tmp_path)) == ["o", "o.align"]


def test_other_settings_are_an_error_and_restart_starts_over(tmp_path):
    path = tmp_path / "o"
    first = begin(path)
    write(first, b"a\n")
    leave(first)
    with pytest.raises(OptionError, match=r"o was started with another beam \(1, now 5\); .*--restart"):
        begin(path, ABOUT | {"beam": 5})
    with pytest.raises(OptionError, match=r"o was started with another model; "):
        begin(path, ABOUT | {"model": "other"})
    with pytest.raises(OptionError, match=r"another seed \(not given, now 1\)"):
        begin(path, ABOUT | {"seed": 1})
    again = begin(path, ABOUT | {"beam": 5}, restart=True)
    assert again.lines == 0
    write(again, b"z\n")
    again.finish()
    assert path.read_bytes() == b"z\n"


def test_files_of_other_programs_are_not_changed(tmp_path):
    (tmp_path / "o.part").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"there is a file .*o\.part that this command did not create"):
        begin(tmp_path / "o")
    assert os.listdir(tmp_path) == ["o.part"]
    (tmp_path / "p.progress").write_bytes(b"mine\n")
    with pytest.raises(DataError, match=r"p\.progress was not written by this command"):
        begin(tmp_path / "p")
    assert (tmp_path / "p.progress").read_bytes() == b"mine\n"


def test_a_changed_partial_output_is_detected(tmp_path):
    first = begin(tmp_path / "o")
    write(first, b"aaaa\n")
    leave(first)
    (tmp_path / "o.part").write_bytes(b"a")
    with pytest.raises(DataError, match="shorter than its journal says"):
        begin(tmp_path / "o")


def test_an_older_output_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "o"
    path.write_bytes(b"old\n")
    outputs = begin(path)
    write(outputs, b"new\n")
    assert path.read_bytes() == b"old\n"
    outputs.finish()
    assert path.read_bytes() == b"new\n"


def test_two_jobs_cannot_write_the_same_output(tmp_path):
    first = begin(tmp_path / "o")
    with pytest.raises(DataError, match="another process is writing o"):
        begin(tmp_path / "o")
    first.finish()


def test_archives_of_chunks_become_one_archive(tmp_path):
    def archive(name):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr(name, name.upper())
        return buffer.getvalue()

    path = tmp_path / "o.npz"
    first = begin(path)
    write(first, archive("a"))
    leave(first)
    second = begin(path)
    write(second, archive("b"))
    second.finish()
    with zipfile.ZipFile(path) as file:
        assert {name: file.read(name) for name in file.namelist()} == {"a": b"A", "b": b"B"}
    assert os.listdir(tmp_path) == ["o.npz"]


def test_wrong_paths_are_errors_and_devices_are_written_directly(tmp_path):
    with pytest.raises(OptionError, match="is a folder"):
        open_output(tmp_path)
    with pytest.raises(OptionError, match="its folder does not exist"):
        open_output(tmp_path / "none" / "o")
    assert isinstance(open_output(Path("/dev/null")), Stream)


def test_a_full_device_is_an_error_in_one_sentence():
    outputs = Outputs([open_output(Path("/dev/full"))], {})
    with pytest.raises(DataError, match="the disk of /dev/full is full; 0 lines are written"):
        outputs.commit([b"a\n"], 1, "")


@pytest.mark.slow
def test_a_job_is_resumed_after_a_file_size_limit(tmp_path):
    """A file size limit simulates a full disk: both refuse a write in the middle."""
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from regard.pipelines.job import Outputs, open_output
        outputs = Outputs([open_output(Path(sys.argv[1]))], {"beam": 1})
        for i in range(outputs.lines, 100):
            outputs.commit([b"%04d\\n" % i * 200], i + 1, "")
        outputs.finish()
    """)
    run = [sys.executable, "-c", code, str(tmp_path / "o")]

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_500, 50_500))

    failed = subprocess.run(run, capture_output=True, text=True, preexec_fn=limited, timeout=60)
    assert (
        "cannot be written: File too large; 50 lines are written; rerun the same command to resume"
        in failed.stderr
    )
    assert subprocess.run(run, timeout=60).returncode == 0
    assert (tmp_path / "o").read_bytes() == b"".join(b"%04d\n" % i * 200 for i in range(100))
