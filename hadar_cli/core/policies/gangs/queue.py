"""The jobs waiting or running, as arrays, and what a gang policy answers to them.

Rates are those of *one* device in the gang: a gang's rate is its size times its slowest member's,
or the sum of theirs where each takes what it can do.
Nothing here names single devices; ``placement`` turns an allocation into them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray, RowIndex
from hadar_cli.core.estimates import gangs
from hadar_cli.core.estimates.gangs import EQUAL

Allocation: TypeAlias = tuple[int, ...]  # devices of each kind, in the order of Queue.kinds


_BY_JOB = (
    *("ids", "remaining", "target", "gang", "elastic", "arrived_s", "attained_s"),
    *("rounds_on", "rates", "spread_rates", "at_worst", "proportional", "sized_rates"),
)


@dataclass(slots=True)
class Queue:
    """All that a gang policy may know when it decides; one row per job that has work left."""

    now_s: float
    slot_s: float
    kinds: tuple[str, ...]
    capacity: IntArray  # devices of each kind
    per_node: IntArray  # devices of one node of each kind
    ids: IntArray
    remaining: FloatArray  # steps
    target: FloatArray  # steps
    gang: IntArray  # W_j, the devices asked for
    elastic: BoolArray  # content with 1..W_j of them
    arrived_s: FloatArray
    attained_s: FloatArray  # device-seconds of service received
    rounds_on: FloatArray  # jobs × kinds: rounds received on each kind
    rates: FloatArray  # jobs × kinds: steps per second of one device; 0 = cannot run there
    spread_rates: FloatArray | None = None  # the same for gangs over more nodes than needed
    at_worst: FloatArray | None = None  # steps remaining in a bad case; None: as expected
    sized_rates: FloatArray | None = None  # jobs × kinds × sizes: steps/s of gangs of 1, 2, …; 0
    # where a job may not be of that size. None if all sizes are given
    running: Mapping[int, Allocation] = field(default_factory=dict)
    restart_s: float = 0.0  # what a start on other devices takes
    met: int = 0  # jobs that have come so far, ended or not; 0 if all came at once
    arrivals_s: float = 0.0  # how much longer jobs will come at least, it seems
    proportional: BoolArray | None = None  # members share steps by what they can do; None: equally

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def slow_rates(self) -> FloatArray:
        """Rates of gangs that are spread, or of mixed kinds; as consolidated where unmeasured."""
        return self.rates if self.spread_rates is None else self.spread_rates

    def only(self, rows: IntArray) -> Queue:
        """The same queue with these of its jobs, in this order."""
        named = {name: getattr(self, name) for name in _BY_JOB}
        return replace(self, **{n: v[rows] for n, v in named.items() if v is not None})

    def permuted(self, rows: IntArray, columns: IntArray) -> Queue:
        """The same queue with its jobs and kinds in another order."""
        spread = self.spread_rates
        return replace(
            self,
            kinds=tuple(self.kinds[c] for c in columns),
            capacity=self.capacity[columns],
            per_node=self.per_node[columns],
            running={j: tuple(a[c] for c in columns) for j, a in self.running.items()},
            rounds_on=self.rounds_on[:, columns],
            rates=self.rates[:, columns],
            spread_rates=None if spread is None else spread[:, columns],
            sized_rates=None if self.sized_rates is None else self.sized_rates[:, columns],
        ).only(rows)

    def is_running(self) -> BoolArray:
        running = np.fromiter(self.running, np.int64, len(self.running))
        return RowIndex(running).rows(self.ids) >= 0

    def free(self) -> list[int]:
        """Devices of each kind that no running job holds."""
        held = np.fromiter(chain.from_iterable(self.running.values()), np.int64)
        left: list[int] = (self.capacity - held.reshape(-1, len(self.kinds)).sum(axis=0)).tolist()
        return left


class LateQueue(Queue):
    """A queue whose columns are made when they are looked at: many a question needs but few."""

    __slots__ = ("_makers",)

    def __init__(self, makers: Mapping[str, Callable[[], Any]] | None = None, **known: Any) -> None:
        self._makers = makers or {}
        for name, value in known.items():
            setattr(self, name, value)

    def settled(self) -> LateQueue:
        """With all its columns, for somebody who may keep it."""
        for name in self._makers:
            getattr(self, name)
        return self

    def __getattr__(self, name: str) -> Any:
        if name not in self._makers:
            raise AttributeError(name)
        value = self._makers[name]()
        setattr(self, name, value)
        return value


@dataclass(frozen=True, slots=True)
class Decision:
    """Who runs until the slot ends, and what the policy wants to be told next time.

    Until ``until_s`` nobody need ask again, unless a job comes or loses its devices. When one ends,
    its devices are refilled; ``outlasts_refills`` says whether that will do for the next slot, too.
    """

    allocations: dict[int, Allocation]
    memory: Any = None
    until_s: float = -math.inf
    outlasts_refills: bool = True


class GangPolicy(Protocol):
    """Divides the kinds of devices among gangs; pure, so its memory travels with its decisions."""

    name: ClassVar[str]
    # A policy that sets ``preempts = False`` never has a running gang moved to other devices.

    def allocate(self, queue: Queue, memory: Any = None) -> Decision:
        """Devices of each kind by job id for the coming slot; jobs left out wait."""
        ...

    def refill(self, queue: Queue, memory: Any = None) -> dict[int, Allocation]:
        """Devices for waiting jobs when some came free inside the slot; running jobs stay."""
        ...


def general_ranking(queue: Queue) -> list[int]:
    """Kinds from the generally fastest to the slowest: what one knows who knows no single job."""
    fastest = np.maximum(queue.rates.max(axis=1, keepdims=True), 1e-300)
    mean = (queue.rates / fastest).mean(axis=0)
    return sorted(range(len(queue.kinds)), key=lambda r: (-mean[r], queue.kinds[r]))


def fit_in_order(
    queue: Queue, order: IntArray, free: list[int], backfill: bool = True
) -> dict[int, Allocation]:
    """Whole gangs in this order on the first kind with room, blind to how well it suits them.

    Only a gang that no kind could ever hold is mixed. Without ``backfill`` the first gang that
    finds no room ends it. ``free`` is left as given.
    """
    if not len(order):
        return {}
    free, ranking = list(free), general_ranking(queue)
    largest = int(queue.capacity.max(initial=0))
    gangs, can_run = queue.gang.tolist(), (queue.rates > 0).tolist()
    elastic, ids = queue.elastic.tolist(), queue.ids.tolist()
    taken: dict[int, Allocation] = {}
    for j in order.tolist():
        kinds = [r for r in ranking if can_run[j][r] and free[r]]
        gang = min(gangs[j], max((free[r] for r in kinds), default=0)) if elastic[j] else gangs[j]
        whole = [r for r in kinds if free[r] >= gang]
        counts = [0] * len(free)
        if whole and gang:
            counts[whole[0]] = gang
        elif gang > largest and sum(free[r] for r in kinds) >= gang:
            for r in kinds:
                counts[r] = min(free[r], gang - sum(counts))
        if any(counts):
            taken[ids[j]] = tuple(counts)
            free = [f - n for f, n in zip(free, counts, strict=True)]
        elif not backfill:
            break
        if not any(free):
            break
    return taken


def gang_rate(allocation: Allocation, rates: Sequence[float], shares: str = EQUAL) -> float:
    """Steps per second of a gang of these devices of each kind."""
    if shares == EQUAL:
        slowest = min([rates[r] for r, count in enumerate(allocation) if count], default=0.0)
        return sum(allocation) * slowest
    members = [rates[r] for r, count in enumerate(allocation) for _ in range(count)]
    return gangs.gang_rate(members, shares, fixed=0.0)
