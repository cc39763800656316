"""The invariants, recounted from the journal and the world's own truth, apart from the product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hadar_cli.core import events
from hadar_cli.core.model import Job
from hadar_cli.core.reasons import Loss
from hadar_cli.core.state import RunState
from hadar_cli.core.steps import Range
from hadar_cli.errors import HadarError
from hadar_cli.runs.store import RunStore, read_journal
from tests.faults import weights

if TYPE_CHECKING:
    from tests.faults.world import World

_OF_DISKS = [
    *("power lost at a sync", "checkpoint damaged", "disk full"),
    *("disk full, write cut short", "head killed at a sync"),
]
_SLOW = {"copy slow", "report delayed", "link cut shortly", "link cut for long"}
_PATIENCE_S = 40.0

Claims: TypeAlias = dict[str, tuple[events.CopyFinished, set[int]]]  # attempt -> what it did

INVARIANTS = {
    "I1": "each step counted once, each copy within its quota, the target reached exactly",
    "I2": "the last committed checkpoint has its hash and loads",
    "I4": "resume, with no flags, finishes the run once faults cease",
    "I6": "errors name node, job or file, and are never a traceback",
    "I8": "the merged weights are the average of the accepted ones, trained from the right base",
    "late": "who hands in late is merged late, by its age and direction; nothing of it is lost",
    "others": "who hands in never waits long for those that are lost",
    "alone": "a job that fails everywhere ends no other job",
    "once": "no device trains two copies at once",
    "durable": "what was acknowledged is in the journal after any crash",
    "replay": "the product's own fold of the journal gives the same steps and generations",
    "asked": "a request is answered once, whatever dies; cancelled, paused and drained means so",
    "epochs": "every head has an epoch of its own",
}


class Violation(AssertionError):
    """An invariant does not hold."""


class Count:
    """How often anything was checked, in this process."""

    checked = 0


def demand(holds: object, what: str) -> None:
    Count.checked += 1
    if not holds:
        raise Violation(what)


class Recount(ABC):
    """Folds a journal with plain sets of numbers; what is known of weights is for those below."""

    def __init__(self) -> None:
        self.done: dict[int, set[int]] = defaultdict(set)
        self.generation: dict[int, int] = defaultdict(int)
        self.weights: dict[int, weights.Vector] = {}
        self.digest: dict[int, str] = {}
        self._started: dict[str, events.CopyStarted] = {}
        self._given: dict[str, set[int]] = {}  # attempts under way
        self._claims: Claims = {}
        self._epoch = 0
        self._on_device: dict[str, str] = {}
        self.made_by: dict[int, tuple[str, ...]] = {}
        self.made: dict[tuple[int, int], tuple[str, ...]] = {}  # and of whom these were merged
        self.past: dict[tuple[int, int], weights.Vector | None] = {}  # by job and generation

    def take(self, event: events.Event) -> None:
        match event:
            case events.HeadStarted():
                demand(event.epoch > self._epoch, f"epochs: {event.epoch} after {self._epoch}")
                self._epoch = event.epoch
            case events.CopyStarted():
                self._start(event)
            case events.CopyFinished():
                self._finish(event)
            case events.CopyLost():
                demand(event.attempt in self._given, f"{event.attempt} was lost but not under way")
                is_stale = event.reason is Loss.STALE
                demand(not is_stale or not self._had_base(event.attempt), f"late: {event.attempt}")
                self._free(event.attempt)
            case events.WeightsMerged():
                self._merge(event)
            case events.RunStopped():
                self._given.clear()
                self._claims.clear()
                self._on_device.clear()

    def _start(self, event: events.CopyStarted) -> None:
        demand(event.attempt not in self._started, f"I1: {event.attempt} started twice")
        steps, others = _numbers(event.slices), set(self.done[event.job])
        for attempt, given in self._given.items():
            others |= given if self._started[attempt].job == event.job else set()
        for attempt, (_, claimed) in self._claims.items():
            others |= claimed if self._started[attempt].job == event.job else set()
        demand(not steps & others, f"I1: {event.attempt} got steps that are done or held")
        if event.purpose == "train":
            for device in event.devices:
                holder = self._on_device.get(device, "")
                demand(holder == event.follows or not holder, f"once: {device} has {holder}")
                self._on_device[device] = event.attempt
        self._started[event.attempt] = event
        self._given[event.attempt] = steps

    def _free(self, attempt: str) -> None:
        del self._given[attempt]
        for device in self._started[attempt].devices:
            if self._on_device.get(device) == attempt:
                del self._on_device[device]

    def _finish(self, event: events.CopyFinished) -> None:
        demand(event.attempt in self._given, f"I1: {event.attempt} ended but was not under way")
        claimed = _numbers(event.slices)
        demand(claimed <= self._given[event.attempt], f"I1: {event.attempt} beyond its quota")
        demand(len(claimed) == event.steps, f"I1: {event.attempt} miscounted")
        left = self._given[event.attempt] - claimed
        self._free(event.attempt)
        for attempt in self._given:  # who goes on in the same process has what it left undone
            heir = self._started[attempt]
            if heir.inherits and heir.follows == event.attempt:
                self._given[attempt] |= left
        if event.steps:
            self._claims[event.attempt] = (event, claimed)

    def _merge(self, event: events.WeightsMerged) -> None:
        job, claims = event.job, {}
        self._check_nobody_waited(event)
        for attempt in event.accepted:
            demand(attempt in self._claims, f"I1: {attempt} counted, but had nothing to count")
            finished, claimed = self._claims.pop(attempt)
            demand(self._started[attempt].job == job, f"I1: {attempt} is of another job")
            demand(not claimed & self.done[job], f"I1: steps of {attempt} counted twice")
            demand(finished.weights, f"I8: {attempt} counted without weights")
            self.done[job] |= claimed
            claims[attempt] = (finished, claimed)
        for attempt, why in event.refused:
            demand(why, f"{attempt} refused for no reason")
            self._check_refusal(attempt, why)
            self._claims.pop(attempt, None)
        if not event.accepted:
            return
        demand(event.generation == self.generation[job] + 1, "I8: a generation was left out")
        self.past[job, self.generation[job]] = self.weights.get(job)
        late = {attempt for attempt in claims if self._is_late(attempt)}
        demand(late == event.late.keys(), f"late: {late} were, and {event.late} were told")
        self.generation[job] = event.generation
        self.weights[job] = self._check_weights(event, claims)
        self.digest[job] = event.weights
        self.made_by[job] = tuple(a for a in event.accepted if a not in late)
        self.made[job, event.generation] = self.made_by[job]

    def _is_late(self, attempt: str) -> bool:
        """Whether others were merged since it began."""
        started = self._started[attempt]
        return started.generation < self.generation[started.job]

    def _had_base(self, attempt: str) -> bool:
        """Whether what it began with ever were the job's weights."""
        copy = self._started[attempt]
        made_by = self.made.get((copy.job, copy.generation))
        return made_by is not None and (not copy.follows or made_by == (copy.follows,))

    def _check_nobody_waited(self, event: events.WeightsMerged) -> None:  # noqa: B027
        """Only a simulated world knows who could have come sooner."""

    def _check_refusal(self, attempt: str, why: str) -> None:  # noqa: B027
        """Only a simulated world knows who had it coming."""

    @abstractmethod
    def _check_weights(self, event: events.WeightsMerged, claims: Claims) -> weights.Vector:
        """The merged weights, once they are known to be the average of what these copies made."""

    @abstractmethod
    def _load(self, digest: str) -> weights.Vector: ...


class SimulatedRecount(Recount):
    """Knows from its world what every copy truly did."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._targets = {number: job.target_steps for number, job in world.jobs.items()}
        self._state: dict[int, weights.Vector] = {}  # the optimizer's, as last committed
        self._has_state: dict[int, bool] = {}  # whether that was in the latest commit
        #: by job and generation: the three above, and who made them
        self._past_state: dict[tuple[int, int], tuple[weights.Vector, bool, tuple[str, ...]]] = {}

    def _load(self, digest: str) -> weights.Vector:
        """As it was seen when it was committed. A head that died before has kept the newest."""
        found = self._world.merged.get(digest)
        if found is None:
            found = weights.load(self._world.store.object_path(digest))
            self._world.merged[digest] = found
        return found

    def _check_weights(self, event: events.WeightsMerged, claims: Claims) -> weights.Vector:
        job, before = event.job, event.generation - 1
        base = self.weights.get(job)
        if before:
            self._past_state[job, before] = (
                self._state[job],
                self._has_state[job],
                self.made_by[job],
            )
        copies: list[tuple[str, weights.Trained]] = []
        late: list[tuple[str, weights.Trained]] = []
        for attempt, (_, claimed) in claims.items():
            demand(attempt in self._world.trained, f"I8: {attempt} never handed in these weights")
            demand(attempt not in self._world.unfit, f"I8: {attempt} has another frozen part")
            trained = replace(self._world.trained[attempt], steps=len(claimed))
            began = self._started[attempt].generation
            self._check_lineage(attempt, trained, self.past[job, began], began)
            (late if began < before else copies).append((attempt, trained))
        done_before = len(self.done[job]) - sum(len(claimed) for _, claimed in claims.values())
        share_done = done_before / self._targets[job]
        rules, in_time = self._world.mix.merge, [trained for _, trained in copies]
        expected = weights.average(base, in_time, rules, share_done) if copies else base
        assert expected is not None, "nobody is late before there are weights"
        for attempt, trained in late:
            assert base is not None
            copy = self._started[attempt]
            merges = before - copy.generation
            update, share = weights.late_update(base, trained, merges, copy.lr_scale)
            is_told = abs(event.late[attempt] - share) < 1e-3
            demand(
                is_told, f"late: {attempt} counted by {event.late[attempt]:.3f}, not {share:.3f}"
            )
            expected = expected + update
        found = self._load(event.weights)
        # A cosine of small differences of rounded numbers is not as exact as these.
        is_right = np.allclose(found, expected, rtol=1e-4 if late else weights.ROUNDING)
        demand(is_right, f"I8: job {job}, not the average")
        self._check_state(event, in_time)
        return found

    def _check_refusal(self, attempt: str, why: str) -> None:
        """A late copy's work is lost only where its weights were bad, or a disk lost some."""
        fired = self._world.misfortune.fired
        is_disk_sound = not any(fired[kind] for kind in _OF_DISKS)
        is_odd = attempt in self._world.spoiled or attempt in self._world.unfit
        is_fine = not self._is_late(attempt) or is_odd or not is_disk_sound
        demand(is_fine, f"late: {attempt} was refused: {why}")

    def _check_nobody_waited(self, event: events.WeightsMerged) -> None:
        """A copy that will never report costs the others no more than the slot and patience."""
        misfortune = self._world.misfortune
        if _SLOW & misfortune.fired.keys() or misfortune.longest_move_s > _PATIENCE_S / 2:
            return  # where all is slow, patience grows
        for attempt in event.accepted:
            if attempt in self._claims:
                waited_s = event.t - self._claims[attempt][0].t
                limit_s = self._world.mix.slot_s + _PATIENCE_S
                demand(waited_s <= limit_s, f"others: {attempt} waited {waited_s:.0f} s for them")

    def _check_lineage(
        self, attempt: str, trained: weights.Trained, base: weights.Vector | None, began: int
    ) -> None:
        wanted = weights.untrained(self._started[attempt].job) if base is None else base
        is_right = np.allclose(trained.base, wanted, rtol=weights.ROUNDING)
        demand(is_right, f"I8: {attempt} did not train the weights it was given")
        state = self._state_given(attempt, trained, began)
        is_right = np.allclose(trained.state_base, state, rtol=weights.ROUNDING, atol=1e-6)
        demand(is_right, f"I8: {attempt} went on with another optimizer state")

    def _state_given(self, attempt: str, trained: weights.Trained, began: int) -> weights.Vector:
        """The committed state; its own, if the weights came without and it is in them."""
        if not began:
            return weights.NONE
        state, has_state, made_by = self._past_state[self._started[attempt].job, began]
        if not has_state and trained.previous in made_by:
            return self._world.trained[trained.previous].state
        return state

    def _check_state(self, event: events.WeightsMerged, copies: list[weights.Trained]) -> None:
        """The optimizer's state is the average of those that were handed in, or there is none."""
        found = self._state_of(event.weights)
        if not copies:  # only late ones, which leave it as it was
            is_same = found is None or np.array_equal(found, self._state[event.job])
            is_right = is_same and event.optimizer == self._has_state[event.job]
            demand(is_right, f"I8: job {event.job}, another state than before")
            return
        senders = [copy for copy in copies if copy.sends_state]
        demand(event.optimizer == bool(senders), f"I8: job {event.job}, state or no state")
        demand((found is not None) == bool(senders), f"I8: job {event.job}, state or no state")
        self._has_state[event.job] = bool(senders)
        if senders and found is not None:
            steps = [copy.steps for copy in senders]
            wanted = np.average([copy.state for copy in senders], axis=0, weights=steps)
            is_right = np.allclose(found, wanted, rtol=weights.ROUNDING, atol=1e-6)
            demand(is_right, f"I8: job {event.job}, not the average of the optimizer's states")
            self._state[event.job] = found

    def _state_of(self, digest: str) -> weights.Vector | None:
        if digest not in self._world.states:
            path = self._world.store.object_path(digest)
            self._world.states[digest] = weights.load_state(path)
        return self._world.states[digest]


def _numbers(slices: tuple[Range, ...]) -> set[int]:
    return {step for first, end in slices for step in range(first, end)}


def check_journal(world: World) -> SimulatedRecount:
    """All that must hold whenever a head has ended, however it did."""
    journal = read_journal(world.store.journal_path)
    records = iter(journal)
    is_whole = all(any(event == record for record in records) for event in world.acknowledged)
    demand(is_whole, "durable: acknowledged records are missing")
    from tests.faults.people import check_requests

    recount = SimulatedRecount(world)
    recount_all(recount, journal, world.first_jobs)
    check_requests(world.people, journal)
    return recount


def recount_all(recount: Recount, journal: list[events.Event], jobs: tuple[Job, ...]) -> None:
    """Takes the whole journal; the product's own fold has to agree."""
    state = RunState(jobs)
    for event in journal:
        recount.take(event)
        state.apply(event)
    for number, job in state.jobs.items():
        done = _numbers(job.done.ranges)
        demand(done == recount.done[number], "replay: other steps than were counted")
        demand(job.generation == recount.generation[number], "replay: another generation")


def check_fails_alone(world: World, job: int) -> bool:
    """Whether the run ended for want of this job, which had failed; the others then have ended."""
    journal = read_journal(world.store.journal_path)
    heads = (at for at, event in enumerate(journal) if isinstance(event, events.HeadStarted))
    last = max(heads, default=0)  # the disk may have been full before the first one's word
    failed = {e.job for e in journal[last:] if isinstance(e, events.JobFailed)}
    if job not in failed:
        return False
    done = check_journal(world).done
    for other in world.jobs.values():
        is_done = other.id in failed or len(done[other.id]) == other.target_steps
        demand(is_done, f"alone: job {job} failed, and {other.id} was ended with it")
    return True


def check_end(world: World) -> int:
    """All that must hold of a finished run; how many steps count in it."""
    from tests.faults.people import cancelled_jobs, check_nothing_is_forgotten

    recount, journal = check_journal(world), read_journal(world.store.journal_path)
    check_nothing_is_forgotten(world.people, journal)
    planned = {e.job for e in journal if isinstance(e, events.JobCutShort) and e.is_planned}
    for number in planned:
        done, job = recount.done[number], world.jobs[number]
        is_rung = len(done) in job.milestones and done == set(range(len(done)))
        demand(is_rung, f"I1: trial {number} did not end at a milestone")
    given_up = cancelled_jobs(journal) | planned
    check_models(recount, world.store, tuple(world.jobs.values()), given_up)
    return sum(map(len, recount.done.values()))


def check_models(
    recount: Recount, store: RunStore, jobs: tuple[Job, ...], cancelled: Collection[int] = ()
) -> None:
    """A finished run has every step once, whole checkpoints, and models equal to them."""
    for job in jobs:
        wanted = set(range(job.target_steps))
        is_whole = recount.done[job.id] == wanted or job.id in cancelled
        demand(is_whole, f"I1: job {job.id} has not all its steps")
        if job.id not in recount.digest:  # cancelled before its first merge
            continue
        store.verify(recount.digest[job.id])
        last = weights.load(store.object_path(recount.digest[job.id]))
        demand(np.array_equal(last, recount.weights[job.id]), "I2: other weights than committed")
        model = weights.load(store.directory / "models" / f"{job.name}.safetensors")
        demand(np.array_equal(model, last), f"I2: the model of {job.name} is not the last one")


def check_message(error: HadarError, world: World) -> None:
    """One line for people: what it is about, and what to do where something can be done."""
    named = [*world.node_of, *(j.name for j in world.jobs.values()), str(world.store.directory)]
    named += [world.store.directory.name, "journal.jsonl"]
    text = f"{error}"
    demand(type(error) is not HadarError, f"I6: an error nobody foresaw: {text}")
    demand("\n" not in text and any(name in text for name in named), f"I6: names nothing: {text}")


def places_passed(journal: list[events.Event]) -> Counter[str]:
    """How often a schedule came through the places that are hard to get right."""
    passed = Counter(f"asked: {type(e).__name__}" for e in journal if getattr(e, "request", ""))
    follows: dict[str, str] = {}
    for event in journal:
        match event:
            case events.CopyStarted():
                passed["step in micro-batches"] += event.micro_batches > 1
                if event.follows:
                    passed["order sent ahead"] += 1
                    follows[event.attempt] = event.follows
            case events.PairAvoided():
                passed["job kept off a device"] += 1
            case events.MilestonePassed():
                passed["milestone passed"] += 1
            case events.JobCutShort():
                passed["trial dropped, or job on a plateau"] += event.is_planned
            case events.JobFailed():
                passed["job failed, then tried again"] += 1
            case events.CopyLost():
                passed["order sent ahead, then lost or refused"] += event.attempt in follows
                passed["late result refused"] += event.reason is Loss.STALE
            case events.WeightsMerged():
                passed["order sent ahead, then counted"] += any(
                    a in follows for a in event.accepted
                )
                passed["merge of several copies"] += len(event.accepted) > 1
                passed["late copy merged"] += len(event.late)
                is_late_only = bool(event.late) and len(event.late) == len(event.accepted)
                passed["late copies merged alone"] += is_late_only
                passed["merge with a copy refused"] += bool(event.refused)
                passed["merge without optimizer state"] += not event.optimizer
            case events.HeadStarted():
                passed["head taken over"] += event.epoch > 1
    return passed
