"""Learning-rate schedules that follow the job, whose other copies train at the same time.

``t.step`` ticks them after every update. A script that updates by itself keeps its own
``scheduler.step()``, after every update or every epoch; which of the two is seen from where it
ticks, noted in the checkpoint, and used to move the schedule to the job's place in every order.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

UNITS = ("step", "epoch")


class Schedules:
    """A script's schedulers, all ticked alike; ``ReduceLROnPlateau`` is left to the script."""

    def __init__(self, schedulers: Sequence[Any], unit: str, is_told: bool = False) -> None:
        if unit not in UNITS:
            raise ValueError(f"schedule={unit!r}: a schedule counts 'step' or 'epoch'")
        self.schedulers = schedulers
        self._placed = [s for s in schedulers if not isinstance(s, ReduceLROnPlateau)]
        self._unit, self._is_told = unit, is_told  # told: a framework ticks it, as it said
        self._steps_per_tick = 1
        self._steps = 0  # since the last tick
        self._is_ours = False  # ticked by ``t.step``
        self._due = 0
        self._seen = self._ticks()

    # -- what a checkpoint says of them ------------------------------------------------------

    def notes(self) -> dict[str, Any]:
        return {"unit": self._unit, "steps_per_tick": self._steps_per_tick}

    def take(self, notes: dict[str, Any]) -> None:
        self._unit = notes.get("unit", self._unit)
        self._steps_per_tick = notes.get("steps_per_tick", self._steps_per_tick)
        self._seen = self._ticks()

    # -- the loop ----------------------------------------------------------------------------

    def move_to(self, step: int, per_epoch: int | None) -> None:
        """Ticks on to where the job is after ``step`` steps of all its copies."""
        if self._unit == "step":
            target = step // self._steps_per_tick
        else:
            target = step // per_epoch if per_epoch else 0
        with warnings.catch_warnings():  # PyTorch cannot know that another process trained
            warnings.simplefilter("ignore")
            for scheduler in self._placed:
                while scheduler.last_epoch < target and _tick(scheduler):
                    pass
        self._steps, self._seen = 0, self._ticks()

    def step_begins(self) -> None:
        """A tick since the last step ended was the script's, for an epoch."""
        if self._is_told or self._ticks() == self._seen:
            return
        if self._is_ours and self._unit == "step":
            raise RuntimeError(
                "the learning-rate schedule is ticked twice, by t.step after every update and by "
                "the script's own scheduler.step(): leave out the latter, or say "
                "training(..., schedule='epoch') if it counts epochs"
            )
        self._unit, self._seen = "epoch", self._ticks()

    def stepped(self, steps: int) -> None:
        """``t.step`` was called, and has made an update of so many steps, or none yet.

        The tick waits for the step's end, as the script may tick too.
        """
        self._is_ours = True
        self._due = steps

    def step_ends(self, updated: bool) -> None:
        if self._is_told or not self._placed:
            return
        self._steps += 1
        if self._ticks() != self._seen:
            self._unit, self._steps_per_tick, self._steps = "step", self._steps, 0
        elif self._is_ours:
            if self._due and updated and self._unit == "step":
                self._steps_per_tick = self._due
                self.tick()
        elif self._unit == "step" and self._steps >= self._steps_per_tick:
            self._unit = "epoch"  # a script that ticks after its updates would have done so
        self._seen = self._ticks()

    def epoch_ends(self) -> None:
        """Ticks for an epoch unless the script has just done so."""
        if self._unit == "epoch" and self._is_ours and self._ticks() == self._seen:
            self.tick()

    def tick(self) -> None:
        for scheduler in self._placed:
            _tick(scheduler)
        self._steps, self._seen = 0, self._ticks()

    def _ticks(self) -> list[int]:
        return [scheduler.last_epoch for scheduler in self._placed]


def _tick(scheduler: Any) -> bool:
    """False at the end of a schedule that has one, such as OneCycleLR: its last rate holds."""
    if scheduler.last_epoch + 1 >= getattr(scheduler, "total_steps", math.inf):
        return False
    scheduler.step()
    return True
