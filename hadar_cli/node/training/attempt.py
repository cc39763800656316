"""One order under way: its clock, its losses, and the result that it will be."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from hadar_cli.node.agent_events import Progress
from hadar_cli.node.contract import MemberSpeed, Order, Result, Seconds
from hadar_cli.node.log_phrases import say_once
from hadar_cli.node.phases import EVALUATE, LOAD, SAVE, TRAIN, Phases
from hadar_cli.node.slices import Slices, joined, take
from hadar_cli.node.trace import note_length
from hadar_cli.node.training.batches import Steps
from hadar_cli.node.training.gangs.noise import NoiseScale
from hadar_cli.node.training.pacing import Pace
from hadar_cli.node.training.randomness import undisturbed

_PROGRESS_EVERY_S = 0.4
_WAIT_EVERY_S = 0.01
_LEAST_TRAINING = 0.2  # of the time given
_SAMPLES_TOLD = 8


Evaluate = Callable[[], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a script measures its models' quality, and what it says of the first figure."""

    evaluate: Evaluate
    higher_is_better: bool | None

    def measure(self, models: Sequence[torch.nn.Module]) -> dict[str, float]:
        """The models' quality; they, and random numbers, are as before then."""
        was_training = [model.training for model in models]
        for model in models:
            model.eval()
        with torch.no_grad(), undisturbed():
            quality = {name: float(value) for name, value in self.evaluate().items()}
        for model, mode in zip(models, was_training, strict=True):
            model.train(mode)
        return quality

    def show(self, models: Sequence[torch.nn.Module]) -> None:
        print(" ".join(f"{k}={v:.4g}" for k, v in self.measure(models).items()))


class Attempt:
    """What has become of an order so far."""

    def __init__(self, order: Order, pace: Pace | None, before: Attempt | None = None) -> None:
        self.order, self._pace = order, pace
        self._before: float = before.handed_in_at if before else 0.0
        self._save_s: float = before._save_s if before else 0.0
        self._phases: Phases = before._phases if before else Phases()
        #: done of the order's steps, from its first one on; a script by hand may do more
        self.steps = 0
        #: once and for good, and then ``handed_in_at`` says when
        self.is_handed_in = False
        #: from the first batch on; without it, nothing has been trained
        self.clock_runs = False
        self.quality: dict[str, float] | None = None
        self._higher_is_better: bool | None = None
        #: of steps that were done, and of one that was begun
        self._loss_sum: torch.Tensor | float = 0.0
        self._losses: torch.Tensor | float = 0.0
        self._start_s = self._train_s = self._evaluate_s = 0.0
        self.handed_in_at: float = 0.0
        self._loop_started = self._progress_at = time.monotonic()
        self._deadline = order.deadline
        self.enter(LOAD)

    @property
    def is_first(self) -> bool:
        """Whether this process had no order before."""
        return self._before == 0.0

    @property
    def left(self) -> Slices:
        return self.order.left(self.steps)

    @property
    def position(self) -> int | None:
        """The number of the step that is trained now, or comes next."""
        return self.left[0][0] if self.left else None

    def evaluate(self, evaluation: Evaluation, models: Sequence[torch.nn.Module]) -> None:
        self.enter(EVALUATE)
        began = time.monotonic()
        self.quality = evaluation.measure(models)
        self._evaluate_s = time.monotonic() - began
        self._higher_is_better = evaluation.higher_is_better

    def start_clock(self) -> None:
        self.clock_runs = True
        order = self.order
        self._loop_started = self._progress_at = time.monotonic()
        # An order that was sent ahead waited for the one before it to be handed in.
        self._start_s = self._loop_started - max(order.issued_at, self._before)
        # A start that ate up the slot still leaves time to train, or the copy would never get on.
        least = _LEAST_TRAINING * (order.deadline - order.issued_at)
        self._deadline = max(order.deadline, self._loop_started + least)
        if self._pace:
            self._pace.missed = 0
            self._pace.resume()
        self.enter(TRAIN)

    def is_late(self, steps: int) -> bool:
        """Whether one more than these steps would come too late to be saved in time. A first never
        does: a slot shorter than a step or a save would bring nothing otherwise."""
        if not steps:
            return False
        now = time.monotonic()
        step_s = (now - self._loop_started) / steps * (self.order.update or (1, 1))[1]
        return now + step_s + self._save_s > self._deadline

    def tell_unless_equal(self, steps: int) -> None:
        """The mix decides how long a job is; a script that means another length should know."""
        note_length(steps)
        if steps and (total := self.order.total_steps) not in (0, steps):
            say_once(
                f"hadar: the mix has {total} steps for this job, the script's own words {steps}"
            )

    def log(self, loss: torch.Tensor | float, share: float) -> None:
        """Notes the loss of a batch, or of its share of one."""
        self._losses += share
        # In full precision: a sum of bfloat16 numbers stops growing at 256 of them.
        value = loss.detach().float() if isinstance(loss, torch.Tensor) else loss
        self._loss_sum += share * value

    def hear_loss(self, total: torch.Tensor, weight: torch.Tensor) -> None:
        """Losses of a gang's members, already weighted and added up."""
        self._loss_sum += total
        self._losses += weight

    def step_done(self, steps: int = 1) -> None:
        """An update is done that counts for so many."""
        self.steps += steps
        if self._pace and not self.order.member:  # a gang's members are paced within the step
            self._pace.step_done()
        now = time.monotonic()
        self._phases.ended(now)
        if now - self._progress_at > _PROGRESS_EVERY_S:
            self._tell_progress(now)

    def enter(self, phase: str) -> None:
        """Says what the copy is about now: past its order's time it is let finish that."""
        now = time.monotonic()
        self._phases.enter(phase, now)
        self._tell_progress(now)

    def begin_saving(self) -> None:
        wait_for_accelerator()
        self._saving_since = time.monotonic()
        self._train_s = self._saving_since - self._loop_started if self.clock_runs else 0.0
        self.enter(SAVE)

    def saved(self) -> None:
        self._save_s = time.monotonic() - self._saving_since

    def leave_result(
        self,
        stopped: str,
        stays: bool,
        lr: tuple[float, float] | None,
        source: Steps | None,
        members: tuple[MemberSpeed, ...] = (),
        noise: NoiseScale | None = None,
    ) -> None:
        """After the checkpoint is there."""
        self.validate()
        done = take(self.order.slices, self.steps)
        if self.order.update and self.steps and not (noise and source and source.can_widen):
            say_once("hadar: batch_size stays as it is: only samples of t.loader can be joined")
            noise = None
        result = Result(
            steps=self.steps,
            slices=done,
            samples=source.samples_in(done) if source else 0,
            seconds=Seconds(self._start_s, self._train_s, self._save_s, self._evaluate_s),
            metrics={"loss": self._mean_loss()} if self._losses else {},
            evaluation=self.quality,
            higher_is_better=self._higher_is_better,
            stopped=stopped,
            waiting=stays,
            missed_paces=self._pace.missed if self._pace else 0,
            lr=lr,
            data=tuple(source.first_samples(done)[:_SAMPLES_TOLD]) if source else (),
            members=members,
            update=self.order.update or (1, 1),
            noise=noise.read() if noise else None,
        )
        if self.order.result:
            result.write(self.order.result)
        self.is_handed_in, self.handed_in_at = True, time.monotonic()
        self._phases.enter("", self.handed_in_at)

    def validate(self) -> None:
        """Raises AssertionError where this cannot have become of the order; a copy that would claim
        it is lost, and not counted."""
        order = self.order
        left = sum(end - first for first, end in self.left)
        assert self.is_handed_in == (self.handed_in_at > 0), "it is handed in at no time"
        assert self.clock_runs or not self._train_s, "it trained before its first batch"
        assert min(self._start_s, self._train_s, self._evaluate_s) >= 0, "its time runs backwards"
        if order.result:  # or else it is run by hand, and claims nothing
            assert 0 <= self.steps <= order.steps, "it did steps that it was not given"
            assert self.steps + left == order.steps, "its steps are not those of its order"

    def next_order(self, is_wanted: Callable[[], bool]) -> Order | None:
        """Waits for the order after this one, as long as one may come."""
        path, supervisor = self.order.next_order, os.getppid()
        while path and is_wanted() and os.getppid() == supervisor:
            if path.exists():
                return self._going_on(Order.from_variables(json.loads(path.read_text())))
            time.sleep(_WAIT_EVERY_S)
        return None

    def _going_on(self, order: Order) -> Order:
        """The next order, with what this one leaves undone if it was sent before that was known:
        a copy that is alone trains its steps one after another."""
        if not order.inherits:
            return order
        slices = joined(self.left, order.slices)
        return replace(order, steps=sum(end - first for first, end in slices), slices=slices)

    def _mean_loss(self) -> float:
        return float(self._loss_sum) / (float(self._losses) or 1.0)

    def _tell_progress(self, now: float) -> None:
        self._progress_at = now
        if self.order.progress:
            loss = self._mean_loss() if self._losses else None
            seconds = now - self._loop_started if self.clock_runs else 0.0
            said = Progress(self.steps, seconds, loss, self._phases.now, self._phases.longest_s)
            said.write(self.order.progress)


def wait_for_accelerator() -> None:
    """A GPU is given its work ahead of time: only when it is done is the training's time known."""
    for device in (torch.cuda, torch.xpu):
        if device.is_available() and device.is_initialized():
            device.synchronize()
    if torch.backends.mps.is_available():
        torch.mps.synchronize()


class _Finishes(Protocol):
    @property
    def result(self) -> Path | None: ...

    def finish(self) -> None: ...


unfinished: set[_Finishes] = set()


@atexit.register
def _finish_at_exit() -> None:
    """A script that ends after it has left its loop is done, unless it failed."""
    if getattr(sys, "last_value", None) is None:
        for each in list(unfinished):
            if each.result and each.result.parent.is_dir():
                each.finish()
