"""What regard costs beside its peers. Start with `python benchmarks/operator.py --help`."""
