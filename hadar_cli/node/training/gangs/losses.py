"""What a loss is made of, read from how autograd came to it.

A mini-batch's mean over samples is the members' means weighted by their samples. A mean over tokens
has to be weighted by tokens, a sum not at all, and a penalty on the weights is everybody's. A loss
may add up several of these: its terms. Where autograd does not tell, nobody guesses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hadar_cli.node.training.gangs.errors import CannotShare

MEAN, SUM, PENALTY = "mean", "sum", "penalty"
_SUM, _NONE = 2, 0  # torch's numbers for these reductions
# They pass a number on as it is, up to its sign.
_THROUGH = ("ToCopy", "Clone", "View", "Squeeze", "Unsqueeze", "Neg", "Alias", "Reshape", "Rsub")
_PER_ELEMENT = (
    *("MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss"),
    *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "MultiMarginLoss"),
    "MultilabelMarginLoss",
)
_SORTS = ("Topk", "Sort", "Kthvalue", "Median")
_WITH_DATA = ("Mul", "Div", "Add", "Sub", "Pow", "Where", "MaskedFill", "Maximum", "Minimum")
_SIZES = "_saved_self_sym_sizes"
_MOST_NODES = 10_000  # of a loss above its terms
_MOST_BELOW = 64  # of a penalty; its numbers come straight from the weights


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A mean over ``count`` numbers of this member's, or a sum; or a penalty, of weights alone."""

    node: Any  # of the autograd graph; None: all of the loss
    kind: str
    count: torch.Tensor | float = 0.0  # of a sum: how many numbers it adds up
    factors: tuple[Any, ...] = ()  # by which the script has multiplied it
    is_counted: bool = False  # by torch: its count may be the same for all by chance only
    classes: int = 0  # that cross entropy chooses among

    @classmethod
    def told(cls, count: float) -> Term:
        """All of a loss, by its script's own words."""
        return cls(None, MEAN, count, is_counted=True)

    @property
    def scale(self) -> Any:
        return math.prod(self.factors)

    @property
    def sign(self) -> tuple[Any, ...]:
        return self.kind, bool(self.factors)


def terms_of(roots: Sequence[torch.Tensor], seeds: Any = None) -> list[Term]:
    """What these losses add up; raises CannotShare for one of which nobody can tell."""
    given = [seeds] if isinstance(seeds, torch.Tensor) else list(seeds or [None] * len(roots))
    found: dict[Any, Term] = {}
    waiting: list[tuple[Any, tuple[Any, ...]]] = []
    for root, seed in zip(roots, given, strict=True):
        if root.numel() != 1:
            raise _unknown(root.grad_fn)
        waiting.append((root.grad_fn, () if seed is None else (seed.detach().reshape(()),)))
    for _ in range(_MOST_NODES):
        if not waiting:
            return list(found.values())
        node, factors = waiting.pop()
        if inner := _linear(node, factors):
            waiting += inner
        elif node in found and found[node].kind == SUM and found[node].factors != factors:
            raise _unknown(node)
        else:
            found[node] = _term(node, factors)
    raise _unknown(roots[0].grad_fn)


def _unknown(node: Any) -> CannotShare:
    return CannotShare(
        f"nobody can tell what its loss, made by {_name(node) or 'nothing'}, is a mean over: if it "
        "is one over so many samples, tokens or pixels, say t.mean_over(so_many) before backward"
    )


def _name(node: Any) -> str:
    return type(node).__name__.partition("Backward")[0] if node is not None else ""


def _inputs(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions]


def _linear(node: Any, factors: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...]]]:
    """What a loss is the sum of, each times these factors; nothing if it is no such sum."""
    name = _name(node)
    if not name:
        return []
    inner = [i for i in _inputs(node) if i is not None]
    if name in _THROUGH and len(inner) == 1:
        return [(inner[0], factors)]
    if name in ("Mul", "Div"):
        factor = _factor(node, name)
        return [] if factor is None else [(inner[0], (*factors, factor))]
    if name in ("Add", "Sub") and inner:
        return [(i, factors) for i in inner]
    if name in ("Sum", "Mean"):
        if math.prod(_sizes(node)) == 1 and (not _sizes(node) or _is_number(inner[0])):
            return [(inner[0], factors)]
        return [(i, factors) for i in _stacked(inner[0], name)]
    return []


def _factor(node: Any, name: str) -> Any:
    """The one number that a loss is multiplied by, whatever it was before; None if it is not."""
    if name not in ("Mul", "Div"):
        return None
    first, second = [*_inputs(node), None][:2]
    if (first is None) == (second is None) or (name == "Div" and first is None):
        return None
    other = getattr(node, "_saved_other" if second is None else "_saved_self", None)
    if isinstance(other, torch.Tensor):
        other = other.detach().reshape(()) if other.numel() == 1 else None
    return None if other is None else (1.0 / other if name == "Div" else other)


def _stacked(node: Any, name: str) -> Iterator[Any]:
    """Losses that were put in a row to be added up, or averaged."""
    if _name(node) == "Stack" and all(_is_number(i) for i in _inputs(node)):
        yield from _inputs(node)


def _is_number(node: Any) -> bool:
    """Whether it is one that can be told apart here: a reduction, or what comes of one."""
    return node is not None and (bool(_linear(node, ())) or _reduction(node) is not None)


def _term(node: Any, factors: tuple[Any, ...]) -> Term:
    if _is_of_weights(node):
        return Term(node, PENALTY)
    found = _reduction(node)
    if found is None or _mixes_samples(node):
        raise _unknown(node)
    kind, count, is_counted = found
    classes = 0
    if _name(node) in ("NllLoss", "NllLoss2D"):
        classes = node._saved_self.shape[1] if node._saved_self.dim() > 1 else 0
    return Term(node, kind, count, factors, is_counted, classes)


def _reduction(node: Any) -> tuple[str, Any, bool] | None:
    """Its kind, what it counts, and whether torch says so; None: it is none that is known."""
    name = _name(node)
    if name in ("NllLoss", "NllLoss2D", *_PER_ELEMENT):
        if node._saved_reduction == _NONE:
            return None
        count = node._saved_total_weight if name[0] == "N" else float(node._saved_self.numel())
        return (SUM if node._saved_reduction == _SUM else MEAN), count, True
    if name not in ("Sum", "Mean"):
        return None
    if inner := _over_samples(node):  # what is added up afterwards is of no sample
        return inner
    return (SUM if name == "Sum" else MEAN), float(math.prod(_sizes(node))), False


def _sizes(node: Any) -> Sequence[int]:
    return tuple(getattr(node, _SIZES))


def _over_samples(node: Any) -> tuple[str, Any, bool] | None:
    """A mean or a sum over the first dimension that came before this one."""
    for below in _chain(node):
        name = _name(below)
        if name in ("Sum", "Mean") and hasattr(below, "_saved_dim"):
            sizes = _sizes(below)
            dims = [_signed(d) % len(sizes) for d in below._saved_dim] or list(range(len(sizes)))
            if 0 in dims:
                counted = sizes if _name(node) == "Mean" else [sizes[d] for d in dims]
                return (SUM if name == "Sum" else MEAN), float(math.prod(counted)), False
        elif name not in _THROUGH and not (name in ("Mul", "Div") and _factor(below, name)):
            return None
    return None


def _mixes_samples(node: Any) -> bool:
    """Whether it chooses among samples: the best of a share are not the best of all."""
    for below in _chain(node):
        if _name(below) in _SORTS:
            sizes = getattr(below, _SIZES, ())
            dim = getattr(below, "_saved_dim", 0)
            return len(sizes) < 2 or _signed(dim) % len(sizes) == 0
    return False


def _signed(number: int) -> int:
    """Autograd tells dimensions without their sign."""
    return number - 2**64 if number >= 2**63 else number


def _chain(node: Any) -> Iterator[Any]:
    """What comes below it, one after the other, as long as each has one input."""
    for _ in range(_MOST_BELOW):
        inner = [i for i in _inputs(node) if i is not None]
        if len(inner) != 1 or _name(node) in ("Addmm", "Mm", "Bmm", "Convolution"):
            return
        node = inner[0]
        yield node


def _is_of_weights(top: Any) -> bool:
    """Whether nothing but weights is in it: all that it comes from, in a few operations."""
    waiting, shapes, has_data, seen = [top], set(), False, 0
    while waiting:
        node, seen = waiting.pop(), seen + 1
        name = _name(node)
        if not name or seen > _MOST_BELOW:
            return False
        if name == "AccumulateGrad":
            shapes.add(tuple(node.variable.shape))
            continue
        inner = _inputs(node)
        if None in inner and _factor(node, name) is None:  # numbers that no weight is behind
            has_data = True
            if name not in _WITH_DATA:
                return False
        waiting += [i for i in inner if i is not None]
    given = getattr(top, "_saved_self", None)
    size = tuple(given.shape) if given is not None else tuple(getattr(top, _SIZES, ()))
    return not has_data or size in shapes  # older weights, say, and no samples beside them
