"""The attention operator beside its peers: time, error and memory. See `python -m benchmarks.attend --help`.

cases.py has what is measured, problem.py its inputs and the float64 truth, peers.py the other systems,
measure.py takes time, error and memory, report.py prints the tables.
"""
