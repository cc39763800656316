"""The nouns of scheduling: devices, jobs, mixes. Frozen facts, read once and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL_SIZES = ("small", "modest", "high", "extra-high")
DATASET_SIZES = ("S", "M", "L", "XL")
EVERY_SLOT = "slot"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its spec sheet describes it."""

    model: str
    tflops: float
    vram_gb: float
    pcie: int = 3


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
    price_per_hour: float | None = None
    enabled: bool = True
    emulated_speed: float | None = None

    @property
    def is_local(self) -> bool:
        return self.host == "local"

    @property
    def devices(self) -> tuple[Device, ...]:
        """One device per GPU; a node without GPUs is a single CPU device."""
        if len(self.gpus) <= 1:
            gpu = self.gpus[0] if self.gpus else None
            return (Device(self.name, self.name, 0, gpu, self.emulated_speed),)
        return tuple(
            Device(f"{self.name}:{i}", self.name, i, gpu, self.emulated_speed)
            for i, gpu in enumerate(self.gpus)
        )


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of one node, or a CPU node's single device. Trains one copy at a time."""

    name: str
    node: str
    index: int
    gpu: Gpu | None
    emulated_speed: float | None = None

    @property
    def kind(self) -> str:
        """The type pool that prices are set for."""
        return self.gpu.model if self.gpu else "CPU"


@dataclass(frozen=True, slots=True)
class Launch:
    """How a copy of a job is started on a node; the core never looks inside."""

    workload: str | None = None
    script: str | None = None
    preset: str = "tiny"
    args: tuple[str, ...] = ()
    sync: str | None = None
    setup: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    data_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One model to train for ``target_steps`` mini-batches."""

    id: int
    name: str
    target_steps: int
    batch_size: int
    model_size: str = "modest"
    dataset_size: str = "M"
    workload: str = "script"
    gpus: int = 1
    elastic: bool = False
    arrives_s: float = 0.0
    retry: int = 3
    fork: int | None = None  # copies at once at the most; None: as many as pay
    max_duration_s: float | None = None
    launch: Launch = Launch()

    @property
    def throughput_class(self) -> tuple[object, ...]:
        """Jobs alike in this train at the same speed and share what is measured."""
        code = (self.workload, self.launch.script, self.launch.preset, self.launch.args)
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
    keep: str = "merged"  # at a job's end; "better": the last merge or its leader, by evaluation
    every_s: float | str = "auto"  # between merges within a slot; "slot" merges at its end only
    hand_in: str = "full"  # "bf16": forked copies hand in rounded updates, half the bytes


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
