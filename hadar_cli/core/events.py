"""What happens in a run, as past-tense facts. The journal lists them and is the only truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hadar_cli.core.steps import Range


@dataclass(frozen=True, slots=True)
class HeadStarted:
    """A head took the run. Epochs count heads; time goes on from the last one's last record."""

    t: float
    epoch: int
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundPlanned:
    t: float
    round: int
    stints: tuple[tuple[int, str, int], ...]  # job, device, steps


# "evaluate" the weights, "compare" them with those of their rival, "prepare" a process
ERRANDS = ("evaluate", "compare", "prepare")


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
    purpose: str = "train"  # or an errand: see ERRANDS
    gang: tuple[str, ...] = ()  # all devices of a multi-device job; ``device`` is its first
    follows: str = ""  # the attempt of the same process that it goes on from, without a merge

    @property
    def quota(self) -> int:
        """The steps it was given."""
        return sum(end - first for first, end in self.slices)

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gang or (self.device,)


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


@dataclass(frozen=True, slots=True)
class CopyLost:
    t: float
    attempt: str
    why: str
    log: str = ""
    node_fault: bool = False  # the job cannot be blamed for it


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
    rival: str = ""  # what the copy with most steps made alone, where `merge.keep` is `better`


@dataclass(frozen=True, slots=True)
class DeviceLost:
    t: float
    device: str
    why: str


@dataclass(frozen=True, slots=True)
class DeviceReturned:
    t: float
    device: str


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The head left before the end, in order: Ctrl-C or an error that `hadar resume` can mend."""

    t: float
    why: str


@dataclass(frozen=True, slots=True)
class JobCutShort:
    """The job has trained for its ``max_duration``: what it has by now is its result."""

    t: float
    job: int
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
    | RunStopped
    | RunFinished
)
EVENTS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        HeadStarted,
        RoundPlanned,
        CopyStarted,
        CopyFinished,
        CopyLost,
        WeightsMerged,
        DeviceLost,
        DeviceReturned,
        JobCutShort,
        RunStopped,
        RunFinished,
    )
}
