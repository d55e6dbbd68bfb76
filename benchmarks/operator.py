"""regard's operator beside its peers: time, error and memory, one table. `python benchmarks/operator.py --help` says more.

Where things are: cases.py what is measured, problem.py its inputs and the float64 truth, peers.py the other systems,
measure.py how time, error and memory are taken, report.py how it is shown.
"""

import os.path
import sys

# A script's own folder leads sys.path, and there this file would stand before Python's own `operator`.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
