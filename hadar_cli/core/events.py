"""What happens in a run, as past-tense facts. The journal lists them and is the only truth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, get_args

from hadar_cli.core.model import Job
from hadar_cli.core.reasons import Absence, Loss, Unfit
from hadar_cli.core.steps import Range


@dataclass(frozen=True, slots=True)
class HeadStarted:
    """A head took the run. Epochs count heads; time goes on from the last one's last record."""

    t: float
    epoch: int
    versions: dict[str, str] = field(default_factory=dict)
    goes_on: bool = False  # in the same process, for jobs or nodes have come or gone


@dataclass(frozen=True, slots=True)
class RoundPlanned:
    t: float
    round: int
    stints: tuple[tuple[int, str, int], ...]  # job, device, steps
    gangs: tuple[tuple[str, ...], ...] = ()  # devices that share a stint, which is its first's

    @property
    def devices(self) -> set[str]:
        """All that the plan gives work."""
        alone = {device for _, device, _ in self.stints}
        return alone.union(*self.gangs)


TRAIN = "train"
# "evaluate" the weights, "prepare" a process
SIDE_TASKS = ("evaluate", "prepare")


@dataclass(frozen=True, slots=True)
class CopyStarted:
    """Intent: written before the order leaves. ``copy`` is the paper's forked job id."""

    t: float
    attempt: str
    job: int
    copy: int
    device: str
    round: int
    generation: int
    slices: tuple[Range, ...]
    lr_scale: float = 1.0
    purpose: str = TRAIN  # or a side task: see SIDE_TASKS
    gang: tuple[str, ...] = ()  # all devices of a multi-device job; ``device`` is its first
    follows: str = ""  # the attempt of the same process that it goes on from, without a merge
    micro_batches: int = 1  # pieces that every step's batch is split into
    inherits: bool = False  # of the one it follows, also the steps that this leaves undone

    @property
    def quota(self) -> int:
        """The steps it was given."""
        return sum(end - first for first, end in self.slices)

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gang or (self.device,)

    @property
    def place(self) -> str:
        """Where it trains, for people."""
        return " + ".join(self.devices)


BY_SCRIPT = "script"  # what a copy says that ``stopped`` it, where its script is done early


@dataclass(frozen=True, slots=True)
class CopyFinished:
    """A copy handed in. Its steps count only once a ``WeightsMerged`` accepts them."""

    t: float
    attempt: str
    steps: int
    slices: tuple[Range, ...]
    start_s: float
    train_s: float
    save_s: float
    stopped: str
    weights: str | None = None
    loss: float | None = None
    quality: dict[str, float] | None = None
    missed_paces: int = 0
    warm: bool = False
    members: tuple[tuple[float, float], ...] = ()  # of a gang: shares of a batch, seconds a step
    higher_is_better: bool | None = None  # of the first figure of quality, as its script says
    evaluate_s: float = 0.0  # a part of start_s
    update: tuple[int, int] = (1, 1)  # mini-batches in an update, and steps that it counted for
    noise: float | None = None  # gradient noise scale, in mini-batches; None: not measured

    @property
    def own_start_s(self) -> float:
        """What starting took, and measuring the model did not."""
        return max(0.0, self.start_s - self.evaluate_s)

    @property
    def before_s(self) -> float:
        """What its order took before the first step that is no matter of the way of its weights: a
        cold start, and measuring the model."""
        return self.evaluate_s if self.warm else self.start_s


@dataclass(frozen=True, slots=True)
class CopyLost:
    t: float
    attempt: str
    why: str
    log: str = ""
    node_fault: bool = False  # the job cannot be blamed for it
    reason: Loss = Loss.UNKNOWN
    device: str = ""  # of a gang's: where the member was that failed


@dataclass(frozen=True, slots=True)
class WeightsMerged:
    """The commit: which attempts' steps count, which do not and why, and the result's hash."""

    t: float
    job: int
    generation: int
    weights: str
    accepted: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    bytes: int = 0
    refused_for: dict[str, Unfit] = field(default_factory=dict)  # by attempt
    bytes_in: int = 0  # of all that was handed in for it
    optimizer: bool = True  # whether the weights came with the optimizer's state
    #: of accepted copies that are late, by attempt: the share of their updates that was added
    late: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceLost:
    t: float
    device: str
    why: str
    reason: Absence = Absence.UNKNOWN


@dataclass(frozen=True, slots=True)
class DeviceReturned:
    t: float
    device: str


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The head left before the end, in order: Ctrl-C or an error that `hadar resume` can mend."""

    t: float
    why: str
    not_handed_in: dict[str, int] = field(default_factory=dict)  # steps that it told of, by device


@dataclass(frozen=True, slots=True)
class JobCutShort:
    """The job has trained for its ``max_duration``, or its script, its user or its sweep has had
    enough: what it has by now is its result."""

    t: float
    job: int
    why: str
    is_planned: bool = False  # as the mix wants it: a plateau, or others of its sweep are better


@dataclass(frozen=True, slots=True)
class MilestonePassed:
    """The job was measured after these steps, and goes on."""

    t: float
    job: int
    step: int
    score: float | None = None  # what its sweep judged it by; None: it did not tell


@dataclass(frozen=True, slots=True)
class PairAvoided:
    """The job is not given to the device any more. That it does not fit there the next head still
    knows, unless it fitted nowhere; other failures are forgotten."""

    t: float
    job: int
    device: str
    why: str
    reason: Loss = Loss.UNKNOWN


@dataclass(frozen=True, slots=True)
class DeviceTooDear:
    """Copies of the job on the device cost the others more than they bring: they are not forked
    there until that gets better."""

    t: float
    job: int
    device: str
    cost_s: float  # of a hand-in there, beside training


@dataclass(frozen=True, slots=True)
class DeviceWanted:
    """Other runs share the device by turns; none: no other does any more."""

    t: float
    device: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotTooShort:
    """A step or a save of the job takes longer than a slot: every order brings one step, late."""

    t: float
    job: int
    what: str  # "step" or "save"
    seconds: float
    slot_s: float

    @property
    def text(self) -> str:
        use_s = float(f"{10 * self.seconds:.2g}")
        return (
            f"a {self.what} takes {self.seconds:.0f} s, longer than slot_s = {self.slot_s:g}: "
            f"use slot_s: {use_s:g}"
        )


@dataclass(frozen=True, slots=True)
class JobFailed:
    """No device is left that can train the job; the others go on. The next head tries again."""

    t: float
    job: int
    why: str
    log: str = ""


@dataclass(frozen=True, slots=True)
class NodesReplaced:
    """`hadar resume --nodes`, `hadar nodes add`, or a node that is drained by now: the run goes on
    with these devices more, without those, and with some that are others under the same name. What
    was under way on either is not heard of again."""

    t: float
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    request: str = ""

    @property
    def text(self) -> str:
        parts = {"added": self.added, "removed": self.removed, "changed": self.changed}
        told = [f"{what} {', '.join(devices)}" for what, devices in parts.items() if devices]
        return "; ".join(told) or "the same devices, reached in another way"

    @property
    def gone(self) -> set[str]:
        """Devices of which nothing that was known holds any more."""
        return {*self.removed, *self.changed}


@dataclass(frozen=True, slots=True)
class JobsAdded:
    """`hadar add`: the run has these jobs from now on; ``arrives_s`` is on the run's clock."""

    t: float
    jobs: tuple[Job, ...]
    request: str = ""  # whose wish it was, see requests.py; a wish is granted once


@dataclass(frozen=True, slots=True)
class JobsCancelled:
    """Nothing more is started of them. Once their copies have handed in they are cut short."""

    t: float
    jobs: tuple[int, ...]
    request: str = ""


@dataclass(frozen=True, slots=True)
class JobsPaused:
    t: float
    jobs: tuple[int, ...]
    request: str = ""


@dataclass(frozen=True, slots=True)
class JobsContinued:
    t: float
    jobs: tuple[int, ...]
    request: str = ""


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """Jobs of a higher priority are given devices first."""

    t: float
    jobs: tuple[int, ...]
    priority: int
    request: str = ""


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Nothing more is started there. Once its copies have handed in, the run goes on without."""

    t: float
    node: str
    devices: tuple[str, ...]
    request: str = ""


@dataclass(frozen=True, slots=True)
class QueueClosed:
    """A run that waits for more work is to end with what it has."""

    t: float
    request: str = ""


@dataclass(frozen=True, slots=True)
class RequestRefused:
    t: float
    request: str
    why: str


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The end. The bound is recorded with it: finding it needs a solver, reading it does not."""

    t: float
    lower_bound_s: float | None = None


Event: TypeAlias = (
    HeadStarted
    | RoundPlanned
    | CopyStarted
    | CopyFinished
    | CopyLost
    | WeightsMerged
    | DeviceLost
    | DeviceReturned
    | JobCutShort
    | MilestonePassed
    | PairAvoided
    | DeviceTooDear
    | DeviceWanted
    | SlotTooShort
    | JobFailed
    | NodesReplaced
    | JobsAdded
    | JobsCancelled
    | JobsPaused
    | JobsContinued
    | PriorityChanged
    | NodeDrained
    | QueueClosed
    | RequestRefused
    | RunStopped
    | RunFinished
)
EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


#: by kind, its fields that hold one number
_FIGURES = {
    kind: tuple(f.name for f in fields(kind) if f.type in ("float", "float | None"))
    for kind in EVENTS.values()
}


def check_figures(event: Event) -> None:
    """The journal cannot hold what is no number: it would not be read back."""
    for name in _FIGURES[type(event)]:
        value = getattr(event, name)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{type(event).__name__} has no finite {name}")
