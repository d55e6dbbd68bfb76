"""python -m regard.conformance --backend package.module:function: how an attention function does on every class of input."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter

from regard.conformance.cases import CLASSES, case
from regard.conformance.judge import Backend, Outcome, check, load

EPILOG = """
A backend is a function (query, key, value, mask=None, bias=None, causal=False) on tensors of shape (..., heads, time, dim); it
takes the options it has arguments for. mask is boolean, True where attention is allowed; bias is added to the scores before the
softmax. Options that it has no argument for count as refused, and so does every exception: what counts against a function is a
wrong number without a word.

examples:
  python -m regard.conformance --backend regard.conformance.backends:torch_sdpa
  python -m regard.conformance --backend mypackage.attention:attend --class strides --class masks --cases 500
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m regard.conformance", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", required=True, help="package.module:function, or a regard backend such as regard.conformance.backends:cpp"
    )
    parser.add_argument("--cases", type=int, default=40, help="cases of each class (default 40)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case (default 0)")
    parser.add_argument(
        "--class", dest="classes", action="append", metavar="NAME", help=f"only this class, repeatable: {', '.join(CLASSES)}"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    given = parser.parse_args(argv)
    unknown = [name for name in given.classes or () if name not in CLASSES]
    if unknown:
        parser.error(f"no class is called {unknown[0]!r}; there are {', '.join(CLASSES)}")
    if given.cases < 1:
        parser.error(f"--cases must be at least 1, got {given.cases}")
    try:
        backend = load(given.backend)
    except ValueError as error:
        parser.error(str(error))
    warnings.simplefilter("ignore")
    wrong = [x for name in given.classes or CLASSES for x in _class(name, backend, given)]
    for outcome in wrong[:10]:
        print(f"\n{outcome.case}\n{outcome.reproduction(given.backend)}")
    if len(wrong) > 10:
        print(f"\n… and {len(wrong) - 10} more")
    return 1 if wrong else 0


def _class(name: str, backend: Backend, given: argparse.Namespace) -> list[Outcome]:
    """Run one class and print its row; the wrong outcomes."""
    counts, reasons, wrong = Counter[str](), Counter[str](), []
    began = time.perf_counter()
    for i in range(given.cases):
        outcome = check(case(name, given.first + i), backend, given.device)
        counts[outcome.verdict] += 1
        if outcome.verdict == "wrong":
            wrong.append(outcome)
        elif outcome.verdict == "refused":
            reasons[outcome.detail[:80]] += 1
        spent = time.perf_counter() - began
        if spent > 2 and sys.stderr.isatty():
            left = spent / (i + 1) * (given.cases - i - 1)
            print(f"\r{name}: {i + 1}/{given.cases}, {(i + 1) / spent:.0f} cases/s, {left:.0f} s left ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    why = f"  ({reasons.most_common(1)[0][0]})" if reasons else ""
    print(f"{name:<22}{counts['pass']:>5} pass {counts['refused']:>5} refused {counts['wrong']:>5} silently wrong{why}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
