"""The ports through which the round loop reaches the world. Each is as small as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from hadar_cli.core.estimates.goodput import Update
from hadar_cli.core.events import Event
from hadar_cli.core.model import Job, MergeRules
from hadar_cli.core.reasons import Absence, Loss, Unfit
from hadar_cli.core.steps import StepSet


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """What one copy is to do on one device until it hands in."""

    attempt: str
    job: Job
    device: str
    steps: StepSet
    seconds: float
    weights: str | None  # hash of the checkpoint to start from
    round: int
    copy: int
    num_copies: int
    global_step: int
    job_seed: int
    seed: int
    lr_scale: float = 1.0
    evaluate: bool = False
    returns_weights: bool = True  # an evaluation does not
    hand_in: str = "full"  # or how what it returns may be an update of ``weights``
    keeps_optimizer: bool = False  # it returns weights without the optimizer's state
    optimizer: str | None = None  # hash of a checkpoint with that state, if ``weights`` has none
    merged_of: tuple[str, ...] = ()  # the attempts that are in ``weights``
    gang: tuple[str, ...] = ()  # all devices of a multi-device job
    follows: str = ""  # sent ahead: the process goes on with it right after that attempt
    micro_batches: int = 1  # pieces that every step's batch is split into
    shares: tuple[float, ...] = ()  # of a mini-batch, by a gang's devices; empty: equal ones
    update: Update | None = None  # of several mini-batches, where the job leaves that open

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gang or (self.device,)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What a copy reports; a claim until the tracker has checked it."""

    steps: int
    slices: tuple[tuple[int, int], ...]
    start_s: float
    train_s: float
    save_s: float
    stopped: str
    loss: float | None = None
    quality: dict[str, float] | None = None
    higher_is_better: bool | None = None  # of its first figure; None: it did not say
    missed_paces: int = 0
    evaluate_s: float = 0.0  # a part of start_s
    lr: tuple[float, float] | None = None  # of its first and last update
    data: tuple[int, ...] = ()  # numbers of the samples it began with
    members: tuple[tuple[float, float], ...] = ()  # of a gang: shares of a batch, seconds a step
    update: tuple[int, int] = (1, 1)  # mini-batches in an update, and steps that it counted for
    noise: float | None = None  # gradient noise scale, in mini-batches


@dataclass(frozen=True, slots=True)
class Progressed:
    attempt: str
    steps: int
    seconds: float
    loss: float | None = None
    may_last_s: float = 0.0  # what it is about now, past its order's time; 0: it did not say


@dataclass(frozen=True, slots=True)
class Surveyed:
    """How far many copies are, all at once, from an executor that can tell without asking them."""

    steps: Mapping[str, int]  # by attempt


@dataclass(frozen=True, slots=True)
class Moving:
    """What a copy needs or has made is on its way, with so many bytes arrived: no clock of the
    copy runs meanwhile."""

    attempt: str
    done: int
    total: int
    is_result: bool


@dataclass(frozen=True, slots=True)
class HandedIn:
    """The copy stopped; its weights are already on the head, under their hash.

    It started ``warm`` if its process had waited for the order, and ``stays`` if it waits for more.
    """

    attempt: str
    result: CopyResult
    weights: str | None
    warm: bool = False
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The copy is lost; ``why`` is for people, ``reason`` for whoever decides."""

    attempt: str
    reason: Loss
    why: str
    log: str = ""
    device: str = ""  # of a gang's: where the member was that failed


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A machine cannot be reached, or was refused for security; its attempts fail with it."""

    devices: tuple[str, ...]
    why: str
    reason: Absence = Absence.GONE


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A machine that was gone can be used again."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceTaken:
    """Somebody else needs the device; a copy that is there is asked to hand in and leave."""

    device: str
    why: str
    reason: Absence = Absence.TAKEN


@dataclass(frozen=True, slots=True)
class DeviceFree:
    """Nobody else needs the device any more, or did at all."""

    device: str


@dataclass(frozen=True, slots=True)
class DeviceWanted:
    """These other runs share the device by turns; none: no other does any more."""

    device: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """Nothing was heard of a machine for a while; its copies may live, but nobody waits for them.

    Followed by ``NodeGone`` or, when it ``is_over``, by another of these.
    """

    devices: tuple[str, ...]
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Lateness:
    """Of a copy that comes to a later merge than its own: what it trained, and how."""

    base: str  # hash of the weights that it began with
    merges: int  # since then, without the one that it joins
    lr_scale: float


@dataclass(frozen=True, slots=True)
class Contribution:
    """One copy's weights and the work in them."""

    attempt: str
    copy: int
    weights: str
    steps: int
    batch_size: int
    late: Lateness | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """An attempt whose weights the merge left out; ``why`` is for people."""

    attempt: str
    reason: Unfit
    why: str


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The merged weights' hash, empty when every contribution was refused."""

    weights: str
    bytes: int
    accepted: tuple[str, ...]
    refused: tuple[Refusal, ...]
    bytes_in: int = 0  # of all contributions
    optimizer: bool = True  # whether the optimizer's state is with the weights
    late: Mapping[str, float] = field(default_factory=dict)  # see ``WeightsMerged``


@dataclass(frozen=True, slots=True)
class Merged:
    """A job's copies were merged, beside everything else."""

    job: int
    outcome: Consolidated
    seconds: float


CopyReport: TypeAlias = Progressed | Moving | HandedIn | Failed
NodeReport: TypeAlias = NodeGone | NodeBack | NodeSilent | DeviceTaken | DeviceFree | DeviceWanted
Report: TypeAlias = CopyReport | NodeReport | Surveyed | Merged


@dataclass(frozen=True, slots=True)
class Preparing:
    """How far a node is with something that it needs before it can train."""

    node: str
    what: str
    done: int  # bytes
    total: int
    now: str = ""  # what it is about, where bytes do not tell


class Executor(Protocol):
    """Runs copies on devices: local processes, SSH nodes, or a simulation."""

    tick_s: float  # how long a wait may last before someone wants to look
    prolongs: bool  # whether a copy may run on from slot to slot, until it is recalled

    def now(self) -> float:
        """Seconds on the run's clock."""
        ...

    def adopt(self, orders: Sequence[CopyOrder]) -> None:
        """Takes over copies that an earlier head started; comes before anything else.

        They report as usual; those that no node knows of are reported as failed.
        """
        ...

    def start(self, order: CopyOrder) -> None:
        """Begins a copy and returns at once; a failure arrives as a report.

        An order that ``follows`` another is sent while that one is still under way.
        """
        ...

    def wait(self, until: float) -> list[Report]:
        """Reports since the last call; returns when there are some, or at ``until``."""
        ...

    def aside(self, work: Callable[[], Merged]) -> Merged | None:
        """Does this without keeping the loop; what comes of it arrives as a report, or is returned
        where it takes no time."""
        ...

    def recall(self, attempts: Sequence[str] | None = None) -> None:
        """Asks these copies, or all under way, to hand in now; the reports arrive as usual."""
        ...

    def stop(self, grace_s: float) -> None:
        """Ends every copy and leaves no process behind."""
        ...


class Consolidator(Protocol):
    """Merges the weights of a job's copies."""

    def consolidate(
        self, inputs: Sequence[Contribution], base: str | None, rules: MergeRules, warmth: float
    ) -> Consolidated: ...


class Journal(Protocol):
    """The run's only truth; an event is on the disk when ``append`` returns."""

    def append(self, event: Event) -> None: ...


class NoJournal:
    """A journal for runs that nobody will resume."""

    def append(self, event: Event) -> None: ...


class Observer(Protocol):
    """Whoever watches a run: the live view, the plain lines, or nobody. Who inherits from it need
    only say what it listens to."""

    def happened(self, event: Event) -> None:
        return

    def progressed(self, report: Progressed) -> None:
        return

    def preparing(self, report: Preparing) -> None:
        return

    def winding_up(self, devices: Sequence[str], most_s: float) -> None:
        """The run ends early, and waits that long at the most for these to hand in."""
        return

    def tick(self) -> None:
        return


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    def happened(self, event: Event) -> None:
        for observer in self._observers:
            observer.happened(event)

    def progressed(self, report: Progressed) -> None:
        for observer in self._observers:
            observer.progressed(report)

    def preparing(self, report: Preparing) -> None:
        for observer in self._observers:
            observer.preparing(report)

    def winding_up(self, devices: Sequence[str], most_s: float) -> None:
        for observer in self._observers:
            observer.winding_up(devices, most_s)

    def tick(self) -> None:
        for observer in self._observers:
            observer.tick()
