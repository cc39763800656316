"""What becomes of a request: the event that grants it, or why it cannot be granted.

Commands ask here before they leave a request, and the head asks again before it journals one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from hadar_cli.core import events
from hadar_cli.core.estimates.suitability import require_room
from hadar_cli.core.model import Job, Node, devices_of
from hadar_cli.core.state import JobState, RunState
from hadar_cli.errors import InputError, unknown
from hadar_cli.runs.replacement import difference
from hadar_cli.runs.requests import (
    AddJobs,
    AddNodes,
    CancelJobs,
    CloseQueue,
    ContinueJobs,
    DrainNode,
    Inbox,
    PauseJobs,
    Request,
    SetPriority,
)
from hadar_cli.runs.store import RunFacts, RunStore, read_state

MOST_JOBS = 10_000  # of a run


def answer(
    request: Request, number: str, state: RunState, facts: RunFacts, now: float
) -> events.Event:
    """The event that grants the request; raises InputError where it cannot be granted."""
    if state.finished:
        fix = "start another: hadar run MIX"
        raise InputError(f"run {facts.id} is over, with all its jobs done", fix=fix)
    match request:
        case AddJobs():
            return events.JobsAdded(now, _numbered(request, state, facts, now), number)
        case AddNodes():
            _check_new(request.nodes, facts.nodes)
            changed = difference(facts.nodes, joined(facts.nodes, request.nodes), now)
            return replace(changed, request=number)
        case DrainNode():
            devices = _drained(request.node, facts, state.drained)
            return events.NodeDrained(now, request.node, devices, number)
        case CloseQueue():
            if state.is_closed or not facts.waits_for_work:
                raise InputError(f"run {facts.id} ends by itself when its jobs are done")
            return events.QueueClosed(now, number)
        case _:
            return _about_jobs(request, number, state, now)


def look_ahead(store: RunStore) -> tuple[RunState, RunFacts]:
    """The run as it will be once a head has taken up what waits in its inbox."""
    state, facts, inbox = read_state(store), store.facts, Inbox(store)
    for number in inbox.waiting():
        with suppress(InputError, ValueError, LookupError):  # it will be refused
            request = inbox.read(number)
            granted = answer(request, number, state, facts, state.now)
            state.apply(granted)
            facts = facts.with_added([granted])
            if isinstance(request, AddNodes):
                facts = replace(facts, nodes=joined(facts.nodes, request.nodes))
    return state, facts


def _about_jobs(
    request: CancelJobs | PauseJobs | ContinueJobs | SetPriority,
    number: str,
    state: RunState,
    now: float,
) -> events.Event:
    jobs = [_find(name, state) for name in dict.fromkeys(request.jobs)]
    ids = tuple(job.job.id for job in jobs)
    match request:
        case CancelJobs():
            _refuse(jobs, lambda job: job.is_trained, "is done: there is nothing to cancel")
            _refuse(jobs, lambda job: job.is_cancelled, "is cancelled already")
            return events.JobsCancelled(now, ids, number)
        case PauseJobs():
            _refuse(jobs, lambda job: job.is_over or job.is_cancelled, "is over: nothing to pause")
            _refuse(jobs, lambda job: job.is_paused, "is paused already")
            return events.JobsPaused(now, ids, number)
        case ContinueJobs():
            _refuse(jobs, lambda job: not job.is_paused, "is not paused")
            return events.JobsContinued(now, ids, number)
        case SetPriority():
            no_more = "is over: its priority no longer matters"
            _refuse(jobs, lambda job: job.is_over or job.is_cancelled, no_more)
            return events.PriorityChanged(now, ids, request.priority, number)


def _find(name: str, state: RunState) -> JobState:
    names = {job.job.name: job for job in state.jobs.values()}
    if name not in names:
        raise unknown(f"the run has no job {name!r}", name, names, fix="hadar status shows them")
    return names[name]


def _refuse(jobs: Sequence[JobState], is_wrong: Callable[[JobState], bool], why: str) -> None:
    for job in jobs:
        if is_wrong(job):
            raise InputError(f"job {job.job.name!r} {why}", fix="hadar status shows all jobs")


def _numbered(request: AddJobs, state: RunState, facts: RunFacts, now: float) -> tuple[Job, ...]:
    """The jobs as the run will know them."""
    if not request.jobs:
        raise InputError("the mix lists no jobs", fix="add one to it")
    if len(state.jobs) + len(request.jobs) > MOST_JOBS:
        raise InputError(
            f"the run would have more than {MOST_JOBS:,} jobs", fix="start another run for them"
        )
    require_room(request.jobs, devices_of(facts.nodes), "")
    taken = {job.job.name for job in state.jobs.values()}
    first, jobs = max(state.jobs, default=-1) + 1, list[Job]()
    for job in request.jobs:
        name = _free_name(job.name, taken) if request.renames else job.name
        if name in taken:
            raise InputError(
                f"the run has a job {name!r} already",
                fix="give it another 'name' in the mix, or --rename numbers it",
            )
        taken.add(name)
        arrives_s = now + job.arrives_s
        jobs.append(replace(job, id=first + len(jobs), name=name, arrives_s=arrives_s))
    return tuple(jobs)


def _free_name(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def _check_new(nodes: Sequence[Node], before: Sequence[Node]) -> None:
    known = {node.name for node in before if node.enabled}
    if not nodes:
        raise InputError("the inventory lists no enabled node", fix="add one to it")
    if taken := next((node.name for node in nodes if node.name in known), None):
        fix = "leave it out, or give another machine another name"
        raise InputError(f"the run has a node {taken!r} already", fix=fix)


def joined(before: Sequence[Node], more: Sequence[Node]) -> tuple[Node, ...]:
    """The inventory with more nodes; one that was drained may come back."""
    names = {node.name for node in more}
    return (*(node for node in before if node.name not in names), *more)


def _drained(name: str, facts: RunFacts, drained: Collection[str]) -> tuple[str, ...]:
    nodes = {node.name: node for node in facts.nodes if node.enabled}
    if name not in nodes:
        raise unknown(f"the run has no node {name!r}", name, nodes, fix="hadar status shows them")
    left = {n for n, node in nodes.items() if any(d.name not in drained for d in node.devices)}
    if name not in left:
        raise InputError(f"node {name!r} is being drained already")
    if left == {name}:
        fix = "hadar cancel stops the run; hadar nodes add brings another node first"
        raise InputError(f"node {name!r} is the last that the run has", fix=fix)
    return tuple(device.name for device in nodes[name].devices)
