"""Arrays on disk are ordinary .npy files."""

import numpy as np
import pytest

from regard.files.arrays import GrowingArray, read_array


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_an_array_grows_on_disk_and_is_an_ordinary_npy(tmp_path, dtype):
    parts = [np.arange(n, dtype=np.int64) % 65536 for n in (0, 5, 100_000, 1)]
    with GrowingArray(tmp_path / "a.npy", dtype) as array:
        for part in parts:
            array.append(part)
    arrays = np.load(tmp_path / "a.npy")
    assert arrays.dtype == dtype
    assert np.array_equal(arrays, np.concatenate(parts))
    assert np.array_equal(read_array(tmp_path / "a.npy"), arrays)


def test_an_empty_array_can_be_read(tmp_path):
    with GrowingArray(tmp_path / "a.npy", np.uint16):
        pass
    assert read_array(tmp_path / "a.npy").shape == (0,)
