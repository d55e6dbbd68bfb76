"""Layers over sequences, (..., T, dim) → (..., T, dim): attention in both forms of the lectures, convolution, recurrence."""
