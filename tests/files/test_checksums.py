"""Checksums of files. For damaged folders see models/test_tampering.py and training/test_step_folders.py."""

import pytest

from regard.errors import FolderError
from regard.files.atomic import foreign, write_folder
from regard.files.checksums import CHECKSUMS, file_sha256, verify_complete


def test_a_file_has_its_sha256_checksum(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


DEEP = "[" * 100_000 + "]" * 100_000


def test_checksums_nested_too_deep_are_errors_of_one_sentence(tmp_path):
    write_folder(tmp_path / "x", lambda place: (place / "a.txt").write_text("one", encoding="utf-8"))
    (tmp_path / "x" / CHECKSUMS).write_text(DEEP)
    with pytest.raises(FolderError, match="has no readable checksums.json"):
        verify_complete(tmp_path / "x")
    assert {path.name for path in foreign(tmp_path / "x")} == {"a.txt", CHECKSUMS}
