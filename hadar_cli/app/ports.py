"""The ports through which the round loop reaches the world. Each is as small as it can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hadar_cli.core.events import Event
from hadar_cli.core.model import Job, MergeRules
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
    hand_in: bool = True  # an evaluation leaves no weights
    rounded: bool = False  # the hand-in may be an update of ``weights``, in bfloat16
    gang: tuple[str, ...] = ()  # all devices of a multi-device job
    follows: str = ""  # sent ahead: the process goes on with it right after that attempt

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
    missed_paces: int = 0
    lr: tuple[float, float] | None = None  # of its first and last update
    data: tuple[int, ...] = ()  # numbers of the samples it began with


@dataclass(frozen=True, slots=True)
class Progressed:
    attempt: str
    steps: int
    seconds: float
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Surveyed:
    """How far many copies are, all at once, from an executor that can tell without asking them."""

    steps: Mapping[str, int]  # by attempt


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
    """The copy is lost; ``node_fault`` says that the job cannot be blamed for it.

    The device is ``unfit`` if the next copy there would fare no better: it is left alone.
    """

    attempt: str
    why: str
    log: str = ""
    node_fault: bool = False
    unfit: bool = False


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A machine cannot be reached, or was ``refused`` for security; its attempts fail with it."""

    devices: tuple[str, ...]
    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A machine that was gone can be used again."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """Nothing was heard of a machine for a while; its copies may live, but nobody waits for them.

    Followed by ``NodeGone`` or, when it ``is_over``, by another of these.
    """

    devices: tuple[str, ...]
    is_over: bool = False


Report: TypeAlias = Progressed | Surveyed | HandedIn | Failed | NodeGone | NodeBack | NodeSilent


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

    def recall(self, attempts: Sequence[str] | None = None) -> None:
        """Asks these copies, or all under way, to hand in now; the reports arrive as usual."""
        ...

    def stop(self, grace_s: float) -> None:
        """Ends every copy and leaves no process behind."""
        ...


@dataclass(frozen=True, slots=True)
class Contribution:
    """One copy's weights and the work in them."""

    attempt: str
    copy: int
    weights: str
    steps: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The merged weights' hash, empty when every contribution was refused."""

    weights: str
    bytes: int
    accepted: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


class Consolidator(Protocol):
    """Merges the weights of a job's copies."""

    def consolidate(
        self, inputs: Sequence[Contribution], base: str | None, rules: MergeRules, warmth: float
    ) -> Consolidated: ...


class Journal(Protocol):
    """The run's only truth; an event is on the disk when ``append`` returns."""

    def append(self, event: Event) -> None: ...


class Observer(Protocol):
    """Whoever watches a run: the live view, the plain lines, or nobody."""

    def happened(self, event: Event) -> None: ...

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None: ...


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def happened(self, event: Event) -> None:
        for observer in self._observers:
            observer.happened(event)

    def progressed(self, report: Progressed) -> None:
        for observer in self._observers:
            observer.progressed(report)

    def tick(self) -> None:
        for observer in self._observers:
            observer.tick()
