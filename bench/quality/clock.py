"""How long a training takes on the lab: starts, steps, merges and links of any speed.

The choices are the product's own, by the functions it chooses with: which devices' copies pay, how
often they merge, who shares steps. What things cost was measured on the lab (costs.py); what bytes
take on a link is reckoned, with the head's link, through which all copies' weights go, as slow as
the nodes'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.quality.costs import Costs
from bench.quality.course import LAB, MERGING, Recipe
from hadar_cli.core.estimates.forking import forks_that_pay
from hadar_cli.core.estimates.gangs import PROPORTIONAL, exchange_s, gang_rate
from hadar_cli.core.estimates.merging import solo_steps
from hadar_cli.core.model import Device, Job
from hadar_cli.core.policies.port import JobView
from hadar_cli.core.policies.shared_steps import helpful_gang, shares_to_its_end

DEVICES = tuple(Device(str(i), str(i), 0, None, reach="network lab") for i in range(len(LAB)))
INTERVALS = (10, 40, 160, 640)  # counted steps between merges that are trained with
_RECKONED = 125e6  # bytes a second of the link that the estimate of an exchange is of


@dataclass(frozen=True, slots=True)
class Link:
    name: str
    bytes_per_s: float | None  # None: what the lab has, a loopback


LINKS = (
    Link("LAN", None),
    Link("1 Gb/s", 125e6),
    Link("100 Mb/s", 12.5e6),
    Link("10 Mb/s", 1.25e6),
)


@dataclass(frozen=True, slots=True)
class Lab:
    """The lab with such a link, training a job of so many steps; times in seconds."""

    costs: Costs
    link: Link
    steps: int

    # -- merged copies -----------------------------------------------------------------------

    @property
    def merge_s(self) -> float:
        """What a merge keeps every copy from training."""
        wire = self.link.bytes_per_s
        moved = 2 * len(LAB) * self.costs.checkpoint  # all in, then all out, through the head
        return self.costs.merge_s + (moved / wire if wire else 0.0)

    def forked(self, recipe: Recipe) -> Recipe:
        """As ``hadar`` would do it: on the devices that pay, merged as often as it can be."""
        interval_s = self.merge_s / MERGING
        rates = tuple(speed / self.costs.step_s for speed in recipe.speeds)
        left = self.steps - solo_steps(recipe.rules, self.steps, others_idle=True)
        costs_s = (self.merge_s,) * len(rates)
        pay = forks_that_pay(rates, costs_s, interval_s, recipe.rules.lr_scale, max(left, 1))
        speeds = tuple(recipe.speeds[i] for i in sorted(pay))
        if len(pay) == 1:
            return replace(recipe, speeds=speeds, every=self.steps)
        wished = interval_s * sum(speeds) / self.costs.step_s
        every = min(INTERVALS, key=lambda known: abs(_log_ratio(known, wished)))
        return replace(recipe, speeds=speeds, every=every)

    def merged_s(self, recipe: Recipe, steps: float, solo_rate: float = 0.0) -> float:
        """Until so many steps are counted, the first of them at ``solo_rate`` or by the fastest."""
        alone = 1 / self.costs.step_s
        if len(recipe.speeds) == 1:
            return self.costs.start_s + steps / alone
        first = min(steps, solo_steps(recipe.rules, self.steps, others_idle=True))
        rest = steps - first
        merges = -(-rest // recipe.every)
        trained_s = first / (solo_rate or alone) + rest / (alone * sum(recipe.speeds))
        return self.costs.start_s + trained_s + merges * self.merge_s

    # -- shared steps ------------------------------------------------------------------------

    def rate(self, job_id: int, device_name: str) -> float:
        return LAB[int(device_name)] / self.costs.step_s

    def gang(self, job_id: int, device_names: Sequence[str]) -> float:
        """By the product's own estimate, with the link's bytes in place of those it supposes."""
        if len(device_names) == 1:
            return self.rate(job_id, device_names[0])
        bare = gang_rate([self.rate(job_id, name) for name in device_names], PROPORTIONAL)
        near_s = exchange_s(len(device_names), self.costs.gradients, is_far=False)
        way_s = exchange_s(len(device_names), self.costs.gradients, is_far=True) - near_s
        wire = self.link.bytes_per_s
        return 1 / (1 / bare + near_s + (way_s * _RECKONED / wire if wire else 0.0))

    def _shared_rate(self, mode: str) -> float:
        """Of those who share a lone job's steps; of the fastest device where nobody joins it."""
        first, *others = sorted(DEVICES, key=lambda device: -self.rate(0, device.name))
        view, names = _lone_job(mode), [device.name for device in others]
        return self.gang(0, helpful_gang(view, first.name, names, self))

    def shared_s(self) -> float:
        """All steps, where that is asked for: their loss is unforked training's."""
        return self.costs.start_s + self.steps / self._shared_rate("share")

    @property
    def shares_to_its_end(self) -> bool:
        """Whether hadar does the same where nothing is asked for."""
        return shares_to_its_end(_lone_job("auto"), DEVICES, self)

    def solo_rate(self) -> float:
        """Of the first steps, where nothing is asked for."""
        return self._shared_rate("auto")

    def alone_s(self) -> float:
        return self.costs.start_s + self.steps * self.costs.step_s


def _log_ratio(one: float, other: float) -> float:
    return abs(one / other if one > other else other / one)


def _lone_job(mode: str) -> JobView:
    job = Job(0, "lone", 1, 1, mode=mode, shares=PROPORTIONAL)
    return JobView(job, 1, 1, may_share=True)
