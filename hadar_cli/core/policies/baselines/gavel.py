"""Gavel, as its authors' simulator behaves: an LP says which share of its time each job should
spend on each kind, and every round goes to the jobs that are furthest behind their shares.

The shares are solved again after arrivals and completions, at most every ``resolve_s`` seconds.
In between, a job's priority on a kind is its share there over the rounds it received there since
the solve, which count from one half. A gang runs on one kind; an elastic one, which its authors
do not know, is for the program as wide as the kind allows and takes what is left of it. Devices of
jobs that end inside a round stay idle until its end, and in simulations spread gangs lose nothing;
``refills`` and ``pays_spread`` treat it like the others in both.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray
from hadar_cli.core.estimates.fluid import gang_optimum
from hadar_cli.core.estimates.linear import minimize
from hadar_cli.core.policies.gangs.queue import (
    Allocation,
    Decision,
    Queue,
    fit_in_order,
    general_ranking,
)
from hadar_cli.core.policies.port import register


@dataclass(frozen=True, slots=True)
class GavelMemory:
    """The last solution; its rows belong to ``ids``, ascending."""

    solved_s: float
    ids: IntArray
    shares: FloatArray  # jobs × kinds
    rounds_then: FloatArray


@register
@dataclass(frozen=True, slots=True)
class Gavel:
    """Max-min fairness: the worst-off job does as well as can be.

    A job's welfare is its throughput over what an equal share of the cluster would give it.
    """

    name: ClassVar[str] = "gavel"
    resolve_s: float = 1920.0
    refills: bool = False  # devices that come free inside a round are given away at once
    pays_spread: bool = False  # in simulations: gangs over more nodes than needed run slower

    def allocate(self, queue: Queue, memory: GavelMemory | None = None) -> Decision:
        if not len(queue):
            return Decision({}, memory)
        memory = self._solved(queue, memory)
        # A gang wider than every kind would wait for ever; it is the only one that may be mixed.
        wide = np.flatnonzero(~_can_hold(queue).any(axis=1))
        taken = fit_in_order(queue, wide[np.argsort(queue.ids[wide])], queue.capacity.tolist())
        free = [int(c) - sum(a[r] for a in taken.values()) for r, c in enumerate(queue.capacity)]
        return Decision(taken | _deal(queue, memory, free, taken), memory)

    def refill(self, queue: Queue, memory: GavelMemory | None = None) -> dict[int, Allocation]:
        if not self.refills or memory is None:
            return {}
        return _deal(queue, memory, queue.free(), queue.running)

    def shares(self, queue: Queue) -> FloatArray:
        """x_jr, the share of its time that job j should spend on kind r."""
        equal = queue.rates @ (queue.capacity / max(1, len(queue)))
        widths = _widths(queue)
        gains = queue.rates * widths / np.maximum(equal, 1e-300)[:, None]
        return max_min_shares(np.where(_can_hold(queue), gains, 0), widths, queue.capacity)

    def _solved(self, queue: Queue, memory: GavelMemory | None) -> GavelMemory:
        rows = np.argsort(queue.ids)
        ids = queue.ids[rows]
        if memory is not None:
            is_due = queue.now_s - memory.solved_s >= self.resolve_s
            if not is_due or np.array_equal(ids, memory.ids):
                return memory
        # In one order always: of several optima, the solver's choice depends on it.
        first_come, columns = np.lexsort((queue.ids, queue.arrived_s)), np.argsort(queue.kinds)
        shares = np.empty_like(queue.rates)
        shares[np.ix_(first_come, columns)] = self.shares(queue.permuted(first_come, columns))
        return GavelMemory(queue.now_s, ids, shares[rows], queue.rounds_on[rows])


@register
@dataclass(frozen=True, slots=True)
class GavelMakespan(Gavel):
    """Minimum makespan: every job gets the shares with which all end together, soonest."""

    name: ClassVar[str] = "gavel-makespan"

    def shares(self, queue: Queue) -> FloatArray:
        fits = _can_hold(queue)
        fits[~fits.any(axis=1)] = True  # gangs that must be mixed
        gang, pools = queue.gang.astype(np.float64), queue.capacity.astype(np.float64)
        rates = np.where(fits, queue.rates, 0.0)
        plan = gang_optimum(queue.remaining, rates, gang, pools, queue.elastic)
        if not 0 < plan.makespan_s < float("inf"):
            return np.zeros_like(queue.rates)
        shares = plan.seconds / plan.makespan_s * gang[:, None] / np.maximum(_widths(queue), 1)
        return np.minimum(shares, 1.0)


def _deal(
    queue: Queue, memory: GavelMemory, free: list[int], seated: Container[int]
) -> dict[int, Allocation]:
    """Kinds one after the other, the fastest first; leftovers go to jobs without a share."""
    shares = _rows(memory.shares, memory, queue)
    since = queue.rounds_on - _rows(memory.rounds_then, memory, queue)
    priority = shares / (since + 0.5)
    ids, gang, elastic = queue.ids.tolist(), queue.gang.tolist(), queue.elastic.tolist()
    taken: dict[int, Allocation] = {}
    for r in general_ranking(queue):
        order = np.lexsort((queue.ids, queue.arrived_s, -shares[:, r], -priority[:, r]))
        able = order[queue.rates[order, r] > 0]
        for j in able.tolist():
            if free[r] == 0:
                break
            size = min(gang[j], free[r]) if elastic[j] else gang[j]
            if ids[j] not in seated and ids[j] not in taken and size <= free[r]:
                taken[ids[j]] = tuple(size if s == r else 0 for s in range(len(free)))
                free[r] -= size
    return taken


def max_min_shares(gains: FloatArray, widths: IntArray, capacity: IntArray) -> FloatArray:
    """argmax min_j Σ_r gains_jr·x_jr with Σ_r x_jr ≤ 1 and Σ_j W_jr·x_jr ≤ c_r."""
    jobs = len(gains)
    row, column = np.nonzero(gains)
    if not len(row):
        return np.zeros(gains.shape)
    pair, last = np.arange(len(row)), len(row)
    some = np.unique(row)  # jobs without any kind do not hold down the minimum
    rows = np.concatenate([row, some, jobs + row, 2 * jobs + column])
    columns = np.concatenate([pair, np.full(len(some), last), pair, pair])
    values = np.concatenate(
        [-gains[row, column], np.ones(len(some)), np.ones(last), widths[row, column]]
    )
    limits = np.concatenate([np.zeros(jobs), np.ones(jobs), capacity])
    cost = np.zeros(last + 1)
    cost[last] = -1.0
    answer = minimize(cost, (rows, columns, values), limits)
    shares = np.zeros(gains.shape)
    if answer is not None:
        shares[row, column] = answer[:last].clip(0.0, 1.0)
    return shares


def _widths(queue: Queue) -> IntArray:
    """Jobs × kinds: how many devices the gang has there at most."""
    gang = np.broadcast_to(queue.gang[:, None], queue.rates.shape)
    return np.where(queue.elastic[:, None], np.minimum(gang, queue.capacity), gang)


def _can_hold(queue: Queue) -> BoolArray:
    """Jobs × kinds: where the gang can run on one kind."""
    able: BoolArray = (queue.rates > 0) & (_widths(queue) <= queue.capacity) & (queue.capacity > 0)
    return able


def _rows(values: FloatArray, memory: GavelMemory, queue: Queue) -> FloatArray:
    """The memory's rows for the jobs of the queue; zero for those that came later."""
    at = np.searchsorted(memory.ids, queue.ids).clip(max=len(memory.ids) - 1)
    known = memory.ids[at] == queue.ids
    found: FloatArray = np.where(known[:, None], values[at], 0.0)
    return found
