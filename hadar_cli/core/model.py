"""The nouns of scheduling: devices, jobs, mixes. Frozen facts, read once and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hadar_cli.core.ray import PREFIX as RAY
from hadar_cli.core.ray import RayRequest
from hadar_cli.core.slurm import SlurmRequest

LOCAL = "local"
POD = "kubectl:"  # how the host of a pod begins
AWS = "aws"  # as a node's host: the address of whatever instance it is given
MODEL_SIZES = ("small", "modest", "high", "extra-high")
DATASET_SIZES = ("S", "M", "L", "XL")
_MOST_PIECES = 64  # of one step's batch
_NETWORK = "network "  # how the ``reach`` of nodes begins that a network joins
EVERY_SLOT = "slot"
MODES = ("auto", "share", "merge", "alone")  # steps shared, copies merged, neither


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its spec sheet describes it."""

    model: str
    tflops: float
    vram_gb: float
    pcie: int = 3
    index: int | None = None  # which card of its node, as nvidia-smi counts; None: by its place
    uuid: str | None = None  # which card, or which part of one (MIG), by name


DEFAULT_TURN_S = 120.0


@dataclass(frozen=True, slots=True)
class AwsRequest:
    """One instance: launched from a template and terminated, or one's own, started and stopped."""

    type: str | None = None  # such as g5.xlarge; None: as the template says
    template: str | None = None  # its id or name
    version: str = "$Default"  # of the template
    instance: str | None = None  # the id of one's own
    spot: bool = False
    region: str | None = None
    profile: str | None = None
    config: str | None = None  # the file to read in place of ~/.aws/config
    tags: Mapping[str, str] = field(default_factory=dict)
    budget: float | None = None  # dollars, of all instances of a run together
    idle_minutes: float = 15.0  # without work, or without a head, before it ends
    private: bool = False  # reached by its private address

    @property
    def is_ours(self) -> bool:
        """Whether it is made for the run, and ends with it for good."""
        return self.instance is None


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the inventory and how to reach it."""

    name: str
    host: str
    gpus: tuple[Gpu, ...] = ()
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    host_key: str | None = None
    known_hosts: str | None = None
    python: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    max_gpu_mem: float | None = None
    hours: str | None = None
    turn_s: float = DEFAULT_TURN_S  # a device that other runs want, too, is kept for so long
    price_per_hour: float | None = None
    enabled: bool = True
    emulated_speed: float | None = None
    network: str | None = None  # gangs may span the nodes that share one
    address: str | None = None  # of this node in that network; None: ``host``
    slurm: SlurmRequest | None = None  # then ``host`` is the login node
    ray: RayRequest | None = None  # then ``host`` is the cluster
    aws: AwsRequest | None = None  # then ``host`` may be AWS: wherever its instance is

    @property
    def is_local(self) -> bool:
        return self.host == LOCAL and not self.slurm

    @property
    def is_over_ssh(self) -> bool:
        return self.host != LOCAL and not self.host.startswith((POD, RAY))

    @property
    def is_allotted(self) -> bool:
        """Whether somebody else, a scheduler or a cloud, gives it to us for a time."""
        return self.slurm is not None or self.ray is not None or self.aws is not None

    @property
    def devices(self) -> tuple[Device, ...]:
        """One device per GPU; a node without GPUs is a single CPU device."""
        speed, reach = self.emulated_speed, self.reach
        if len(self.gpus) <= 1:
            gpu = self.gpus[0] if self.gpus else None
            return (Device(self.name, self.name, 0, gpu, speed, reach=reach),)
        return tuple(
            Device(f"{self.name}:{i}", self.name, i, gpu, speed, reach=reach)
            for i, gpu in enumerate(self.gpus)
        )

    @property
    def machine(self) -> str:
        """Nodes of one machine: all that are local are this computer."""
        return "this computer" if self.is_local else f"node {self.name}"

    @property
    def reach(self) -> str:
        """Nodes alike in this can share the steps of a job."""
        return f"{_NETWORK}{self.network}" if self.network else self.machine


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of one node, or a CPU node's single device. Trains one copy at a time."""

    name: str
    node: str
    index: int
    gpu: Gpu | None
    emulated_speed: float | None = None
    pool: str = ""  # a kind of its own, where the jobs that may use it are others
    reach: str = ""  # devices alike in this can share the steps of a job

    @property
    def is_networked(self) -> bool:
        """Whether a network joins its node to others."""
        return self.reach.startswith(_NETWORK)

    @property
    def card(self) -> int:
        """The card's number on its node."""
        return self.index if self.gpu is None or self.gpu.index is None else self.gpu.index

    @property
    def kind(self) -> str:
        """The type pool that prices are set for."""
        return self.pool or (self.gpu.model if self.gpu else "CPU")


def devices_of(nodes: Iterable[Node]) -> list[Device]:
    """What the enabled nodes have to train on."""
    return [device for node in nodes if node.enabled for device in node.devices]


def devices_ever(nodes: Iterable[Node]) -> list[Device]:
    """What a run has had to train on, drained nodes too."""
    return [device for node in nodes for device in node.devices]


def are_accelerators(devices: Iterable[Device]) -> bool:
    """Whether every device is a real GPU: then ``preset: auto`` means the paper's models."""
    return all(device.gpu and not device.emulated_speed for device in devices)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a copy of a job is started on a node; the core never looks inside.

    ``sync`` is the folder that travels and is the working directory.
    """

    workload: str | None = None
    script: str | None = None
    module: str | None = None  # run as by ``python -m``
    preset: str = "tiny"
    args: tuple[str, ...] = ()
    sync: str | None = None
    setup: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    data_dir: str | None = None  # on the nodes
    data: tuple[str, ...] = ()  # paths here, sent once to every node
    venv: str | None = None  # a file that lists packages; nodes make a virtual environment of it
    python: str | None = None  # of that, on a node

    @property
    def code(self) -> str | None:
        """The user's own code, as it would be named after ``python``."""
        return self.script or (f"-m {self.module}" if self.module else None)


Value: TypeAlias = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Search:
    """How the later points of a sweep are found: suggested from what came of those before."""

    space: Mapping[str, tuple[str, tuple[Value, ...]]]  # by parameter: how it is drawn, from what
    metric: str
    trials: int  # in all
    at_once: int  # then all of them are awaited, so that the machines' speeds change nothing
    seed: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A job as one point of a sweep."""

    sweep: str
    number: int  # among the sweep's trials, from 0
    params: Mapping[str, Value]
    search: Search | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """Which trials of a sweep train on: one in ``keep`` of those that reach a rung, by held-out
    quality at equal counted steps."""

    metric: str
    keep: int
    rungs: tuple[int, ...]  # steps, ascending, all below the job's target

    def contenders(self, trials: int, rung: int) -> int:
        """How many of so many trials come to their n-th rung; the next is what it promotes."""
        for _ in range(rung):
            trials = max(1, trials // self.keep)
        return trials

    def steps_at_place(self, place: int, trials: int, target: int) -> int:
        """How far the trial gets that is at this place, from 0, of so many all along."""
        for rung, step in enumerate(self.rungs):
            if place >= self.contenders(trials, rung + 1):
                return step
        return target


@dataclass(frozen=True, slots=True)
class Plateau:
    """A job ends that has not become better for so many measurements."""

    metric: str
    patience: int
    every: int  # steps


@dataclass(frozen=True, slots=True)
class Job:
    """One model to train for ``target_steps`` mini-batches."""

    id: int
    name: str
    target_steps: int
    batch_size: int
    most_batches: int | None = None  # mini-batches in one update at the most, where that is open
    model_size: str = "modest"
    dataset_size: str = "M"
    workload: str = "script"
    gpus: int = 1
    sizes: tuple[int, int] | None = None  # from so many GPUs to so many, where a policy may choose
    elastic: bool = False
    shares: str = "equal"  # of a mini-batch among a gang: see estimates/gangs.py
    mode: str = "auto"  # of using many devices where jobs are forked: see MODES
    arrives_s: float = 0.0
    retry: int = 3
    fork: int | None = None  # copies at once at the most; None: as many as pay
    max_duration_s: float | None = None
    min_vram_gb: float = 0.0  # smaller GPUs are not given the job
    higher_is_better: bool | None = None  # of its first figure of quality; None: by its name
    priority: int = 0  # at first; jobs of a higher one are given devices first
    user: str = ""  # whose it is, where several people share a run
    trial: Trial | None = None
    promote: Promotion | None = None
    stop: Plateau | None = None
    launch: Launch = Launch()

    @property
    def most_pieces(self) -> int:
        """A step's batch is split no further."""
        return min(self.batch_size, _MOST_PIECES)

    @property
    def least_gpus(self) -> int:
        """With fewer at once it does not train."""
        if self.elastic:
            return 1
        return self.sizes[0] if self.sizes else self.gpus

    @property
    def most_gpus(self) -> int:
        """It never has more at once."""
        return self.sizes[1] if self.sizes else self.gpus

    @property
    def milestones(self) -> tuple[int, ...]:
        """Steps, all below the target, after which it is measured before it may go on."""
        steps = set(self.promote.rungs if self.promote else ())
        if self.stop:
            steps.update(range(self.stop.every, self.target_steps, self.stop.every))
        return tuple(sorted(steps))

    @property
    def trains(self) -> str:
        """Its script or model, whatever the batch: ``LM`` of a trace's ``LM (batch size 80)``."""
        return self.launch.code or self.workload.partition(" (")[0]

    @property
    def throughput_class(self) -> tuple[object, ...]:
        """Jobs alike in this train at the same speed and share what is measured."""
        code = (self.workload, self.launch.code, self.launch.preset, self.launch.args)
        return (*code, self.batch_size, self.model_size, self.dataset_size)


@dataclass(frozen=True, slots=True)
class OuterStep:
    """Nesterov momentum over merges: the mean update of the copies taken as one long gradient."""

    lr: float = 0.7
    momentum: float = 0.9


@dataclass(frozen=True, slots=True)
class MergeRules:
    """How the copies of a job become one model again. ``merge: paper`` is the plain mean."""

    rule: str = "progress"
    lr_scale: str = "linear"
    warmup: float = 0.5
    solo: float = 0.4
    optimizer_state: str = "average"
    outer: OuterStep | None = None
    every_s: float | str = "auto"  # between merges within a slot; "slot" merges at its end only
    hand_in: str = "full"  # or of what forked copies hand in updates: "bf16", "int8", "int4"
    optimizer_every: int = 1  # so many merges of forked copies, the optimizer's state travels once


PAPER_MERGE = MergeRules(rule="mean", lr_scale="none", warmup=0.0, solo=0.0, every_s=EVERY_SLOT)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy's name and the fields set for it; the registry turns it into a policy."""

    name: str = "hadare"
    fields: Mapping[str, Any] = field(default_factory=dict)
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Mix:
    """A batch of jobs to train together."""

    name: str
    jobs: tuple[Job, ...]
    slot_s: float = 360.0
    chooses_slot: bool = False  # ``slot_s: auto``: whoever knows what a hand-in costs sets it
    policy: PolicyChoice = PolicyChoice()
    merge: MergeRules = MergeRules()
    seed: int = 0
    source: str | None = field(default=None, compare=False)
