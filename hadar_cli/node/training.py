"""The API for training scripts: at most five changed lines, an ordinary loop when run by hand.

    from hadar_cli import training

    with training(model, optimizer, scheduler) as t:
        for x, y in t.loader(dataset, batch_size=64):
            loss = criterion(model(x), y)
            t.step(loss)

Between rounds the loop simply pauses inside ``loader``: the copy hands in its weights, waits for
the merged ones and goes on, with no new process, import or data set.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.utils.data import DataLoader

from hadar_cli.node import checkpoint
from hadar_cli.node.order import Order, take, write_atomically
from hadar_cli.node.pacing import Pace

_PROGRESS_EVERY_S = 0.4
_WAIT_EVERY_S = 0.01
_LEAST_TRAINING = 0.2  # of the time given

Evaluate = Callable[[], dict[str, float]]


def training(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scheduler: Any = None,
    *,
    evaluate: Evaluate | None = None,
    epochs: int = 1,
) -> Training:
    """The context that makes a loop resumable, divisible and mergeable.

    ``evaluate`` returns held-out quality, e.g. ``{"accuracy": 0.93}``; it is called in evaluation
    mode without gradients. ``epochs`` counts only when the script is run by hand.
    """
    return Training(_as_list(model), _as_list(optimizer), _as_list(scheduler), evaluate, epochs)


class Training:
    """A copy's training loop under orders; made by ``training``."""

    def __init__(
        self,
        models: list[torch.nn.Module],
        optimizers: list[torch.optim.Optimizer],
        schedulers: list[Any],
        evaluate: Evaluate | None,
        epochs: int,
    ) -> None:
        self._models, self._optimizers, self._schedulers = models, optimizers, schedulers
        self._evaluate, self._epochs = evaluate, epochs
        self._by_hand = "HADAR_STEPS" not in os.environ
        self._order = Order.by_hand(0) if self._by_hand else Order.from_variables(os.environ)
        self._pace = Pace(self._order.emulate_speed) if self._order.emulate_speed else None
        self._told_to_leave = False
        self._handed_in = self._by_hand
        self._batches: _Batches | None = None
        self._steps = 0
        self._loss_sum: torch.Tensor | float = 0.0
        self._start_s = self._train_s = self._save_s = 0.0
        self._loop_started = self._progress_at = time.monotonic()
        self._deadline = self._order.deadline
        self._quality: dict[str, float] | None = None

    # -- the script's side -------------------------------------------------------------------

    def __enter__(self) -> Training:
        if not self._by_hand:
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._begin_order()
        return self

    def loader(
        self, dataset: Any, batch_size: int, *, collate_fn: Any = None, **options: Any
    ) -> Iterator[Any]:
        """This copy's mini-batches of ``dataset``; ``options`` go to PyTorch's ``DataLoader``."""
        per_epoch = -(-len(dataset) // batch_size)
        if self._by_hand:
            self._order = Order.by_hand(self._epochs * per_epoch)
        while True:
            self._batches = batches = _Batches(self._order, len(dataset), batch_size)
            self._start_clock()
            for batch in DataLoader(
                dataset, batch_sampler=batches, collate_fn=collate_fn, **options
            ):
                if self._must_stop():
                    break
                yield batch
            self._stop_clock()
            if self._by_hand or not self._next_order():
                return

    def step(
        self, loss: torch.Tensor, *, clip_norm: float | None = None, update: bool = True
    ) -> None:
        """Backward, optimizer, scheduler, metrics. ``update=False`` only accumulates gradients."""
        loss.backward()  # type: ignore[no-untyped-call]
        if update:
            if clip_norm is not None:
                for model in self._models:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            self._update()
        self.count(loss)

    def count(self, loss: torch.Tensor | float) -> None:
        """Counts one step, for scripts that do backward and update themselves."""
        self._steps += 1
        self._loss_sum += loss.detach() if isinstance(loss, torch.Tensor) else loss
        if self._pace:
            self._pace.step_done()
        if time.monotonic() - self._progress_at > _PROGRESS_EVERY_S:
            self._tell_progress()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._by_hand:
            if error is None and self._evaluate:
                print(" ".join(f"{k}={v:.4g}" for k, v in self._measure_quality().items()))
        elif error is None and not self._handed_in:
            self._stop_clock()
            self._hand_in("end")

    # -- one order ---------------------------------------------------------------------------

    def _begin_order(self) -> None:
        order = self._order
        self._steps = 0
        self._loss_sum = 0.0
        self._handed_in = False
        if order.checkpoint_in:
            checkpoint.load(order.checkpoint_in, self._models, self._optimizers, self._schedulers)
            self._catch_up_schedulers()
        torch.manual_seed(order.seed)
        self._quality = self._measure_quality() if order.evaluate and self._evaluate else None

    def _start_clock(self) -> None:
        self._loop_started = self._progress_at = time.monotonic()
        order = self._order
        self._start_s = self._loop_started - order.issued_at
        # A start that ate up the slot still leaves time to train, or the copy would never get on.
        least = _LEAST_TRAINING * (order.deadline - order.issued_at)
        self._deadline = max(order.deadline, self._loop_started + least)
        if self._pace:
            self._pace.missed = 0
            self._pace.resume()

    def _stop_clock(self) -> None:
        self._train_s = time.monotonic() - self._loop_started

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
        saving = time.monotonic()
        if order.checkpoint_out:
            checkpoint.save(order.checkpoint_out, self._models, self._optimizers, self._schedulers)
        self._save_s = time.monotonic() - saving
        if order.result:
            result = {
                "steps": self._steps,
                "slices": take(order.slices, self._steps),
                "samples": self._batches.samples_in(self._steps) if self._batches else 0,
                "seconds": {
                    "start": self._start_s,
                    "train": self._train_s,
                    "save": self._save_s,
                },
                "metrics": {"loss": self._mean_loss()} if self._steps else {},
                "evaluation": self._quality,
                "stopped": stopped,
                "waiting": order.next_order is not None and stopped in ("steps", "deadline"),
                "missed_paces": self._pace.missed if self._pace else 0,
            }
            write_atomically(order.result, result)
        self._handed_in = True

    # -- details -----------------------------------------------------------------------------

    def _update(self) -> None:
        """One optimizer step at the scaled learning rate; schedulers never see the scale."""
        scale = self._order.lr_scale
        for optimizer in self._optimizers:
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * scale
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        for scheduler in self._schedulers:
            scheduler.step()

    def _catch_up_schedulers(self) -> None:
        """Moves schedules on to the job's global step, which the other copies advanced too."""
        for scheduler in self._schedulers:
            while scheduler.last_epoch < self._order.global_step:
                scheduler.step()

    def _measure_quality(self) -> dict[str, float]:
        assert self._evaluate is not None
        was_training = [model.training for model in self._models]
        for model in self._models:
            model.eval()
        with torch.no_grad():
            quality = {name: float(value) for name, value in self._evaluate().items()}
        for model, mode in zip(self._models, was_training, strict=True):
            model.train(mode)
        return quality

    def _mean_loss(self) -> float:
        return float(self._loss_sum) / max(1, self._steps)

    def _tell_progress(self) -> None:
        now = self._progress_at = time.monotonic()
        if self._order.progress:
            elapsed = now - self._loop_started
            write_atomically(
                self._order.progress,
                {"steps": self._steps, "seconds": elapsed, "loss": self._mean_loss()},
            )

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._told_to_leave = True


class _Batches:
    """Batch sampler over an order's steps: step k is batch k mod φ of epoch k div φ."""

    def __init__(self, order: Order, samples: int, batch_size: int) -> None:
        self._order, self._samples, self._batch_size = order, samples, batch_size
        self._per_epoch = -(-samples // batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        shuffled_epoch, permutation = -1, torch.empty(0, dtype=torch.long)
        for step in self._order.step_numbers():
            epoch, batch = divmod(step, self._per_epoch)
            if epoch != shuffled_epoch:
                shuffle = torch.Generator().manual_seed(self._order.job_seed * 1_000_003 + epoch)
                permutation = torch.randperm(self._samples, generator=shuffle)
                shuffled_epoch = epoch
            first = batch * self._batch_size
            yield permutation[first : first + self._batch_size].tolist()

    def __len__(self) -> int:
        return self._order.steps

    def samples_in(self, steps: int) -> int:
        """Samples of the order's first ``steps`` steps; an epoch's last batch may be short."""
        done = itertools.islice(self._order.step_numbers(), steps)
        starts = (step % self._per_epoch * self._batch_size for step in done)
        return sum(min(self._batch_size, self._samples - start) for start in starts)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not _is_module(value) else [value]


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)  # Sequential is iterable, yet one model
