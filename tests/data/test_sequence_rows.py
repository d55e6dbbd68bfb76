"""Tests of sequence_rows.py and prepare_sequences.py: files of sequences, until they are batches."""

import numpy as np
import pytest

from regard.data.batch_iterator import Batches
from regard.data.datasets import load_corpus
from regard.data.row_formats import ROW_FORMATS
from regard.data.sequence_rows import SequenceRowFormat
from regard.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")
LENGTHS = (5, 3, 4, 5, 2, 6)


@pytest.fixture
def table(tmp_path):
    """Six files of different lengths in a folder below that of the table."""
    (tmp_path / "sound").mkdir()
    draw, lines = np.random.default_rng(0), ["file,label,tags"]
    for i, length in enumerate(LENGTHS):
        np.save(tmp_path / "sound" / f"{i}.npy", draw.normal(size=(length, 2)).astype(np.float32))
        lines.append(f"sound/{i}.npy,{'ab'[i % 2]},{' '.join(['O'] * length)}")
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "all.csv"


def load(task, table, **data):
    rows = SequenceRowFormat(ROW_FORMATS[task])
    block = {"train": [str(table)], "source": "file", **data}
    return load_corpus(block, {"kind": "word"}, rows)


def test_a_batch_has_the_standardized_frames_of_the_files(table):
    corpus = load("classify", table, target="label")
    (batch,) = Batches(corpus.train, tokens=100, seed=0, shuffle=False).once()
    for row, frames, length, target in zip(
        batch.rows.tolist(), batch.source, batch.source_lengths.tolist(), batch.target.tolist(), strict=True
    ):
        expected = corpus.source_tokenizer.encode(str(table.parent / "sound" / f"{row}.npy"))
        np.testing.assert_array_equal(frames[:length].numpy(), expected)
        assert length == LENGTHS[row] and (frames[length:] == 0).all()
        assert corpus.target_tokenizer.decode(target) == "ab"[row % 2]


def test_each_frame_needs_one_tag(table):
    assert load("tag", table, target="tags").train.rows == 6
    table.write_text(table.read_text().replace("O O O O O O", "O O O O O"))
    with pytest.raises(DataError, match=r"line 7, column 3: .*5.npy has 6 frames and there are 5 tags; each"):
        load("tag", table, target="tags")


def test_sequences_over_max_length_are_counted(table):
    report = load("classify", table, target="label", max_length=4).train.report
    assert (report.kept, report.long, report.source_tokens) == (3, 3, 9)


def test_a_changed_file_is_prepared_again(table):
    before = load("classify", table, target="label").train.checksum
    np.save(table.parent / "sound" / "2.npy", np.ones((4, 2), np.float32))
    assert load("classify", table, target="label").train.checksum != before


def test_held_out_rows_do_not_depend_on_the_folder(table, tmp_path):
    first = load("classify", table, target="label", hold_out=0.34).validation
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (table.parent / "sound").rename(moved / "sound")
    table.rename(moved / "all.csv")
    second = load("classify", moved / "all.csv", target="label", hold_out=0.34).validation
    assert len(first.sources) == 2
    assert [s[-5:] for s in first.sources] == [s[-5:] for s in second.sources]


def test_an_array_and_a_file_of_targets_are_pairs(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4, 2)) + np.arange(3)[:, None, None])
    (tmp_path / "y.txt").write_text("a b\nc\na\n")
    rows = SequenceRowFormat(ROW_FORMATS["translate"]).read(
        [[tmp_path / "x.npy", tmp_path / "y.txt"]], None, None
    )
    expected = [(f"{tmp_path / 'x.npy'}#{i}", text) for i, text in enumerate(("a b", "c", "a"))]
    assert list(rows) == expected
    (tmp_path / "y.txt").write_text("a b\nc\n")
    with pytest.raises(
        DataError, match=r"x.npy has 3 sequences and .*y.txt has 2 lines; line n is the target"
    ):
        list(rows)


def test_wrong_files_are_named(table, tmp_path):
    rows = SequenceRowFormat(ROW_FORMATS["classify"])
    np.save(tmp_path / "one.npy", np.zeros((4, 2)))
    with pytest.raises(DataError, match="one.npy holds one sequence, and a file of targets needs an array"):
        list(rows.read([[tmp_path / "one.npy", table]], None, None))
    with pytest.raises(DataError, match="one.npy has no targets; name it with the file of its targets"):
        rows.read([tmp_path / "one.npy"], None, None)
    table.write_text("file,label\nsound/0.npy,a\nsound/9.npy,b\n")
    with pytest.raises(DataError, match=r"all.csv line 3, column 1: there is no file .*sound/9.npy"):
        rows.read([table], None, None).check()
    np.save(tmp_path / "sound" / "9.npy", np.full((2, 2), np.nan))
    with pytest.raises(DataError, match="9.npy has nan at frame 0, channel 0"):
        load("classify", table, target="label")
