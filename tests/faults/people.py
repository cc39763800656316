"""People who ask things of a run while everything goes wrong: jobs and nodes come, are cancelled,
paused and drained. Their requests are real files, and what became of each is checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from hadar_cli.core import events
from hadar_cli.core.model import Job, Launch, devices_of
from hadar_cli.core.state import RunState
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
from hadar_cli.runs.store import read_journal
from tests.faults.checker import demand

if TYPE_CHECKING:
    from tests.faults.world import World

EVERY = 7  # of so many schedules, people ask things in one
_CHANCE = 0.05  # at every look of the head
_MOST_SYNCS = 8  # from one request to the head's death: taken up, journalled, carried out


def ask_in(seed: int) -> bool:
    return seed % EVERY == 3


@dataclass
class People:
    """Ask a few things, some of which cannot be granted; in the end they let the run end.

    Of a run that waits for work they ask the same four things: a job is added, one is cancelled, a
    node comes and one is left; and after each request the head is killed, somewhere on its way.
    """

    world: World
    dice: Random
    left: int
    asked: dict[str, Request] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of(world: World) -> People:
        dice = Random(f"people {world.seed}")
        some = 4 if world.waits else dice.randint(1, 6)
        return People(world, dice, some if world.asks else 0)

    @property
    def _inbox(self) -> Inbox:
        return Inbox(self.world.store)

    def _state(self) -> RunState:
        happened = read_journal(self.world.store.journal_path)
        return RunState(self.world.store.facts.with_added(happened).mix.jobs, happened)

    def ask_sometimes(self) -> None:
        if self.left and self.dice.random() < _CHANCE:
            wish = self._next_of_four() if self.world.waits else self._wish()
            self.left -= 1
            self._put(wish)
            if self.world.waits:
                self.world.disk.dies_in = self.dice.randrange(_MOST_SYNCS)

    def _put(self, request: Request) -> None:
        disk = self.world.disk
        watched, disk.is_watched = disk.is_watched, False  # it is another process that writes
        number = self._inbox.put(request)
        disk.is_watched = watched
        self.asked[number] = request
        self.files[number] = self._path(number).read_bytes()

    def _path(self, number: str) -> Path:
        return self.world.store.directory / "inbox" / f"{number}.json"

    def _next_of_four(self) -> Request:
        facts, unfinished = self.world.store.facts, [j.job.name for j in self._state().unfinished]
        names = unfinished or [job.name for job in facts.mix.jobs]
        order = (
            lambda: AddJobs(self._jobs(), renames=True),
            lambda: CancelJobs((self.dice.choice(names),)),
            lambda: AddNodes((self.dice.choice(self.world.spare),)),
            lambda: DrainNode(facts.nodes[0].name),
        )
        return order[-self.left]()

    def _wish(self) -> Request:
        dice, facts = self.dice, self.world.store.facts
        names = [job.name for job in facts.mix.jobs] + ["nobody"]
        some = tuple(dice.sample(names, dice.choice((1, 1, 2))))
        nodes = [node.name for node in facts.nodes]
        spare = [node for node in self.world.spare if node.name not in nodes] or [facts.nodes[0]]
        return dice.choice(
            (
                lambda: AddJobs(self._jobs(), renames=dice.random() < 0.7),
                lambda: AddJobs(self._jobs(), renames=True),
                lambda: CancelJobs(some),
                lambda: CancelJobs(some[:1]),
                lambda: PauseJobs(some[:1]),
                lambda: ContinueJobs(some[:1]),
                lambda: SetPriority(some[:1], dice.choice((-1, 0, 5))),
                lambda: DrainNode(dice.choice(nodes)),
                lambda: AddNodes((dice.choice(spare),)),
                lambda: AddNodes((dice.choice(spare),)),
            )
        )()

    def _jobs(self) -> tuple[Job, ...]:
        launch = Launch(workload="image_classification" if self.dice.random() < 0.8 else None)
        target = self.dice.choice((1, 30, 80))
        return (Job(0, self.dice.choice(("job-0", "late", "later")), target, 16, launch=launch),)

    def after_power_loss(self) -> None:
        """The removal of a file may not have reached the disk."""
        for number, body in self.files.items():
            if self.dice.random() < 0.3:
                self._path(number).write_bytes(body)

    def let_it_end(self) -> None:
        """No head drives the run: whoever paused jobs goes on with them."""
        if not self.world.asks:
            return
        state, waits = self._state(), self.world.waits
        if paused := tuple(job.job.name for job in state.resting):
            self._put(ContinueJobs(paused))
        if waits and not state.is_closed and not self.left:
            self._put(CloseQueue())

    def look_in(self) -> None:
        """A run that waits for work is told when no more comes."""
        has_said = any(isinstance(request, CloseQueue) for request in self.asked.values())
        if self.world.waits and not self.left and not has_said:
            self._put(CloseQueue())


def check_requests(people: People, journal: list[events.Event]) -> Counter[str]:
    """Each was answered once at the most, by what it asked for; and what was granted holds."""
    answered: Counter[str] = Counter()
    jobs = {job.id: job.name for job in people.world.first_jobs}
    cancelled, paused, drained = set[int](), set[int](), set[str]()
    granted: Counter[str] = Counter()
    for event in journal:
        if number := getattr(event, "request", ""):
            answered[number] += 1
            demand(answered[number] == 1, f"asked: {number} was answered twice")
            demand(number in people.asked, f"asked: nobody asked for {number}")
            granted[type(event).__name__] += 1
        match event:
            case events.JobsAdded():
                request = people.asked[event.request]
                demand(isinstance(request, AddJobs), "asked: jobs were added by another request")
                assert isinstance(request, AddJobs)
                wanted = [(job.target_steps, job.launch) for job in request.jobs]
                demand(wanted == [(j.target_steps, j.launch) for j in event.jobs], "asked: others")
                for job in event.jobs:
                    taken = job.id in jobs or job.name in jobs.values()
                    demand(not taken, f"asked: job {job.name} is not its own")
                    jobs[job.id] = job.name
            case events.JobsCancelled():
                cancelled |= set(event.jobs)
                paused -= set(event.jobs)
            case events.JobsPaused():
                paused |= set(event.jobs)
            case events.JobsContinued():
                paused -= set(event.jobs)
            case events.NodeDrained():
                drained |= set(event.devices)
            case events.NodesReplaced():
                drained -= set(event.added)
            case events.CopyStarted():
                demand(event.job not in cancelled, f"asked: {event.attempt} is of a cancelled job")
                is_paused = event.job in paused and event.purpose != "evaluate"
                demand(not is_paused, f"asked: {event.attempt} is of a paused job")
                busy = drained.intersection(event.devices)
                demand(not busy, f"asked: {event.attempt} started on {busy}, which is drained")
    return granted


def check_nothing_is_forgotten(people: People, journal: list[events.Event]) -> None:
    """A finished run has answered all that was asked before its end."""
    answered = {getattr(event, "request", "") for event in journal}
    left = [number for number in people._inbox.waiting() if number not in answered]
    missing = people.asked.keys() - answered - set(left)
    demand(not missing, f"asked: {missing} vanished")
    devices, wanted = {d.name for d in devices_of(people.world.store.facts.nodes)}, set[str]()
    for event in journal:
        if isinstance(event, events.NodesReplaced):
            wanted |= set(event.added)
        elif isinstance(event, events.NodeDrained):
            wanted -= set(event.devices)
    demand(wanted <= devices, f"asked: {wanted - devices} was added, and is not there")


def cancelled_jobs(journal: list[events.Event]) -> set[int]:
    return {n for e in journal if isinstance(e, events.JobsCancelled) for n in e.jobs}
