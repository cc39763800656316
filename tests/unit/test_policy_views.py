"""What a policy gets to see is not what the run goes by: whoever writes to it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from hadar_cli.core.estimates.suitability import Suitability
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.events import CopyStarted
from hadar_cli.core.job_state import JobState
from hadar_cli.core.model import Device, Job, MergeRules, Mix, PolicyChoice
from hadar_cli.core.policies.port import ClusterView, Policy, Stint
from hadar_cli.core.state import RunState
from hadar_cli.engine.meetings import Meetings
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import Observer, Progressed
from hadar_cli.engine.views import Views
from hadar_cli.policies import create
from hadar_cli.simulation.executor import Costs, SimulatedExecutor
from hadar_cli.simulation.scenario import run_rounds
from hadar_cli.simulation.speeds import ModelledSpeeds, parse_cluster
from tests.support.worlds import make_mix


class Vandal:
    """Writes to all that it is shown, then answers as the policy does that it stands for."""

    def __init__(self, honest: Policy) -> None:
        self._honest, self.name, self.forks = honest, honest.name, honest.forks

    def plan(self, view: ClusterView) -> list[Stint]:
        planned = self._honest.plan(view)
        if not len(view.queue):
            return planned
        for write in (
            lambda: setattr(view, "seconds", 1.0),
            lambda: view.current.clear(),  # type: ignore[attr-defined]
            lambda: view.running.clear(),  # type: ignore[attr-defined]
            lambda: view.busy_s.clear(),  # type: ignore[attr-defined]
            lambda: view.queue.ids.fill(0),
            lambda: setattr(view.queue.job(int(view.queue.ids[0])), "target_steps", 1),
            lambda: view.rates.observe(0, view.devices[0], 1e6, 1.0),  # type: ignore[attr-defined]
        ):
            with pytest.raises((AttributeError, TypeError, ValueError)):
                write()
        for copy in (list(view.jobs()), view.progress()):
            copy.clear()  # type: ignore[attr-defined]
        kinds = sorted({device.kind for device in view.cluster})
        for rates in (
            view.rates.matrix(view.queue.ids.tolist(), [d.name for d in view.cluster]),
            *view.rates.by_kind(view.queue.ids, kinds, view.cluster),
        ):
            with suppress(ValueError):  # a copy, or read-only
                if rates is not None:
                    rates[:] = 0.0
        return planned


class _Told(Observer):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def happened(self, event: Any) -> None:
        self.events.append(event)


def events_of(mix: Mix, policy: Policy) -> list[Any]:
    devices = parse_cluster("v100:2,k80:2", 2)
    speeds = ModelledSpeeds(mix.jobs, devices)
    executor = SimulatedExecutor(speeds.gang, Costs(start_s=1.0, sync_s=1.0))
    told = _Told()
    run_rounds(mix, devices, policy, executor, speeds.known(), RunState(mix.jobs), told)
    return told.events


@pytest.mark.parametrize("name", ["hadare", "hadar", "tiresias"])
def test_a_policy_that_writes_to_its_view_fails_or_changes_nothing(name: str) -> None:
    mix = make_mix([4000, 2000, 900], slot_s=60.0)
    honest, other = (create(PolicyChoice(name)) for _ in range(2))
    assert events_of(mix, Vandal(honest)) == events_of(mix, other)


def test_no_attribute_of_the_queue_leads_to_the_state() -> None:
    seen: list[str] = []

    class Looks:
        name, forks = "hadare", True

        def __init__(self) -> None:
            self.plan: Callable[[ClusterView], list[Stint]] = self._look
            self._honest = create(PolicyChoice("hadare"))

        def _look(self, view: ClusterView) -> list[Stint]:
            queue = view.queue
            parts = [getattr(queue, name) for name in type(queue).__slots__]
            parts += [part for one in parts for part in getattr(one, "__dict__", {}).values()]
            parts += [getattr(part, "__self__", None) for part in (*parts, view.progress)]
            seen.extend(type(part).__name__ for part in parts)
            assert not any(isinstance(part, RunState | JobState | dict) for part in parts)
            return self._honest.plan(view)

    events_of(make_mix([500], slot_s=60.0), Looks())
    assert "JobReader" in seen


def test_a_copy_that_tells_how_fast_it_is_is_reckoned_with_by_that():
    """Before its first hand-in speeds are guesses; plans of the next slot are made by then."""
    mix, device = Mix("m", (Job(0, "job", 10_000, batch_size=8),)), Device("x", "x", 0, None, None)
    state, now = RunState(mix.jobs), 0.0
    suitability, rates = Suitability([device], state), RateModel(mix.jobs, [device])
    held, meetings = Occupancy(["x"], state), Meetings(MergeRules(), 10.0)
    views = Views(mix, suitability, state, rates, held, meetings, lambda: now, forks=True)
    copy = CopyStarted(0.0, "a", 0, 1, "x", 1, 0, ((0, 10_000),))
    state.apply(copy)
    held.busy["x"] = "a"
    held.training["a"] = 0
    guess = rates.rate(0, "x")
    now = 2.0
    assert views.steps_by(copy, 1.0) == int(3.0 * guess)
    held.hear(Progressed("a", 5, 0.3), now)  # a start says little
    assert views.steps_by(copy, 1.0) == int(5 + guess)
    held.hear(Progressed("a", 3000, 1.5), now)
    now = 2.5
    assert views.steps_by(copy, 1.0) == 3000 + 1.5 * 2000
    assert views.busy_s(60.0) == {"x": (10_000 - 4000) / 2000}
    now = 1000.0
    assert views.steps_by(copy, 0.0) == 10_000, "no more than it was given"
    held.hear(Progressed("a", 3500, 350.0), now)
    now += 600.0
    assert views.steps_by(copy, 0.0) == 3500 + 5 * 10, "it may hang"
