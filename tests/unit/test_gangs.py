"""Gang policies behind the loop's port: when they are asked, and what they are told."""

from dataclasses import replace
from typing import Any

import pytest

from hadar_cli.core.events import CopyFinished, CopyStarted, WeightsMerged
from hadar_cli.core.model import Job
from hadar_cli.core.policies.gangs.queue import Decision, Queue
from hadar_cli.core.policies.gangs.scheduler import GangScheduler
from hadar_cli.core.policies.job_queue import JobQueue
from hadar_cli.core.policies.port import ClusterView
from hadar_cli.core.state import RunState
from hadar_cli.simulation.speeds import ModelledSpeeds, parse_cluster

DEVICES = parse_cluster("v100:2,k80:2", 2)
JOBS = [Job(i, f"job{i}", 1000, 32) for i in range(3)]


class Lasting:
    """One device of the first kind to each of two jobs, for good; remembers what it was told."""

    name = "lasting"

    def __init__(self, outlasts_refills: bool = True) -> None:
        self.asked: list[Queue] = []
        self._outlasts_refills = outlasts_refills

    def allocate(self, queue: Queue, memory: Any = None) -> Decision:
        self.asked.append(queue)
        one = tuple(int(kind == queue.kinds[0]) for kind in queue.kinds)
        taken = {int(id_): one for id_ in sorted(queue.ids)[:2]}
        return Decision(taken, "told", 1000.0, self._outlasts_refills)

    def refill(self, queue: Queue, memory: Any = None) -> dict[int, Any]:
        return {}


@pytest.fixture
def policy() -> Lasting:
    return Lasting()


@pytest.fixture
def states() -> JobQueue:
    return JobQueue.of(list(RunState(JOBS).jobs.values()))


def view_of(queue: JobQueue, **others: Any) -> ClusterView:
    plain = {"now_s": 0.0, "slot_s": 100.0, "seconds": 100.0, "devices": (), "jobs": list}
    rates = ModelledSpeeds(JOBS, DEVICES).known()
    return ClusterView(**(plain | {"rates": rates, "cluster": DEVICES, "queue": queue} | others))


def running(scheduler: GangScheduler, view: ClusterView) -> dict[int, tuple[str, ...]]:
    return {stint.job: stint.devices for stint in scheduler.plan(view)}


def test_a_decision_stands_while_nothing_happens(policy, states):
    scheduler = GangScheduler(policy)
    seats = running(scheduler, view_of(states))
    view = view_of(states, running=seats, now_s=100.0)
    assert running(scheduler, view) == seats
    assert len(policy.asked) == 1


@pytest.mark.parametrize(
    "what", ["time has passed", "a job ended", "a gang lost its devices", "a device is gone"]
)
def test_it_is_asked_again_when_something_happened(policy, states, what):
    scheduler = GangScheduler(policy)
    view = view_of(states)
    view = replace(view, running=running(scheduler, view), now_s=100.0)
    match what:
        case "time has passed":
            view = replace(view, now_s=1000.0)
        case "a job ended":
            queue = JobQueue.of(list(RunState(JOBS[1:]).jobs.values()))
            view = replace(view, queue=queue, running={1: view.running[1]})
        case "a gang lost its devices":
            view = replace(view, running={**view.running, 1: ("v100-0:1",)})
        case _:
            view = replace(view, cluster=DEVICES[1:])
    scheduler.plan(view)
    assert len(policy.asked) == 2


@pytest.mark.parametrize("outlasts, asked", [(True, 1), (False, 2)])
def test_a_policy_says_whether_a_refill_will_do_for_the_next_slot(states, outlasts, asked):
    policy = Lasting(outlasts)
    scheduler = GangScheduler(policy)
    seats = running(scheduler, view_of(states))
    scheduler.plan(view_of(states, running=seats, now_s=50.0, seconds=50.0))
    scheduler.plan(view_of(states, running=seats, now_s=100.0))
    assert len(policy.asked) == asked


def test_gangs_that_handed_in_go_on_with_what_is_left(policy):
    state = RunState(JOBS[:1])
    scheduler, queue = GangScheduler(policy), JobQueue.of(list(state.jobs.values()))
    (stint,) = scheduler.plan(view_of(queue))
    state.apply(CopyStarted(0.0, "a", 0, 1, stint.device, 1, 0, ((0, 1000),)))
    state.apply(CopyFinished(90.0, "a", 400, ((0, 400),), 0.0, 90.0, 0.0, "deadline", "w"))
    state.apply(WeightsMerged(95.0, 0, 1, "w", ("a",), (), 0.0, 0))
    (again,) = scheduler.plan(view_of(queue, now_s=100.0))
    assert (again.devices, again.steps) == (stint.devices, 600)
    assert len(policy.asked) == 1


def test_rounds_and_service_are_counted_also_while_nobody_is_asked(policy, states):
    scheduler = GangScheduler(policy)
    view = view_of(states)
    seats = running(scheduler, view)
    for now_s in (100.0, 200.0, 1000.0):
        scheduler.plan(replace(view, running=seats, now_s=now_s))
    queue = policy.asked[-1]
    first = queue.kinds.index(sorted(queue.kinds)[0])
    assert queue.rounds_on[:, first].tolist() == [3.0, 3.0, 0.0]
    assert queue.attained_s.tolist() == [1000.0, 1000.0, 0.0]


def test_gangs_that_an_earlier_head_started_are_known_from_the_first_question_on(policy, states):
    """A resumed head may be asked for more work inside a slot before any decision of its own."""
    scheduler = GangScheduler(policy)
    adopted = {2: (DEVICES[0].name,)}
    assert scheduler.plan(view_of(states, running=adopted, seconds=40.0, now_s=60.0)) == []
    scheduler.plan(view_of(states, running=adopted, now_s=100.0))
    assert policy.asked[-1].attained_s.tolist() == [0.0, 0.0, 100.0]


def test_a_policy_forgets_when_a_whole_kind_is_gone(policy, states):
    told = []

    class Listening(Lasting):
        def allocate(self, queue: Queue, memory: Any = None) -> Decision:
            told.append(memory)
            return super().allocate(queue, memory)

    scheduler = GangScheduler(Listening())
    view = view_of(states)
    scheduler.plan(view)
    scheduler.plan(replace(view, cluster=DEVICES[1:]))  # one V100 less is still both kinds
    scheduler.plan(replace(view, cluster=DEVICES[2:]))
    assert told == [None, "told", None]


def test_a_policy_is_told_what_a_start_costs_and_how_long_jobs_will_come(policy):
    jobs = [replace(JOBS[i], arrives_s=100.0 * i) for i in range(3)]
    queue = JobQueue.of(list(RunState(jobs).jobs.values()))
    scheduler = GangScheduler(policy)
    scheduler.plan(view_of(queue, now_s=200.0, start_cost_s=7.0))
    assert policy.asked[-1].restart_s == 7.0
    assert policy.asked[-1].arrivals_s == pytest.approx(40.0)  # a fifth of the time so far
    scheduler.plan(view_of(queue, now_s=2000.0))  # nobody has come for eighteen usual gaps
    assert policy.asked[-1].arrivals_s < 1e-3


def test_a_batch_that_is_all_there_expects_nobody(policy, states):
    GangScheduler(policy).plan(view_of(states, now_s=500.0))
    assert policy.asked[-1].arrivals_s == 0.0


def test_where_every_device_is_lost_nobody_is_asked(policy, states):
    gone = view_of(states, cluster=())
    assert GangScheduler(policy).plan(gone) == []
    assert GangScheduler(policy).plan(replace(gone, seconds=gone.slot_s / 2)) == []
