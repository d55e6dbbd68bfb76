"""The conformance suite on attention functions of other libraries: python -m benchmarks.conformance."""
