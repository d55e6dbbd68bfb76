"""Weights on demand: watch a model, run it by any kernel, and ask afterwards for the rows one wants to see.

A recorded call keeps copies of its queries and keys, so that what it says stays true when a cache is overwritten or a
weight is trained on. Weights are those before dropout. Nothing is recorded, and nothing costs anything, outside `watch`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.bias import Bias
from regard.attention.call import Call
from regard.attention.energy import Energy
from regard.attention.grid import Index
from regard.attention.kernels import reference
from regard.attention.mask import Mask
from regard.attention.normalize import Normalizer
from regard.errors import OptionError, ShapeError

Pick = int | slice | Sequence[int] | Tensor | None


class _Watch:
    """What one `watch` has seen so far."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.path: list[str] = []  # the modules being run, innermost last
        self.kind: str | None = None  # "self" or "cross", when a layer says so
        self.bare = 0

    def enter(self, name: str) -> None:
        """A module begins; not when another thread runs the same model and nobody watches there."""
        if self in _watches.get():
            self.path.append(name)

    def leave(self) -> None:
        if self in _watches.get():
            self.path.pop()


_watches: ContextVar[tuple[_Watch, ...]] = ContextVar("regard_watches", default=())


def watching() -> bool:
    return not torch.compiler.is_compiling() and bool(_watches.get())


@contextmanager
def kind_of(kind: str) -> Iterator[None]:
    """Calls inside are self- or cross-attention; used by layers, so that what is seen has a readable name."""
    watches = _watches.get()
    for watch in watches:
        watch.kind = kind
    try:
        yield
    finally:
        for watch in watches:
            watch.kind = None


def record(call: Call) -> None:
    for watch in _watches.get():
        watch.seen._add(_name(watch), Recorded(_frozen(call)))


def _name(watch: _Watch) -> str:
    path = watch.path[-1] if watch.path else ""
    if not path:
        if watch.kind is not None:
            return watch.kind
        watch.bare += 1
        return f"attend.{watch.bare - 1}"
    last = path.rsplit(".", 1)[-1]
    return path if watch.kind in (None, last) else f"{path}.{watch.kind}"


@contextmanager
def watch(model: nn.Module | None = None) -> Iterator[Seen]:
    """Record every attention call inside, named by the path of the module in `model` that made it, plus self or cross.

    A bare `attend` is named by order of call: attend.0, attend.1, …
    """
    if model is not None and not isinstance(model, nn.Module):
        raise OptionError(f"watch takes a torch module or nothing, got {type(model).__name__}")
    if hasattr(model, "_orig_mod"):
        raise OptionError("torch.compile hides attention calls from watch; run and watch the model from before compiling")
    state = _Watch()
    hooks = []
    for name, module in model.named_modules() if model is not None else ():
        if name:
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: state.enter(name)))
            hooks.append(module.register_forward_hook(lambda *_: state.leave(), always_call=True))
    token = _watches.set((*_watches.get(), state))
    try:
        yield state.seen
    finally:
        _watches.reset(token)
        for hook in hooks:
            hook.remove()


class Seen:
    """What was watched: `seen["decoder.3.cross"]` is the last call of that name, `seen.calls(name)` all of them in order."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Recorded]] = {}

    def _add(self, name: str, recorded: Recorded) -> None:
        self._calls.setdefault(name, []).append(recorded)

    def calls(self, name: str) -> list[Recorded]:
        if name not in self._calls:
            known = ", ".join(self._calls) or "nothing: no attention ran"
            raise OptionError(f"nothing called {name!r} was seen; seen were {known}")
        return self._calls[name]

    def __getitem__(self, name: str) -> Recorded:
        return self.calls(name)[-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, name: object) -> bool:
        return name in self._calls

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {len(calls)} × {calls[-1]!r}" for name, calls in self._calls.items()) or "nothing seen"


class Recorded:
    """One attention call that was seen. Every question may be asked of some batch items, heads and queries only."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @property
    def shape(self) -> tuple[int, ...]:
        """(*leading, heads, Tq, Tk) of the whole matrix."""
        return (*self.call.leading, self.call.heads, self.call.Tq, self.call.Tk)

    @torch.no_grad()
    def weights(self, *, batch: Pick = None, head: Pick = None, query: Pick = None, stage: str = "gated") -> Tensor:
        """Exact rows of the matrix, only those asked for. A whole number takes its axis away, as in indexing."""
        call = self.call
        if batch is not None and len(call.leading) != 1:
            raise OptionError(
                f"batch= picks from one batch axis and this call has {len(call.leading)}; pick from the result instead"
            )
        picks = [_index("batch", batch, n) for n in call.leading]
        head_at, query_at = _index("head", head, call.heads), _index("query", query, call.Tq)
        part = reference.cut(call, call.grid(queries=query_at, head=head_at, batch=picks))
        with _autocast_of(call):
            found = reference.weigh(call, part, reference.check_stage(stage))[0].to(call.dtype)
        lead = [_count(i, n) for i, n in zip(picks, call.leading, strict=True)]
        found = found.expand(*lead, _count(head_at, call.heads), _count(query_at, call.Tq), call.Tk)
        for axis, pick in ((-4, batch), (-3, head), (-2, query)):
            if isinstance(pick, int):
                found = found.squeeze(axis)
        return found

    def top(self, k: int, *, batch: Pick = None, head: Pick = None, query: Pick = None) -> tuple[Tensor, Tensor]:
        """The k largest weights of each row and the keys they stand at."""
        if not 1 <= k <= self.call.Tk:
            raise OptionError(f"k must be between 1 and the {self.call.Tk} keys, got {k}")
        found = self._by_rows(lambda w: torch.stack([x.double() for x in w.topk(k, -1)]), batch, head, query)
        return found[0].to(self.call.dtype), found[1].long()

    def column_sums(self, *, batch: Pick = None, head: Pick = None, query: Pick = None) -> Tensor:
        """How much attention each key receives from the queries asked for, (..., Tk)."""
        total: Tensor | None = None
        for step in self._steps(query):
            part = self.weights(batch=batch, head=head, query=step).sum(-2)
            total = part if total is None else total + part
        if total is None:
            raise ShapeError("no queries were asked for, so there is nothing to add up")
        return total

    def entropy(self, *, batch: Pick = None, head: Pick = None, query: Pick = None) -> Tensor:
        """−Σ a log a of each row in nats: 0 is one key, log Tk all alike."""
        return self._by_rows(lambda w: torch.special.entr(w).sum(-1, keepdim=True), batch, head, query).squeeze(-1)

    def _steps(self, query: Pick) -> list[Tensor]:
        """The queries asked for, a few at a time, so that no more than a tile of the matrix exists."""
        index = _index("query", [query] if isinstance(query, int) else query, self.call.Tq)
        every = (
            index
            if isinstance(index, Tensor)
            else torch.arange(self.call.Tq, device="cpu")[slice(None) if index is None else index]
        )
        rows = max(1, (1 << 22) // max(1, self.call.sequences * self.call.heads * self.call.Tk))
        return list(every.split(rows))

    def _by_rows(self, f, batch: Pick, head: Pick, query: Pick) -> Tensor:  # noqa: ANN001
        found = torch.cat([f(self.weights(batch=batch, head=head, query=step)) for step in self._steps(query)], -2)
        return found.squeeze(-2) if isinstance(query, int) else found

    def __repr__(self) -> str:
        call = self.call
        parts = [f"{call.energy}".split("(")[0], *(f"{x}" for x in (call.mask, call.bias) if x is not None), f"{call.normalize}"]
        return f"{tuple(self.shape)} {' · '.join(p.splitlines()[0][:60] for p in parts)}"


def _index(name: str, pick: Pick, size: int) -> Index:
    if pick is None:
        return None
    if isinstance(pick, slice):
        return pick
    if isinstance(pick, int):
        pick = [pick]
    index = torch.as_tensor(pick, dtype=torch.long, device="cpu")
    if index.ndim != 1 or (index.numel() and (int(index.min()) < -size or int(index.max()) >= size)):
        raise OptionError(f"{name}={pick!r} is out of range; there are {size}, counted from 0")
    return index % size if size else index


def _count(index: Index, size: int) -> int:
    if index is None:
        return size
    return len(range(*index.indices(size))) if isinstance(index, slice) else index.numel()


def _autocast_of(call: Call) -> AbstractContextManager[object]:
    """The autocast under which the call ran: its energy may mix float32 parameters with half-precision inputs."""
    return nullcontext() if call.autocast is None else torch.autocast(call.query.device.type, dtype=call.autocast)


def _frozen(call: Call) -> Call:
    """The call with copies of all it holds; the values are not kept, since weights do not need them."""
    with torch.no_grad():
        key = call.key.detach().clone()
        return replace(
            call, query=call.query.detach().clone(), key=key, value=key, dropout=0.0,
            **{name: _snapshot(getattr(call, name)) for name in ("energy", "mask", "bias", "normalize", "gate")},
        )  # fmt: skip


def _snapshot(x: Any) -> Any:
    """x with copies of all tensors in it. A function stays as it is: what it closes over is not copied."""
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, nn.Module):
        return copy.deepcopy(x)
    if isinstance(x, Energy | Mask | Bias | Normalizer):
        new = copy.copy(x)
        for name, held in vars(x).items():
            object.__setattr__(new, name, _snapshot(held))  # masks are frozen
        return new
    if isinstance(x, list | tuple) and any(isinstance(y, Tensor) for y in x):
        return type(x)(_snapshot(y) for y in x)
    return x
