"""What a loss is a mean over, read from how autograd came to it.

A mini-batch's mean over samples is the members' means weighted by their samples. A mean over tokens
has to be weighted by tokens, and a sum not at all. Where the loss does not say, it is taken for a
mean over samples, and the log says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_SUM = 2  # torch's number for that reduction
# They pass a number on as it is.
_THROUGH = ("ToCopy", "Clone", "View", "Squeeze", "Unsqueeze", "Neg", "Alias", "Select", "Reshape")
_PER_ELEMENT = (
    *("Mean", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss"),
    *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "MultiMarginLoss"),
    "MultilabelMarginLoss",
)
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Kind:
    """What a loss is the mean over, in numbers of this member's; None: of samples. Or a sum."""

    count: torch.Tensor | float | None = None
    is_sum: bool = False
    is_known: bool = True
    by_script: bool = False  # it divided a sum by the count itself, which may be a constant


SAMPLES, _UNKNOWN, _A_SUM = Kind(), Kind(is_known=False), Kind(is_sum=True)


def kind_of(loss: torch.Tensor) -> Kind:
    return _kind(loss.grad_fn, 0)


def _kind(node: Any, depth: int) -> Kind:
    if node is None or depth > _DEEPEST:
        return _UNKNOWN
    name = type(node).__name__.partition("Backward")[0]
    if name in ("NllLoss", "NllLoss2D"):
        return _reduced(node, node._saved_total_weight)
    if name == "Mean":
        return Kind(float(node._saved_self_sym_numel))
    if name in _PER_ELEMENT:
        return _reduced(node, float(node._saved_self.numel()))
    if name == "Sum":
        return _A_SUM
    if name in ("Mul", "Div") or name in _THROUGH:
        return _factor(node, name, depth)
    if name in ("Add", "Sub"):
        return _terms(node, depth)
    return _UNKNOWN


def _reduced(node: Any, count: torch.Tensor | float) -> Kind:
    return _A_SUM if node._saved_reduction == _SUM else Kind(count)


def _factor(node: Any, name: str, depth: int) -> Kind:
    """A sum divided by a number is a mean over that many; any other factor changes nothing."""
    inner = [following for following, _ in node.next_functions if following is not None]
    if len(inner) != 1:
        return _UNKNOWN
    kind = _kind(inner[0], depth + 1)
    if not kind.is_sum or name in _THROUGH:
        return kind
    divisor = getattr(node, "_saved_other", None)
    if isinstance(divisor, torch.Tensor):
        divisor = divisor.detach() if divisor.numel() == 1 else None
    return Kind(divisor, by_script=True) if name == "Div" and divisor is not None else _UNKNOWN


def _terms(node: Any, depth: int) -> Kind:
    """Of terms that are means over the same, as with label smoothing; of others nobody can tell."""
    kinds = [_kind(following, depth + 1) for following, _ in node.next_functions if following]
    counts = [kind.count for kind in kinds if kind.count is not None]
    if kinds and len(counts) == len(kinds) and len({float(count) for count in counts}) == 1:
        return kinds[0]
    return _A_SUM if kinds and all(kind.is_sum for kind in kinds) else _UNKNOWN
