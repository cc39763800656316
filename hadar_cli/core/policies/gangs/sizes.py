"""How many devices a job gets that leaves its size open.

A wider gang ends sooner and costs more, for no job scales without loss. A second of a job's own
time counts one; a second of the whole cluster counts as many as stand behind it, who all wait for
as long. So a job takes the kind r and the size n with the least

    (start + rem / rate(r, n)) · (1 + behind · λ_r · n)

where λ_r is the price of a device-second, with one second of the cluster costing 1. Alone, a job
takes whatever makes it faster; in a crowd, what wastes least. For equal devices and rates n^p this
is what is known to be best for the mean completion time: the next to end gets 1/(1−p) times its
equal share (heSRPT; Berg, Vesilo and Harchol-Balter, 2020). A job that sets the end of all delays
everybody by its own seconds as much as by the cluster's: as if one stood behind it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray
from hadar_cli.core.policies.gangs.market import Market
from hadar_cli.core.policies.gangs.queue import Allocation, Queue

STAY = 0.3  # of the time left must be saved by a change, beside the start: the next may come soon


def thrifty_rates(queue: Queue) -> FloatArray:
    """Jobs × kinds: of one device, open jobs at the size that wastes least."""
    if queue.sized_rates is None:
        return queue.rates
    per_device = queue.sized_rates / np.arange(1, queue.sized_rates.shape[2] + 1)
    is_open = queue.sized_rates.max(axis=(1, 2), initial=0.0) > 0
    return np.where(is_open[:, None], per_device.max(axis=2), queue.rates)


class Sizes:
    """What open jobs take when it is their turn; for queues without any, nothing changes."""

    def __init__(self, queue: Queue, prices: FloatArray) -> None:
        self._queue = queue
        rates = queue.sized_rates
        self.is_open: BoolArray = np.zeros(len(queue), dtype=np.bool_)
        self.is_any_open = rates is not None
        self.widest_s: FloatArray = np.zeros(len(queue))  # the least that open jobs need
        if rates is None:
            return
        self._rates: FloatArray = rates
        self.is_open = rates.max(axis=(1, 2), initial=0.0) > 0
        self.is_any_open = bool(self.is_open.any())
        self._widths = np.arange(1, rates.shape[2] + 1)
        self._share = prices[:, None] * self._widths  # of the cluster
        with np.errstate(divide="ignore"):
            self._needed_s = queue.restart_s + queue.remaining[:, None, None] / rates
            cost = queue.remaining * (prices / thrifty_rates(queue)).min(axis=1)
        self.widest_s = np.where(self.is_open, self._needed_s.min(axis=(1, 2)), 0.0)
        rank = np.empty(len(queue), dtype=np.int64)
        rank[np.lexsort((queue.ids, cost))] = np.arange(len(queue))
        self._behind: IntArray = len(queue) - 1 - rank
        self._held = [queue.running.get(job) for job in queue.ids.tolist()]
        # Devices of running gangs that have not had their turn, and how many such gangs there are.
        held = np.array([a for a in self._held if a], dtype=np.int64).reshape(-1, len(prices))
        self._pending, self._gangs = held.sum(axis=0), (held > 0).sum(axis=0)

    def wanted(self) -> Queue:
        """The queue with every open job at the size it would like best, were all devices free."""
        if not self.is_any_open:
            return self._queue
        queue, rows = self._queue, np.arange(len(self._queue))
        bill = self._needed_s * (1 + self._behind[:, None, None] * self._share)
        size = bill.reshape(len(queue), -1).argmin(axis=1) % bill.shape[2]
        is_open = self.is_open[:, None]
        per_device = self._rates[rows, :, size] / (size + 1)[:, None]
        columns = {name: getattr(queue, name) for name in Queue.__dataclass_fields__}
        return replace(
            Queue(**columns),
            gang=np.where(self.is_open, size + 1, queue.gang),
            rates=np.where(is_open, per_device, queue.rates),
            spread_rates=np.where(is_open, per_device, queue.slow_rates),
        )

    def give(self, market: Market, j: int, is_late: bool) -> None:
        """The job's turn; whether open or not, nobody makes it start again after that."""
        if held := self._held[j]:
            self._pending -= held
            self._gangs -= np.array(held) > 0
        if self.is_open[j]:
            market.take(j, self._best(j, market.free, is_late))

    def fill(self, market: Market, order: IntArray) -> None:
        """Devices that nobody wants: to open jobs that wait, then to widen others."""
        if not self.is_any_open:
            return
        for j in order[self.is_open[order]].tolist():
            if any(market.free) and market.ids[j] not in market.taken:
                market.take(j, self._best(j, market.free, is_late=False))
        for j in order[self.is_open[order]].tolist():
            mine = market.taken.get(market.ids[j])
            if any(market.free) and mine and (wider := self._wider(j, mine, market.free)):
                market.exchange(j, wider)

    def _best(self, j: int, room: list[int], is_late: bool) -> Allocation | None:
        """The least bill within so many devices of each kind, of which others may hold some.

        Whoever takes devices that others hold makes them start again elsewhere.
        """
        free = np.array(room)
        weight = 1 + (1 if is_late else int(self._behind[j])) * self._share
        idle = (free - self._pending)[:, None]
        width = np.maximum(self._pending / np.maximum(self._gangs, 1), 1)[:, None]
        displaced = np.ceil(np.maximum(self._widths - idle, 0) / width)
        bill = (self._needed_s[j] + displaced * self._queue.restart_s) * weight
        held = self._held[j]
        if held and (size := max(held)) == sum(held):
            at = held.index(size), size - 1
            stay_s = self._needed_s[j][at] - self._queue.restart_s
            bill[at] = (1 - STAY) * stay_s * weight[at]
        bill[self._widths > free[:, None]] = np.inf
        kind, size = divmod(int(bill.argmin()), bill.shape[1])
        return _on_one(kind, size + 1, len(room)) if bill[kind, size] < np.inf else None

    def _wider(self, j: int, mine: Allocation, room: list[int]) -> Allocation | None:
        """A wider gang on the same kind, if that pays."""
        size = max(mine)
        kind = mine.index(size)
        rates = self._rates[j, kind]
        more = rates[size : size + room[kind]]
        if size != sum(mine) or not len(more):
            return None
        left_s, best = self._queue.remaining[j] / rates[size - 1], int(more.argmax())
        with np.errstate(divide="ignore"):
            saved_s = left_s - self._queue.remaining[j] / more[best]
        runs_so = self._held[j] == mine
        if saved_s <= (self._queue.restart_s + STAY * left_s if runs_so else 0.0):
            return None
        return _on_one(kind, size + best + 1, len(mine))


def _on_one(kind: int, count: int, kinds: int) -> Allocation:
    return tuple(count if r == kind else 0 for r in range(kinds))
