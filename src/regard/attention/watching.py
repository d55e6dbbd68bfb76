"""Weights on demand: watch a model, run it by any kernel, and ask afterwards for the rows one wants to see.

`watch` sees `regard.attend`, `F.scaled_dot_product_attention` and `F.multi_head_attention_forward`, in compiled models too. A
recorded call keeps copies of its queries and keys, so that what it says stays true when a cache is overwritten or a weight is
trained on. Weights are those before dropout. Nothing is recorded, and nothing costs anything, outside `watch`.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from regard.attention.bias import Bias
from regard.attention.call import Call
from regard.attention.energy import Energy
from regard.attention.mask import Mask
from regard.attention.normalize import Normalizer
from regard.attention.recorded import Recorded
from regard.attention.selection import Pick
from regard.errors import OptionError

__all__ = ["Pick", "Recorded", "Seen", "kind_of", "record", "watch", "watching"]

OnCall = Callable[[str, Recorded], object]
Copies = dict[int, tuple["weakref.ref[Tensor]", int, Tensor]]
KINDS = ("self", "cross")


class _Watch:
    """What one `watch` has seen so far."""

    def __init__(
        self,
        only: list[str] | None = None,
        on_call: OnCall | None = None,
        modules: dict[str, nn.Module] | None = None,
    ) -> None:
        self.only, self.on_call = only, on_call
        self.names = {id(module): name for name, module in (modules or {}).items()}
        self.scripted = [
            name or "the model"
            for name, module in (modules or {}).items()
            if isinstance(module, torch.jit.ScriptModule)
        ]
        self.seen = Seen(self)
        self.kind: str | None = None  # "self" or "cross", when a layer says so
        self.bare = 0
        self.inside = 0  # calls of attend being computed, whose kernels may call torch's attention
        self.calls = 0  # answered by on_call
        self.left_out: dict[str, None] = {}  # names of calls that `only` does not match
        self.missed: dict[str, str] = {}  # attention that ran and could not be recorded, and why
        self.softmaxes: dict[str, str] = {}  # softmax calls that may be attention written out
        self.anything_ran = True
        self.compiled_unseen = False
        self.copies: Copies = {}

    def path(self) -> str:
        """The path of the innermost module that runs now, found on the call stack: naming costs nothing but at calls."""
        frame, call = sys._getframe(1) if self.names else None, nn.Module._call_impl.__code__
        while frame is not None:
            if frame.f_code is call:
                name = self.names.get(id(frame.f_locals["self"]))
                if name is not None:
                    return name
            frame = frame.f_back
        return ""

    def next_name(self, kind: str | None = None) -> str:
        """The name of the call that runs now; `kind` names one that is made by the watched module itself."""
        path, said = self.path(), self.kind
        if not path:
            if said is not None or kind is not None:
                return said or kind or ""
            self.bare += 1
            return f"attend.{self.bare - 1}"
        last = path.rsplit(".", 1)[-1]
        return path if said in (None, last) else f"{path}.{said}"

    def wants(self, name: str) -> bool:
        path = name.rsplit(".", 1)[0] if name.endswith((".self", ".cross")) else name
        if self.only is None or any(fnmatchcase(name, glob) or fnmatchcase(path, glob) for glob in self.only):
            return True
        self.left_out[name] = None
        return False

    def take(self, name: str, call: Call) -> None:
        if self.on_call is None:
            self.seen._add(name, Recorded(_frozen(call, self.copies)))
            return
        self.calls += 1
        recorded = Recorded(_detached(call))
        token = _watches.set(())  # what the function computes is not part of the model
        try:
            self.on_call(name, recorded)
        finally:
            _watches.reset(token)
            recorded.expire()


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


@contextmanager
def record(call: Call, compiles: bool = False) -> Iterator[None]:
    """Record a call of `attend`. Inside, where its kernel runs, nothing is recorded once more and a compiled kernel stays so."""
    from regard.attention import torch_calls

    watches = _watches.get()
    if torch._C._current_autograd_node() is None:  # else gradient checkpointing computes a call once more
        for watch in watches:
            if watch.wants(name := watch.next_name()):
                watch.take(name, call)
    for watch in watches:
        watch.inside += 1
    try:
        with torch_calls.paused(), _stance.paused() if compiles else nullcontext():
            yield
    finally:
        for watch in watches:
            watch.inside -= 1


def observers() -> tuple[_Watch, ...]:
    """The watches that record torch's own attention here and now."""
    return tuple(watch for watch in _watches.get() if not watch.inside)


@contextmanager
def watch(
    model: nn.Module | None = None, *, only: str | Iterable[str] | None = None, on_call: OnCall | None = None
) -> Iterator[Seen]:
    """Record every attention call inside, named by the path of the module in `model` that made it, plus self or cross.

        with regard.watch(model) as seen:
            model(x)
        seen["decoder.3.cross"].weights(head=2, query=5)

    A call outside of any submodule is named by order of call: attend.0, attend.1, … `only` keeps the calls whose name matches
    a glob, or one of several: `only="decoder.*.cross"`. With `on_call`, nothing is copied and nothing kept: `on_call(name,
    recorded)` is called during the pass, and what it is given is true until it returns. Inside, compiled models run eagerly.
    """
    from regard.attention import torch_calls

    if model is not None and not isinstance(model, nn.Module):
        raise OptionError(f"watch takes a torch module or nothing, got {type(model).__name__}")
    if on_call is not None and not callable(on_call):
        raise OptionError(f"on_call must be a function of (name, recorded), got {on_call!r}")
    modules = {} if model is None else _named(model)
    state = _Watch(_globs(only, None if model is None else modules), on_call, modules)
    before, ran = _compiled_frames(), torch_calls.count()
    seen_by_torch = not _attends_by_regard(modules)
    with _stance, torch_calls.mode() if seen_by_torch else nullcontext():
        _watches.set((*_watches.get(), state))
        try:
            yield state.seen
        finally:
            _watches.set(
                tuple(w for w in _watches.get() if w is not state)
            )  # generators may end in any order
            state.copies.clear()
            state.names.clear()
            state.anything_ran = torch_calls.count() > ran or not seen_by_torch
            if not seen_by_torch and model is not None and _was_changed(model, modules):
                state.missed["the model"] = (
                    "its modules or its attn_implementation changed inside watch; change them before"
                )
            state.compiled_unseen = _compiled_frames() > before
    if state.compiled_unseen:
        warnings.warn(COMPILED_INSIDE, stacklevel=3)


COMPILED_INSIDE = (
    "torch.compile was used for the first time inside watch, which then cannot see all attention of the compiled code; call "
    "torch.compile before watch begins"
)


def _named(model: nn.Module) -> dict[str, nn.Module]:
    """All modules by path, the names of compiled ones those from before compiling."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if "_orig_mod" not in module._modules:  # else what torch.compile wraps follows
            if "_orig_mod" in name:
                name = ".".join(part for part in name.split(".") if part != "_orig_mod")
            found[name] = module
    return found


def _attends_by_regard(modules: dict[str, nn.Module]) -> bool:
    """Whether all attention of a model surely goes through `attend`, so that torch's functions need not be looked at.

    So it is in regard's own models, and in Hugging Face models with attn_implementation="regard", without modules or hooks of
    others. Looking costs 1 to 5 µs for each function of torch.
    """
    kinds = {type(module) for module in modules.values()}
    if any(
        issubclass(kind, (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
        for kind in kinds
    ):
        return False
    if not kinds or not all(
        kind.__module__.startswith(("regard.", "torch.nn.modules.", "transformers.")) for kind in kinds
    ):
        return False
    hooks = [
        h for m in modules.values() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())
    ]
    if any(
        not str(getattr(hook, "__module__", "")).startswith(("regard.", "transformers.")) for hook in hooks
    ):
        return False
    return _implementations(modules) <= {"regard"}


def _was_changed(model: nn.Module, modules: dict[str, nn.Module]) -> bool:
    """Whether a model that attends by regard alone got modules of another kind or another implementation of attention."""
    before = {type(module) for module in modules.values()}
    return not {type(m) for m in model.modules() if "_orig_mod" not in m._modules} <= before or bool(
        _implementations(modules) - {"regard"}
    )


def _implementations(modules: dict[str, nn.Module]) -> set[str]:
    """The attention implementations of Hugging Face models; "regard" for all that begin so."""
    configs = {
        id(x): x for x in (module.__dict__.get("config") for module in modules.values()) if x is not None
    }
    names = {getattr(config, "_attn_implementation", "regard") for config in configs.values()}
    return {str(name).split("-")[0] for name in names}


def _is_plain_leaf(module: nn.Module) -> bool:
    """A layer of torch without attention, such as nn.Linear: it makes no call, so it needs no name."""
    home = type(module).__module__
    if module._modules or isinstance(module, nn.MultiheadAttention):
        return False
    return home.startswith("torch.nn.modules.") or home == "regard.layers.linear"


def _globs(only: object, modules: dict[str, nn.Module] | None) -> list[str] | None:
    if only is None:
        return None
    given = [only] if isinstance(only, str) or not isinstance(only, Iterable) else list(only)
    globs = [glob for glob in given if isinstance(glob, str)]
    if not globs or len(globs) < len(given):
        raise OptionError(
            f"only must be a name, a glob such as 'decoder.*.cross' or a list of them, got {only!r}"
        )
    if modules is not None and not all(
        glob in modules and not _is_plain_leaf(modules[glob]) for glob in globs
    ):
        paths = [name for name, module in modules.items() if name and not _is_plain_leaf(module)]
        names = [*KINDS, *paths, *(f"{path}.{kind}" for path in paths for kind in KINDS)]
        for glob in globs:
            if not glob.startswith("attend.") and not any(fnmatchcase(name, glob) for name in names):
                some = ", ".join(paths)[:200] or "none"
                raise OptionError(f"only={glob!r} matches no module of this model; its modules are {some}")
    return globs


# ------------------------------------------------------------------------------------------------------------ torch.compile
class _Stance:
    """Compiled code runs eagerly while anybody watches, in any thread: torch has one stance for the whole process."""

    def __init__(self) -> None:
        self.lock, self.depth, self.held = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self.lock:
            self._take()
            self.depth += 1

    def _take(self) -> None:
        if (
            self.held is not None or "torch._dynamo" not in sys.modules
        ):  # importing it takes seconds, and nothing is compiled yet
            return
        if get_eval_frame_callback() not in (None, False):
            raise OptionError(
                "watch cannot begin inside a compiled function; put it around the call of that function"
            )
        self.held = torch.compiler.set_stance("force_eager")

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if not self.depth and self.held is not None:
                self.held.__exit__(None, None, None)
                self.held = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For a kernel that is compiled, which uncompiled would build the T × T matrix (Flex)."""
        held = self.held
        if held is not None:
            was = held.prev
            with torch.compiler.set_stance(
                was.stance, skip_guard_eval_unsafe=was.skip_guard_eval_unsafe, force_backend=was.backend
            ):
                yield
            return
        yield
        if get_eval_frame_callback() in (None, False):
            with self.lock:
                self._take()  # this kernel may have been the first to compile


_stance = _Stance()


def _compiled_frames() -> int:
    """How many frames torch.compile has compiled so far; not counted while our stance holds, as then there are none."""
    if _stance.held is not None or "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return counters["frames"]["total"]


# --------------------------------------------------------------------------------------------------------------------- seen
class Seen(Mapping[str, Recorded]):
    """What was watched: `seen["decoder.3.cross"]` is the last call of that name, `seen.calls(name)` all of them in order."""

    def __init__(self, state: _Watch | None = None) -> None:
        self._calls: dict[str, list[Recorded]] = {}
        self._state = _Watch() if state is None else state

    def _add(self, name: str, recorded: Recorded) -> None:
        self._calls.setdefault(name, []).append(recorded)

    def calls(self, name: str) -> list[Recorded]:
        if name not in self._calls:
            raise OptionError(self._why_not(name))
        return self._calls[name]

    @property
    def missed(self) -> dict[str, str]:
        """Attention that ran and could not be recorded: the name of the module and the reason."""
        return dict(self._state.missed)

    def _why_not(self, name: str) -> str:
        state, not_seen = self._state, f"nothing called {name!r} was seen"
        if name in state.missed:
            return f"{not_seen}: {state.missed[name]}"
        if name in state.softmaxes:
            return f"{not_seen}: {self._written_out(name)}"
        if state.on_call is not None:
            return f"{not_seen}: on_call was given, so none of the {state.calls} calls was kept"
        if self._calls:
            left_out = f"; only={state.only} left out {', '.join(state.left_out)}" if state.left_out else ""
            return f"{not_seen}; seen were {', '.join(self._calls)}{left_out}{self._also_missed()}"
        return f"{not_seen}: {self._why_nothing()}"

    def _also_missed(self) -> str:
        return "".join(f"; not seen was {name}: {why}" for name, why in list(self._state.missed.items())[:3])

    def _why_nothing(self) -> str:
        state = self._state
        if state.left_out:
            return f"only={state.only} matches none of the calls that ran, {', '.join(state.left_out)}"
        if state.missed:
            return "; ".join(f"{name}: {why}" for name, why in list(state.missed.items())[:3])
        if state.compiled_unseen:
            return COMPILED_INSIDE
        if state.scripted:
            return f"{state.scripted[0]} is a torch.jit module, which runs outside of Python; watch the model from before scripting"
        if state.softmaxes:
            return self._written_out(next(iter(state.softmaxes)))
        if not state.anything_ran:
            return "no model ran inside watch, or it ran in another thread; call it inside the with block"
        return (
            "no attention ran; watch sees regard.attend, F.scaled_dot_product_attention and nn.MultiheadAttention in the thread "
            "that watches"
        )

    def _written_out(self, name: str) -> str:
        return (
            f"{name} computes {self._state.softmaxes[name]} itself, which looks like attention written out; call "
            'F.scaled_dot_product_attention or regard.attend there (in Hugging Face models: attn_implementation="sdpa" or "regard")'
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
        lines += [f"{name}: not seen, {why}" for name, why in self._state.missed.items()]
        return "\n".join(lines) or "nothing seen"


# ------------------------------------------------------------------------------------------------------------------- copies
def _detached(call: Call) -> Call:
    """The call as it is, cut off the graph."""
    return replace(
        call, query=call.query.detach(), key=call.key.detach(), value=call.key.detach(), dropout=0.0
    )


def _frozen(call: Call, copies: Copies) -> Call:
    """The call with copies of all it holds; the values are not kept, since weights do not need them."""
    with torch.no_grad():
        key = _copy(call.key)
        return replace(
            call, query=_copy(call.query), key=key, value=key, dropout=0.0,
            **{name: _snapshot(getattr(call, name), copies) for name in ("energy", "mask", "bias", "normalize", "gate")},
        )  # fmt: skip


def _copy(x: Tensor) -> Tensor:
    """A contiguous copy; of axes that are expanded, one element."""
    x = small = x.detach()
    if 0 in x.stride():
        for axis, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
            if size > 1 and stride == 0:
                small = small.narrow(axis, 0, 1)
    found = small.clone(memory_format=torch.contiguous_format)
    return found if small is x else found.expand(x.shape)


def _snapshot(x: Any, copies: Copies) -> Any:
    """x with copies of all tensors in it. A function stays as it is: what it closes over is not copied."""
    if isinstance(x, Tensor):
        return _copy_once(x, copies)
    if isinstance(x, nn.Module):
        return copy.deepcopy(x)
    if isinstance(x, Energy | Mask | Bias | Normalizer):
        if x.tensors() == ():
            return x
        new = copy.copy(x)
        for name, held in vars(x).items():
            object.__setattr__(new, name, _snapshot(held, copies))  # masks are frozen
        return new
    if isinstance(x, list | tuple) and any(isinstance(y, Tensor) for y in x):
        return type(x)(_snapshot(y, copies) for y in x)
    return x


def _copy_once(x: Tensor, copies: Copies) -> Tensor:
    """One copy for all layers that are given the same mask, unless it was written to in between."""
    if x.is_inference():  # such tensors count no versions
        return _copy(x)
    known = copies.get(id(x))
    if known is not None and known[0]() is x and known[1] == x._version:
        return known[2]
    found = _copy(x)
    copies[id(x)] = (weakref.ref(x), x._version, found)
    return found
