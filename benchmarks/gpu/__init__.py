"""Kernels on a GPU (band.py), and what the GPU benchmarks share (timing.py, marian.py)."""
