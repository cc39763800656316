"""One job of a run: which of its steps are done, in hand or free, and how it fared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_cli.core import events
from hadar_cli.core.events import TRAIN
from hadar_cli.core.model import Job
from hadar_cli.core.reasons import Loss
from hadar_cli.core.steps import StepSet, all_steps

_CRUMB_S = 0.5  # of a job's max_duration: nobody starts a copy for it


@dataclass(frozen=True, slots=True)
class Failure:
    """The last copy that failed: which, on which device, and why."""

    attempt: str
    device: str
    reason: Loss
    why: str
    log: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a merge committed, as copies are given it."""

    files: tuple[str, ...]  # the weights, and before them where the optimizer's state is
    #: the attempts whose weights these are the mean of; none that was late
    made_by: tuple[str, ...]

    @property
    def weights(self) -> str:
        return self.files[-1]


@dataclass(slots=True)
class JobState:
    """One job's progress as committed, and what its copies still have in hand.

    Every step is done, free or in the hands of one copy, until the job is cut short.
    """

    job: Job
    #: steps that are committed; the complement of ``free`` and ``in_hand``
    done: StepSet = field(default_factory=StepSet)
    #: merges so far; 0 as long as there are no weights
    generation: int = 0
    weights: str | None = None
    #: see Generation's
    made_by: tuple[str, ...] = ()
    #: by number: the latest one, and those that copies began with which may still hand in
    generations: dict[int, Generation] = field(default_factory=dict)
    #: the last weights that came with the optimizer's state
    optimizer: str | None = None
    effective_steps: float = 0.0
    #: set when ``is_trained`` comes true
    finished_at: float | None = None
    untrained: dict[str, float] | None = None
    quality: dict[str, float] | None = None
    #: of the first figure of quality, as the mix says or else the script; None: nobody did
    higher_is_better: bool | None = field(init=False)
    #: by device: copies that failed there since one last counted
    failures: dict[str, int] = field(default_factory=dict)
    #: by device: pieces to split a step's batch into, after it ran out of memory there
    pieces: dict[str, int] = field(default_factory=dict)
    last_failure: Failure | None = None
    #: no device is left that could train or measure it; until the next head
    failed: events.JobFailed | None = None
    #: copies that train, by attempt; no two hold one step
    active: dict[str, events.CopyStarted] = field(default_factory=dict)
    #: copies that do not; they hold no steps
    side_tasks: dict[str, events.CopyStarted] = field(default_factory=dict)
    #: copies that wait for their merge, each with a step at least
    handed_in: dict[str, events.CopyFinished] = field(default_factory=dict)
    #: time in which a copy was at work, however many were
    trained_s: float = 0.0
    #: when the first of ``active`` began; None without any
    began_at: float | None = None
    #: its steps could not be shared, or not by hadar, when that was tried
    cannot_share: bool = False
    #: its script has said that it is done; nothing more is started of it
    is_stopping: bool = False
    #: why it ended without its last steps
    cut_short: str | None = None
    #: somebody has no use for it any more; it is cut short as soon as nobody is at work on it
    is_cancelled: bool = False
    #: somebody wants it to wait; never of a job that is over
    is_paused: bool = False
    #: as last set
    priority: int = field(init=False)
    #: what was measured at milestones, by steps
    scores: dict[int, dict[str, float]] = field(default_factory=dict)
    #: milestones after which it went on
    passed: set[int] = field(default_factory=set)
    #: the generation that ``quality`` is of
    measured: int = 0
    #: see the job's; kept, as they are asked for often
    milestones: tuple[int, ...] = field(init=False)
    #: steps not committed yet: the target less ``done``
    remaining: int = field(init=False)
    #: steps that nobody has done or holds; none once the job is cut short
    free: StepSet = field(init=False)

    def __post_init__(self) -> None:
        self.priority = self.job.priority
        self.milestones = self.job.milestones
        self.remaining = self.job.target_steps
        self.free = all_steps(self.job.target_steps)
        self.higher_is_better = self.job.higher_is_better

    @property
    def is_trained(self) -> bool:
        return self.remaining == 0 or self.cut_short is not None

    @property
    def is_over(self) -> bool:
        """Whether this head has nothing more to train of it."""
        return self.is_trained or self.failed is not None

    @property
    def ending(self) -> str:
        """`done`, `cancelled`, `failed`, `dropped` of a sweep, `stopped` as its ``stop`` or its
        script says, or `cut` by time; nothing while it goes on."""
        if self.is_cancelled and self.remaining:  # else its last steps were in when that came
            return "cancelled"
        if self.failed:
            return "failed"
        if self.cut_short and not self.is_stopping:
            return "cut"
        if self.cut_short:
            return "dropped" if self.job.promote else "stopped"
        return "done" if self.is_trained else ""

    @property
    def is_resting(self) -> bool:
        """Whether nothing of it is to be trained for now, though it is not over."""
        return self.is_at_milestone or (self.is_paused and not self.is_over)

    @property
    def is_unwanted(self) -> bool:
        """Whether copies that are at work on it are to hand in and leave."""
        return (self.is_paused or self.is_cancelled) and not self.is_over

    @property
    def limit(self) -> int:
        """So many steps it may have for now: up to its next milestone."""
        ahead = (s for s in self.milestones if s not in self.passed and not self._says_nothing(s))
        return next(ahead, self.job.target_steps)

    def _says_nothing(self, step: int) -> bool:
        """Whether only ``stop`` wants it measured there, and its first look was in vain: the
        script does not report that figure."""
        stop, promote = self.job.stop, self.job.promote
        if not stop or stop.every not in self.passed or (promote and step in promote.rungs):
            return False
        return self.score_at(stop.every, stop.metric) is None

    def waits_at(self, step: int) -> bool:
        """Whether it is at that milestone, and has not passed it."""
        is_there = not self.is_over and len(self.done) == step
        return is_there and step in self.milestones and step not in self.passed

    @property
    def ready(self) -> StepSet:
        """Free steps that may be handed out now."""
        if not self.milestones or self.limit == self.job.target_steps:
            return self.free
        return self.free - StepSet.of([(self.limit, self.job.target_steps)])

    @property
    def is_at_milestone(self) -> bool:
        """Whether it is to be measured, and judged, before it goes on."""
        if not self.milestones or self.is_over:
            return False
        return len(self.done) == self.limit < self.job.target_steps

    @property
    def is_measured(self) -> bool:
        """Whether its score at the milestone is known, or never will be."""
        return self.limit in self.scores or self.untrained is None

    def score_at(self, step: int, metric: str = "") -> float | None:
        """What it came to then, by its sweep's metric unless another is named."""
        named = metric or (self.job.promote.metric if self.job.promote else "")
        return self.scores.get(step, {}).get(named)

    def cancel(self, now: float) -> None:
        """Whoever is at work on it hands in first; one that failed is over at once."""
        self.is_cancelled, self.is_paused = True, False
        if self.failed and not self.is_trained:
            self.failed, self.cut_short, self.finished_at = None, "cancelled", now
            self.free = StepSet()

    def fail(self, failure: Failure, micro_batches: int = 1) -> None:
        """Counts a failure that the job may be to blame for."""
        self.last_failure = failure
        if failure.reason.is_too_large:
            self.pieces[failure.device] = 2 * micro_batches
        else:
            self.failures[failure.device] = self.failures.get(failure.device, 0) + 1

    @property
    def older_optimizer(self) -> str | None:
        """Where the optimizer's state is, if the latest weights came without it."""
        return self.optimizer if self.optimizer != self.weights else None

    @property
    def files(self) -> list[str]:
        """The checkpoints that its next copies start from."""
        return [digest for digest in (self.older_optimizer, self.weights) if digest]

    def trained_by(self, now: float) -> float:
        """Seconds in which it had copies at work."""
        return self.trained_s + (0.0 if self.began_at is None else now - self.began_at)

    def allowance_s(self, now: float) -> float:
        """What its ``max_duration`` leaves it to train."""
        most = self.job.max_duration_s
        return math.inf if most is None else most - self.trained_by(now)

    def is_used_up(self, now: float) -> bool:
        """Whether no copy is to start any more: its script or its user has had enough, or it has
        used up its time but for a crumb, as copies end with a whole step."""
        crumb_s = max(_CRUMB_S, 0.01 * (self.job.max_duration_s or 0.0))
        return self.is_stopping or self.is_cancelled or self.allowance_s(now) <= crumb_s

    def takes_copies(self, now: float) -> bool:
        """Whether anything may be started for its training, if there is work and a device."""
        return not (self.is_over or self.is_resting or self.is_used_up(now))

    def is_based_on_latest(self, copy: events.CopyStarted) -> bool:
        """Whether the copy trains the weights as they are committed now, and none before them."""
        if copy.follows and self.made_by != (copy.follows,):
            return False
        return copy.generation == self.generation

    def base_of(self, copy: events.CopyStarted) -> Generation | None:
        """The committed weights that the copy began with, also if others came after them; None if
        those never came to be."""
        base = self.generations.get(copy.generation)
        return base if base and (not copy.follows or base.made_by == (copy.follows,)) else None

    def may_count(self, copy: events.CopyStarted) -> bool:
        """Whether what the copy trained can be in the next merge, in time or late."""
        return self.is_based_on_latest(copy) or self.base_of(copy) is not None

    def remember(self, begun: Iterable[int]) -> None:
        """Notes the latest generation beside those that copies began with, and forgets others."""
        held = {number: self.generations[number] for number in {*begun} & self.generations.keys()}
        if self.weights:
            held[self.generation] = Generation(tuple(self.files), self.made_by)
        self.generations = held

    def steps_gained(
        self,
        in_time: Sequence[events.CopyStarted],
        late: Iterable[events.CopyStarted],
        shares: Mapping[str, float],
    ) -> float:
        """How far a merge of these goes, in steps: averaging shortens the way, a scaled learning
        rate makes up for it. Of late updates, shares are added."""
        steps = [self.handed_in[copy.attempt].steps for copy in in_time]
        gained = 0.0
        if steps:
            lr_gain = sum(copy.lr_scale for copy in in_time) / len(in_time)
            gained = sum(s * s for s in steps) / sum(steps) * lr_gain
        for copy in late:
            share = shares.get(copy.attempt, 0.0)
            gained += share * copy.lr_scale * self.handed_in[copy.attempt].steps
        return gained

    def take_back(self, copy: events.CopyStarted, done: StepSet) -> events.CopyStarted | None:
        """Steps that a copy has not done are free again, or go to the copy that goes on in its
        process: returned as it is then."""
        left = StepSet.of(copy.slices) - done
        for heir in self.active.values():
            if heir.inherits and heir.follows == copy.attempt:
                steps = StepSet.of(heir.slices) | left
                self.active[heir.attempt] = replace(heir, slices=steps.ranges)
                return self.active[heir.attempt]
        self.free |= left
        return None

    @property
    def in_hand(self) -> StepSet:
        """Steps that copies are working on, or have handed in but that are not committed yet."""
        held = StepSet()
        for started in self.active.values():
            held = held | StepSet.of(started.slices)
        for finished in self.handed_in.values():
            held = held | StepSet.of(finished.slices)
        return held

    @property
    def is_unmeasured(self) -> bool:
        """Whether the final weights, or those at a milestone, still wait for their evaluation."""
        if self.untrained is None or self.failed or self.is_cancelled:
            return False
        if self.is_at_milestone:
            return not self.is_measured
        is_old = bool(self.milestones) and self.measured != self.generation
        return (self.quality is None or is_old) and self.is_trained

    def validate(self) -> None:
        """Raises AssertionError, or ValueError for a step in two places, where fields disagree."""
        steps = self.done | self.free | self.in_hand
        assert steps == all_steps(self.job.target_steps) or self.cut_short, "a step is lost"
        assert self.remaining == self.job.target_steps - len(self.done), "steps are miscounted"
        assert not (self.is_paused and self.is_over), "it is over, and waits"
        assert (self.generation > 0) == (self.weights is not None), "weights without a merge"
        for number in (self.generation, *(copy.generation for copy in self.active.values())):
            is_committed = 0 < number <= self.generation
            assert not is_committed or number in self.generations, "what copies began with is lost"
        assert (self.finished_at is not None) == self.is_trained, "its end has no time"
        assert (self.began_at is not None) == bool(self.active), "its time is miscounted"
        assert all(copy.purpose == TRAIN for copy in self.active.values()), "a side task trains"
        assert not any(copy.slices for copy in self.side_tasks.values()), "a side task holds steps"
        assert all(copy.steps for copy in self.handed_in.values()), "nothing was handed in"
