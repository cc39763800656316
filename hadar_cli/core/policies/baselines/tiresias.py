"""Tiresias: two queues by service attained, blind to the kinds of devices.

Jobs start in the first queue and fall to the second, for good, once they have attained
``threshold_s`` device-seconds (discretised least attained service, no promotion). In a queue the
one that came first goes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
        taken = fit_in_order(queue, self._order(queue), queue.capacity.tolist())
        until_s = self._next_fall_s(queue, taken)
        return Decision(taken, until_s=until_s, outlasts_refills=False)

    def refill(self, queue: Queue, memory: None = None) -> dict[int, Allocation]:
        order = self._order(queue)
        return fit_in_order(queue, order[~queue.is_running()[order]], queue.free())

    def _next_fall_s(self, queue: Queue, taken: Mapping[int, Allocation]) -> float:
        """When the first of these jobs will have attained so much that it falls to the second
        queue: the order is the same until then."""
        devices = np.array([sum(taken.get(job, ())) for job in queue.ids.tolist()])
        lacks_s = self.threshold_s - queue.attained_s
        falls = (lacks_s > 0) & (devices > 0)
        return queue.now_s + float((lacks_s[falls] / devices[falls]).min(initial=math.inf))

    def _order(self, queue: Queue) -> IntArray:
        is_served = queue.attained_s >= self.threshold_s
        order: IntArray = np.lexsort((queue.ids, queue.arrived_s, is_served))
        return order
