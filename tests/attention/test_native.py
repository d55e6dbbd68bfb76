"""Native code: the library cache is private, results equal the reference, out of memory is an error.

Covers build_cpp.py.
"""

import functools
import os
import subprocess
import sys

import pytest
import torch

import regard
from regard.attention.kernels import build_cpp, native
from regard.errors import KernelError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("REGARD_NATIVE", raising=False)
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }\n')
    # A list of loaded libraries of its own: other tests keep theirs.
    monkeypatch.setattr(build_cpp, "library", functools.cache(build_cpp.library.__wrapped__))
    if build_cpp._compiler() is None:
        pytest.skip("needs a C++ compiler")
    return source


def test_the_cache_folder_is_private(cache, tmp_path):
    loaded = build_cpp.library(cache)
    assert not isinstance(loaded, str) and loaded.one() == 1
    (library,) = (tmp_path / "native").glob("*.so")
    assert (tmp_path / "native").stat().st_mode & 0o777 == 0o700 and library.stat().st_mode & 0o077 == 0


def test_a_cache_folder_that_cannot_be_written_is_named_before_compiling(cache, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_CACHE", str(cache / "folder"))  # in a file: nobody can write it
    reason = build_cpp.library(cache)
    assert isinstance(reason, str)
    assert f"{cache / 'folder' / 'native'} cannot be written (Not a directory)" in reason
    assert "set REGARD_CACHE to a folder that you can write" in reason
    assert capsys.readouterr().err == ""


def test_a_compiler_that_takes_too_long_is_named_in_a_sentence(cache, tmp_path, monkeypatch):
    slow = tmp_path / "slow-compiler"
    slow.write_text("#!/bin/sh\nsleep 20\n")
    slow.chmod(0o700)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build_cpp, "_SECONDS", 1)
    assert build_cpp.library(cache) == (
        "the compiler did not finish in 1 seconds; try again on a less busy machine"
    )


@pytest.mark.parametrize("what", ["folder", "library"])
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_code_that_others_may_write_is_not_loaded(cache, tmp_path, what, mode):
    build_cpp.library(cache)
    build_cpp.library.cache_clear()
    (library,) = (tmp_path / "native").glob("*.so")
    path = library if what == "library" else tmp_path / "native"
    path.chmod(mode)
    reason = build_cpp.library(cache)
    assert (
        isinstance(reason, str)
        and reason.startswith(f"others may write to {path}")
        and "chmod go-w" in reason
    )


@pytest.mark.parametrize("what", ["folder", "library"])
def test_code_of_another_user_is_not_loaded(cache, tmp_path, what, monkeypatch):
    build_cpp.library(cache)
    build_cpp.library.cache_clear()
    (library,) = (tmp_path / "native").glob("*.so")
    path = library if what == "library" else tmp_path / "native"
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        if what == "library":
            pytest.skip("needs root to give a file away")
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert f"{path} belongs to another user" in str(build_cpp.library(cache))


@pytest.mark.slow
def test_libraries_loaded_by_other_packages_do_not_change_the_compiled_library():
    """Once, a process with scikit-learn's OpenMP compiled the library again and linked the wrong runtime."""
    pytest.importorskip("sklearn")
    code = """
import sys
from regard.attention.kernels import build_cpp, native
before = build_cpp._build(native._SOURCE)
import sklearn.cluster
assert build_cpp._build(native._SOURCE) == before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CALLS = """
import torch, regard
from regard.attention.kernels import native
from regard.errors import KernelError
loaded = native.library(native._SOURCE)
torch.manual_seed(0)
for energy in (regard.ScaledDot(), regard.attention.Distance(), regard.Additive(16)):
    for Tq in (1, 40):
        q, k = (torch.randn(1, 2, T, 16, requires_grad=True) for T in (Tq, 40))
        call = lambda: regard.attend(q, k, k, energy=energy, kernel="cpp")
        good = call()
        loaded.regard_limit(64)
        for what in (call, good.sum().backward):
            try:
                what()
            except KernelError as error:
                assert "got no memory" in str(error), error
            else:
                raise SystemExit("no error")
        loaded.regard_limit(2**62)
        assert torch.equal(call(), good)
print("fine")
"""


def test_running_out_of_memory_raises_an_error():
    if reason := native.unavailable():
        pytest.skip(reason)
    code = CALLS.replace("2**62", "__import__('ctypes').c_int64(2**62)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(("code", "sentence"), [(1, "got no memory"), (2, r"failed \(code 2\)")])
def test_return_codes_of_native_functions_become_errors(code, sentence):
    build_cpp.check_code(0, "attention")
    with pytest.raises(KernelError, match=sentence):
        build_cpp.check_code(code, "attention")


def test_results_equal_the_reference():
    if reason := native.unavailable():
        pytest.skip(reason)
    x = torch.randn(2, 2, 33, 16)
    torch.testing.assert_close(
        regard.attend(x, x, x, kernel="cpp"), regard.attend(x, x, x, kernel="reference")
    )
