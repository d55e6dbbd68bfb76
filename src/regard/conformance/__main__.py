"""Test any attention function with random calls against the definition of attention in float64."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter

from regard.conformance.actions import Backend, load
from regard.conformance.cases import CLASSES, case
from regard.conformance.verdicts import Outcome, check

EPILOG = """
A backend is a function (query, key, value, mask=None, bias=None, causal=False) of tensors
(..., heads, time, dim).
  mask    boolean, True where attention is allowed; broadcasts to (..., heads, Tq, Tk)
  bias    added to the scores before the softmax; broadcasts like the mask
  causal  True in place of a causal mask, only with as many queries as keys
Omit the arguments that your function does not have: a call that needs them counts as refused, and so does
every exception. A wrong result is "unspecified" if it differs only because a query may see no key or because
a masked key holds NaN, which most libraries do not document. Any other wrong result without an exception is
"silently wrong".

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
        "--cases", type=int, default=40, metavar="N", help="random calls per class (default 40)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the first call of each class (default 0)"
    )
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        metavar="NAME",
        help=f"run only this class; repeatable: {'; '.join(CLASSES)}",
    )
    parser.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="device to run on (default cpu)"
    )
    args = parser.parse_args(argv)
    unknown = [name for name in args.classes or () if name not in CLASSES]
    if unknown:
        parser.error(f"there is no class {unknown[0]!r}; the classes are {'; '.join(CLASSES)}")
    if args.cases < 1:
        parser.error(f"--cases must be at least 1, got {args.cases}")
    try:
        backend = load(args.backend)
    except ValueError as error:
        parser.error(str(error))
    warnings.simplefilter("ignore")
    wrong = [x for name in args.classes or CLASSES for x in _run_class(name, backend, args)]
    for outcome in wrong[:10]:
        print(f"\n# {outcome.case}\n{outcome.reproduction(args.backend)}")
    if len(wrong) > 10:
        print(f"\n… and {len(wrong) - 10} more that are silently wrong")
    return 1 if wrong else 0


def _run_class(name: str, backend: Backend, args: argparse.Namespace) -> list[Outcome]:
    """Run one class and print its row. Returns the outcomes that are silently wrong."""
    counts, reasons, wrong = Counter[str](), Counter[str](), []
    start = time.perf_counter()
    for i in range(args.cases):
        outcome = check(case(name, args.seed + i), backend, args.device)
        counts[outcome.verdict] += 1
        if outcome.verdict == "wrong":
            wrong.append(outcome)
        elif outcome.verdict == "refused":
            reasons[outcome.detail[:80]] += 1
        elapsed = time.perf_counter() - start
        if elapsed > 2 and sys.stderr.isatty():
            left = elapsed / (i + 1) * (args.cases - i - 1)
            progress = f"{i + 1}/{args.cases}, {(i + 1) / elapsed:.0f} cases/s, {left:.0f} s left"
            print(f"\r{name}: {progress} ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    reason = f"  (mostly: {reasons.most_common(1)[0][0]})" if reasons else ""
    columns = "".join(
        f"{counts[verdict]:>5} {verdict if verdict != 'wrong' else 'silently wrong'}"
        for verdict in ("pass", "refused", "unspecified", "wrong")
    )
    print(f"{name:<22}{columns}{reason}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
