"""Checkpoint folders: the newest complete one is found, and only our own folders are removed."""

import os

import pytest

from regard.errors import FolderError
from regard.files.atomic import write_folder
from regard.training.step_folders import folder_name, newest_complete, remove_except, step_folders, step_of


def fill_with(text):
    return lambda folder: (folder / "a.txt").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "no list"])
def test_a_damaged_folder_is_detected_and_the_one_before_is_used(tmp_path, damage):
    for step in (1, 2):
        write_folder(tmp_path / folder_name(step), fill_with("some text"))
    file = tmp_path / "step-00000002" / ("checksums.json" if damage == "no list" else "a.txt")
    if damage == "cut":
        os.truncate(file, 4)
    elif damage == "flip":
        content = bytearray(file.read_bytes())
        content[3] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()
    messages = []
    assert newest_complete(tmp_path, messages.append) == tmp_path / "step-00000001"
    assert len(messages) == 1 and "step-00000002" in messages[0] and "before it is used" in messages[0]


def test_an_error_says_that_no_checkpoint_is_complete(tmp_path):
    write_folder(tmp_path / "step-00000001", fill_with("x"))
    (tmp_path / "step-00000001" / "a.txt").write_text("y", encoding="utf-8")
    with pytest.raises(FolderError, match="none of the 1 checkpoints"):
        newest_complete(tmp_path, lambda text: None)


def test_without_checkpoints_there_is_no_newest_one(tmp_path):
    assert newest_complete(tmp_path / "absent", print) is None


def test_steps_sort_as_numbers(tmp_path):
    for step in (1000, 9, 123456789):
        (tmp_path / folder_name(step)).mkdir()
    (tmp_path / ".step-00000010.writing").mkdir()
    assert [step_of(f) for f in step_folders(tmp_path)] == [9, 1000, 123456789]


def test_removal_includes_temporary_folders(tmp_path):
    for name in ("step-00000001", "step-00000002", ".step-00000003.writing"):
        (tmp_path / name).mkdir()
    remove_except(tmp_path, {"step-00000002"})
    assert [f.name for f in tmp_path.iterdir()] == ["step-00000002"]


def test_removal_keeps_files_that_regard_did_not_write(tmp_path):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for name in ("mine", "step-5", "step-00000001-kept", ".ipynb_checkpoints", "step-00000001"):
        (tmp_path / name).mkdir()
    remove_except(tmp_path, ())
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        ".ipynb_checkpoints",
        "mine",
        "notes.txt",
        "step-00000001-kept",
        "step-5",
    ]
