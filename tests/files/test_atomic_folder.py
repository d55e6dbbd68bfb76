"""Folders that are whole or not there, for real: truncated, flipped, full disks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regard.errors import FolderError
from regard.files import atomic_folder


def fill_with(text):
    return lambda place: (place / "a.txt").write_text(text, encoding="utf-8")


def test_a_folder_appears_with_its_checksums_and_nothing_else_is_left(tmp_path):
    atomic_folder.commit(tmp_path / "step-00000001", fill_with("one"))
    assert [f.name for f in tmp_path.iterdir()] == ["step-00000001"]
    atomic_folder.verify(tmp_path / "step-00000001")


def test_a_folder_that_is_there_is_replaced(tmp_path):
    for text in ("one", "two"):
        atomic_folder.commit(tmp_path / "x", fill_with(text))
    assert (tmp_path / "x" / "a.txt").read_text(encoding="utf-8") == "two"
    assert [f.name for f in tmp_path.iterdir()] == ["x"]


def test_an_error_while_writing_leaves_what_was_there(tmp_path):
    atomic_folder.commit(tmp_path / "x", fill_with("one"))

    def bad(place):
        (place / "a.txt").write_text("two", encoding="utf-8")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        atomic_folder.commit(tmp_path / "x", bad)
    atomic_folder.verify(tmp_path / "x")
    assert (tmp_path / "x" / "a.txt").read_text(encoding="utf-8") == "one"
    assert [f.name for f in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "no list"])
def test_a_damaged_folder_is_found_and_the_one_before_is_used(tmp_path, damage):
    for step in (1, 2):
        atomic_folder.commit(tmp_path / atomic_folder.name_of(step), fill_with("some text"))
    file = tmp_path / "step-00000002" / ("checksums.json" if damage == "no list" else "a.txt")
    if damage == "cut":
        os.truncate(file, 4)
    elif damage == "flip":
        content = bytearray(file.read_bytes())
        content[3] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()
    said = []
    assert atomic_folder.newest(tmp_path, said.append) == tmp_path / "step-00000001"
    assert len(said) == 1 and "step-00000002" in said[0] and "before it is used" in said[0]


def test_when_no_checkpoint_is_whole_that_is_said(tmp_path):
    atomic_folder.commit(tmp_path / "step-00000001", fill_with("x"))
    (tmp_path / "step-00000001" / "a.txt").write_text("y", encoding="utf-8")
    with pytest.raises(FolderError, match="none of the 1 checkpoints"):
        atomic_folder.newest(tmp_path, lambda text: None)


def test_no_checkpoint_at_all_is_none(tmp_path):
    assert atomic_folder.newest(tmp_path / "absent", print) is None


def test_steps_sort_as_numbers(tmp_path):
    for step in (1000, 9, 123456789):
        (tmp_path / atomic_folder.name_of(step)).mkdir()
    (tmp_path / ".step-00000010.writing").mkdir()
    assert [atomic_folder.step_of(f) for f in atomic_folder.steps(tmp_path)] == [9, 1000, 123456789]


def test_cleaning_takes_temporary_folders_too(tmp_path):
    for name in ("step-00000001", "step-00000002", ".step-00000003.writing"):
        (tmp_path / name).mkdir()
    atomic_folder.clean(tmp_path, {"step-00000002"})
    assert [f.name for f in tmp_path.iterdir()] == ["step-00000002"]


def test_cleaning_leaves_what_others_put_there(tmp_path):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for name in ("mine", "step-5", "step-00000001-kept", ".ipynb_checkpoints", "step-00000001"):
        (tmp_path / name).mkdir()
    atomic_folder.clean(tmp_path, ())
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        ".ipynb_checkpoints",
        "mine",
        "notes.txt",
        "step-00000001-kept",
        "step-5",
    ]


def test_what_others_put_into_a_folder_outlives_its_replacement(tmp_path):
    atomic_folder.commit(
        tmp_path / "x",
        lambda p: [(p / name).write_text("one", encoding="utf-8") for name in ("a.txt", "b.txt")],
    )
    (tmp_path / "x" / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / "x" / "more").mkdir()
    (tmp_path / "x" / "more" / "y").write_text("mine", encoding="utf-8")
    atomic_folder.commit(tmp_path / "x", fill_with("two"))
    atomic_folder.verify(tmp_path / "x")
    found = {
        str(f.relative_to(tmp_path / "x")): f.read_text(encoding="utf-8")
        for f in atomic_folder.files(tmp_path / "x")
    }
    found.pop("checksums.json")
    assert found == {"a.txt": "two", "README.md": "mine", "more/y": "mine"}


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FolderError, match=r"file cannot be written \(.*(exists|directory)"):
        atomic_folder.commit(tmp_path / "file" / "step-00000001", fill_with("x"))
    with pytest.raises(FolderError, match=r"gone cannot be written \(No such file"):
        atomic_folder.replace(tmp_path / "gone" / "x", b"")


def test_a_cut_last_line_is_left_out(tmp_path):
    (tmp_path / "log").write_text('{"a": 1}\n{"a": 2}\n{"a', encoding="utf-8")
    assert [e["a"] for e in atomic_folder.read_lines(tmp_path / "log")] == [1, 2]


WRITE = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from regard.errors import FolderError
from regard.files import atomic_folder as checkpoint
place = Path(sys.argv[1])
try:
    checkpoint.commit(place / "step-00000002", lambda p: save_file({"x": torch.zeros(1 << 20)}, p / "x.safetensors"))
except FolderError as error:
    print(error)
try:
    checkpoint.replace(place / "file", b"x" * (4 << 20))
except FolderError as error:
    print(error)
"""


def limit_file_size():
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def check_full(place, result):
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all("no room left" in line for line in lines), result
    atomic_folder.verify(place / "step-00000001")
    assert (place / "file").read_bytes() == b"old"
    assert sorted(f.name for f in place.iterdir()) == ["file", "step-00000001"]


def test_a_file_size_limit_is_a_clear_stop_and_damages_nothing(tmp_path):
    atomic_folder.commit(tmp_path / "step-00000001", fill_with("one"))
    (tmp_path / "file").write_bytes(b"old")
    command = [sys.executable, "-c", WRITE, str(tmp_path)]
    check_full(
        tmp_path,
        subprocess.run(command, capture_output=True, text=True, preexec_fn=limit_file_size, check=True),
    )


IN_A_SMALL_DISK = """
import subprocess, sys, json
from pathlib import Path
from regard.files import atomic_folder as checkpoint
place = Path(sys.argv[1])
checkpoint.commit(place / "step-00000001", lambda p: (p / "a.txt").write_text("one", encoding="utf-8"))
(place / "file").write_bytes(b"old")
found = subprocess.run([sys.executable, "-c", sys.argv[2], str(place)], capture_output=True, text=True, check=True)
checkpoint.verify(place / "step-00000001")
print(json.dumps([found.stdout.splitlines(), (place / "file").read_text(), sorted(f.name for f in place.iterdir())]))
"""


def test_a_full_disk_is_a_clear_stop_and_damages_nothing(tmp_path):
    """A real file system of 1 MiB, mounted in a name space of its own."""
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1" "$4"'
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        str(tmp_path),
        sys.executable,
    ]
    try:
        found = subprocess.run(
            [*command, IN_A_SMALL_DISK, WRITE], capture_output=True, text=True, timeout=120
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare on this system")
    if found.returncode and ("unshare" in found.stderr or "mount" in found.stderr):
        pytest.skip(f"no file system can be mounted here: {found.stderr.strip()}")
    assert found.returncode == 0, found.stderr
    said, content, names = json.loads(found.stdout)
    assert len(said) == 2 and all("no room left" in line and "No space left" in line for line in said)
    assert content == "old" and names == ["file", "step-00000001"]


KILLED = """
import sys
from pathlib import Path
from regard.files import atomic_folder as checkpoint
place, text = Path(sys.argv[1]), "x" * 300_000
print("ready", flush=True)
for n in range(100_000):
    checkpoint.commit(place / checkpoint.name_of(n % 3), lambda p: (p / "a.txt").write_text(text + str(n), encoding="utf-8"))
"""


def test_a_kill_at_any_moment_leaves_whole_folders_only(tmp_path):
    import random
    import time

    for n in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.02 + 0.2 * random.Random(n).random())
        process.send_signal(signal.SIGKILL)
        process.wait()
        for folder in atomic_folder.steps(Path(tmp_path)):
            atomic_folder.verify(folder)
