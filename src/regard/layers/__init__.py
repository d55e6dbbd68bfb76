"""Layers over sequences, (..., T, dim) → (..., T, dim): multi-head attention, convolution, recurrence."""
