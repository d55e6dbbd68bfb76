"""The attention operator beside its peers: time, error and memory in one table. See `python -m benchmarks.attend --help`.

Where things are: cases.py what is measured, problem.py its inputs and the float64 truth, peers.py the other systems,
measure.py how time, error and memory are taken, report.py how it is shown.
"""
