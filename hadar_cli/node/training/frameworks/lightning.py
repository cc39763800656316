"""Lightning under hadar: ``fit(trainer, module, …)`` in place of ``trainer.fit(module, …)``.

By hand it is ``trainer.fit``. Under hadar the same Trainer trains the copy's orders: epochs,
accumulation, precision, validation and callbacks are its own. A step is one update, as Lightning's
``global_step`` counts them. Checkpoints are hadar's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)

from hadar_cli.node.contract import is_under_orders, job_seed
from hadar_cli.node.training.checkpoints.plain_state import DeclaredState
from hadar_cli.node.training.context import Training, training
from hadar_cli.node.training.misuse.refused import Refused
from hadar_cli.node.training.plans import give_generators
from hadar_cli.node.training.schedules import Schedules
from hadar_cli.node.training.updates import CannotSplit

Evaluate = Callable[[], dict[str, float]]


def fit(
    trainer: Trainer,
    model: LightningModule,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    datamodule: LightningDataModule | None = None,
    *,
    evaluate: Evaluate | None = None,
    higher_is_better: bool | None = None,
    **options: Any,
) -> None:
    """Trains as ``trainer.fit`` would. Quality is what ``evaluate`` returns, else what the
    validation logs; ``higher_is_better`` is said of its first figure."""
    if isinstance(train_dataloaders, LightningDataModule):
        train_dataloaders, datamodule = None, train_dataloaders
    begin = _Begin(trainer, evaluate, higher_is_better)
    wrap = _under_orders(trainer, begin) if is_under_orders() else _seeded
    if train_dataloaders is not None:
        train_dataloaders = wrap(train_dataloaders)
    else:
        owner: Any = datamodule or model
        make = owner.train_dataloader
        owner.train_dataloader = lambda: wrap(make())
    trainer.fit(model, train_dataloaders, val_dataloaders, datamodule, **options)
    if begin.training:
        begin.training.finish()  # where Lightning has stopped early


def _seeded(loader: Any) -> Any:
    if hasattr(loader, "sampler"):
        give_generators(loader, job_seed())
    return loader


def _under_orders(trainer: Trainer, begin: _Begin) -> Callable[[Any], Any]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined,unused-ignore]
    callbacks[:] = [begin, *(c for c in callbacks if not isinstance(c, Checkpoint))]

    def wrap(loader: Any) -> _Orders:
        if isinstance(loader, (dict, list, tuple)) or hasattr(loader, "flattened"):
            raise TypeError("under hadar, give one training loader: a step is a batch of one")
        return _Orders(trainer, begin, _seeded(loader))

    return wrap


class _Orders:
    """The training loader. Before every batch it tells Lightning where in the epoch that is."""

    def __init__(self, trainer: Trainer, begin: _Begin, loader: Any) -> None:
        self._trainer, self._begin, self._loader = trainer, begin, loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        t = self._begin.training
        if t is None:  # its length is asked for before there is an optimizer
            return
        steps = t.steps_of(self._loader)
        steps.ask_no_more()
        for group in t.groups(steps):
            if t.micro_batches > 1:
                raise CannotSplit("Lightning's updates are its own: make its batches smaller")
            for i, batch in enumerate(t.gang_steps.each(group)):
                self._place(steps.first_of(t.position) + i, steps.source.per_epoch)
                yield batch
        if t.has_left:
            self._leave()

    def _place(self, batch: int, per_epoch: int | None) -> None:
        fit_loop = self._trainer.fit_loop
        epoch, place = divmod(batch, per_epoch) if per_epoch else (0, batch)
        for count in ("ready", "started", "processed", "completed"):
            setattr(fit_loop.epoch_loop.batch_progress.current, count, place)
        fit_loop.epoch_progress.current.completed = epoch
        if fit_loop._data_fetcher is not None:
            fit_loop._data_fetcher.fetched = place

    def _leave(self) -> None:
        fit_loop = self._trainer.fit_loop
        fit_loop.min_epochs = fit_loop.epoch_loop.min_steps = None
        self._trainer.should_stop = True


class _Begin(Callback):  # type: ignore[misc,unused-ignore]
    """Takes over the optimizers and schedulers as soon as Lightning has made them."""

    def __init__(
        self, trainer: Trainer, evaluate: Evaluate | None, higher_is_better: bool | None
    ) -> None:
        self._trainer, self._evaluate, self._higher = trainer, evaluate, higher_is_better
        self.training: Training | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        can_validate = trainer.enable_validation
        self.training = training(
            pl_module,
            trainer.optimizers,
            _schedules(trainer),
            accumulate=trainer.accumulate_grad_batches,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            evaluate=self._evaluate or (self._validate if can_validate else None),
            higher_is_better=self._higher,
            state=_of_callbacks(trainer),
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self.training is not None
        trainer.fit_loop.epoch_loop.max_steps = -1  # orders end the training, not a count of steps
        self.training.one_epoch_at_a_time()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None and self.training:
            self.training.log(loss)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last epoch of a copy is not the job's: others may be at the one before."""
        epochs, most = trainer.fit_loop.epoch_progress.current, trainer.fit_loop.max_epochs
        if most and most > 0:
            epochs.processed = min(epochs.processed, most - 1)

    def _validate(self) -> dict[str, float]:
        """Callbacks, such as early stopping, do not hear of a validation that is hadar's."""
        trainer = self._trainer
        loop, connector = trainer.fit_loop.epoch_loop.val_loop, trainer._logger_connector
        callbacks, trainer.callbacks = trainer.callbacks, []  # type: ignore[attr-defined,unused-ignore]
        first, trainer.validating = connector._first_loop_iter, True
        found = loop.run()
        trainer.training, connector._first_loop_iter = True, first
        trainer.callbacks = callbacks  # type: ignore[attr-defined,unused-ignore]
        return {name: float(value) for logged in found for name, value in logged.items()}


def _of_callbacks(trainer: Trainer) -> dict[str, Any]:
    """What the callbacks would put into Lightning's own checkpoints, such as a patience."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined,unused-ignore]
    for callback in callbacks:
        if isinstance(callback, (StochasticWeightAveraging, WeightAveraging)):
            raise Refused(
                f"{type(callback).__name__} makes the mean of the weights when the training ends, "
                "after they have been handed in, and keeps it for one process",
                "keep the mean in the module, as a submodule that training_step updates: it "
                "travels with it, and validation_step may use it",
            )
    return {
        callback.state_key: DeclaredState(callback)
        for callback in callbacks
        if type(callback).state_dict is not Callback.state_dict
    }


def _schedules(trainer: Trainer) -> Schedules:
    configs = trainer.lr_scheduler_configs
    units = {(c.interval, c.frequency) for c in configs if not c.reduce_on_plateau}
    if len(units) > 1 or any(frequency != 1 for _, frequency in units):
        raise ValueError(
            "under hadar all learning-rate schedules of a module have one interval and the "
            f"frequency 1, not {sorted(units)}"
        )
    unit = next(iter(units))[0] if units else "step"
    return Schedules([config.scheduler for config in configs], unit, True)
