"""The additive kernels of before they were split by level, to compare with; deleted once measured."""
