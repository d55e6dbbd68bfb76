"""Benchmark the attention operator against other libraries. See `python -m benchmarks.attend --help`.

cases.py lists the cases, problem.py builds their inputs and the float64 reference, peers.py calls the other
libraries, measure.py measures time, error and memory, report.py prints the tables.
"""
