"""Answers to the exercises of lesson 18."""

from itertools import combinations


def kendall(a, b):
    pairs = list(combinations(range(len(a)), 2))
    signs = [1 if (a[i] - a[j]) * (b[i] - b[j]) > 0 else -1 for i, j in pairs]
    return sum(signs) / len(pairs)


def total_variation(p, q):
    return sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2
