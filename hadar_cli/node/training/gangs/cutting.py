"""Cuts mini-batches into the members' shares, ahead of the training that uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hadar_cli.node.training.gangs.shares import Shares, divide


@dataclass(frozen=True, slots=True)
class Part:
    """A member's samples of one mini-batch."""

    first: int
    end: int
    samples: int  # that count: those of a member without a share do not
    batch: int

    @property
    def weight(self) -> float:
        return self.samples / self.batch


class Cutter:
    """Decides, batch after batch, which samples are this member's.

    Loaders with worker processes ask for batches long before they are trained on, each member's as
    far ahead as it likes. So new shares hold from a batch that nobody has asked for yet.
    """

    def __init__(self, rank: int, shares: Shares, least: int) -> None:
        self._rank, self._shares, self._least = rank, shares, least
        self._following: tuple[int, Shares] | None = None  # from which batch on
        self._cut = self._trained = 0
        self._is_first = True
        self._parts: deque[Part] = deque()

    @property
    def ahead(self) -> int:
        """Batches that were asked for and not trained on yet."""
        return len(self._parts)

    def begin(self) -> None:
        """A new pass over the data begins; whatever was cut before is thrown away."""
        self._parts.clear()
        self._cut = self._trained = 0
        if self._following:
            self._shares, self._following = self._following[1], None

    def change(self, shares: Shares, ahead: int) -> None:
        """New shares, from the first batch on that no member has asked for."""
        self._following = (self._trained + ahead, shares)

    def cut(self, batch: int) -> slice:
        """This member's part of the next mini-batch."""
        if self._following and self._cut >= self._following[0]:
            self._shares, self._following = self._following[1], None
        self._cut += 1
        counts = divide(batch, self._shares)
        if self._is_first and len(set(counts)) == 1 and counts[0] > self._least:
            # By unequal shares it shows whether a loss is a mean over them, see losses.py.
            counts[0], counts[-1] = counts[0] + 1, counts[-1] - 1
        self._is_first = False
        counts = _with_least(counts, self._least)
        first = sum(counts[: self._rank])
        count = counts[self._rank]
        # Whoever has no share runs along on the first samples, which weigh nothing for it.
        bounds = (first, first + count) if count else (0, min(batch, self._least))
        self._parts.append(Part(*bounds, count, batch))
        return slice(*bounds)

    def next_part(self) -> Part:
        """Of the mini-batch that is trained on now."""
        self._trained += 1
        return self._parts.popleft()


def _with_least(counts: Sequence[int], least: int) -> list[int]:
    """BatchNorm takes no single sample: whoever has a share has that many, or none."""
    found = list(counts)
    for i, count in enumerate(found):
        if 0 < count < least:
            giver = max(range(len(found)), key=lambda j: (found[j], -j))
            moved = least - count if found[giver] - (least - count) >= least else -count
            if giver == i:
                continue
            found[i] += moved
            found[giver] -= moved
    return found
