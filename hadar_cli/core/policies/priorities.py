"""Priorities, for whatever policy: jobs of a higher one are given devices first.

The policy plans for the highest class as if there were no other, then for the next one on the
devices that are left. Within a class nothing changes, and without priorities nothing at all.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace

from hadar_cli.core.policies.port import ClusterView, Policy, Stint
from hadar_cli.core.state import RunState


class ByPriority:
    """A policy for every class; a policy that remembers does so of its own class."""

    def __init__(self, policy: Policy, state: RunState) -> None:
        self.name, self.forks = policy.name, policy.forks
        self._state, self._fresh = state, deepcopy(policy)
        self._classes: dict[int, Policy] = {0: policy}

    def plan(self, view: ClusterView) -> list[Stint]:
        if not self._state.has_priorities:
            return self._classes[0].plan(view)
        stints: list[Stint] = []
        taken: set[str] = set()
        of_class: dict[int, set[int]] = {}
        for job in view.queue.ids.tolist():
            of_class.setdefault(view.queue.priority(job), set()).add(job)
        for priority in sorted(of_class, reverse=True):
            if len(taken) == len(view.devices) and self.forks:
                break
            part = _part(view, of_class[priority], taken)
            more = self._policy_of(priority).plan(part)
            stints += more
            taken.update(device for stint in more for device in stint.devices)
        return stints

    def _policy_of(self, priority: int) -> Policy:
        if priority not in self._classes:
            self._classes[priority] = deepcopy(self._fresh)
        return self._classes[priority]


def _part(view: ClusterView, jobs: Collection[int], taken: Collection[str]) -> ClusterView:
    """What is left of the view for these jobs."""
    return replace(
        view,
        devices=tuple(device for device in view.devices if device not in taken),
        jobs=lambda: [one for one in view.jobs() if one.job.id in jobs],
        busy_s={**view.busy_s, **dict.fromkeys(taken, view.seconds)},
        cluster=tuple(device for device in view.cluster if device.name not in taken),
        queue=view.queue.only(jobs),
        running={job: gang for job, gang in view.running.items() if job in jobs},
    )
