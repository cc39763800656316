"""YARN's capacity scheduler with one queue: first come, first served, until it ends.

Nothing is ever taken from a running job, and the kinds of devices are all the same to it. With
``backfill`` a gang that does not fit lets smaller ones behind it pass; without, all wait for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hadar_cli.core.policies.gangs.queue import Allocation, Decision, Queue, fit_in_order
from hadar_cli.core.policies.port import register


@register
@dataclass(frozen=True, slots=True)
class YarnCs:
    name: ClassVar[str] = "yarn-cs"
    preempts: ClassVar[bool] = False
    backfill: bool = True

    def allocate(self, queue: Queue, memory: None = None) -> Decision:
        """Stands until a job comes or ends: before that, nobody else finds room."""
        return Decision({**queue.running, **self.refill(queue)}, until_s=math.inf)

    def refill(self, queue: Queue, memory: None = None) -> dict[int, Allocation]:
        order = np.lexsort((queue.ids, queue.arrived_s))
        waiting = order[~queue.is_running()[order]]
        return fit_in_order(queue, waiting, queue.free(), self.backfill)
