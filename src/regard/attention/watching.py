"""`watch`: record the attention calls of a model; compute weights from them on demand.

`watch` sees `regard.attend`, `F.scaled_dot_product_attention` and `F.multi_head_attention_forward`, also in
compiled models. A recorded call keeps copies of its queries and keys, so it stays valid when a cache is
overwritten or the model is trained further. Weights are those before dropout. Outside `watch` nothing is
recorded and nothing costs time.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from regard.attention.call import Call
from regard.attention.eager_stance import compiled_frames, eager_stance
from regard.attention.recorded import Recorded
from regard.attention.selection import IndexLike
from regard.attention.snapshot import Copies, detach_call, snapshot_call
from regard.attention.watched_model import (
    Modules,
    check_patterns,
    has_changed,
    named_modules,
    uses_only_attend,
)
from regard.errors import OptionError

__all__ = ["IndexLike", "Recorded", "Seen", "is_watching", "label_calls", "record", "targets", "watch"]

OnCall = Callable[[str, Recorded], object]

COMPILED_INSIDE = (
    "torch.compile was used for the first time inside watch, which then cannot see all attention of the "
    "compiled code; call torch.compile before watch begins"
)


@contextmanager
def watch(
    model: nn.Module | None = None, *, only: str | Iterable[str] | None = None, on_call: OnCall | None = None
) -> Iterator[Seen]:
    """Record every attention call inside the block.

    >>> model = torch.nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
    >>> with regard.watch(model) as seen:
    ...     out = model(torch.randn(1, 7, 32), torch.randn(1, 5, 32))
    >>> seen["decoder.layers.1.multihead_attn"].weights(batch=0, head=2).shape
    torch.Size([5, 7])

    A call is named by the path of the module in `model` that makes it, plus `.self` or `.cross` where the
    layer says so. A call outside of any submodule is named by order: attend.0, attend.1, … Compiled models
    run eagerly inside the block.

    Args:
        model: the module whose calls are named; without it, all calls are named by order.
        only: a glob pattern or several, to record some calls only: `only="decoder.*.cross"`.
        on_call: `on_call(name, recorded)` is called during the forward pass; nothing is copied or kept, and
            `recorded` is valid until it returns.
    """
    from regard.attention import torch_calls

    if model is not None and not isinstance(model, nn.Module):
        raise OptionError(f"watch takes a torch module or nothing, got {type(model).__name__}")
    if on_call is not None and not callable(on_call):
        raise OptionError(f"on_call must be a function of (name, recorded), got {on_call!r}")
    modules = {} if model is None else named_modules(model)
    active = _Watch(check_patterns(only, None if model is None else modules), on_call, modules)
    frames_before, functions_before = compiled_frames(), torch_calls.functions_seen()
    intercepts = not uses_only_attend(modules)
    with eager_stance, torch_calls.interception() if intercepts else nullcontext():
        _watches.set((*_watches.get(), active))
        try:
            yield active.seen
        finally:
            # Not a token reset: watches in generators may end in any order.
            _watches.set(tuple(w for w in _watches.get() if w is not active))
            active.copies.clear()
            active.paths.clear()
            active.anything_ran = torch_calls.functions_seen() > functions_before or not intercepts
            if not intercepts and model is not None and has_changed(model, modules):
                active.missed["the model"] = (
                    "its modules or its attn_implementation changed inside watch; change them before"
                )
            active.compiled_inside = compiled_frames() > frames_before
    if active.compiled_inside:
        warnings.warn(COMPILED_INSIDE, stacklevel=3)


class _Watch:
    """State of one active `watch`."""

    def __init__(
        self,
        only: list[str] | None = None,
        on_call: OnCall | None = None,
        modules: Modules | None = None,
    ) -> None:
        self.only, self.on_call = only, on_call
        self.paths = {id(module): path for path, module in (modules or {}).items()}
        self.scripted = [
            path or "the model"
            for path, module in (modules or {}).items()
            if isinstance(module, torch.jit.ScriptModule)
        ]
        self.seen = Seen(self)
        self.kind: str | None = None  # "self" or "cross", set by the layer that runs
        self.unnamed_calls = 0
        self.inside_attend = 0  # nesting depth of `attend`, whose kernels may call torch's attention
        self.on_call_count = 0
        self.left_out: dict[str, None] = {}  # names of calls that `only` does not match
        self.missed: dict[str, str] = {}  # attention that ran and could not be recorded, and why
        self.softmaxes: dict[str, str] = {}  # calls of softmax that may be hand-written attention
        self.anything_ran = True
        self.compiled_inside = False
        self.copies: Copies = {}

    def current_path(self) -> str:
        """Path of the innermost running module, found on the call stack: no hooks, no cost between calls."""
        frame, call = sys._getframe(1) if self.paths else None, nn.Module._call_impl.__code__
        while frame is not None:
            if frame.f_code is call:
                path = self.paths.get(id(frame.f_locals["self"]))
                if path is not None:
                    return path
            frame = frame.f_back
        return ""

    def next_name(self, kind: str | None = None) -> str:
        """The name of the current call. `kind` is the name if the watched module itself makes the call."""
        path = self.current_path()
        if not path:
            if self.kind is not None or kind is not None:
                return self.kind or kind or ""
            self.unnamed_calls += 1
            return f"attend.{self.unnamed_calls - 1}"
        last = path.rsplit(".", 1)[-1]
        return path if self.kind in (None, last) else f"{path}.{self.kind}"

    def wants(self, name: str) -> bool:
        """Whether `only` matches the name, or the module's path without .self or .cross."""
        path = name.rsplit(".", 1)[0] if name.endswith((".self", ".cross")) else name
        if self.only is None or any(fnmatchcase(name, glob) or fnmatchcase(path, glob) for glob in self.only):
            return True
        self.left_out[name] = None
        return False

    def add(self, name: str, call: Call) -> None:
        """Keep a copy of the call, or pass the call to `on_call`."""
        if self.on_call is None:
            self.seen._add(name, Recorded(snapshot_call(call, self.copies)))
            return
        self.on_call_count += 1
        recorded = Recorded(detach_call(call))
        token = _watches.set(())  # attention that on_call computes is not part of the model
        try:
            self.on_call(name, recorded)
        finally:
            _watches.reset(token)
            recorded.expire()


_watches: ContextVar[tuple[_Watch, ...]] = ContextVar("regard_watches", default=())


def is_watching() -> bool:
    return not is_compiling() and bool(_watches.get())


def interception_targets() -> tuple[_Watch, ...]:
    """The active watches that record torch's own attention at this point."""
    return tuple(watch for watch in _watches.get() if not watch.inside_attend)


@contextmanager
def label_calls(kind: str) -> Iterator[None]:
    """Name the calls inside as "self" or "cross" attention; used by layers."""
    watches = _watches.get()
    for watch in watches:
        watch.kind = kind
    try:
        yield
    finally:
        for watch in watches:
            watch.kind = None


Targets = list[tuple[_Watch, str]]


def targets() -> Targets:
    """The active watches that record the current call of `attend`, each with the name of the call."""
    if torch._C._current_autograd_node() is not None:  # gradient checkpointing recomputes the call
        return []
    named = [(watch, watch.next_name()) for watch in _watches.get()]
    return [(watch, name) for watch, name in named if watch.wants(name)]


@contextmanager
def record(call: Call, recorders: Targets, compiles: bool = False) -> Iterator[None]:
    """Record a call of `attend`, and run its kernel inside the block.

    There, torch's attention is not recorded a second time, and a kernel that `compiles` runs compiled.
    """
    from regard.attention import torch_calls

    for watch, name in recorders:
        watch.add(name, call)
    watches = _watches.get()
    for watch in watches:
        watch.inside_attend += 1
    try:
        with torch_calls.paused(), eager_stance.paused() if compiles else nullcontext():
            yield
    finally:
        for watch in watches:
            watch.inside_attend -= 1


class Seen(Mapping[str, Recorded]):
    """The calls recorded by `watch`, by name.

    `seen["decoder.3.cross"]` is the last call of that name, `seen.calls(name)` lists all of them in order.
    """

    def __init__(self, watch: _Watch | None = None) -> None:
        self._calls: dict[str, list[Recorded]] = {}
        self._watch = _Watch() if watch is None else watch

    def _add(self, name: str, recorded: Recorded) -> None:
        self._calls.setdefault(name, []).append(recorded)

    def calls(self, name: str) -> list[Recorded]:
        """All calls of this name, in order."""
        if name not in self._calls:
            raise OptionError(self._why_missing(name))
        return self._calls[name]

    @property
    def missed(self) -> dict[str, str]:
        """Attention that ran and could not be recorded: name of the module → reason."""
        return dict(self._watch.missed)

    def _why_missing(self, name: str) -> str:
        watch, not_seen = self._watch, f"nothing called {name!r} was seen"
        if name in watch.missed:
            return f"{not_seen}: {watch.missed[name]}"
        if name in watch.softmaxes:
            return f"{not_seen}: {self._hand_written(name)}"
        if watch.on_call is not None:
            return f"{not_seen}: on_call was given, so none of the {watch.on_call_count} calls was kept"
        if self._calls:
            left_out = f"; only={watch.only} left out {', '.join(watch.left_out)}" if watch.left_out else ""
            missed = "".join(f"; {path} was missed: {why}" for path, why in list(watch.missed.items())[:3])
            return f"{not_seen}; the names are {', '.join(self._calls)}{left_out}{missed}"
        return f"{not_seen}: {self._why_empty()}"

    def _why_empty(self) -> str:
        watch = self._watch
        if watch.left_out:
            return f"only={watch.only} matches none of the calls that ran, {', '.join(watch.left_out)}"
        if watch.missed:
            return "; ".join(f"{name}: {why}" for name, why in list(watch.missed.items())[:3])
        if watch.compiled_inside:
            return COMPILED_INSIDE
        if watch.scripted:
            return (
                f"{watch.scripted[0]} is a torch.jit module, which runs outside of Python; "
                "watch the model from before scripting"
            )
        if watch.softmaxes:
            return self._hand_written(next(iter(watch.softmaxes)))
        if not watch.anything_ran:
            return "no model ran inside watch, or it ran in another thread; call it inside the with block"
        return (
            "no attention ran; watch sees regard.attend, F.scaled_dot_product_attention and "
            "nn.MultiheadAttention in the thread that watches"
        )

    def _hand_written(self, name: str) -> str:
        return (
            f"{name} computes {self._watch.softmaxes[name]} itself, which looks like attention written out; "
            "call F.scaled_dot_product_attention or regard.attend there (in Hugging Face models: "
            'attn_implementation="sdpa" or "regard")'
        )

    def __getitem__(self, name: str) -> Recorded:
        return self.calls(name)[-1]

    def get(self, name: str, default: Any = None) -> Any:
        calls = self._calls.get(name)
        return default if calls is None else calls[-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, name: object) -> bool:
        return name in self._calls

    def __repr__(self) -> str:
        lines = [f"{name}: {len(calls)} × {calls[-1]!r}" for name, calls in self._calls.items()]
        lines += [f"{name}: not seen, {why}" for name, why in self._watch.missed.items()]
        return "\n".join(lines) or "nothing seen"
