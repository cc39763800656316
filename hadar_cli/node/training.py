"""The API for training scripts: at most five changed lines, an ordinary loop when run by hand.

    from hadar_cli import training

    with training(model, optimizer, scheduler) as t:
        for x, y in t.loader(dataset, batch_size=64):
            loss = criterion(model(x), y)
            t.step(loss)

or, around a loop that keeps its epochs, its ``DataLoader`` and its own updates:

    t = training(model, optimizer, scheduler)
    for epoch in t.epochs(range(10)):
        for x, y in t.loader(train_loader):
            ...

Between rounds the loop simply pauses inside ``loader``: the copy hands in its weights, waits for
the merged ones and goes on, with no new process, import or data set. A step is one mini-batch.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch

from hadar_cli.node import checkpoint
from hadar_cli.node.batches import Source, StreamSource, source_of
from hadar_cli.node.order import Order, Slices, before, take, write_atomically
from hadar_cli.node.pacing import Pace
from hadar_cli.node.quick_torch import spare_the_compiler
from hadar_cli.node.schedules import Schedules
from hadar_cli.node.updates import Updates

_PROGRESS_EVERY_S = 0.4
_WAIT_EVERY_S = 0.01
_LEAST_TRAINING = 0.2  # of the time given
_SAMPLES_TOLD = 8

Evaluate = Callable[[], dict[str, float]]

spare_the_compiler()  # here, so that a nursery has done it before any script makes an optimizer


def training(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheduler: Any = None,
    *,
    schedule: str = "step",
    accumulate: int = 1,
    scaler: Any = None,
    state: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    epochs: int = 1,
) -> Training:
    """The context that makes a loop resumable, divisible and mergeable.

    ``schedule`` says what the scheduler counts when ``t.step`` ticks it: ``"step"`` or ``"epoch"``.
    ``accumulate`` mini-batches make one update of ``t.step``. ``scaler`` is a ``GradScaler``;
    ``state`` names more objects with a ``state_dict`` to keep. ``evaluate`` returns held-out
    quality, e.g. ``{"accuracy": 0.93}``; it is called in evaluation mode without gradients.
    ``epochs`` counts only when the script is run by hand and its loop has none of its own.
    """
    optimizers = _as_list(optimizer)
    schedules = Schedules(_as_list(scheduler), schedule, accumulate)
    extras = {**(state or {}), **({"scaler": scaler} if scaler else {})}
    parts = checkpoint.Parts(_as_list(model), optimizers, schedules.schedulers, extras)
    updates = Updates(parts.models, optimizers, scaler, accumulate)
    return Training(parts, updates, schedules, evaluate, epochs)


class Training:
    """A copy's training loop under orders; made by ``training``."""

    def __init__(
        self,
        parts: checkpoint.Parts,
        updates: Updates,
        schedules: Schedules,
        evaluate: Evaluate | None,
        epochs: int,
    ) -> None:
        self._parts, self._updates, self._schedules = parts, updates, schedules
        self._evaluate, self._epochs = evaluate, epochs
        self._by_hand = "HADAR_STEPS" not in os.environ
        self._order = Order.by_hand(0) if self._by_hand else Order.from_variables(os.environ)
        self._pace = Pace(self._order.emulate_speed) if self._order.emulate_speed else None
        self._told_to_leave = False
        self._begun = False
        self._handed_in = self._by_hand
        self._leaves = False
        self._clock_runs = False
        self._source: Source | None = None
        self._source_key: Any = None
        self._in_epochs = False
        self._steps = 0
        self._loss_sum: torch.Tensor | float = 0.0
        self._losses = 0
        self._start_s = self._train_s = self._save_s = self._handed_in_at = 0.0
        self._loop_started = self._progress_at = time.monotonic()
        self._deadline = self._order.deadline
        self._quality: dict[str, float] | None = None

    # -- the script's side -------------------------------------------------------------------

    def __enter__(self) -> Training:
        self._begin()
        return self

    def epochs(self, count: int | range) -> Iterator[int]:
        """The epochs of the script's outer loop, for ``loader`` to fill; by hand all of them.

        Under hadar the epoch is the job's: a copy enters and leaves it with its orders.
        """
        span = range(count) if isinstance(count, int) else count
        self._begin()
        self._epochs, self._in_epochs = len(span), True
        if self._by_hand:
            for epoch in span:
                yield epoch
                self._schedules.epoch_ends()
            self._show_quality()
            return
        while not self._leaves:
            left = self._order.left(self._steps)
            if not left:  # an errand: it is done with, and the next order tells the epoch
                self._start_clock()
                self._leaves = not self._next_order()
                continue
            phi = self._per_epoch() or max(1, self._order.total_steps // max(1, len(span)))
            yield span.start + span.step * (left[0][0] // phi)
            self._schedules.epoch_ends()

    def loader(self, data: Any, batch_size: int | None = None, **options: Any) -> Loader:
        """This copy's mini-batches of ``data``: a data set, or the script's own ``DataLoader``.

        With a data set, ``options`` are those of PyTorch's ``DataLoader``; it is shuffled unless
        they say ``shuffle=False``.
        """
        self._begin()
        key = (id(data), batch_size)
        if self._source is None or key != self._source_key:
            self._source = source_of(data, batch_size, self._order.job_seed, options)
            self._source_key = key
        return Loader(self, self._source, data)

    def step(
        self, loss: torch.Tensor, *, clip_norm: float | None = None, update: bool = True
    ) -> None:
        """Backward, optimizer, scheduler, metrics. ``update=False`` only accumulates gradients."""
        self._schedules.stepped(self._updates.add(loss, clip_norm, update))
        self.log(loss)

    def log(self, loss: torch.Tensor | float) -> None:
        """Notes the loss, for scripts that do backward and update themselves."""
        self._losses += 1
        self._loss_sum += loss.detach() if isinstance(loss, torch.Tensor) else loss

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        if self._by_hand:
            self._show_quality()
        elif not self._handed_in:
            self._hand_in("end")

    # -- batches, order after order ----------------------------------------------------------

    def batches(self, source: Source) -> Iterator[Any]:
        """What ``Loader`` iterates: all steps of all orders, or one epoch's inside ``epochs``."""
        if self._by_hand:
            yield from self._batches_by_hand(source)
            return
        epoch: int | None = None
        while not self._leaves:
            left = self._order.left(self._steps)
            if left and self._in_epochs and source.per_epoch:
                starts_in = left[0][0] // source.per_epoch
                if epoch is not None and starts_in != epoch:
                    return
                epoch = starts_in
                left = before(left, (epoch + 1) * source.per_epoch)
            self._start_clock()
            done = self._steps + sum(end - first for first, end in left)
            yield from self._train(source, left)
            if self._steps < done or not self._order.left(self._steps):
                self._leaves = not self._next_order()

    def _batches_by_hand(self, source: Source) -> Iterator[Any]:
        passes = 1 if self._in_epochs else self._epochs
        if isinstance(source, StreamSource):
            for _ in range(passes):
                for batch in source.once():
                    yield from self._one(batch)
            return
        assert source.per_epoch is not None
        end = self._steps + passes * source.per_epoch
        yield from self._train(source, ((self._steps, end),))

    def _train(self, source: Source, slices: Slices) -> Iterator[Any]:
        for batch in source.batches(slices):
            if self._must_stop():
                return
            yield from self._one(batch)

    def _one(self, batch: Any) -> Iterator[Any]:
        """A batch is a step done when the script asks for the next one, or leaves after it."""
        self._schedules.batch_begins()
        self._updates.happened = False
        try:
            yield batch
        except GeneratorExit:
            self._steps += self._updates.happened
            raise
        self._steps += 1
        self._schedules.batch_ends(self._updates.happened)
        if self._pace:
            self._pace.step_done()
        if time.monotonic() - self._progress_at > _PROGRESS_EVERY_S:
            self._tell_progress()

    def _per_epoch(self) -> int | None:
        return self._source.per_epoch if self._source else None

    # -- one order ---------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            if not self._by_hand:
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._begin_order()

    def _begin_order(self) -> None:
        order = self._order
        self._steps = self._losses = 0
        self._loss_sum = 0.0
        self._handed_in = self._clock_runs = False
        self._updates.begin(order.lr_scale)
        if order.checkpoint_in:
            notes = checkpoint.load(order.checkpoint_in, self._parts)
            self._schedules.take(notes.get("schedule", {}))
        torch.manual_seed(order.seed)
        self._quality = self._measure_quality() if order.evaluate and self._evaluate else None

    def _start_clock(self) -> None:
        if self._clock_runs:
            return
        self._clock_runs = True
        order = self._order
        if order.checkpoint_in:
            self._schedules.move_to(order.global_step, self._per_epoch())
        self._loop_started = self._progress_at = time.monotonic()
        # An order that was sent ahead waited for the one before it to be handed in.
        self._start_s = self._loop_started - max(order.issued_at, self._handed_in_at)
        # A start that ate up the slot still leaves time to train, or the copy would never get on.
        least = _LEAST_TRAINING * (order.deadline - order.issued_at)
        self._deadline = max(order.deadline, self._loop_started + least)
        if self._pace:
            self._pace.missed = 0
            self._pace.resume()

    def _must_stop(self) -> bool:
        """Whether the next step would come too late to be saved in time."""
        if self._told_to_leave:
            return True
        now = time.monotonic()
        step_s = (now - self._loop_started) / self._steps if self._steps else 0.0
        return now + step_s + self._save_s > self._deadline

    def _stopped_because(self) -> str:
        if self._steps >= self._order.steps:
            return "steps"
        return "signal" if self._told_to_leave else "deadline"

    def _next_order(self) -> bool:
        """Hands in, then waits for what to do next; False when the copy is to leave."""
        self._hand_in(self._stopped_because())
        path = self._order.next_order
        supervisor = os.getppid()
        while path and not self._told_to_leave and os.getppid() == supervisor:
            if path.exists():
                self._order = Order.from_variables(json.loads(path.read_text()))
                self._begin_order()
                return True
            time.sleep(_WAIT_EVERY_S)
        return False

    def _hand_in(self, stopped: str) -> None:
        order = self._order
        self._updates.flush()
        saving = time.monotonic()
        self._train_s = saving - self._loop_started if self._clock_runs else 0.0
        if order.checkpoint_out:
            notes = {"schedule": self._schedules.notes()}
            base = order.checkpoint_in if order.rounded else None
            checkpoint.save(order.checkpoint_out, self._parts, notes, base)
        self._save_s = time.monotonic() - saving
        if order.result:
            write_atomically(order.result, self._result(stopped))
        self._handed_in, self._handed_in_at = True, time.monotonic()

    def _result(self, stopped: str) -> dict[str, Any]:
        order, source = self._order, self._source
        done = take(order.slices, self._steps)
        return {
            "steps": self._steps,
            "slices": done,
            "samples": source.samples_in(done) if source else 0,
            "seconds": {"start": self._start_s, "train": self._train_s, "save": self._save_s},
            "metrics": {"loss": self._mean_loss()} if self._losses else {},
            "evaluation": self._quality,
            "stopped": stopped,
            "waiting": order.next_order is not None and stopped in ("steps", "deadline"),
            "missed_paces": self._pace.missed if self._pace else 0,
            "lr": self._updates.rates(),
            "data": source.first_samples(done)[:_SAMPLES_TOLD] if source else [],
        }

    # -- details -----------------------------------------------------------------------------

    def _measure_quality(self) -> dict[str, float]:
        assert self._evaluate is not None
        was_training = [model.training for model in self._parts.models]
        for model in self._parts.models:
            model.eval()
        with torch.no_grad():
            quality = {name: float(value) for name, value in self._evaluate().items()}
        for model, mode in zip(self._parts.models, was_training, strict=True):
            model.train(mode)
        return quality

    def _show_quality(self) -> None:
        if self._evaluate:
            print(" ".join(f"{k}={v:.4g}" for k, v in self._measure_quality().items()))

    def _mean_loss(self) -> float:
        return float(self._loss_sum) / max(1, self._losses)

    def _tell_progress(self) -> None:
        now = self._progress_at = time.monotonic()
        if self._order.progress:
            elapsed = now - self._loop_started
            write_atomically(
                self._order.progress,
                {
                    "steps": self._steps,
                    "seconds": elapsed,
                    "loss": self._mean_loss() if self._losses else None,
                },
            )

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._told_to_leave = True


class Loader:
    """A script's view of its batches: iterable again and again, as long as an epoch.

    Whatever else it is asked, ``dataset`` or ``batch_size``, the script's own loader answers.
    """

    def __init__(self, training: Training, source: Source, data: Any) -> None:
        self._training, self._source, self._data = training, source, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def __iter__(self) -> Iterator[Any]:
        return self._training.batches(self._source)

    def __len__(self) -> int:
        if self._source.per_epoch is None:
            raise TypeError("nobody knows how long this stream is")
        return self._source.per_epoch


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not _is_module(value) else [value]


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)  # Sequential is iterable, yet one model
