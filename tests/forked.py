"""Python processes that start without importing: forked from one that has imported torch and regard.

They have an id, pipes and an exit code of their own, so tests can kill them, interrupt them and talk to them.
Tests of how a process starts and ends (imports, a closed pipe) use subprocess instead. `new_cache` is for
processes that should find an empty cache.
"""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from subprocess import DEVNULL, PIPE

from regard.files.cache import cache_folder

REGARD = "from regard.cli.main import run; run()"
NATIVE = cache_folder() / "native"
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["regard.cli.main", "regard.serving.server"])


def new_cache(folder):
    """Make a folder for REGARD_CACHE that has only the compiled C++: compiling takes ten seconds."""
    folder.mkdir(exist_ok=True)
    if NATIVE.exists() and not (folder / "native").exists():
        (folder / "native").symlink_to(NATIVE)
    return str(folder)


def _execute(code, args, streams, folder, environment):
    """Run the code with these arguments, standard streams, working folder and environment variables."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = args
    exec(code, {"__name__": "__main__"})


class Popen:
    """The part of subprocess.Popen that the tests use, for Python code instead of a command."""

    def __init__(self, *args, code=REGARD, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=".", env=None):
        pipes = [self._open(stdin, "r"), self._open(stdout, "w"), self._open(stderr, "w")]
        self.stdin, self.stdout, self.stderr = (here for here, _ in pipes)
        there = [end for _, end in pipes]
        self.args = ["regard" if code == REGARD else "-c", *map(str, args)]
        options = (code, self.args, there, os.path.abspath(cwd), dict(env or os.environ))
        self.process = SERVER.Process(target=_execute, args=options)
        self.process.start()
        self.pid = self.process.pid
        for end in there:
            end.close()

    def _open(self, stream, mode):
        """This side of a stream, None if it has none, and the other side."""
        if stream is not PIPE:
            handle = os.open(os.devnull, os.O_RDWR) if stream is DEVNULL else os.dup(stream.fileno())
            return None, Connection(handle)
        read, write = os.pipe()
        here, there = (write, read) if mode == "r" else (read, write)
        return open(here, "w" if mode == "r" else "r", encoding="utf-8"), Connection(there)

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def wait(self, timeout=None):
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.process.exitcode

    def communicate(self, input=None, timeout=None):
        """Write the input, read to the end, wait; return standard output and standard error."""
        texts = {}
        streams = {"out": self.stdout, "err": self.stderr}
        readers = [
            threading.Thread(target=lambda name=name: texts.update({name: streams[name].read()}), daemon=True)
            for name in streams
            if streams[name] is not None and not streams[name].closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or "")
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self.close()
        return texts.get("out"), texts.get("err")

    def close(self):
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.process.terminate()

    def kill(self):
        self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self.close()


def run(*args, input=None, timeout=120, **options):
    """Run to the end, like subprocess.run with captured text."""
    process = Popen(*args, stdin=DEVNULL if input is None else PIPE, **options)
    try:
        out, err = process.communicate(input, timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
