"""One round's market: the devices still free, what they cost, and what a gang can buy."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property, partial
from operator import gt

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray, RowIndex
from hadar_cli.core.estimates.gangs import EQUAL, PROPORTIONAL
from hadar_cli.core.policies.gangs.backfill import WaitingLines
from hadar_cli.core.policies.gangs.queue import Allocation, Queue, gang_rate


class _Rows(dict[int, list[float]]):
    """Rows of a table as they are asked for: numpy is slow on single numbers."""

    def __init__(self, table: FloatArray) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, j: int) -> list[float]:
        row: list[float] = self._table[j].tolist()
        self[j] = row
        return row


class Market:
    """Prices are of one device-second of each kind; ``take`` gives devices away.

    Gangs of several kinds run at their slowest member's spread rate.
    """

    def __init__(self, queue: Queue, prices: FloatArray, free: list[int]) -> None:
        self.queue, self.prices, self.free = queue, prices, free
        self.taken: dict[int, Allocation] = {}
        gang, every = queue.gang.astype(np.float64), np.arange(len(queue))
        self.is_outsize = ~queue.elastic & (queue.gang > queue.capacity.max(initial=0))
        # By kind and job: numpy is quick along long rows.
        fits = (queue.gang <= queue.capacity[:, None]) | queue.elastic
        rates = np.where(fits, queue.rates.T, 0.0)
        # A gang that no kind can hold runs mixed, at best like this.
        if (nowhere := ~rates.any(axis=0)).any():
            rates[:, nowhere] = queue.slow_rates.T[:, nowhere]
        with np.errstate(divide="ignore", invalid="ignore"):
            step_price = np.where(rates > 0, prices[:, None] / rates, np.inf)
            home = step_price.argmin(axis=0)
            best = step_price[home, every]
            self._ratios: FloatArray = np.where(rates > 0, step_price / best, np.inf)
            self.cost: FloatArray = queue.remaining * best  # of all that the job has left
            self.top_rate: FloatArray = gang * rates.max(axis=0)
            left = queue.remaining if queue.at_worst is None else queue.at_worst
            self.shortest_s: FloatArray = left / self.top_rate
            self.longest_s = float((queue.remaining / self.top_rate).max(initial=0.0))
            self.share: FloatArray = gang * prices[home]  # of the whole cluster, at home
            self.home_s: FloatArray = left / (gang * rates[home, every])
        self._best = best
        self._rates, self._slow = _Rows(queue.rates), _Rows(queue.slow_rates)
        self._ratio, self._gang = _Rows(self._ratios.T), queue.gang.tolist()
        shared = queue.proportional
        self._is_shared = np.zeros(len(queue), dtype=np.bool_) if shared is None else shared
        self.ids: list[int] = queue.ids.tolist()
        self._index = RowIndex(queue.ids)
        self._is_taken = np.zeros(len(queue), dtype=np.bool_)
        self._prices: list[float] = prices.tolist()
        self._held_by = self._index.rows_of(queue.running)
        self.runs = self._is_taken.copy()
        self.runs[self._held_by[self._held_by >= 0]] = True

    def reopened(self, free: list[int]) -> Market:
        """The same market with other devices free and nothing taken."""
        market = copy(self)
        market.free, market.taken = free, {}
        market._is_taken = np.zeros_like(self._is_taken)
        return market

    def waiting(self, queue: Queue) -> BoolArray | None:
        """Which of its jobs are in this queue and do not run; None if others wait there too."""
        rows = self._index.rows(queue.ids)
        if rows.min(initial=0) < 0:
            later = queue.ids[rows < 0].tolist()
            if not queue.running.keys() >= set(later):
                return None
            rows = rows[rows >= 0]
        waits = np.zeros(len(self.ids), dtype=np.bool_)
        waits[rows] = True
        running = self._index.rows_of(queue.running)
        waits[running[running >= 0]] = False
        return waits

    def reprice(self, prices: Sequence[float]) -> None:
        """For ``options`` and ``bill``; the arrays keep the prices of the start."""
        self._prices = list(prices)

    def take(self, j: int, allocation: Allocation | None) -> None:
        if allocation is not None:
            self.taken[self.ids[j]] = allocation
            self._is_taken[j] = True
            for r, count in enumerate(allocation):
                self.free[r] -= count

    def exchange(self, j: int, allocation: Allocation) -> None:
        """Gives back what the job has taken, and takes this."""
        mine = self.taken.pop(self.ids[j])
        self.free = [f + n for f, n in zip(self.free, mine, strict=True)]
        self.take(j, allocation)

    def settle(self, order: IntArray, limit: FloatArray, choosy: float) -> None:
        """As if one after another took what ``kept(j, limit)`` says, else ``cheapest(j, choosy)``.

        All take what they like best of what is free, up to the first one who comes too late for it:
        he and all behind him look again. Where he came too late nobody as wide as he finds room any
        more, so that few looks do.
        """
        keeps = self._keeps(limit)
        while len(order) and any(self.free):
            wishes = self._wishes(order, keeps, choosy)
            has_one = wishes.any(axis=0)
            order, wishes = order[has_one], wishes[:, has_one]
            taken = wishes.cumsum(axis=1)
            n = min(map(partial(np.searchsorted, side="right"), taken, self.free))
            self._take_all(order[:n], wishes[:, :n])
            order = order[n:]

    def _keeps(self, limit: FloatArray) -> BoolArray:
        """Who has devices, and all of them, within ``limit`` × its best."""
        rows = np.flatnonzero(self.runs)
        keeps = np.zeros(len(self.queue), dtype=np.bool_)
        is_there = self._held[:, rows] == self.queue.gang[rows]  # the whole gang
        keeps[rows] = (is_there & (self._ratios[:, rows] <= limit[rows])).any(axis=0)
        odd = rows[~is_there.any(axis=0)]  # on several kinds, or of fewer than they ask for
        for j in odd.tolist():
            mine = self.queue.running[self.ids[j]]
            is_full = sum(mine) >= self._gang[j]
            keeps[j] = is_full and self._step_price(j, mine) <= limit[j] * self._best[j]
        return keeps

    def _wishes(self, order: IntArray, keeps: BoolArray, choosy: float) -> IntArray:
        """Kinds × these jobs: the devices that each would take if it were the first."""
        held, width = self._held[:, order], self.queue.gang[order]
        limit, kind = np.full(len(order), choosy), np.full(len(order), -1)
        for r, ratio in enumerate(self._ratios[:, order]):
            is_better = (ratio <= limit) & (width <= self.free[r])
            np.copyto(limit, ratio, where=is_better)
            kind[is_better] = r
        stays = keeps[order] & (held <= np.array(self.free)[:, None]).all(axis=0)
        return np.where(stays, held, width * (kind == np.arange(len(held))[:, None]))

    def _take_all(self, rows: IntArray, counts: IntArray) -> None:
        """The same as ``take`` for each of them."""
        ids, allocations = self.queue.ids[rows].tolist(), map(tuple, counts.T.tolist())
        self.taken.update(zip(ids, allocations, strict=True))
        self._is_taken[rows] = True
        self.free = [f - n for f, n in zip(self.free, counts.sum(axis=1).tolist(), strict=True)]

    @cached_property
    def _held(self) -> IntArray:
        """Kinds × jobs."""
        held = np.zeros(self._ratios.shape, dtype=np.int64)
        gangs = np.array(list(self.queue.running.values()), dtype=np.int64)
        is_here = self._held_by >= 0
        held[:, self._held_by[is_here]] = gangs.reshape(-1, len(held))[is_here].T
        return held

    def kept(self, j: int, limit: float) -> Allocation | None:
        """The devices that the job has, if still free, whole, and within ``limit`` × its best."""
        held = self.queue.running.get(self.ids[j])
        if held is None:
            return None
        most = max(held)
        if most == self._gang[j]:  # whole on one kind, where the ratio is known
            kind = held.index(most)
            return held if most <= self.free[kind] and self._ratio[j][kind] <= limit else None
        if sum(held) < self._gang[j] or any(map(gt, held, self.free)):
            return None
        return held if self._step_price(j, held) <= limit * self._best[j] else None

    def cheapest(self, j: int, limit: float) -> Allocation | None:
        """The whole gang on the cheapest kind with room, if within ``limit`` × its best.

        A gang that no kind can hold takes what there is of several.
        """
        if self.is_outsize[j]:
            return self.fastest(j)
        kind = -1
        for r, ratio in enumerate(self._ratio[j]):
            if ratio <= limit and self.free[r] >= self._gang[j]:
                limit, kind = ratio, r
        return self._on_one(kind, self._gang[j]) if kind >= 0 else None

    def fastest(self, j: int, worth_s: float = 0.0) -> Allocation | None:
        """The highest rate to be had; of equals the job's own, on few kinds, then the cheapest.

        A job leaves the devices it has only if that saves more than ``worth_s``.
        """
        held = self.kept(j, float("inf"))
        if held and self.rate(j, held) >= self._gang[j] * max(*self._rates[j], *self._slow[j]):
            return held
        best = max(
            self.options(j),
            key=lambda a: (self.rate(j, a), a == held, a.count(0), -self.bill(a)),
            default=None,
        )
        return held if held and best and self._saved_s(j, held, best) <= worth_s else best

    def _saved_s(self, j: int, now: Allocation, then: Allocation) -> float:
        """How much sooner the job ends on other devices, the start there not counted."""
        left, rates = float(self.queue.remaining[j]), (self.rate(j, now), self.rate(j, then))
        return left / rates[0] - left / rates[1] if min(rates) > 0 else float("inf")

    def options(self, j: int) -> list[Allocation]:
        """For each kind as the slowest member the cheapest gang, on one kind or on several."""
        found: dict[Allocation, None] = {}
        for r, rate in enumerate(self._rates[j]):
            size = self._size(j, self.free[r])
            if rate > 0 and 0 < size <= self.free[r]:
                found[self._on_one(r, size)] = None
            if mixed := self._at_least(j, self._slow[j][r]):
                found[mixed] = None
        is_free_in_size = self.queue.elastic[j] or self.is_outsize[j]
        # Others would take fast devices and wait no less: traces had a longer mean JCT with it.
        if self._is_shared[j] and is_free_in_size and (fastest := self._fastest_mix(j)):
            found[fastest] = None
        return list(found)

    def backfill(self, order: IntArray) -> None:
        """Gives what is left to the waiting, those nearest to their best price first."""
        if any(self.free):
            waits = np.zeros(len(self.queue), dtype=np.bool_)
            waits[order] = True
            self.deal(waits, self.waiting_lines(order), order)

    def waiting_lines(self, order: IntArray) -> WaitingLines:
        """Lines of those who want all their devices, and of one kind."""
        return WaitingLines(self._ratios.T, self.queue.gang, order[~self.queue.elastic[order]])

    def deal(self, waits: BoolArray, waiting_lines: WaitingLines, order: IntArray) -> None:
        """The same for those who wait, of whom ``waiting_lines`` has the lines in this order."""
        waits &= ~self._is_taken
        while any(self.free) and (found := waiting_lines.nearest(waits, self.free)):
            j, kind = found
            self.take(j, self._on_one(kind, self._gang[j]))
            waits[j] = False
        if any(self.free):
            self._give_rest(order[waits[order]])

    def _give_rest(self, waiting: IntArray) -> None:
        """What nobody could use as it is: gangs of several kinds, and of less than they asked."""
        is_small = self.queue.gang[waiting] <= sum(self.free)
        waiting = waiting[is_small | self.queue.elastic[waiting]]
        open_ = np.flatnonzero(self.free)
        rates, slow = (
            x[waiting[:, None], open_] for x in (self.queue.rates, self.queue.slow_rates)
        )
        for j in waiting[((rates > 0) | (slow > 0)).any(axis=1)].tolist():
            if not any(self.free):
                break
            if self.queue.elastic[j] or self._gang[j] <= sum(self.free):
                self.take(j, self.fastest(j))

    def upgrade(self, order: IntArray, gain: float) -> None:
        """Moves gangs to idle devices of one kind that are faster for them by this factor.

        What is idle now nobody else can use, so its price does not matter.
        """
        has_moved, running, restart_s = False, self.queue.running, self.queue.restart_s
        for j in order.tolist():
            if not any(self.free):
                break
            mine = self.taken.get(self.ids[j])
            if mine is None:
                continue
            rates = [
                x if f >= self._gang[j] else 0.0
                for x, f in zip(self._rates[j], self.free, strict=True)
            ]
            best = max(rates)
            if best * self._gang[j] <= gain * self.rate(j, mine):
                continue
            there = self._on_one(rates.index(best), self._gang[j])
            if mine != running.get(self.ids[j]) or self._saved_s(j, mine, there) > restart_s:
                self.exchange(j, there)
                has_moved = True
        if has_moved:
            self.backfill(order)

    def rate(self, j: int, allocation: Allocation) -> float:
        is_mixed = len(allocation) - allocation.count(0) > 1
        rates = self._slow[j] if is_mixed else self._rates[j]
        return gang_rate(allocation, rates, PROPORTIONAL if self._is_shared[j] else EQUAL)

    def bill(self, allocation: Allocation) -> float:
        """Of one second."""
        return sum(n * p for n, p in zip(allocation, self._prices, strict=True) if n)

    def _step_price(self, j: int, allocation: Allocation) -> float:
        rate = self.rate(j, allocation)
        return self.bill(allocation) / rate if rate > 0 else float("inf")

    def _at_least(self, j: int, slowest: float) -> Allocation | None:
        """The cheapest devices that are no slower for the job than this."""
        kinds = [r for r, rate in enumerate(self._slow[j]) if rate >= slowest > 0 and self.free[r]]
        size = self._size(j, sum(self.free[r] for r in kinds))
        counts = [0] * len(self.free)
        for r in sorted(kinds, key=lambda r: (self._prices[r], self.queue.kinds[r])):
            counts[r] = min(self.free[r], size - sum(counts))
        return tuple(counts) if 0 < size == sum(counts) else None

    def _fastest_mix(self, j: int) -> Allocation | None:
        """Of all that is free; a slow member of a gang with unequal shares holds nobody up."""
        kinds = [r for r, rate in enumerate(self._slow[j]) if rate > 0 and self.free[r]]
        size = self._size(j, sum(self.free[r] for r in kinds))
        counts = [0] * len(self.free)
        for r in sorted(kinds, key=lambda r: (-self._slow[j][r], self.queue.kinds[r])):
            counts[r] = min(self.free[r], size - sum(counts))
        return tuple(counts) if 0 < size == sum(counts) else None

    def _size(self, j: int, room: int) -> int:
        """What the job asks for; an elastic one asks for no more than there is."""
        return min(self._gang[j], room) if self.queue.elastic[j] else int(self._gang[j])

    def _on_one(self, kind: int, count: int) -> Allocation:
        return tuple(count if r == kind else 0 for r in range(len(self.free)))
