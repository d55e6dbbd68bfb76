"""Test any attention function: calls drawn by class of input, compared with the definition of attention in float64."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter

from regard.conformance.cases import CLASSES, case
from regard.conformance.judge import Backend, Outcome, check, load

EPILOG = """
A backend is a function (query, key, value, mask=None, bias=None, causal=False) of tensors shaped (..., heads, time, dim).
  mask    boolean, True where attention is allowed; broadcasts to (..., heads, Tq, Tk)
  bias    added to the scores before the softmax; broadcasts like the mask
  causal  True in place of a causal mask, only with as many queries as keys
Leave out the arguments that your function does not have: a call that needs them counts as refused. Every exception counts as
refused too. A result is unspecified if it differs only because a query may see no key, or because a masked key holds NaN: most
libraries do not say what they do then. Only another wrong result without an exception is "silently wrong".

The exit status is 0 if no call was silently wrong, 1 if one was, 2 if the command line is wrong.

examples:
  python -m regard.conformance --backend regard.conformance.backends:torch_sdpa
  python -m regard.conformance --backend mypackage.attention:attend --class strides --class masks --cases 500
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m regard.conformance",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--backend",
        required=True,
        metavar="MODULE:FUNCTION",
        help="the function to test, for example mypackage.attention:attend",
    )
    parser.add_argument(
        "--cases", type=int, default=40, metavar="N", help="calls drawn from each class (default 40)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the first call of each class (default 0)"
    )
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        metavar="NAME",
        help=f"only this class; repeatable: {'; '.join(CLASSES)}",
    )
    parser.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="where the function runs (default cpu)"
    )
    given = parser.parse_args(argv)
    unknown = [name for name in given.classes or () if name not in CLASSES]
    if unknown:
        parser.error(f"there is no class {unknown[0]!r}; the classes are {'; '.join(CLASSES)}")
    if given.cases < 1:
        parser.error(f"--cases must be at least 1, got {given.cases}")
    try:
        backend = load(given.backend)
    except ValueError as error:
        parser.error(str(error))
    warnings.simplefilter("ignore")
    wrong = [x for name in given.classes or CLASSES for x in _class(name, backend, given)]
    for outcome in wrong[:10]:
        print(f"\n# {outcome.case}\n{outcome.reproduction(given.backend)}")
    if len(wrong) > 10:
        print(f"\n… and {len(wrong) - 10} more that are silently wrong")
    return 1 if wrong else 0


def _class(name: str, backend: Backend, given: argparse.Namespace) -> list[Outcome]:
    """Run one class and print its row. Returns the outcomes that are silently wrong."""
    counts, reasons, wrong = Counter[str](), Counter[str](), []
    began = time.perf_counter()
    for i in range(given.cases):
        outcome = check(case(name, given.seed + i), backend, given.device)
        counts[outcome.verdict] += 1
        if outcome.verdict == "wrong":
            wrong.append(outcome)
        elif outcome.verdict == "refused":
            reasons[outcome.detail[:80]] += 1
        spent = time.perf_counter() - began
        if spent > 2 and sys.stderr.isatty():
            left = spent / (i + 1) * (given.cases - i - 1)
            print(
                f"\r{name}: {i + 1}/{given.cases}, {(i + 1) / spent:.0f} cases/s, {left:.0f} s left ",
                end="",
                file=sys.stderr,
            )
    if sys.stderr.isatty():
        print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    why = f"  (mostly: {reasons.most_common(1)[0][0]})" if reasons else ""
    shown = "".join(
        f"{counts[x]:>5} {x if x != 'wrong' else 'silently wrong'}"
        for x in ("pass", "refused", "unspecified", "wrong")
    )
    print(f"{name:<22}{shown}{why}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
