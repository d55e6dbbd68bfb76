"""Tests of sequence_files.py: arrays and tables of numbers, and what is wrong with others."""

import numpy as np
import pytest

from regard.data.sequence_files import (
    describe_array,
    is_sequence,
    is_sequence_file,
    read_sequence,
    sequence_count,
    split_reference,
)
from regard.errors import DataError

FRAMES = np.arange(12, dtype=np.float32).reshape(4, 3)


def refused(file):
    with pytest.raises(DataError) as error:
        read_sequence(file)
    return str(error.value)


def test_an_array_a_table_and_a_row_of_an_array_have_the_same_frames(tmp_path):
    np.save(tmp_path / "a.npy", FRAMES)
    np.save(tmp_path / "all.npy", np.stack([FRAMES * 0, FRAMES]).astype(np.float64))
    np.savetxt(tmp_path / "a.csv", FRAMES, delimiter=",")
    np.savetxt(tmp_path / "named.tsv", FRAMES, delimiter="\t", header="x\ty\tz", comments="")
    for name in ("a.npy", "all.npy#1", "a.csv", "named.tsv"):
        frames = read_sequence(str(tmp_path / name))
        assert frames.dtype == np.float32 and np.array_equal(frames, FRAMES)
    assert describe_array(tmp_path / "all.npy").endswith(": 2 sequences of 4 frames with 3 channels")
    assert sequence_count(tmp_path / "all.npy") == 2 and sequence_count(tmp_path / "a.npy") is None


def test_an_array_with_one_axis_is_a_sequence_of_one_channel(tmp_path):
    np.save(tmp_path / "a.npy", np.array([3, 1, 2], np.int16))
    assert read_sequence(tmp_path / "a.npy").tolist() == [[3], [1], [2]]


def test_a_table_of_numbers_is_told_from_a_table_of_file_names(tmp_path):
    for name, content, expected in (
        ("a.csv", "1,2\n3,4\n", True),
        ("named.tsv", "x\ty\n1\tbad\n", True),  # reading it names the bad cell
        ("list.csv", "file,label\na.npy,3\n", False),
        ("files.csv", "a.npy,3\n", False),
        ("empty.csv", "\n", False),
        ("list.txt", "a.npy\n", False),
    ):
        (tmp_path / name).write_text(content)
        assert is_sequence_file(str(tmp_path / name)) is expected, name
    assert is_sequence_file("all.npy#3") and is_sequence_file("a.npy")


def test_a_changed_file_is_read_again(tmp_path):
    np.save(tmp_path / "a.npy", FRAMES)
    read_sequence(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", FRAMES + 1)
    (tmp_path / "b.npy").replace(tmp_path / "a.npy")
    assert read_sequence(tmp_path / "a.npy")[0, 0] == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 4, 3)), "has shape (2, 4, 3), so it holds 2 sequences; name one, as in"),
        (np.zeros((0, 3)), "has no frames, its shape is (0, 3); leave it out"),
        (np.array([["a", "b"]]), "instead of numbers; give an array of frames × channels"),
        (np.array(1.0), "has shape (); a sequence has the shape (frames, channels)"),
        (np.array([[1.0, 2.0], [3.0, np.nan]]), "has nan at frame 1, channel 1; replace it by a number"),
        (np.array([[np.inf, 2.0]]), "has inf at frame 0, channel 0; replace it by a number"),
    ],
)
def test_arrays_that_are_no_sequence_are_refused_by_name(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    assert f"{tmp_path / 'a.npy'} " in refused(tmp_path / "a.npy") and message in refused(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "line 2 has 1 numbers, and line 1 has 2; every frame has the same channels"),
        ("x,y\n1,2\n3,four\n", "line 3: 'four' is not a number; correct it"),
        ("x,y\n", "has no frames"),
    ],
)
def test_tables_that_are_no_sequence_are_refused_with_their_line(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    assert message in refused(tmp_path / "a.csv")


def test_other_files_rows_that_are_not_there_and_pickles_are_refused(tmp_path):
    np.save(tmp_path / "all.npy", np.zeros((2, 4, 3)))
    np.save(tmp_path / "one.npy", FRAMES)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "a.txt").write_text("1 2")
    assert "has 2 sequences, numbered from 0, and #2 is not one" in refused(f"{tmp_path}/all.npy#2")
    assert "which is one sequence; leave out #0" in refused(f"{tmp_path}/one.npy#0")
    assert "is not a sequence of numbers; give a .npy, .csv or .tsv file" in refused(tmp_path / "a.txt")
    assert "is not an array of numbers" in refused(tmp_path / "objects.npy")
    assert "there is no file" in refused(tmp_path / "none.npy")


def test_a_reference_is_split_at_its_last_mark_if_a_number_follows():
    assert split_reference("a#b.npy#12")[1] == 12
    assert split_reference("a.npy#x")[1] is None and split_reference("a#1.csv")[1] is None


def test_paths_and_arrays_are_sequences_and_texts_are_not(tmp_path):
    assert is_sequence(tmp_path) and is_sequence(FRAMES) and is_sequence([FRAMES])
    assert not is_sequence("a.npy") and not is_sequence(["a", "b"]) and not is_sequence(5)
