"""Learning-rate schedules that follow the job, whose other copies train at the same time.

``t.step`` ticks them after every update. A script that updates by itself keeps its own
``scheduler.step()``, after every update or every epoch; which of the two is seen from where it
ticks, noted in the checkpoint, and used to move the schedule to the job's place in every order.
timm's and fairseq's schedulers are told their place in place of ticks: ``step(epoch)`` and
``step_update(updates)``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from hadar_cli.node.log_phrases import MISCOUNTED, say_once
from hadar_cli.node.training.misuse.refused import Refused

UNITS = ("step", "epoch")


class Schedules:
    """A script's schedulers, all ticked alike; ``ReduceLROnPlateau`` is left to the script."""

    def __init__(self, schedulers: Sequence[Any], unit: str, is_told: bool = False) -> None:
        if unit not in UNITS:
            raise ValueError(f"schedule={unit!r}: a schedule counts 'step' or 'epoch'")
        self.schedulers = schedulers
        self._counting = [_Counting(s, self) for s in schedulers if hasattr(s, "step_update")]
        ticked = [s for s in schedulers if not hasattr(s, "step_update")]
        self._placed = [s for s in ticked if not isinstance(s, ReduceLROnPlateau)]
        for scheduler in self._placed:
            _refuse_unless_placeable(scheduler)
        self.position: int | None = None  # of the step that is trained now; None by hand
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
        for counting in self._counting:
            counting.move_to(step, per_epoch)
        self._steps, self._seen = 0, self._ticks()

    def step_begins(self, position: int | None) -> None:
        """A tick since the last step ended was the script's, for an epoch."""
        self.position = position
        if self._is_told or self._ticks() == self._seen:
            return
        self._refuse_unlike_ticks()
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

    def step_ends(self, updated: bool, steps: int = 1) -> None:
        """An update ends that counts for so many steps."""
        if self._is_told or not self._placed:
            return
        self._steps += 1
        if self._ticks() != self._seen:
            self._refuse_unlike_ticks()
            self._unit, self._steps_per_tick, self._steps = "step", self._steps, 0
            self._tick_for(steps - 1)
        elif self._is_ours:
            if self._due and updated and self._unit == "step":
                self._steps_per_tick = self._due
                self._tick_for(steps)
        elif self._unit == "step" and self._steps >= self._steps_per_tick:
            self._unit = "epoch"  # a script that ticks after its updates would have done so
        self._seen = self._ticks()

    def epoch_ends(self) -> None:
        """Ticks for an epoch unless the script has just done so."""
        self._refuse_unlike_ticks()
        if self._unit == "epoch" and self._is_ours and self._ticks() == self._seen:
            self.tick()

    def _refuse_unlike_ticks(self) -> None:
        """All are moved to the job's place alike, so they must tick together; by hand none is."""
        if self._is_told or self.position is None or len(self._placed) < 2:
            return
        ticked = [now != seen for now, seen in zip(self._ticks(), self._seen, strict=True)]
        if any(ticked) and not all(ticked):
            one, other = (
                type(self._placed[ticked.index(is_one)]).__name__ for is_one in (True, False)
            )
            raise Refused(
                f"{one} ticks where {other} does not: hadar cannot tell where in the job each is",
                "make one scheduler of them (SequentialLR one after the other, LambdaLR as you "
                "like), or tick all of them together",
            )

    def _tick_for(self, steps: int) -> None:
        for _ in range(steps):
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


class _Counting:
    """A scheduler that the script tells how many updates there were: it must count the job's."""

    def __init__(self, scheduler: Any, schedules: Schedules) -> None:
        self._scheduler, self._schedules = scheduler, schedules
        self._tell = scheduler.step_update
        scheduler.step_update = self._heard

    def move_to(self, step: int, per_epoch: int | None) -> None:
        if per_epoch:
            self._scheduler.step(step // per_epoch)
        self._tell(step)

    def _heard(self, num_updates: int, *args: Any, **options: Any) -> Any:
        """Called within a step or after its update; both ways to count are in use."""
        here = self._schedules.position
        if here is not None and num_updates not in (here, here + 1):
            say_once(f"{MISCOUNTED}: tell it t.position + 1, not a count of the script's own")
        return self._tell(num_updates, *args, **options)


def _refuse_unless_placeable(scheduler: Any) -> None:
    if not hasattr(scheduler, "last_epoch"):
        raise TypeError(
            f"{type(scheduler).__name__} has neither last_epoch nor step_update, so hadar cannot "
            "move it to the job's step, which other copies advance too: make it a "
            "torch.optim.lr_scheduler.LRScheduler (LambdaLR takes a function of the step), or "
            "leave it out of training(...) and set the rate by t.position"
        )
