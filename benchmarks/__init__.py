"""Benchmarks: each file or folder makes one table, with regard and its peers measured in one run."""
