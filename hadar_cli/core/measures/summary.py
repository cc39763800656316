"""What a run came to, as data: the report shows it, and its fields are the names in the JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ways:
    """A job's counted steps by how they came about, and what decided that."""

    alone: int
    shared: int  # by the members of a gang, each taking a part of every mini-batch
    merged: int  # by copies that trained apart
    decided_by: str  # policy, mix, script (it cannot share) or time (of a step)
    alone_s: float | None = None  # of a step on the fastest device
    shared_s: float | None = None  # of a step of the best gang
    sharers: int = 0  # its members
    sharing_pays: bool = False
    batches: int = 1  # mini-batches in one update, at the most


@dataclass(frozen=True, slots=True)
class JobSummary:
    name: str
    workload: str
    steps_done: int
    steps_target: int
    effective_steps: float
    jct_s: float | None
    metric: str | None
    value: float | None
    untrained_value: float | None
    loss: float | None  # training loss of the copies last merged
    merges: int
    copies: int  # forks whose steps were counted
    lead_steps: int  # of the fork that did most
    speedup: float | None  # effective steps/s since its first copy, over its best device's steps/s
    bytes_in: int = 0  # what its copies handed in for all of its merges
    failed: str | None = None  # why no device could train it
    higher_is_better: bool | None = None  # of the metric; null where nobody knows
    improved: bool | None = None  # over the untrained model
    ways: Ways | None = None  # alone, by shared steps or by merged copies; null before any counts

    @property
    def forking_pays(self) -> bool:
        """Did the merged model move further than its busiest copy would have alone?"""
        was_merged = self.ways is None or self.ways.merged > 0  # a gang's members are no forks
        return not was_merged or self.copies <= 1 or self.effective_steps > self.lead_steps


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    name: str
    kind: str
    steps: int  # counted ones
    jobs: tuple[str, ...]
    steps_per_s: float | None
    estimated_steps_per_s: float | None  # the formula's, for the same jobs over the same time
    busy_share: float
    busy_s: float
    wasted_s: float  # the part of busy_s whose steps were never counted
    start_s: float
    transfer_s: float
    merge_s: float
    evaluate_s: float
    lost_s: float
    no_work_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds summed over all devices; with busy_s they make devices × TTD."""

    start_s: float
    transfer_s: float
    merge_s: float
    evaluate_s: float
    lost_s: float
    no_work_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class PairRate:
    """How fast a job trained on a device over the whole run."""

    job: str
    device: str
    steps: int
    train_s: float
    steps_per_s: float
    estimated_steps_per_s: float


@dataclass(frozen=True, slots=True)
class Note:
    """Something out of the ordinary. ``why`` may be a node's own words."""

    t: float
    what: str
    why: str = ""
    job: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything that `hadar report` tells."""

    run: str
    mix: str
    policy: str
    state: str  # finished, stopped (in order) or unfinished (killed, or still at it)
    rounds: int
    ttd_s: float  # so far, unless finished
    mean_jct_s: float | None  # of the jobs that are done
    cru: float | None
    cru_paper: float | None
    lower_bound_s: float | None
    busy_s: float
    jobs: tuple[JobSummary, ...]
    devices: tuple[DeviceSummary, ...]
    overhead: Overhead
    rates: tuple[PairRate, ...]
    notes: tuple[Note, ...]
