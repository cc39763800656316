"""One order to a copy: which steps to do, from which weights, by when (see contract.md)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Slices = tuple[tuple[int, int], ...]


def parse_slices(text: str) -> Slices:
    """``"120:180,300:320"`` as pairs of first step and end."""
    pairs = (part.split(":") for part in text.split(",") if part)
    return tuple((int(first), int(end)) for first, end in pairs)


def format_slices(slices: Slices) -> str:
    return ",".join(f"{first}:{end}" for first, end in slices)


def take(slices: Slices, steps: int) -> Slices:
    """The first ``steps`` steps of ``slices``."""
    taken: list[tuple[int, int]] = []
    for first, end in slices:
        if steps <= 0:
            break
        taken.append((first, min(end, first + steps)))
        steps -= end - first
    return tuple(taken)


def skip(slices: Slices, steps: int) -> Slices:
    """What is left of ``slices`` after its first ``steps`` steps."""
    left: list[tuple[int, int]] = []
    for first, end in slices:
        skipped = min(steps, end - first)
        steps -= skipped
        if first + skipped < end:
            left.append((first + skipped, end))
    return tuple(left)


def before(slices: Slices, bound: int) -> Slices:
    """The steps of ``slices`` below ``bound``."""
    return tuple((first, min(end, bound)) for first, end in slices if first < bound)


def numbers(slices: Slices) -> Iterator[int]:
    for first, end in slices:
        yield from range(first, end)


def write_atomically(path: Path, content: Mapping[str, Any]) -> None:
    """A reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


@dataclass(frozen=True, slots=True)
class Order:
    """What a copy is asked to do before it hands in its weights again."""

    steps: int
    slices: Slices
    deadline: float
    issued_at: float
    checkpoint_in: Path | None = None
    checkpoint_out: Path | None = None
    result: Path | None = None
    progress: Path | None = None
    next_order: Path | None = None
    global_step: int = 0
    total_steps: int = 0
    job_seed: int = 0
    seed: int = 0
    lr_scale: float = 1.0
    evaluate: bool = False
    rounded: bool = False
    emulate_speed: float | None = None

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Order:
        """Reads the contract's variables, from the environment or the next order's file."""

        def path(name: str) -> Path | None:
            return Path(variables[name]) if variables.get(name) else None

        issued_at = float(variables.get("HADAR_ISSUED_AT") or time.monotonic())
        speed = variables.get("HADAR_EMULATE_SPEED")
        return cls(
            steps=int(variables["HADAR_STEPS"]),
            slices=parse_slices(variables["HADAR_SLICES"]),
            deadline=issued_at + float(variables["HADAR_SECONDS_LEFT"]),
            issued_at=issued_at,
            checkpoint_in=path("HADAR_CKPT_IN"),
            checkpoint_out=path("HADAR_CKPT_OUT"),
            result=path("HADAR_RESULT"),
            progress=path("HADAR_PROGRESS"),
            next_order=path("HADAR_NEXT"),
            global_step=int(variables.get("HADAR_GLOBAL_STEP", 0)),
            total_steps=int(variables.get("HADAR_TOTAL_STEPS", 0)),
            job_seed=int(variables.get("HADAR_JOB_SEED", 0)),
            seed=int(variables.get("HADAR_SEED", 0)),
            lr_scale=float(variables.get("HADAR_LR_SCALE", 1.0)),
            evaluate=variables.get("HADAR_EVALUATE") == "1",
            rounded=variables.get("HADAR_HAND_IN") == "bf16",
            emulate_speed=float(speed) if speed else None,
        )

    @classmethod
    def by_hand(cls, steps: int) -> Order:
        """The order of a script started without hadar: everything, with nothing to hand in."""
        now = time.monotonic()
        seed = int(os.environ.get("HADAR_JOB_SEED", 0))
        return cls(steps, ((0, steps),), float("inf"), now, total_steps=steps, job_seed=seed)

    def left(self, done: int) -> Slices:
        """The steps still to do once ``done`` are."""
        return skip(take(self.slices, self.steps), done)
