"""Files and folders are complete or unchanged after errors, kills and full disks; folders are built once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import regard
from regard.errors import FolderError
from regard.files.atomic import build_folder, files_in, replace_file, write_file, write_folder
from regard.files.checksums import verify_complete
from regard.training.step_folders import step_folders
from tests import forked


def test_writing_replaces_and_leaves_nothing_else(tmp_path):
    write_file(tmp_path / "new" / "a.txt", "one")
    write_file(tmp_path / "new" / "a.txt", "zwei ü\n")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "zwei ü\n".encode()
    assert os.listdir(tmp_path / "new") == ["a.txt"]


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path):
    write_file(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_file(tmp_path / "a.txt", "half \ud83d")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_is_on_the_disk_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    part, path, calls = tmp_path / "a.part", tmp_path / "a", []
    part.write_text("all of it", encoding="utf-8")
    name_of = {os.stat(place).st_ino: place.name for place in (part, tmp_path)}
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (calls.append(name_of[os.fstat(handle).st_ino]), fsync(handle))
    )
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("replace"), replace(old, new)))
    replace_file(part, path)
    assert calls == ["a.part", "replace", tmp_path.name]
    assert path.read_text(encoding="utf-8") == "all of it" and os.listdir(tmp_path) == ["a"]


# These move a file or folder away: an output back to its part file, a cache entry before it is removed.
MOVED_AWAY = {"pipelines/job.py", "data/prepared_cache.py"}


def test_only_this_module_moves_a_file_to_its_final_name():
    package = Path(regard.__file__).parent
    renames = re.compile(r"\bos\.(replace|rename)\(|\.rename\(|\.replace\((path|target|final|library)\)")
    modules = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if renames.search(path.read_text(encoding="utf-8"))
    }
    assert modules == {"files/atomic.py"} | MOVED_AWAY


def fill_with(text):
    return lambda place: (place / "a.txt").write_text(text, encoding="utf-8")


def test_a_folder_appears_with_its_checksums_and_nothing_else_is_left(tmp_path):
    write_folder(tmp_path / "step-00000001", fill_with("one"))
    assert [f.name for f in tmp_path.iterdir()] == ["step-00000001"]
    verify_complete(tmp_path / "step-00000001")


def test_an_existing_folder_is_replaced(tmp_path):
    for text in ("one", "two"):
        write_folder(tmp_path / "x", fill_with(text))
    assert (tmp_path / "x" / "a.txt").read_text(encoding="utf-8") == "two"
    assert [f.name for f in tmp_path.iterdir()] == ["x"]


def test_an_error_while_writing_keeps_the_old_folder(tmp_path):
    write_folder(tmp_path / "x", fill_with("one"))

    def bad(place):
        (place / "a.txt").write_text("two", encoding="utf-8")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_folder(tmp_path / "x", bad)
    verify_complete(tmp_path / "x")
    assert (tmp_path / "x" / "a.txt").read_text(encoding="utf-8") == "one"
    assert [f.name for f in tmp_path.iterdir()] == ["x"]


def test_other_files_in_a_folder_survive_its_replacement(tmp_path):
    write_folder(
        tmp_path / "x",
        lambda p: [(p / name).write_text("one", encoding="utf-8") for name in ("a.txt", "b.txt")],
    )
    (tmp_path / "x" / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / "x" / "more").mkdir()
    (tmp_path / "x" / "more" / "y").write_text("mine", encoding="utf-8")
    write_folder(tmp_path / "x", fill_with("two"))
    verify_complete(tmp_path / "x")
    result = {
        str(f.relative_to(tmp_path / "x")): f.read_text(encoding="utf-8") for f in files_in(tmp_path / "x")
    }
    result.pop("checksums.json")
    assert result == {"a.txt": "two", "README.md": "mine", "more/y": "mine"}


def test_an_unwritable_folder_is_an_error_of_one_sentence(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FolderError, match=r"file cannot be written \(.*(exists|directory)"):
        write_folder(tmp_path / "file" / "step-00000001", fill_with("x"))


WRITE = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from regard.errors import FolderError
from regard.files.atomic import write_file, write_folder
from regard.files.checksums import verify_complete
from regard.training.step_folders import folder_name
place = Path(sys.argv[1])
try:
    save = lambda p: save_file({"x": torch.zeros(1 << 20)}, p / "x.safetensors")
    write_folder(place / "step-00000002", save)
except FolderError as error:
    print(error)
try:
    write_file(place / "file", b"x" * (4 << 20))
except FolderError as error:
    print(error)
"""


LIMIT_FILE_SIZE = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
"""


def test_a_file_size_limit_is_an_error_and_damages_nothing(tmp_path):
    write_folder(tmp_path / "step-00000001", fill_with("one"))
    (tmp_path / "file").write_bytes(b"old")
    result = forked.run(tmp_path, code=LIMIT_FILE_SIZE + WRITE)
    assert result.returncode == 0, result
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result
    assert all("File too large" in line and "free some space" in line for line in lines), result
    verify_complete(tmp_path / "step-00000001")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "step-00000001"]


IN_A_SMALL_DISK = """
import subprocess, sys, json
from pathlib import Path
from regard.files.atomic import write_file, write_folder
from regard.files.checksums import verify_complete
from regard.training.step_folders import folder_name
place = Path(sys.argv[1])
write_folder(place / "step-00000001", lambda p: (p / "a.txt").write_text("one", encoding="utf-8"))
(place / "file").write_bytes(b"old")
command = [sys.executable, "-c", sys.argv[2], str(place)]
done = subprocess.run(command, capture_output=True, text=True, check=True)
verify_complete(place / "step-00000001")
names = sorted(f.name for f in place.iterdir())
print(json.dumps([done.stdout.splitlines(), (place / "file").read_text(), names]))
"""


def test_a_full_disk_is_an_error_and_damages_nothing(tmp_path):
    """A file system of 1 MiB, mounted in a separate namespace."""
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
        done = subprocess.run([*command, IN_A_SMALL_DISK, WRITE], capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("there is no unshare on this system")
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    output, content, names = json.loads(done.stdout)
    assert len(output) == 2 and all("No space left" in line for line in output)
    assert content == "old" and names == ["file", "step-00000001"]


KILLED = """
import sys
from pathlib import Path
from regard.files.atomic import write_file, write_folder
from regard.files.checksums import verify_complete
from regard.training.step_folders import folder_name
place, text = Path(sys.argv[1]), "x" * 300_000
for n in range(100_000):
    write = lambda p: (p / "a.txt").write_text(text + str(n), encoding="utf-8")
    write_folder(place / folder_name(n % 3), write)
    if n == 0:
        print("ready", flush=True)
"""


def test_a_kill_at_any_moment_leaves_complete_folders_only(tmp_path):
    import random
    import time

    for n in range(3):
        process = forked.Popen(tmp_path, code=KILLED)
        process.stdout.readline()
        time.sleep(0.02 + 0.2 * random.Random(n).random())
        process.send_signal(signal.SIGKILL)
        process.wait()
        folders = step_folders(Path(tmp_path))
        for folder in folders:
            verify_complete(folder)  # raises FolderError for an incomplete one
        assert folders, "the process was killed before it wrote a folder"


def is_complete(folder):
    return (folder / "done").is_file()


def test_a_folder_is_built_once(tmp_path):
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "done").write_text("x")

    for _ in range(2):
        build_folder(tmp_path / "set", is_complete, build)
    assert len(calls) == 1
    assert sorted(os.listdir(tmp_path)) == ["set", "set.lock"]


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def build(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(tmp_path / "set", is_complete, build)
    assert os.listdir(tmp_path) == ["set.lock"]


def test_leftovers_of_a_killed_build_are_removed_and_a_damaged_folder_is_replaced(tmp_path):
    (tmp_path / "set.tmp-dead").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "junk").write_text("x")
    build_folder(tmp_path / "set", is_complete, lambda folder: (folder / "done").write_text("x"))
    assert sorted(os.listdir(tmp_path)) == ["set", "set.lock"]
    assert os.listdir(tmp_path / "set") == ["done"]


def slow_build(root, log):
    def build(folder):
        with open(log, "a", encoding="utf-8") as file:
            file.write("built\n")
        time.sleep(0.3)
        (folder / "done").write_text("x")

    build_folder(root / "set", is_complete, build)
    assert is_complete(root / "set")


def test_one_of_several_processes_builds_and_the_others_wait(tmp_path):
    options = {"target": slow_build, "args": (tmp_path, tmp_path / "log")}
    processes = [forked.SERVER.Process(**options) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "built\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_an_error_of_one_sentence(tmp_path):
    def build(folder):
        with open("/dev/full", "wb") as file:
            file.write(b"x" * 100_000)

    with pytest.raises(FolderError, match="No space left on device.*free some space"):
        build_folder(tmp_path / "set", is_complete, build)
    assert os.listdir(tmp_path) == ["set.lock"]


def test_a_folder_that_may_not_be_written_is_an_error_of_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match="cannot be written"):
        build_folder(tmp_path / "file" / "set", is_complete, lambda folder: None)
    with pytest.raises(FolderError, match="cannot be written"):
        write_file(tmp_path / "file" / "a.txt", "x")
