"""`intervene`: set attention weights while a model runs.

`attend` computes the weights of a matched call by the reference, edits them, and multiplies them with the
values. Names, patterns and the ways to find a call are those of `watch`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.arguments import quoted
from regard.attention import torch_calls, watching
from regard.attention.call import Call
from regard.attention.edits import CallWeights, Edit, Function, as_edits, visible_pairs
from regard.attention.kernels import reference
from regard.attention.watched_model import Modules, check_patterns, named_modules
from regard.errors import OptionError

EditLike = Edit | Function | Sequence[Edit | Function]
CROSS_NAMES = ("cross", "encoder_attn", "encdec", "multihead_attn")  # in the names of cross-attention calls


@contextmanager
def intervene(model: nn.Module | None, edits: Mapping[str, EditLike]) -> Iterator[dict[str, int]]:
    """Set the attention weights of a model inside the block.

    >>> from regard.attention import Uniform, Zero
    >>> layer, x = regard.MultiHead(16, 4), torch.randn(1, 5, 16)
    >>> with regard.intervene(layer, {"self": Uniform(heads=[0, 2])}) as changed:
    ...     out = layer(x)
    >>> changed
    {'self': 1}

    The weights after normaliser and gate, before dropout, are replaced; the output is new weights × values.
    The values always get a gradient, the original weights where an edit uses them. Edited calls run on the
    reference kernel, all others as usual. Edits that match one call are applied in order, those of an outer
    block first. An entry that matched no call raises when the block ends; one that matched calls and selected
    no row of them warns.

    Args:
        model: the module whose calls are named, as in `regard.watch`; with None, calls are named by order.
        edits: by name or glob pattern: an edit (`Uniform`, `Permuted`, `Zero`, `Pinned`, `Weights`, `Mapped`
            of `regard.attention`), a function of the weights, (..., heads, Tq, Tk), or a list of them.

    Yields:
        How many calls were changed so far, by name.
    """
    _check_model(model)
    if not isinstance(edits, Mapping) or not edits:
        raise OptionError(
            "edits must be a dictionary from names to edits, such as {'decoder.*.cross': Uniform()}, "
            f"got {quoted(edits)}"
        )
    modules = {} if model is None else named_modules(model)
    check_patterns(list(edits), None if model is None else modules, "intervene: ")
    active = Intervention({name: as_edits(name, given) for name, given in edits.items()}, modules)
    watching.reset_positions()
    with watching.observe(active, model, modules):
        yield active.changed
    if active.compiled_inside:
        warnings.warn(active.compiled_message, stacklevel=3)
    active.check_used()


def _check_model(model: object) -> None:
    if model is None or isinstance(model, nn.Module):
        return
    if isinstance(getattr(model, "model", None), nn.Module):
        raise OptionError(ENGINE.format(type(model).__name__))
    raise OptionError(f"intervene takes a torch module or None, got {quoted(model)}")


ENGINE = (
    "{} computes attention in native code, where it cannot be set; use the plain model, without regard.fast"
)


class Intervention(watching.Observer):
    """State of one active `intervene`."""

    verb, edits_calls = "intervene", True

    def __init__(self, edits: Mapping[str, list[Edit]], modules: Modules | None = None) -> None:
        super().__init__(list(edits), modules)
        self.edits = edits
        self.changed: dict[str, int] = {}  # calls by name
        self.matched: dict[str, dict[str, None]] = {pattern: {} for pattern in edits}
        self.selected: set[str] = set()  # patterns of edits that selected rows of a call

    def edit(self, name: str, call: Call) -> Call:
        """The call with edited weights; the call itself if no row is selected."""
        with call.autocast_context():
            weights = reference.weigh(call, reference.all_inputs(call))[0]
        weights = weights.expand(*call.leading, call.heads, call.Tq, call.Tk)
        visible, positions = visible_pairs(call), _positions(call, name)
        is_edited = False
        for pattern, edits in self.edits.items():
            if not watching.matches(name, pattern):
                continue
            self.matched[pattern][name] = None
            for edit in edits:
                new = edit(CallWeights(weights, visible, name, positions))
                if new is not None:
                    weights, is_edited = new, True
                    self.selected.add(pattern)
        if not is_edited:
            return call
        self.changed[name] = self.changed.get(name, 0) + 1
        return replace(call, edited=weights)

    def check_used(self) -> None:
        """Raise if an entry matched no call; warn if it selected no row."""
        for pattern, names in self.matched.items():
            if not names:
                ran = dict.fromkeys(
                    [*self.left_out, *(n for matched in self.matched.values() for n in matched)]
                )
                why = f"the calls that ran are {', '.join(ran)}" if ran else self.why_empty()
                raise OptionError(f"intervene changed nothing for {pattern!r}: {why}")
            if pattern not in self.selected:
                warnings.warn(
                    f"intervene changed nothing for {pattern!r}: {', '.join(names)} ran, without the queries "
                    "or batch rows that it selects",
                    stacklevel=4,
                )


def _positions(call: Call, name: str) -> Tensor | None:
    """The position of each query, (Tq,) or (batch, Tq), on the CPU; None if unknown."""
    start = watching.current_label().start
    if isinstance(start, int) and start == watching.UNKNOWN:
        return None
    if start is None:  # no layer gave it: the last query is at the last key, except in cross-attention
        is_cross = any(fragment in name.lower() for fragment in CROSS_NAMES)
        start = 0 if is_cross else max(0, call.Tk - call.Tq)
    index = torch.arange(call.Tq, device="cpu")
    if isinstance(start, int):
        return index + start
    start = start.cpu()
    if not start.ndim:
        return index + start
    if tuple(start.shape) != call.leading:  # of another batch
        return index
    return index + start[:, None]


def active_interventions() -> list[Intervention]:
    """The active blocks of `intervene`, outermost first."""
    return [x for x in watching.active_observers() if isinstance(x, Intervention)]


def reject_interventions(engine: object, model: nn.Module) -> None:
    """Raise if an `intervene` of the model is active: its engine does not call `attend`."""
    interventions = active_interventions()
    if interventions and any(id(m) in active.paths for active in interventions for m in model.modules()):
        raise OptionError(ENGINE.format(type(engine).__name__))


def with_interventions(work: Callable[[], None]) -> Callable[[], None]:
    """`work` for another thread, with the interventions that are active in this one."""
    interventions = tuple(active_interventions())

    def run() -> None:
        intercepts = any(intervention.intercepts for intervention in interventions)
        with watching.observed_by(interventions), torch_calls.interception() if intercepts else nullcontext():
            work()

    return run if interventions else work
