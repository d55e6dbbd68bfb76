"""Answers to the exercises of lesson 10."""

import math
from itertools import pairwise


def bits(length, symbols):
    return length * math.log2(symbols)


def buckets(lengths, edges):
    limits = [0, *edges, math.inf]
    return [sum(a < n <= b for n in lengths) for a, b in pairwise(limits)]
