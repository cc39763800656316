"""Tiresias: two queues by service attained, blind to the kinds of devices.

Jobs start in the first queue and fall to the second, for good, once they have attained
``threshold_s`` device-seconds (discretised least attained service, no promotion). In a queue the
one that came first goes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hadar_cli.core.arrays import IntArray
from hadar_cli.core.policies.gangs.queue import Allocation, Decision, Queue, fit_in_order
from hadar_cli.core.policies.port import register


@register
@dataclass(frozen=True, slots=True)
class Tiresias:
    name: ClassVar[str] = "tiresias"
    threshold_s: float = 3600.0  # device-seconds

    def allocate(self, queue: Queue, memory: None = None) -> Decision:
        return Decision(fit_in_order(queue, self._order(queue), queue.capacity.tolist()))

    def refill(self, queue: Queue, memory: None = None) -> dict[int, Allocation]:
        order = self._order(queue)
        return fit_in_order(queue, order[~queue.is_running()[order]], queue.free())

    def _order(self, queue: Queue) -> IntArray:
        is_served = queue.attained_s >= self.threshold_s
        order: IntArray = np.lexsort((queue.ids, queue.arrived_s, is_served))
        return order
