"""Hugging Face's Trainer under hadar: ``train(trainer)`` in place of ``trainer.train()``.

By hand it is ``trainer.train()`` and nothing else. Under hadar the Trainer's batches come out of
the copy's orders; it saves, evaluates and reports nothing itself, for the head does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from transformers import (  # type: ignore[import-not-found,unused-ignore]
    Trainer,
    TrainerCallback,
)

from hadar_cli.node.training import Training, training

_NO_QUALITY = ("runtime", "per_second", "epoch", "time")


def train(trainer: Trainer, **options: Any) -> None:
    """Trains; ``options`` go to ``trainer.train``. Quality is what ``trainer.evaluate`` returns."""
    if "HADAR_STEPS" not in os.environ:
        trainer.train(**options)
        return
    steps = int(os.environ.get("HADAR_TOTAL_STEPS", 1))
    args = trainer.args
    if args.gradient_accumulation_steps > 1:
        # It fetches all batches of an update at once: an order could end between them.
        raise ValueError("under hadar, use a larger batch in place of gradient_accumulation_steps")
    args.max_steps = steps
    args.save_strategy = args.eval_strategy = "no"
    orders = _Orders(trainer.get_train_dataloader(), steps)
    trainer.get_train_dataloader = lambda: orders
    trainer.add_callback(_Begin(trainer, orders))
    trainer.train(**options)


class _Orders:
    """The Trainer's loader, as long as the job; it must not be read ahead, so it is not wrapped."""

    def __init__(self, loader: Any, total_steps: int) -> None:
        self._loader, self._total_steps = getattr(loader, "base_dataloader", loader), total_steps
        self.dataset = loader.dataset
        self.batch_size = getattr(loader, "batch_size", None)
        self.training: Training | None = None

    def __len__(self) -> int:
        return self._total_steps

    def __iter__(self) -> Iterator[Any]:
        assert self.training is not None
        yield from self.training.loader(self._loader)


class _Begin(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Takes over the optimizer and the scheduler as soon as the Trainer has made them."""

    def __init__(self, trainer: Trainer, orders: _Orders) -> None:
        self._trainer, self._orders = trainer, orders

    def on_train_begin(self, args: Any, state: Any, control: Any, **made: Any) -> None:
        optimizer, scheduler = made["optimizer"], made["lr_scheduler"]
        has_test_data = self._trainer.eval_dataset is not None
        self._orders.training = training(
            made["model"],
            getattr(optimizer, "optimizer", optimizer),
            getattr(scheduler, "scheduler", scheduler),
            evaluate=self._measure if has_test_data else None,
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **made: Any) -> None:
        if logs and "loss" in logs and self._orders.training:
            self._orders.training.log(float(logs["loss"]))

    def _measure(self) -> dict[str, float]:
        found = self._trainer.evaluate()
        return {
            name: value
            for name, value in found.items()
            if isinstance(value, (int, float)) and not any(part in name for part in _NO_QUALITY)
        }
