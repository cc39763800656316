"""Lightning under hadar: ``fit(trainer, module, loader)`` in place of ``trainer.fit``.

By hand it is ``trainer.fit`` and nothing else. Under hadar Lightning sees one long epoch, out of
which the copy's orders come; validation, checkpoints and epochs are the head's business then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import (  # type: ignore[import-not-found,unused-ignore]
    Callback,
    LightningModule,
    Trainer,
)

from hadar_cli.node.training import Training, training


def fit(
    trainer: Trainer,
    module: LightningModule,
    loader: Any,
    evaluate: Callable[[], dict[str, float]] | None = None,
    **options: Any,
) -> None:
    """Trains the module; ``evaluate`` measures quality, ``options`` go to ``trainer.fit``."""
    if "HADAR_STEPS" not in os.environ:
        trainer.fit(module, loader, **options)
        return
    trainer.fit_loop.max_epochs = 1
    trainer.limit_val_batches = 0
    orders = _Orders(loader, int(os.environ.get("HADAR_TOTAL_STEPS", 1)))
    trainer.callbacks.insert(0, _Begin(orders, evaluate))  # type: ignore[attr-defined,unused-ignore]
    trainer.fit(module, orders, **options)


class _Orders:
    """A loader as long as the job: Lightning reads no batch ahead where it knows the length."""

    def __init__(self, loader: Any, total_steps: int) -> None:
        self._loader, self._total_steps = loader, total_steps
        self.training: Training | None = None

    def __len__(self) -> int:
        return self._total_steps

    def __iter__(self) -> Iterator[Any]:
        assert self.training is not None
        yield from self.training.loader(self._loader)


class _Begin(Callback):  # type: ignore[misc,unused-ignore]
    """Takes over the optimizers and schedulers as soon as Lightning has made them."""

    def __init__(self, orders: _Orders, evaluate: Callable[[], dict[str, float]] | None) -> None:
        self._orders, self._evaluate = orders, evaluate

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        configs = trainer.lr_scheduler_configs
        self._orders.training = training(
            pl_module,
            trainer.optimizers,
            [config.scheduler for config in configs],
            schedule="epoch" if any(c.interval == "epoch" for c in configs) else "step",
            accumulate=trainer.accumulate_grad_batches,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            evaluate=self._evaluate,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and self._orders.training:
            self._orders.training.log(loss)
