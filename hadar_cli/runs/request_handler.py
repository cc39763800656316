"""The head's side of requests: taken up between two looks of the loop, journalled, carried out.

Cancelled and paused jobs, priorities and drained nodes change what the loop does next. Jobs and
nodes that are added, and nodes that are left, need a head put together anew; it goes on with the
copies that are under way, as the next one would after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hadar_cli.core import events
from hadar_cli.engine.ports import Observer
from hadar_cli.engine.tracker import Tracker
from hadar_cli.errors import InputError
from hadar_cli.runs.answers import answer, joined
from hadar_cli.runs.requests import AddNodes, Inbox
from hadar_cli.runs.store import RunStore


class RunChanged(Exception):
    """The run has other jobs or nodes than this head was put together for."""


class RequestHandler(Observer):
    """Looks into the run's inbox whenever the loop ticks, once it is open."""

    def __init__(self, store: RunStore, tracker: Tracker, clock: Callable[[], float]) -> None:
        self._store, self._tracker, self._clock = store, tracker, clock
        self._inbox, self._heed = Inbox(store), _nothing
        self._is_open = False
        self._nodes = store.facts.nodes

    def open(self, heed: Callable[[], None]) -> None:
        """From now on requests are taken; ``heed`` has the loop act on what they change."""
        self._heed, self._is_open = heed, True

    def close(self) -> None:
        self._is_open = False

    def tick(self) -> None:
        if self._is_open:
            self.look()

    def look(self) -> None:
        """Answers what is asked; raises RunChanged where a head has to be put together anew."""
        numbers, is_changed = self._inbox.waiting(), False
        for number in numbers:
            is_changed |= self._take(number)
        is_changed |= self._leave_drained()
        if is_changed:
            self.close()
            raise RunChanged
        if numbers:
            self._heed()

    def _take(self, number: str) -> bool:
        """Whether jobs or nodes have come by it."""
        state, facts = self._tracker.state, self._store.facts
        is_changed = False
        try:
            request = self._inbox.read(number)
            if number not in state.requests:
                granted = answer(request, number, state, facts, self._clock())
                self._tracker.record(granted)
                is_changed = isinstance(granted, events.JobsAdded)
                if isinstance(granted, events.JobsAdded):
                    self._store.write_facts(facts.with_added([granted]))
            if isinstance(request, AddNodes) and state.requests[number]:
                nodes = joined(facts.nodes, request.nodes)
                is_changed = nodes != facts.nodes
                self._store.write_facts(replace(facts, nodes=nodes))
        except (InputError, ValueError) as error:
            if number not in state.requests:
                self._tracker.record(events.RequestRefused(self._clock(), number, str(error)))
        self._inbox.take_back(number)
        return is_changed

    def _leave_drained(self) -> bool:
        """Leaves nodes that are drained, once nobody is at work there."""
        state = self._tracker.state
        drained = state.drained
        if not drained:
            return False
        jobs = state.jobs.values()
        copies = [copy for job in jobs for copy in (*job.active.values(), *job.side_tasks.values())]
        busy = {device for copy in copies for device in copy.devices}
        done = {
            node.name
            for node in self._nodes
            if node.enabled
            and drained.issuperset(names := {d.name for d in node.devices})
            and busy.isdisjoint(names)
        }
        if done:
            facts = self._store.facts
            nodes = tuple(replace(n, enabled=n.enabled and n.name not in done) for n in facts.nodes)
            self._store.write_facts(replace(facts, nodes=nodes))
        return bool(done)


def _nothing() -> None: ...
