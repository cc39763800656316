"""What people ask of a run: what can be granted, and that it is granted once."""

import os

import pytest

from hadar_cli.core import events
from hadar_cli.core.model import Job
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import RunState
from hadar_cli.errors import InputError
from hadar_cli.runs.answers import answer, look_ahead
from hadar_cli.runs.request_handler import RequestHandler, RunChanged
from hadar_cli.runs.requests import (
    AddJobs,
    AddNodes,
    CancelJobs,
    CloseQueue,
    ContinueJobs,
    DrainNode,
    Inbox,
    PauseJobs,
    SetPriority,
)
from hadar_cli.runs.store import FileJournal, RunFacts, RunStore, read_journal
from tests.support.worlds import make_mix, make_nodes, make_world

NODES = make_nodes({"a": 1.0, "b": 0.5})
FACTS = RunFacts("r", make_mix([100, 50]), NODES, "", "0")
LATE = Job(0, "late", 30, batch_size=16)


def state_of(*happened: events.Event) -> RunState:
    state = RunState(FACTS.mix.jobs, [events.HeadStarted(0.0, 1), *happened])
    state.validate()
    return state


def asked(request, *happened, number="1"):
    return answer(request, number, state_of(*happened), FACTS, 7.0)


def test_added_jobs_get_numbers_names_and_the_time_of_their_arrival():
    granted = asked(AddJobs((LATE,)))
    assert granted == events.JobsAdded(7.0, granted.jobs, "1")
    (job,) = granted.jobs
    assert (job.id, job.name, job.arrives_s) == (2, "late", 7.0)
    state = state_of(granted)
    assert [one.job.name for one in state.unfinished] == ["job-0", "job-1", "late"]
    again = answer(AddJobs((LATE,), renames=True), "2", state, FACTS, 9.0)
    assert [job.name for job in again.jobs] == ["late-2"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (AddJobs(()), "lists no jobs"),
        (AddJobs((Job(0, "job-1", 5, batch_size=1),)), "has a job 'job-1' already"),
        (AddJobs((Job(0, "x", 5, batch_size=1, min_vram_gb=900),)), "no device has as much"),
        (CancelJobs(("jop-1",)), "did you mean 'job-1'"),
        (ContinueJobs(("job-1",)), "is not paused"),
        (AddNodes(NODES[:1]), "has a node 'a' already"),
        (AddNodes(()), "no enabled node"),
        (DrainNode("c"), "no node 'c'"),
        (CloseQueue(), "ends by itself"),
    ],
)
def test_what_cannot_be_granted_says_why_and_what_to_do(request_, words):
    with pytest.raises(InputError, match=words):
        asked(request_)


def test_a_run_that_is_over_takes_nothing():
    with pytest.raises(InputError, match="run r is over"):
        asked(AddJobs((LATE,)), events.RunFinished(5.0))


def test_a_million_jobs_are_refused():
    with pytest.raises(InputError, match="more than 10,000 jobs"):
        asked(AddJobs((LATE,) * 9_999))


@pytest.mark.parametrize("request_", [PauseJobs(("job-0",)), SetPriority(("job-0",), 3)])
def test_a_cancelled_job_takes_no_more_requests(request_):
    with pytest.raises(InputError, match="is over"):
        asked(request_, events.JobsCancelled(4.0, (0,), "1"), number="2")


def test_the_last_node_cannot_be_drained():
    first = asked(DrainNode("a"))
    assert first.devices == ("a",)
    with pytest.raises(InputError, match="the last that the run has"):
        asked(DrainNode("b"), first, number="2")
    with pytest.raises(InputError, match="being drained already"):
        asked(DrainNode("a"), first, number="2")


def test_pause_continue_and_cancel_in_the_state():
    paused = asked(PauseJobs(("job-0",)))
    state = state_of(paused)
    assert [job.job.id for job in state.unfinished] == [1]
    assert [job.job.id for job in state.resting] == [0]
    with pytest.raises(ValueError, match="cannot be paused"):
        state.check(events.JobsPaused(8.0, (0,), "2"))
    with pytest.raises(ValueError, match="answered before"):
        state.check(paused)
    state.apply(events.JobsContinued(9.0, (0,), "3"))
    assert [job.job.id for job in state.unfinished] == [0, 1]
    state.apply(events.JobsCancelled(9.0, (0,), "4"))
    assert state.jobs[0].is_used_up(9.0)
    with pytest.raises(ValueError, match="cannot be cancelled"):
        state.check(events.JobsCancelled(9.0, (0,), "5"))
    state.apply(events.JobCutShort(9.0, 0, "cancelled"))
    state.validate()


def test_a_failed_job_that_is_cancelled_is_over_for_good():
    failed = events.JobFailed(3.0, 0, "no device fits")
    state = state_of(failed, events.JobsCancelled(4.0, (0,), "1"), events.HeadStarted(5.0, 2))
    assert not state.failed
    assert [job.job.id for job in state.unfinished] == [1]


def test_a_drained_device_stays_lost_whatever_is_heard_of_it():
    drained = events.NodeDrained(1.0, "a", ("a",), "1")
    gone = events.DeviceLost(2.0, "a", "no route", Absence.GONE)
    state = state_of(drained, gone, events.DeviceReturned(3.0, "a"), events.HeadStarted(4.0, 2))
    assert state.lost_devices["a"].reason is Absence.DRAINED
    state.apply(events.NodesReplaced(5.0, added=("a",), request="2"))
    assert not state.lost_devices


def test_higher_priorities_come_first():
    mix = make_mix([2000, 2000])
    world = make_world(mix, NODES)
    world.tracker.record(events.PriorityChanged(0.0, (1,), 5, "1"))
    world.loop.run()
    ended = {n: job.finished_at for n, job in world.state.jobs.items()}
    planned = next(e for e in world.journal.events if isinstance(e, events.RoundPlanned))
    first = [Stint(*stint) for stint in planned.stints]
    assert first[0].job == 1
    assert ended[1] < 0.8 * ended[0]


# -- the head's side ---------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path, FACTS)


def handler_of(store, *happened):
    """A handler over the store's journal, as a head has it."""
    world = make_world(store.facts.mix, NODES, journal=FileJournal(store.journal_path))
    for event in happened:
        world.tracker.record(event)
    heeded = []
    handler = RequestHandler(store, world.tracker, world.executor.now)
    handler.open(lambda: heeded.append(True))
    return handler, heeded


def test_a_head_takes_up_requests_in_order_and_once(store):
    inbox = Inbox(store)
    first, second = inbox.put(PauseJobs(("job-0",))), inbox.put(SetPriority(("job-1",), 3))
    assert inbox.waiting() == [first, second]
    handler, heeded = handler_of(store)
    handler.tick()
    told = read_journal(store.journal_path)[1:]
    assert told == [
        events.JobsPaused(0.0, (0,), first),
        events.PriorityChanged(0.0, (1,), 3, second),
    ]
    assert inbox.waiting() == [] and heeded == [True]
    handler.tick()
    assert len(read_journal(store.journal_path)) == 3


def test_a_command_sees_the_run_as_it_will_be_once_earlier_requests_are_taken_up(store):
    """Nobody drives the run: what was asked before waits, and is granted first."""
    inbox = Inbox(store)
    for request in (
        AddJobs((LATE,)),
        PauseJobs(("late",)),
        CancelJobs(("nobody",)),
        DrainNode("a"),
    ):
        inbox.put(request)
    state, facts = look_ahead(store)
    granted = answer(ContinueJobs(("late",)), "9", state, facts, 7.0)
    assert granted == events.JobsContinued(7.0, (2,), "9")
    with pytest.raises(InputError, match="has a job 'late' already"):
        answer(AddJobs((LATE,)), "9", state, facts, 7.0)
    with pytest.raises(InputError, match="the last"):
        answer(DrainNode("b"), "9", state, facts, 7.0)
    inbox.put(AddNodes(make_nodes({"c": 1.0})))
    assert answer(DrainNode("c"), "9", *look_ahead(store), 7.0).devices == ("c",)


def test_a_request_whose_file_outlived_its_grant_is_not_granted_again(store):
    number = Inbox(store).put(AddJobs((LATE,)))
    job = answer(AddJobs((LATE,)), number, state_of(), FACTS, 0.0)
    handler, _ = handler_of(store, job)
    handler.tick()  # and nothing changes
    assert Inbox(store).waiting() == []
    added = [e for e in read_journal(store.journal_path) if isinstance(e, events.JobsAdded)]
    assert len(added) == 1


def test_nodes_that_were_granted_but_not_noted_come_all_the_same(store):
    more = make_nodes({"c": 1.0})
    number = Inbox(store).put(AddNodes(more))
    handler, _ = handler_of(store, events.NodesReplaced(0.0, added=("c",), request=number))
    with pytest.raises(RunChanged):
        handler.tick()
    assert store.facts.nodes == (*NODES, *more)


def test_nodes_that_were_refused_do_not_come(store):
    number = Inbox(store).put(AddNodes(make_nodes({"c": 1.0})))
    handler, _ = handler_of(store, events.RequestRefused(0.0, number, "why not"))
    handler.tick()
    assert store.facts.nodes == NODES


def test_added_jobs_change_the_run(store):
    Inbox(store).put(AddJobs((LATE,)))
    handler, _ = handler_of(store)
    with pytest.raises(RunChanged):
        handler.tick()
    assert [job.name for job in store.facts.mix.jobs] == ["job-0", "job-1", "late"]


def test_nonsense_in_the_inbox_is_refused_and_hurts_nobody(store):
    inbox = Inbox(store)
    inbox.put(CancelJobs(("nobody",)))
    (store.directory / "inbox" / "zzz.json").write_text('["AddJobs", {"jobs": 3}]')
    (store.directory / "inbox" / "folder.json").mkdir()
    os.mkfifo(store.directory / "inbox" / "pipe.json")
    handler, _ = handler_of(store)
    handler.tick()
    told = read_journal(store.journal_path)[1:]
    assert [type(event) for event in told] == [events.RequestRefused] * 2
    assert "no job 'nobody'" in told[0].why and "cannot be read" in told[1].why
    assert inbox.waiting() == []


def test_a_node_is_left_once_its_copies_are_in(store):
    copy = events.CopyStarted(1.0, "x", 0, 1, "a", 1, 0, ((0, 5),))
    Inbox(store).put(DrainNode("a"))
    handler, heeded = handler_of(store, copy)
    handler.tick()
    assert heeded and all(node.enabled for node in store.facts.nodes)
    handler._tracker.record(events.CopyLost(2.0, "x", "gone"))
    with pytest.raises(RunChanged):
        handler.tick()
    assert [node.enabled for node in store.facts.nodes] == [False, True]


def test_a_death_between_journal_and_facts_loses_no_job(store):
    (added,) = answer(AddJobs((LATE,)), "1", state_of(), FACTS, 2.0).jobs
    happened = [events.JobsAdded(2.0, (added,), "1")]
    assert store.facts.with_added(happened).mix.jobs == (*FACTS.mix.jobs, added)
    noted = store.facts.with_added(happened)
    assert noted.with_added(happened) == noted
