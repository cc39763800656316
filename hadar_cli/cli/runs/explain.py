"""``hadar explain [RUN [JOB]]``: why jobs wait, why devices are idle, what comes next."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.completion import RunName
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir, print_json, stdout
from hadar_cli.errors import unknown

if TYPE_CHECKING:
    from hadar_cli.cli.records import Explanation
    from hadar_cli.core.events import Event
    from hadar_cli.core.state import JobState
    from hadar_cli.report.live.follower import JournalFollower

_LOSSES = 3  # the latest, of each job


def explain(
    run: RunName = None,
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Only this one.", autocompletion=completion.jobs_of_run),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Say why jobs wait, why devices are idle, why copies were lost, and what comes next."""
    from hadar_cli.cli.records import Explained, Explanation
    from hadar_cli.core.events import CopyLost
    from hadar_cli.report.format import plain
    from hadar_cli.report.live.follower import JournalFollower
    from hadar_cli.runs.store import find_run

    happened: list[Event] = []
    seen = JournalFollower(find_run(runs_dir, run))
    _ = seen.rates  # from the first event on

    def hear(event: Event) -> None:
        if not (isinstance(event, CopyLost) and seen.state.was_called_back(event)):
            happened.append(event)

    seen.look(hear)
    names = {one.job.name: one for one in seen.state.jobs.values()}
    if job and job not in names:
        raise unknown(f"the run has no job {job!r}", job, names, fix="hadar status shows them")
    jobs = [names[job]] if job else list(names.values())
    is_brief = job is not None or seen.standing == "finished"
    told = Explained(
        run=seen.facts.id,
        state=seen.standing,
        jobs=tuple(
            Explanation(one.job.name, tuple(_job(one, seen, happened, one.job.name == job)))
            for one in jobs
        ),
        devices=() if is_brief else tuple(_devices(seen, happened)),
        next_round=() if is_brief else tuple(_next_round(seen)),
    )
    if as_json:
        print_json(dataclasses.asdict(told))
        return
    console = stdout()
    console.print(_heading(seen))
    for title, lines in (("Jobs", told.jobs), ("Devices", told.devices)):
        if lines:
            console.print(f"\n{title}")
        for line in lines:
            console.print(f"  {plain(line.name, 64)}: {plain('; '.join(line.why), 1000)}")
    if told.next_round:
        console.print("\nThe next round, if it were planned now")
        for plan in told.next_round:
            console.print(f"  {plain(plan, 200)}")


def _heading(seen: JournalFollower) -> str:
    from hadar_cli.report.format import clock, count
    from hadar_cli.runs.requests import Inbox

    run, state = seen.store.directory.name, seen.state
    if seen.standing == "finished":
        return f"run {run} is over: hadar report {run}"
    if seen.standing == "running":
        if seen.facts.waits_for_work and not state.is_closed and not list(state.unfinished):
            return f"run {run} waits for work: hadar add {run} MIX; hadar close {run} lets it end"
        return f"run {run} goes on: round {state.round}, {clock(seen.now())} so far"
    waiting = len(Inbox(seen.store).waiting())
    noted = f"; it will take up {count(waiting, 'request')}" if waiting else ""
    return f"run {run} stands still, nobody drives it: hadar resume {run}{noted}"


def _job(
    job: JobState, seen: JournalFollower, happened: list[Event], is_alone: bool
) -> Iterator[str]:
    yield _standing(job, seen)
    avoided = [one for (number, _), one in seen.state.avoided.items() if number == job.job.id]
    for pair in avoided:
        yield f"not given to {pair.device}: {pair.why}"
    if job.priority:
        yield f"priority {job.priority}"
    if is_alone or not job.is_over:
        yield from _losses(job.job.id, seen, happened)


def _standing(job: JobState, seen: JournalFollower) -> str:
    from hadar_cli.report.format import brief

    done = f"{len(job.done):,} of {job.job.target_steps:,} steps"
    now = seen.now()
    if job.failed:
        return f"failed after {done}: {job.failed.why}"
    if job.cut_short:
        return f"ended with {done}: {job.cut_short}"
    if job.is_trained:
        return "done, and being measured" if job.is_unmeasured else "done"
    if job.is_paused:
        return f"paused at {done}: hadar continue {seen.facts.id} {job.job.name}"
    if job.active and seen.standing == "running":
        devices = sorted({device for copy in job.active.values() for device in copy.devices})
        return f"trains on {', '.join(devices)}, {done}"
    if job.is_at_milestone:
        what = "waits for the others of its sweep" if job.is_measured else "waits to be measured"
        return f"{what} at step {job.limit:,}; it holds nothing meanwhile"
    if job.job.arrives_s > now:
        return f"comes in {brief(job.job.arrives_s - now)}"
    if seen.standing != "running":
        return f"waits at {done}: nobody drives the run"
    if all(device.name in seen.state.lost_devices for device in seen.devices):
        return f"waits at {done}: the run may use no device now"
    others = [one for one in seen.state.unfinished if one.active]
    higher = [one.job.name for one in others if one.priority > job.priority]
    if higher:
        return f"waits at {done}: {', '.join(higher)} has a higher priority"
    trains = ", ".join(one.job.name for one in others) or "nothing"
    return f"waits at {done} for its turn: the policy gave the devices to {trains}"


def _losses(number: int, seen: JournalFollower, happened: list[Event]) -> Iterator[str]:
    from hadar_cli.core.events import CopyLost
    from hadar_cli.report.format import clock

    started = seen.state.started
    lost = [e for e in happened if isinstance(e, CopyLost) and started[e.attempt].job == number]
    if len(lost) > _LOSSES:
        yield f"{len(lost)} copies were lost, the latest:"
    for event in lost[-_LOSSES:]:
        yield f"a copy on {started[event.attempt].device} was lost at {clock(event.t)}: {event.why}"


def _devices(seen: JournalFollower, happened: list[Event]) -> Iterator[Explanation]:
    from hadar_cli.cli.records import Explanation

    state, wanted = seen.state, _wanted(happened)
    for device in seen.devices:
        copies = [
            c for j in state.jobs.values() for c in (*j.active.values(), *j.side_tasks.values())
        ]
        mine = next((copy for copy in copies if device.name in copy.devices), None)
        if lost := state.lost_devices.get(device.name):
            why = f"not used: {lost.why}"
        elif mine and seen.standing != "running":
            name = state.jobs[mine.job].job.name
            why = f"idle: nobody drives the run; what is left of its copy of {name} ends by itself"
        elif mine:
            doing = {"train": "trains", "evaluate": "measures"}.get(mine.purpose, "prepares for")
            why = f"{doing} {state.jobs[mine.job].job.name}"
        else:
            why = f"idle: {_idleness(device.name, seen)}"
        more = (f"shared by turns with {wanted[device.name]}",) if wanted.get(device.name) else ()
        yield Explanation(device.name, (why, *more))


def _wanted(happened: list[Event]) -> dict[str, str]:
    """By device: the other runs that want it, too, as the head of now was told."""
    from hadar_cli.core.events import DeviceWanted, HeadStarted

    found: dict[str, str] = {}
    for event in happened:
        if isinstance(event, HeadStarted):
            found.clear()
        elif isinstance(event, DeviceWanted):
            found[event.device] = ", ".join(event.by)
    return found


def _idleness(device: str, seen: JournalFollower) -> str:
    state = seen.state
    wanted = list(state.unfinished)
    if seen.standing != "running":
        return "nobody drives the run"
    if not wanted:
        return "there is nothing to train" + (", jobs rest" if state.resting else "")
    if all((job.job.id, device) in state.avoided for job in wanted):
        return "it suits none of the jobs that are left"
    if all(len(job.active) >= (job.job.fork or len(seen.devices)) for job in wanted):
        return "every job has as many copies as its 'fork' allows"
    if all(job.active for job in wanted):
        return "every job trains elsewhere, in its solo phase or where more copies would not pay"
    return "it waits for the next round, or for copies to meet"


def _next_round(seen: JournalFollower) -> Iterator[str]:
    """What the run's own policy answers to the run as it is."""
    from hadar_cli import policies
    from hadar_cli.core.estimates.suitability import Suitability, SuitableRates
    from hadar_cli.core.policies.job_queue import Arrivals
    from hadar_cli.core.policies.port import ClusterView, JobView
    from hadar_cli.core.policies.priorities import ByPriority

    state, mix, now = seen.state, seen.facts.mix, seen.now()
    free = tuple(device for device in seen.devices if device.name not in state.lost_devices)
    queue = Arrivals(state).at(now)
    if not len(queue) or not free:
        return
    suits = Suitability(free, state)
    jobs = [state.jobs[number] for number in queue.ids.tolist()]
    view = ClusterView(
        now_s=now,
        slot_s=mix.slot_s,
        seconds=mix.slot_s,
        devices=tuple(device.name for device in free),
        jobs=lambda: [JobView(j.job, j.limit - len(j.done), j.limit - len(j.done)) for j in jobs],
        rates=SuitableRates(seen.rates, suits),
        current={d: j.job.id for j in jobs for copy in j.active.values() for d in copy.devices},
        cluster=free,
        queue=queue,
    )
    for stint in ByPriority(policies.create(mix.policy), state).plan(view):
        name = state.jobs[stint.job].job.name
        yield f"{', '.join(stint.devices)}: {name}, up to {stint.steps:,} steps"
