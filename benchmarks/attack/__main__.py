"""Attack regard for some minutes and report what failed.

    python -m benchmarks.attack                              # all parts, what `make soak` runs
    python -m benchmarks.attack --quick                      # a tenth or less, as the tests run it
    python -m benchmarks.attack --part kills --seed 7        # one part, other random numbers
    python -m benchmarks.attack --part calls --only 1234     # one case, as a failure names it

Ends with a table and exit code 0, or 1 when anything failed; a failure is one line with the command that
repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.attack.outcome import Outcome

PARTS = ("calls", "folders", "kills", "requests")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack",
        description="Attack regard for some minutes and report what failed.",
    )
    parser.add_argument("--part", choices=PARTS, help="run one part only")
    parser.add_argument("--quick", action="store_true", help="run a tenth or less of every part")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (default 1)")
    parser.add_argument(
        "--only", type=int, metavar="N", help="with --part: run case N alone, to repeat a failure"
    )
    options = parser.parse_args(argv)
    if options.only is not None and options.part is None:
        parser.error("--only N needs --part: cases are numbered within a part")
    return options


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="regard-attack-") as temporary_folder:
        # Set before torch is imported: two threads on shared cores slow each other down.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        use_own_cache(Path(temporary_folder) / "cache")
        outcomes: list[Outcome] = []
        stopped = True
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C: the table of what was done
            run_parts(options, Path(temporary_folder), outcomes)
            stopped = False
    from benchmarks.attack.outcome import table

    print(f"seed {options.seed}\n{table(outcomes)}")
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failures:
        print(failure)
    if stopped:
        return 130
    return 1 if failures or not all(outcome.count for outcome in outcomes) else 0


def use_own_cache(folder: Path) -> None:
    """Keep prepared data and checksums in a folder of this run; compiled code stays in the user's cache."""
    from regard.attention.kernels import build_cpp, native
    from regard.decoding.engine import cpp_engine as engine
    from regard.files.cache import cache_folder

    for source in (native._SOURCE, engine._SOURCE):
        build_cpp.library(source)
    folder.mkdir()
    compiled_code = cache_folder() / "native"
    if compiled_code.is_dir():
        (folder / "native").symlink_to(compiled_code)
    os.environ["REGARD_CACHE"] = str(folder)


def run_parts(options: argparse.Namespace, folder_of_run: Path, outcomes: list[Outcome]) -> None:
    """Run the parts, each in its own folder, and collect their outcomes."""
    from benchmarks.attack.outcome import Plan

    for part in PARTS if options.part is None else (options.part,):
        folder = folder_of_run / part
        folder.mkdir()
        module = importlib.import_module(f"benchmarks.attack.{part}")
        outcomes += module.run(Plan(options.seed, options.quick, folder, options.only))


if __name__ == "__main__":
    sys.exit(main())
