"""Answers to the exercises of lesson 1."""

import torch


def soft_lookup(query, keys, values, temperature):
    scores = -(keys - query).square().sum(1) / temperature
    return torch.softmax(scores, 0) @ values


def temperature_for(query, keys, share):
    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = (low * high) ** 0.5
        largest = soft_lookup(query, keys, torch.eye(len(keys)), middle).max()
        low, high = (middle, high) if largest > share else (low, middle)
    return middle
