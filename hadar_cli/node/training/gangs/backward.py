"""Every call of backward passes through here, whoever makes it: ``t.step``, a script, a framework.

In a process that belongs to no gang, ``torch.autograd.backward`` is torch's own. In a gang's, each
term of a loss gets the weight by which the members' gradients add up to the whole batch's.
"""

from __future__ import annotations

import functools
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hadar_cli.node.training.gangs.cutting import Part
from hadar_cli.node.training.gangs.errors import CannotShare
from hadar_cli.node.training.gangs.losses import MEAN, PENALTY, Term

Run = Callable[[Sequence[torch.Tensor], Any], None]
Tell = Callable[[Sequence[float]], list[list[float]]]
_LOOKS = 3  # at unequal shares, until it is known what of a loss follows a member's samples
_ALIKE = 1e-5
_COMPARES = "its loss compares the samples of a mini-batch with each other"
_OWN_FACTOR = "its loss is multiplied by a number that each member takes of its own samples"


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


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one pass: what its terms, or all of its loss, is to be multiplied by."""

    of_terms: tuple[tuple[Any, Any], ...]  # node of the graph and weight
    of_all: Any = None  # or else of each term its own
    loss: Any = 0.0  # by which the loss itself adds up with the others'
    count: Any = 0.0  # what the loss is a mean over here,
    total: Any = None  # and everywhere, as far as it is known before all gradients are

    def run(self, run: Run, roots: Sequence[torch.Tensor], seeds: Any) -> None:
        if self.of_all is not None:
            run(*_weighted(roots, seeds, self.of_all))
            return
        hooks = [node.register_prehook(_times(weight)) for node, weight in self.of_terms]
        try:
            run(roots, seeds)
        finally:
            for hook in hooks:
                hook.remove()


def _times(weight: Any) -> Callable[[Any], Any]:
    return lambda grads: tuple(None if grad is None else grad * weight for grad in grads)


def _weighted(
    roots: Sequence[torch.Tensor], seeds: Any, weight: Any
) -> tuple[list[torch.Tensor], list[Any]]:
    """What backward goes through and starts with, its gradients times the weight.

    A loss is multiplied by it. A seed would do the same, but at the first one torch imports the
    symbolic mathematics of its compiler: a second of every member's start.
    """
    given = [seeds] if isinstance(seeds, torch.Tensor) else list(seeds or [None] * len(roots))
    with torch.enable_grad():
        pairs = [
            (root * weight, None) if seed is None else (root, seed * weight)
            for root, seed in zip(roots, given, strict=True)
        ]
    return [root for root, _ in pairs], [seed for _, seed in pairs]


@dataclass(slots=True)
class _Seen:
    """What is known of one pass's loss, as long as it is made in the same way."""

    looks: int = 0
    means: set[int] = field(default_factory=set)  # terms, sums divided by what they count included
    alike: set[int] | None = None  # terms that were as large for all members at every look
    totals: list[Any] = field(default_factory=list)  # of what its means are over


class Weighing:
    """Weighs the terms of a member's losses. ``tell`` hands numbers round, to all members."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._seen: dict[tuple[Any, ...], _Seen] = {}
        self._latest = _Seen()

    def weigh(self, terms: Sequence[Term], number: int, part: Part, batches: int) -> Weights:
        """``number`` is the pass's in its step, of so many mini-batches."""
        own = [term for term in terms if term.kind != PENALTY]
        key = (number, *(term.sign for term in own))
        seen = self._latest = self._seen.setdefault(key, _Seen())
        is_sure = seen.looks >= _LOOKS
        if own and not is_sure:
            self._look(seen, own, part)
        counts = {t: _count(t, part) for i, t in enumerate(own) if i in seen.means}
        is_late = is_sure and len(terms) == len(counts) == batches == 1
        if counts and not is_late:
            rows = self._tell([float(count) for count in counts.values()])
            seen.totals = [sum(column) for column in zip(*rows, strict=True)]
        by_mean = zip(counts.items(), seen.totals, strict=True) if counts else ()
        weights = {term: count / total for (term, count), total in by_mean}
        for term in terms:
            weights.setdefault(
                term, part.weight if term.kind == PENALTY else float(part.samples > 0)
            )
        of_terms = tuple((term.node, weights[term]) for term in terms)
        if is_late:
            return Weights((), *2 * of_terms[0][1:], counts[terms[0]], seen.totals[0])
        if len(terms) == 1 or (not counts and len(own) == len(terms)):
            return Weights((), *2 * of_terms[0][1:])
        # Of a loss whose terms have several weights only the sum is known: it is told nearly.
        theirs = [float(weights[term]) for term in own]
        is_one = bool(theirs) and max(theirs) - min(theirs) <= _ALIKE
        return Weights(of_terms, loss=theirs[0] if is_one else part.weight)

    def note_total(self, total: Any) -> None:
        """Of the pass that was weighed last, now that all have told."""
        self._latest.totals = [total]

    def _look(self, seen: _Seen, own: Sequence[Term], part: Part) -> None:
        """Which terms are means, by what differs among the members."""
        told = [float(n) for t in own for n in (t.count, t.scale, t.classes)]
        made = float(zlib.crc32(repr([term.sign for term in own]).encode()))
        rows = [row for row in self._tell([float(part.samples), made, *told]) if row[0]]
        if len({row[1] for row in rows}) > 1:
            raise CannotShare("its members put their losses together in different ways")
        differ = len({row[0] for row in rows}) > 1
        alike = set()
        for i, term in enumerate(own):
            theirs = (row[2 + 3 * i : 5 + 3 * i] for row in rows)
            counts, scales, classes = zip(*theirs, strict=True)
            is_scaled_alike = max(scales) - min(scales) <= _ALIKE * max(map(abs, scales))
            if len(set(classes)) > 1:
                raise CannotShare(f"{_COMPARES}: a share has fewer of them than the whole")
            if term.kind == MEAN and not is_scaled_alike:
                raise CannotShare(_OWN_FACTOR)
            if term.kind == MEAN or not is_scaled_alike:
                seen.means.add(i)
            elif term.factors and not differ and len(rows) > 1:
                _say_assumed()
                seen.means.add(i)
            if not term.is_counted and len(set(counts)) == 1:
                alike.add(i)
        if differ:
            seen.looks += 1
            seen.alike = alike if seen.alike is None else seen.alike & alike
            if seen.looks == _LOOKS and seen.alike:
                raise CannotShare(f"{_COMPARES}: a part of it is as large for few as for many")


def _count(term: Term, part: Part) -> Any:
    """What a term is a mean over: a sum over n, divided by n, says so by its factors."""
    count = term.count if term.kind == MEAN else 1.0 / term.scale
    if isinstance(count, torch.Tensor):
        count = count.detach().float().reshape(())
    return count * float(part.samples > 0)


@functools.cache
def _say_assumed() -> None:
    print(
        "hadar: whether a loss is divided by its samples or by a constant cannot be seen, as all "
        "members have equally many: its gang takes it for a mean",
        file=sys.stderr,
    )
