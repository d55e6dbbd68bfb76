"""Tests of forked.py: arguments, streams, exit codes and signals, the folder and environment of a process."""

import os
import signal
import subprocess

from tests import forked

SHOW = """
import os, sys
print(sys.argv, os.getcwd(), os.environ.get("REGARD_TOKEN"), sys.stdin.read())
sys.exit(int(sys.argv[1]))
"""


def test_a_process_has_its_arguments_streams_folder_environment_and_exit_code(tmp_path):
    done = forked.run(3, code=SHOW, input="ä 🐕", cwd=tmp_path, env=os.environ | {"REGARD_TOKEN": "x"})
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"['-c', '3'] {tmp_path} x ä 🐕\n"


def test_an_error_is_on_standard_error():
    done = forked.run(code="1 / 0")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr


def test_the_command_line_is_the_default():
    done = forked.run("cots")
    assert done.returncode == 2 and "No such command 'cots'" in done.stderr


def test_a_process_can_be_interrupted_and_killed():
    for number, code in ((signal.SIGINT, 1), (signal.SIGKILL, -9)):
        with forked.Popen(code="import time; print('ready', flush=True); time.sleep(600)") as process:
            assert process.stdout.readline() == "ready\n" and process.poll() is None
            process.send_signal(number)
            assert process.wait(120) == code


def test_pipes_are_used_line_by_line():
    process = forked.Popen(code="print(input(), flush=True); print(input())", stdin=subprocess.PIPE)
    process.stdin.write("one\n")
    process.stdin.flush()
    assert process.stdout.readline() == "one\n"
    assert process.communicate("two\n", 120) == ("two\n", "") and process.returncode == 0


def test_a_new_cache_has_only_the_compiled_code(tmp_path):
    folder = forked.new_cache(tmp_path / "cache")
    assert os.listdir(folder) == (["native"] if forked.NATIVE.exists() else [])
