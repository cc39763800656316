"""What commands print as ``--json`` where no other part of hadar has a record of it.

``schemas.py`` publishes the shapes; a field's name here is its name in the JSON. Commands import
this file when they print: so many dataclasses would make every `--help` slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hadar_cli.core.measures.summary import Ways


@dataclass(frozen=True, slots=True)
class RunOutline:
    """A run in one line of `hadar report --list`."""

    run: str
    mix: str
    policy: str
    state: str
    jobs_done: int
    jobs: int
    steps_done: int
    steps_target: int
    ttd_s: float
    started_at: str
    disk_bytes: int  # that its directory takes on this computer


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of a request; one that is not ``answered`` waits for the run's next head."""

    run: str
    request: str
    answered: bool
    told: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of a job or a device."""

    name: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explained:
    """The answer of `hadar explain`."""

    run: str
    state: str
    jobs: tuple[Explanation, ...]
    devices: tuple[Explanation, ...]
    next_round: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobStatus:
    name: str
    steps_done: int
    steps_in_hand: int
    steps_target: int
    generation: int
    failed: str | None = None  # why no device could train it
    priority: int = 0
    is_paused: bool = False
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """``doing`` is train, evaluate, prepare, idle or lost."""

    name: str
    kind: str
    doing: str
    job: str | None = None
    steps: int = 0
    since_s: float = 0.0
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A run at this moment; its names are those in the JSON."""

    run: str
    mix: str
    policy: str
    state: str
    pid: int | None
    round: int
    elapsed_s: float
    jobs: tuple[JobStatus, ...]
    devices: tuple[DeviceStatus, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What `hadar cancel` did: ``stopped``, or nothing, as the run was ``finished``."""

    run: str
    outcome: str


@dataclass(frozen=True, slots=True)
class CopyLog:
    """The last lines that one copy's process printed."""

    node: str
    worker: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobLogs:
    """The answer of `hadar logs`; ``unread`` says why, by machines that could not be asked."""

    run: str
    job: str
    logs: tuple[CopyLog, ...]
    unread: dict[str, str]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of a device before anything has run."""

    name: str
    node: str
    gpu: str
    vram_gb: float | None
    tflops: float | None
    pcie: int | None
    pmi: float | None
    emulated_speed: float | None


@dataclass(frozen=True, slots=True)
class ProfiledPair:
    """A workload's speed on a device: estimated, and measured where it was asked for."""

    workload: str
    device: str
    estimated_steps_per_s: float
    measured_steps_per_s: float | None = None
    error_factor: float | None = None  # how many times too high or too low the estimate is
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class NodeProblem:
    node: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The answer of `hadar profile nodes`."""

    preset: str
    devices: tuple[DeviceFacts, ...]
    rates: tuple[ProfiledPair, ...]
    problems: tuple[NodeProblem, ...]


@dataclass(frozen=True, slots=True)
class PolicyField:
    name: str
    type: str
    default: Any  # of that type


@dataclass(frozen=True, slots=True)
class PolicyOutline:
    name: str
    about: str
    fields: tuple[PolicyField, ...]


@dataclass(frozen=True, slots=True)
class PlannedJob:
    name: str
    workload: str
    script: str | None
    setup: str | None
    preset: str
    batch_size: int
    steps_target: int
    estimated_steps_per_s: dict[str, float]  # by device
    min_vram_gb: float | None = None
    too_small: tuple[str, ...] = ()  # devices with less


@dataclass(frozen=True, slots=True)
class PlannedStint:
    device: str
    job: str
    steps: int


@dataclass(frozen=True, slots=True)
class PlannedRound:
    round: int
    begins_s: float
    stints: tuple[PlannedStint, ...]


@dataclass(frozen=True, slots=True)
class PlannedStay:
    """A device trains copies of a job from that second on, until its next stay."""

    device: str
    job: str
    from_s: float


@dataclass(frozen=True, slots=True)
class NodeWorth:
    """What a node adds; nulls where the mix cannot do without it."""

    node: str
    ttd_without_s: float | None
    saves_s: float | None


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """What a simulation of the run came to."""

    ttd_s: float
    jct_s: dict[str, float]  # by job
    basis: str
    typical_error: float  # 0.1: such forecasts are typically off by 10 %
    rounds: tuple[PlannedRound, ...]  # the first ones
    stays: tuple[PlannedStay, ...]  # of all rounds
    moved_bytes: int | None  # over the network; null where the weights' size is not known
    cost: float | None  # null where no node has a price
    nodes: tuple[NodeWorth, ...]
    ways: dict[str, Ways]  # by job: alone, by shared steps or by merged copies, and what decided


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A file or folder of a project that is not sent, and the rule that says so."""

    path: str
    bytes: int
    files: int
    rule: str


@dataclass(frozen=True, slots=True)
class PlannedProject:
    """A folder that is sent to every node; of what is left out, the hundred largest."""

    folder: str
    found_by: str
    jobs: tuple[str, ...]
    files: int
    bytes: int
    left_out: tuple[LeftBehind, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer of `hadar run --dry-run`."""

    dry_run: bool
    mix: str
    policy: str
    slot_s: float
    lower_bound_s: float | None
    devices: tuple[DeviceFacts, ...]
    jobs: tuple[PlannedJob, ...]
    projects: tuple[PlannedProject, ...]
    first_round: tuple[PlannedStint, ...]
    forecast: PlanForecast | None  # null where there are too many jobs to simulate


@dataclass(frozen=True, slots=True)
class ReplayedPolicy:
    """A run's measures, as they happened or under a policy on paper."""

    policy: str
    simulated: bool
    ttd_s: float | None
    mean_jct_s: float | None
    cru: float | None
    rounds: int
    unfinished: int
    ttd_change: float | None  # −0.1: 10 % less than the run's own policy, on paper


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer of `hadar replay`: what happened, the same on paper, then other policies."""

    run: str
    start_s: float
    first_start_s: float | None
    sync_s: float
    simulation_gap: float | None  # 0.02: the simulator makes the run 2 % longer than it was
    policies: tuple[ReplayedPolicy, ...]
