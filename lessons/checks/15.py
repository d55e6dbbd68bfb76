"""Checks of lesson 15."""

import torch
from torch.overrides import TorchFunctionMode

from regard.evaluation import cost
from regard.layers import MultiHead, Recurrence
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def crossover(answer):
    for dim in (8, 64):
        T = answer(dim)
        require_close(float(T), 2.5 * dim, f"the length for width {dim}")
        attention = cost(MultiHead(dim, heads=1, project=False, linear_bias=False), int(T)).operations
        if attention != cost(Recurrence(dim, cell="lstm", bias=False), int(T)).operations:
            raise WrongAnswer(f"at T = {T} and width {dim} the counts differ")
    return "regard.evaluation.cost counts the same for both layers there"


class _Counter(TorchFunctionMode):
    """Count calls of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


@exercise
def scan(answer):
    length = 1024
    a, b = torch.rand(length, dtype=torch.float64), torch.randn(length, dtype=torch.float64)
    expected, h = [], 0.0
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        h = x * h + y
        expected.append(h)
    with _Counter() as counter:
        got = answer(a, b)
    require_close(got, torch.tensor(expected, dtype=torch.float64), "the states")
    require_close(answer(a[:5], b[:5]), torch.tensor(expected[:5], dtype=torch.float64), "five states")
    if counter.calls > length // 4:
        raise WrongAnswer(
            f"it takes {counter.calls} operations for T = 1024; log₂ T rounds need about 10 each"
        )
    return f"it takes {counter.calls} operations for T = 1024"
