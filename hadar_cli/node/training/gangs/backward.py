"""Every call of backward passes through here, whoever makes it: ``t.step``, a script, a framework.

In a process that belongs to no gang, ``torch.autograd.backward`` is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Run = Callable[[Sequence[torch.Tensor], Any], None]


class TakesPasses(Protocol):
    """What is done around a call of backward."""

    def backward(self, run: Run, roots: Sequence[torch.Tensor], seeds: Any) -> None: ...


_torchs = torch.autograd.backward


def send_passes_to(gang: TakesPasses | None) -> None:
    if gang is None:
        torch.autograd.backward = _torchs
        return

    def backward(tensors: Any, grad_tensors: Any = None, *words: Any, **more: Any) -> None:
        def run(roots: Sequence[torch.Tensor], seeds: Any) -> None:
            _torchs(roots, seeds, *words, **more)

        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        gang.backward(run, roots, grad_tensors)

    torch.autograd.backward = backward


def weighted(roots: Sequence[torch.Tensor], seeds: Any, weight: Any) -> list[Any]:
    """What backward starts with, times the weight: as if the loss had been multiplied by it."""
    given = [seeds] if isinstance(seeds, torch.Tensor) else list(seeds or [None] * len(roots))
    found = []
    for root, seed in zip(roots, given, strict=True):
        if seed is None and root.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        found.append((torch.ones_like(root) if seed is None else seed) * weight)
    return found
