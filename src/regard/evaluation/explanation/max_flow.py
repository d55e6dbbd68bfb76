"""Maximum flow through a network with real capacities (Dinic 1970)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

SMALL = 1e-12  # a smaller capacity is a rounding error and counts as 0


class FlowNetwork:
    """A directed network.

    >>> network = FlowNetwork(4)
    >>> for a, b, capacity in [(0, 1, 0.5), (0, 2, 0.5), (1, 3, 0.7), (2, 3, 0.2)]:
    ...     network.add_edge(a, b, capacity)
    >>> network.max_flow(0, 3)
    0.7
    """

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]  # of each node, into the lists below
        self.head: list[int] = []
        self.capacity: list[float] = []  # edge e and its reverse e ^ 1

    def add_edge(self, start: int, end: int, capacity: float) -> None:
        for node, other, amount in ((start, end, capacity), (end, start, 0.0)):
            self.edges[node].append(len(self.head))
            self.head.append(other)
            self.capacity.append(amount)

    def max_flow(self, source: int, sink: int) -> float:
        """The largest flow from source to sink. The network is left as it was."""
        left, total = list(self.capacity), 0.0
        while True:
            level = self._levels(source, left)
            if level[sink] < 0:
                return total
            unused = [iter(edges) for edges in self.edges]
            current: list[int | None] = [next(it, None) for it in unused]
            while amount := self._augment(source, sink, level, left, unused, current):
                total += amount

    def _levels(self, source: int, left: list[float]) -> list[int]:
        """The distance of each node from the source over edges with capacity left; −1: unreachable."""
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                other = self.head[edge]
                if level[other] < 0 and left[edge] > SMALL:
                    level[other] = level[node] + 1
                    queue.append(other)
        return level

    def _augment(
        self,
        source: int,
        sink: int,
        level: list[int],
        left: list[float],
        unused: list[Iterator[int]],
        current: list[int | None],
    ) -> float:
        """Send flow along one path of increasing level; 0 if there is none. Dead ends are left behind."""
        path: list[int] = []
        node = source
        while node != sink:
            edge = current[node]
            if edge is None:  # a dead end
                if not path:
                    return 0.0
                back = path.pop()
                node = self.head[back ^ 1]
                current[node] = next(unused[node], None)
            elif left[edge] > SMALL and level[self.head[edge]] == level[node] + 1:
                path.append(edge)
                node = self.head[edge]
            else:
                current[node] = next(unused[node], None)
        amount = min(left[edge] for edge in path)
        for edge in path:
            left[edge] -= amount
            left[edge ^ 1] += amount
        return amount
