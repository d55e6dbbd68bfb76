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
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from regard.attention.call import Call
from regard.attention.eager_stance import compiled_frames, eager_stance
from regard.attention.recorded import MAX_SHOWN, Recorded
from regard.attention.selection import IndexLike
from regard.attention.snapshot import Copies, detach_call, snapshot_call
from regard.attention.watched_model import (
    Modules,
    check_patterns,
    has_changed,
    named_modules,
    scripted_modules,
    uses_only_attend,
)
from regard.errors import OptionError
from regard.pictures.attention_views import shown_layer
from regard.pictures.head_grid import HeadGrid
from regard.pictures.picture import check_picture_path
from regard.pictures.shown_layers import show_layers

__all__ = [
    "UNKNOWN",
    "IndexLike",
    "Label",
    "Observer",
    "Recorded",
    "Seen",
    "active_observers",
    "calling_module",
    "current_label",
    "edited",
    "is_watching",
    "label_calls",
    "matches",
    "observe",
    "observed_by",
    "record",
    "reset_positions",
    "running_kernel",
    "targets",
    "watch",
]

OnCall = Callable[[str, Recorded], object]


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
    if model is not None and not isinstance(model, nn.Module):
        raise OptionError(f"watch takes a torch module or nothing, got {type(model).__name__}")
    if on_call is not None and not callable(on_call):
        raise OptionError(f"on_call must be a function of (name, recorded), got {on_call!r}")
    modules = {} if model is None else named_modules(model)
    active = _Watch(check_patterns(only, None if model is None else modules), on_call, modules)
    with observe(active, model, modules):
        try:
            yield active.seen
        finally:
            active.copies.clear()
    if active.compiled_inside:
        warnings.warn(active.compiled_message, stacklevel=3)


@contextmanager
def observe(observer: Observer, model: nn.Module | None, modules: Modules) -> Iterator[None]:
    """Let the observer see all attention calls inside the block."""
    from regard.attention import torch_calls

    frames_before, functions_before = compiled_frames(), torch_calls.functions_seen()
    observer.intercepts = intercepts = not uses_only_attend(modules)
    with eager_stance, torch_calls.interception() if intercepts else nullcontext():
        _observers.set((*_observers.get(), observer))
        outer_module = calling_module.get()
        calling_module.set(None)  # this watch may begin in a function that a module's attention calls
        try:
            yield
        finally:
            calling_module.set(outer_module)
            # Not a token reset: watches in generators may end in any order.
            _observers.set(tuple(active for active in _observers.get() if active is not observer))
            observer.paths.clear()
            observer.anything_ran = torch_calls.functions_seen() > functions_before or not intercepts
            if not intercepts and model is not None and has_changed(model, modules):
                observer.missed["the model"] = (
                    f"its modules or its attn_implementation changed inside {observer.verb}; "
                    "change them before"
                )
            observer.compiled_inside = compiled_frames() > frames_before


class Observer:
    """State of one active `watch` or `intervene`."""

    verb = "watch"
    edits_calls = False  # whether `edit` may change calls

    def __init__(self, only: list[str] | None = None, modules: Modules | None = None) -> None:
        self.only = only
        self.paths = {id(module): path for path, module in (modules or {}).items()}
        self.scripted = scripted_modules(modules or {})
        self.intercepts = False  # whether torch functions are intercepted
        self.unnamed_calls = 0
        self.wanted: dict[str, bool] = {}  # whether `only` matches, by name
        self.left_out: dict[str, None] = {}  # names of calls that `only` does not match
        self.missed: dict[str, str] = {}  # attention that ran and could not be recorded, and why
        self.softmaxes: dict[str, str] = {}  # softmaxes that may be hand-written attention, and what to do
        self.anything_ran = True
        self.compiled_inside = False

    def edit(self, name: str, call: Call) -> Call:
        """The call that runs; `intervene` replaces its weights."""
        return call

    def add(self, name: str, call: Call) -> None:
        """Record the call."""

    def current_path(self) -> str:
        """Path of the innermost running module, found on the call stack: no hooks, no cost between calls."""
        path = self.paths.get(id(calling_module.get()))
        if path is not None:
            return path
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
        path, label = self.current_path(), _label.get().kind
        if not path:
            if label is not None or kind is not None:
                return label or kind or ""
            self.unnamed_calls += 1
            return f"attend.{self.unnamed_calls - 1}"
        if label is None or label == path.rsplit(".", 1)[-1]:
            return path
        return f"{path}.{label}"

    def wants(self, name: str) -> bool:
        """Whether `only` matches the name, or the module's path without .self or .cross."""
        if self.only is None:
            return True
        wanted = self.wanted.get(name)
        if wanted is None:
            wanted = self.wanted[name] = any(matches(name, pattern) for pattern in self.only)
            if not wanted:
                self.left_out[name] = None
        return wanted

    @property
    def compiled_message(self) -> str:
        return (
            f"torch.compile was used for the first time inside {self.verb}, which then cannot see all "
            f"attention of the compiled code; call torch.compile before {self.verb} begins"
        )

    def why_empty(self) -> str:
        """Why no call was seen."""
        if self.left_out:
            return f"only={self.only} matches none of the calls that ran, {', '.join(self.left_out)}"
        if self.missed:
            return "; ".join(f"{name}: {why}" for name, why in list(self.missed.items())[:3])
        if self.compiled_inside:
            return self.compiled_message
        if self.scripted:
            return (
                f"{self.scripted[0]} is a torch.jit module, which runs outside of Python; "
                f"{self.verb} the model from before scripting"
            )
        if self.softmaxes:
            return next(iter(self.softmaxes.values()))
        if not self.anything_ran:
            return (
                f"no model ran inside {self.verb}, or it ran in another thread; call it inside the with block"
            )
        return (
            f"no attention ran; {self.verb} sees regard.attend, F.scaled_dot_product_attention and "
            f"nn.MultiheadAttention in the thread in which {self.verb} is active"
        )


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the name of a call, or the module's path without .self or .cross."""
    path = name.rsplit(".", 1)[0] if name.endswith((".self", ".cross")) else name
    return fnmatchcase(name, pattern) or fnmatchcase(path, pattern)


class _Watch(Observer):
    """State of one active `watch`."""

    def __init__(
        self,
        only: list[str] | None = None,
        on_call: OnCall | None = None,
        modules: Modules | None = None,
    ) -> None:
        super().__init__(only, modules)
        self.on_call = on_call
        self.seen = Seen(self)
        self.on_call_count = 0
        self.copies: Copies = {}

    def why_empty(self) -> str:
        if self.on_call_count:
            return f"on_call was given, so none of the {self.on_call_count} calls was kept"
        return super().why_empty()

    def add(self, name: str, call: Call) -> None:
        """Keep a copy of the call, or pass the call to `on_call`."""
        if self.on_call is None:
            self.seen._add(name, Recorded(snapshot_call(call, self.copies)))
            return
        self.on_call_count += 1
        recorded = Recorded(detach_call(call))
        token = _observers.set(())  # attention that on_call computes is not part of the model
        try:
            self.on_call(name, recorded)
        finally:
            _observers.reset(token)
            recorded.expire()


class Label(NamedTuple):
    """A layer's description of the attention call that it makes."""

    kind: str | None = None  # "self" or "cross"
    start: int | Tensor | None = None  # position of the first query, one or one per row; None: not given


UNKNOWN = -1  # as a start: the layer does not know the positions of its queries


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("regard_observers", default=())
_label: ContextVar[Label] = ContextVar("regard_label", default=Label())  # noqa: B039 (a NamedTuple)
# Position of the first query of the last self-attention, which holds for the cross-attention after it.
_last_start: ContextVar[int | Tensor] = ContextVar("regard_last_start", default=0)
# The module that calls `attend`, set by callers that know it: the call stack takes longer to read.
calling_module: ContextVar[nn.Module | None] = ContextVar("regard_calling_module", default=None)
_inside_attend: ContextVar[bool] = ContextVar("regard_inside_attend", default=False)


def is_watching() -> bool:
    """Whether a `watch` or an `intervene` is active."""
    return not is_compiling() and bool(_observers.get())


def active_observers() -> tuple[Observer, ...]:
    """The active observers of this thread, outermost first."""
    return _observers.get()


@contextmanager
def observed_by(observers: tuple[Observer, ...]) -> Iterator[None]:
    """Let observers of another thread see the calls of this one inside the block."""
    token = _observers.set(observers)
    try:
        yield
    finally:
        _observers.reset(token)


def interception_targets() -> tuple[Observer, ...]:
    """The active observers that see torch's own attention at this point."""
    return () if _inside_attend.get() else _observers.get()


def current_label() -> Label:
    return _label.get()


def reset_positions() -> None:
    """Forget the position of the last self-attention."""
    _last_start.set(0)


@contextmanager
def label_calls(kind: str | None, start: int | Tensor | None = None) -> Iterator[None]:
    """Give the calls inside a kind, "self" or "cross", and the position of their queries; used by layers.

    Args:
        kind: "self" or "cross"; None if the path of the module says enough.
        start: the position of the first query, one integer or one per row, or UNKNOWN. None: that of the
            self-attention before, as in the cross-attention of a decoder.
    """
    if start is None:
        start = _last_start.get()
    elif not (isinstance(start, int) and start == UNKNOWN):
        _last_start.set(start)
    token = _label.set(Label(kind, start))
    try:
        yield
    finally:
        _label.reset(token)


Targets = list[tuple[Observer, str]]


def targets() -> Targets:
    """The active observers that want the current call of `attend`, each with the name of the call."""
    observers = _observers.get()
    if torch._C._current_autograd_node() is not None:  # gradient checkpointing recomputes the call
        observers = tuple(observer for observer in observers if observer.edits_calls)
    wanted: Targets = []
    for observer in observers:
        name = observer.next_name()
        if observer.wants(name):
            wanted.append((observer, name))
    return wanted


def edited(call: Call, named: Targets) -> Call:
    """The call with the weights that the interventions set, outer ones first."""
    if not any(observer.edits_calls for observer, _ in named):
        return call
    from regard.attention import torch_calls

    token = _observers.set(())  # attention that an edit computes is not part of the model
    try:
        with torch_calls.paused():
            for observer, name in named:
                call = observer.edit(name, call)
    finally:
        _observers.reset(token)
    return call


def record(call: Call, recorders: Targets) -> None:
    """Record a call of `attend`."""
    for observer, name in recorders:
        observer.add(name, call)


@contextmanager
def running_kernel(compiles: bool = False) -> Iterator[None]:
    """Inside the block, torch's attention is not recorded, and a kernel that `compiles` runs compiled."""
    from regard.attention import torch_calls

    token = _inside_attend.set(True)
    try:
        with torch_calls.paused(), eager_stance.paused() if compiles else nullcontext():
            yield
    finally:
        _inside_attend.reset(token)


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
        watch = self._watch
        if self._calls or watch.missed or watch.left_out or watch.on_call_count:
            return dict(watch.missed)
        return dict(watch.softmaxes)  # nothing else ran that may be the model's attention

    def _why_missing(self, name: str) -> str:
        watch, not_seen = self._watch, f"nothing called {name!r} was seen"
        if name in watch.missed:
            return f"{not_seen}: {watch.missed[name]}"
        if name in watch.softmaxes:
            return f"{not_seen}: {watch.softmaxes[name]}"
        if self._calls:
            left_out = f"; only={watch.only} left out {', '.join(watch.left_out)}" if watch.left_out else ""
            missed = "".join(f"; {path} was missed: {why}" for path, why in list(watch.missed.items())[:3])
            return f"{not_seen}; the names are {', '.join(self._calls)}{left_out}{missed}"
        return f"{not_seen}: {watch.why_empty()}"

    def picture(
        self, only: str | Iterable[str] | None = None, *, batch: int = 0, title: str = ""
    ) -> HeadGrid:
        """Return a picture of every head of several calls, a row of matrices per call.

        Args:
            only: a name or a glob such as "encoder.*", or several; by default all calls. Of several calls of
                one name, such as the steps of a search, the last is drawn.
            batch: the item of the batch.
            title: the headline.
        """
        return HeadGrid({name: self[name]._one_item(batch) for name in self._matching(only)}, title=title)

    def plot(self, only: str | Iterable[str] | None = None, *, batch: int = 0, title: str = "") -> Any:
        """Draw `picture` with matplotlib; return the `matplotlib.figure.Figure`."""
        return self.picture(only, batch=batch, title=title).plot()

    def save(
        self,
        path: str | PathLike[str],
        only: str | Iterable[str] | None = None,
        *,
        batch: int = 0,
        title: str = "",
    ) -> Path:
        """Write `picture` to a file that ends in .svg, .html, .png or .pdf; return its path."""
        check_picture_path(path)
        return self.picture(only, batch=batch, title=title).save(path)

    def _repr_html_(self) -> str | None:
        """Every head of the first item, for a notebook; None if there are more than MAX_SHOWN weights."""
        calls = [self[name].call for name in self]
        if not 0 < sum(call.heads * call.Tq * call.Tk for call in calls) <= MAX_SHOWN:
            return None
        return self.picture()._repr_html_()

    def show(self, only: str | Iterable[str] | None = None, *, batch: int = 0, title: str = "") -> Any:
        """Show the weights: interactive with all calls and heads in a notebook, elsewhere the last as text.

        The arguments are those of `picture`.
        """
        layers = [shown_layer(name, self[name]._one_item(batch)) for name in self._matching(only)]
        return show_layers(layers, len(layers) - 1, None, title)

    def _matching(self, only: str | Iterable[str] | None) -> list[str]:
        """The names that match a pattern; OptionError if there are none."""
        patterns = ["*"] if only is None else [only] if isinstance(only, str) else list(only)
        names = [name for name in self._calls if any(matches(name, pattern) for pattern in patterns)]
        if not names:
            raise OptionError(self._why_missing(", ".join(map(str, patterns))))
        return names

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
        return "\n".join(lines) or f"nothing seen: {self._watch.why_empty()}"
