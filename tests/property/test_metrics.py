"""Whatever happened in a run, every device's seconds add up to its length, each named once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_cli.core import events as e
from hadar_cli.core.measures.metrics import summarise
from hadar_cli.core.measures.summary import Overhead, RunSummary
from hadar_cli.core.model import Device, Job, Mix
from hadar_cli.simulation.executor import Costs
from tests.support.worlds import World, make_mix, make_nodes, make_world

DEVICES = [Device(name, name, 0, None) for name in ("a", "b", "c")]
MIX = Mix("any", tuple(Job(i, f"job-{i}", 10_000, 16) for i in range(2)))
seconds = st.floats(0.0, 20.0)


def check_the_split(summary: RunSummary) -> None:
    for device in summary.devices:
        split = [device.busy_s, *(getattr(device, part) for part in Overhead.__slots__)]
        assert min(split) >= 0.0
        assert sum(split) == pytest.approx(summary.ttd_s, abs=1e-9)
        assert 0.0 <= device.wasted_s <= device.busy_s + 1e-9
    overhead = sum(getattr(summary.overhead, part) for part in Overhead.__slots__)
    total = len(summary.devices) * summary.ttd_s
    assert summary.busy_s + overhead == pytest.approx(total, abs=1e-9)
    assert sum(d.steps for d in summary.devices) == sum(j.steps_done for j in summary.jobs)


class History:
    """Writes journals that the state accepts, of copies that claim whatever they like."""

    def __init__(self, draw) -> None:
        self.draw, self.t, self.epoch = draw, 0.0, 1
        self.events: list[e.Event] = [e.HeadStarted(0.0, 1)]
        self.open: dict[str, e.CopyStarted] = {}
        self.handed_in: dict[int, list[str]] = {0: [], 1: []}
        self.generation = {0: 0, 1: 0}
        self.count = 0

    def start(self) -> None:
        idle = sorted({d.name for d in DEVICES} - {copy.device for copy in self.open.values()})
        if not idle:
            return
        self.count += 1
        job, trains = self.draw(st.integers(0, 1)), self.draw(st.booleans())
        copy = e.CopyStarted(
            self.t,
            attempt=f"t{self.count}",
            job=job,
            copy=1,
            device=self.draw(st.sampled_from(idle)),
            round=1,
            generation=self.generation[job],
            slices=((5 * self.count, 5 * self.count + 5),) if trains else (),
            purpose="train" if trains else "evaluate",
        )
        self.open[copy.attempt] = copy
        self.events.append(copy)

    def close(self) -> None:
        if not self.open:
            return
        copy = self.open.pop(self.draw(st.sampled_from(sorted(self.open))))
        if self.draw(st.integers(0, 4)) == 0:
            self.events.append(e.CopyLost(self.t, copy.attempt, "gone"))
            return
        steps = 5 if copy.slices else 0
        if steps:
            self.handed_in[copy.job].append(copy.attempt)
        start_s, train_s = self.draw(seconds), self.draw(seconds)
        self.events.append(
            e.CopyFinished(
                self.t, copy.attempt, steps, copy.slices, start_s, train_s, 0.0, "steps", "w"
            )
        )

    def merge(self) -> None:
        job = self.draw(st.integers(0, 1))
        attempts = self.handed_in[job]
        if attempts:
            accepted = tuple(attempts[:-1]) if self.draw(st.booleans()) else tuple(attempts)
            refused = tuple((a, "no") for a in attempts if a not in accepted)
            self.handed_in[job] = []
            merged = e.WeightsMerged(
                self.t, job, self.generation[job] + 1, "w", accepted, refused, self.draw(seconds)
            )
            self.generation[job] += bool(accepted)
            self.events.append(merged)

    def plan(self) -> None:
        self.events.append(e.RoundPlanned(self.t, 1, ()))

    def restart(self) -> None:
        if self.draw(st.booleans()):
            self.events.append(e.RunStopped(self.t, "interrupted"))
        self.epoch += 1
        self.events.append(e.HeadStarted(self.t, self.epoch))
        self.open.clear()
        self.handed_in = {0: [], 1: []}


@st.composite
def histories(draw) -> list[e.Event]:
    history = History(draw)
    acts = [history.start, history.close, history.merge, history.plan, history.restart]
    for act in draw(st.lists(st.sampled_from([*acts[:2] * 3, *acts]), max_size=40)):
        history.t += draw(st.floats(0.0, 10.0))
        act()
    return history.events


@settings(deadline=None, max_examples=100)
@given(histories())
def test_any_history_adds_up(happened):
    check_the_split(summarise("any", MIX, DEVICES, happened))


def world_of(targets: list[int], speeds: list[float], costs: Costs) -> World:
    nodes = make_nodes({f"d{i}": speed for i, speed in enumerate(speeds)})
    return make_world(make_mix(targets, 7.0), nodes, costs=costs)


targets = st.lists(st.integers(1, 400), min_size=1, max_size=4)
speeds = st.lists(st.floats(0.1, 1.0), min_size=1, max_size=4)
costs = st.builds(Costs, start_s=st.floats(0, 10), sync_s=st.floats(0, 2))


@settings(deadline=None, max_examples=25)
@given(targets, speeds, costs, st.data())
def test_a_run_adds_up_at_every_moment_and_never_beats_its_bound(targets, speeds, costs, data):
    world = world_of(targets, speeds, costs)
    world.loop.run()
    devices = [device for node in world.nodes for device in node.devices]
    happened = world.journal.events
    whole = summarise("sim", world.mix, devices, happened)
    check_the_split(whole)
    assert whole.state == "finished"
    assert [job.steps_done for job in whole.jobs] == targets
    assert whole.lower_bound_s <= whole.ttd_s * (1 + 1e-9)
    assert whole.cru <= whole.cru_paper * (1 + 1e-9) <= 1 + 1e-6
    cut = data.draw(st.integers(0, len(happened)))
    check_the_split(summarise("sim", world.mix, devices, happened[:cut]))
