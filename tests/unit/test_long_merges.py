"""Merges that take long: nothing else waits for them, and nothing is counted twice or lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hadar_cli.core import events
from hadar_cli.engine.ports import Merged, Report
from tests.support.worlds import World, make_mix, make_nodes, make_world

MERGE_S = 25.0


def slow(world: World, job: int, monkeypatch: pytest.MonkeyPatch, merge_s: float = MERGE_S) -> None:
    """Merges of that job take so long on the run's clock."""
    executor, waiting = world.executor, list[tuple[float, Merged]]()
    wait = executor.wait

    def aside(work: Callable[[], Merged]) -> Merged | None:
        merged = work()
        if merged.job != job:
            return merged
        waiting.append((executor.now() + merge_s, merged))
        return None

    def wait_for(until: float) -> list[Report]:
        if waiting and waiting[0][0] <= executor.now():
            return [waiting.pop(0)[1]]
        return wait(min([until, *(at for at, _ in waiting)]))

    monkeypatch.setattr(executor, "aside", aside)
    monkeypatch.setattr(executor, "wait", wait_for)


def train(world: World) -> list[events.Event]:
    world.loop.run()
    for job in world.state.jobs.values():
        assert len(job.done) == job.job.target_steps
    return world.journal.events


def test_other_jobs_start_and_merge_while_one_is_being_merged(monkeypatch):
    world = make_world(make_mix([400, 4000]))
    slow(world, 0, monkeypatch)
    journal = train(world)
    first = next(e.t for e in journal if isinstance(e, events.WeightsMerged) and e.job == 0)
    meanwhile = [e for e in journal if first - MERGE_S < e.t < first]
    others = {e.device for e in meanwhile if isinstance(e, events.CopyStarted) and e.slices}
    assert len(others) > 1, "the other job stood still, or was alone on its device"
    assert any(isinstance(e, events.WeightsMerged) for e in meanwhile)


def test_no_copy_starts_from_weights_that_are_about_to_be_replaced(monkeypatch):
    world = make_world(make_mix([3000]))
    slow(world, 0, monkeypatch)
    journal = train(world)
    lost = [e for e in journal if isinstance(e, events.CopyLost)]
    assert not lost
    assert sum(isinstance(e, events.WeightsMerged) for e in journal) > 1


def test_a_run_that_is_interrupted_in_a_merge_keeps_what_is_merged(monkeypatch):
    world = make_world(make_mix([4000]))
    slow(world, 0, monkeypatch)

    def interrupt() -> None:
        if world.loop._held.merging:
            raise KeyboardInterrupt

    monkeypatch.setattr(world.loop._observer, "tick", interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.loop.run()
    job = world.state.jobs[0]
    waiting = sum(copy.steps for copy in job.handed_in.values())
    assert waiting and not job.done
    monkeypatch.setattr(world.loop._observer, "tick", lambda: None)
    world.loop.wind_up("interrupted")
    assert len(job.done) >= waiting


def test_nothing_is_prepared_for_a_job_that_is_cancelled_while_it_is_merged(monkeypatch):
    world = make_world(make_mix([4000, 400], slot_s=60.0))
    slow(world, 0, monkeypatch)
    world.loop._side_tasks.note(0, stays=True)

    def cancel() -> None:
        job = world.state.jobs[0]
        if 0 in world.loop._held.merging and not job.is_cancelled:
            world.tracker.record(events.JobsCancelled(world.executor.now(), (0,), "1"))
            world.loop.heed()
            world.loop._held.cool(world.loop._held.idle())  # their processes have left with it
            world.loop._keep_devices_busy()

    monkeypatch.setattr(world.loop._observer, "tick", cancel)
    world.loop.run()
    journal = world.journal.events
    at = next(n for n, e in enumerate(journal) if isinstance(e, events.JobsCancelled))
    later = [e.job for e in journal[at:] if isinstance(e, events.CopyStarted)]
    assert later and 0 not in later


def test_a_small_card_never_makes_the_large_one_begin_anew_or_wait_for_a_step(monkeypatch):
    """What is planned while the solo phase's last steps are merged is planned for the time after;
    and a card whose step takes 2 s is given none shortly before a meeting."""
    nodes = make_nodes({"large": 1.0, "small": 0.05})
    world = make_world(make_mix([400], slot_s=15.0), nodes, rate=lambda _, gang: RATES[gang[0]])
    slow(world, 0, monkeypatch, merge_s=0.1)
    started: dict[str, events.CopyStarted] = {}
    ended: dict[str, float] = {}
    together = 0
    for event in train(world):
        match event:
            case events.CopyStarted():
                started[event.attempt] = event
            case events.CopyFinished():
                ended[event.attempt] = event.t
            case events.WeightsMerged():
                devices = [started[attempt].device for attempt in event.accepted]
                assert len(set(devices)) == len(devices), "a device trained twice from one base"
                large = [ended[a] for a in event.accepted if started[a].device == "large"]
                assert not large or max(ended[a] for a in event.accepted) < max(large) + 0.5
                together += len(devices) > 1
    assert together


RATES = {"large": 10.0, "small": 0.5}
