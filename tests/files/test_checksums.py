"""Checksums of files. Damaged folders are in tests/models/test_tampering.py and tests/training/test_step_folders.py."""

from regard.files.checksums import file_sha256


def test_a_file_has_the_checksum_that_everyone_computes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
