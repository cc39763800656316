"""Hugging Face's Trainer, and TRL's, under hadar: ``train(trainer)`` for ``trainer.train()``.

By hand it is ``trainer.train()``. Under hadar the same Trainer trains the copy's orders: its
batches, accumulation, schedule, clipping, callbacks and evaluations are its own. A step is one
update, as the Trainer counts them. Checkpoints are hadar's.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from hadar_cli.node.contract import BESIDE_MODEL, OUT, is_under_orders, job_seed, total_steps
from hadar_cli.node.training.batches import Steps
from hadar_cli.node.training.checkpoints.plain_state import DeclaredState
from hadar_cli.node.training.context import Training, training
from hadar_cli.node.training.plans import give_generators
from hadar_cli.node.training.schedules import Schedules
from hadar_cli.node.training.updates import parts_of

_BEST = ("best_metric", "best_global_step")  # of a Trainer's state
_NO_QUALITY = ("runtime", "per_second", "epoch", "time")


def train(trainer: Trainer, **options: Any) -> Any:
    """Trains; ``options`` go to ``trainer.train``. Quality is what ``trainer.evaluate``
    returns, ``metric_for_best_model`` first."""
    make_loader = trainer.get_train_dataloader

    def seeded_loader() -> Any:
        loader = make_loader()
        give_generators(loader, job_seed())
        return loader

    trainer.get_train_dataloader = seeded_loader
    if not is_under_orders():
        return trainer.train(**options)
    if options.get("resume_from_checkpoint"):
        raise ValueError("under hadar a job goes on from hadar's checkpoints: leave out resume_…")
    orders = _Orders(seeded_loader(), trainer.args)
    trainer.get_train_dataloader = lambda: orders
    _take_over(trainer, orders)
    _leave_tokenizer(trainer)
    output = trainer.train(**options)
    assert orders.training is not None
    orders.training.finish()  # where the Trainer has stopped early
    return output


def _leave_tokenizer(trainer: Trainer) -> None:
    """Leaves the tokenizer or processor for the finished model's folder, as the Trainer saves it
    with every checkpoint of its own."""
    owner = getattr(trainer, "data_collator", None)
    found: Any = getattr(trainer, "processing_class", None) or getattr(owner, "tokenizer", None)
    folder = os.environ.get(OUT)
    if folder and hasattr(found, "save_pretrained"):
        found.save_pretrained(Path(folder) / BESIDE_MODEL)


def _take_over(trainer: Trainer, orders: _Orders) -> None:
    """Has the Trainer take a whole update for a batch: an order never ends within one."""
    args = trainer.args
    args.max_steps = total_steps()
    args.gradient_accumulation_steps = 1
    args.save_strategy = "no"
    if args.load_best_model_at_end:
        args.load_best_model_at_end = False
        print("hadar: the last weights are handed in, not the best (load_best_model_at_end)")
    take_batches, train_step = trainer.get_batch_samples, trainer.training_step
    count_operations = trainer.floating_point_ops
    count_tokens = getattr(trainer, "_track_num_input_tokens", None)

    def get_batch_samples(groups: Iterator[Any], _: int, device: Any) -> tuple[list[Any], Any]:
        group = next(groups, None)
        if group is None:
            return [], None
        batches, items = take_batches(iter(group), len(group), device)
        return [batches], items

    def training_step(model: Any, group: Any, *items: Any, **more: Any) -> Any:
        assert orders.training is not None
        loss = 0.0
        for batch in orders.training.gang_steps.each(group):
            for piece, share in parts_of(batch, orders.training.micro_batches):
                trainer.current_gradient_accumulation_steps = len(group) / share
                loss = loss + train_step(model, piece, *items, **more)
        orders.training.log(loss)
        return loss

    trainer.get_batch_samples, trainer.training_step = get_batch_samples, training_step
    trainer.floating_point_ops = lambda group: sum(count_operations(batch) for batch in group)
    if count_tokens:
        trainer._track_num_input_tokens = lambda group: [count_tokens(batch) for batch in group]
    trainer.callback_handler.callbacks.insert(0, _Place(trainer, orders))
    trainer.add_callback(_Leave(orders))


class _Orders:
    """The Trainer's loader. It has no length, as an epoch may begin and end anywhere."""

    def __init__(self, loader: Any, args: Any) -> None:
        self._loader = loader
        self.accumulate = args.gradient_accumulation_steps
        self._wanted, self._epochs = max(0, args.max_steps), args.num_train_epochs
        self.dataset = loader.dataset
        self.batch_size = getattr(loader, "batch_size", None)
        self.training: Training | None = None
        self.steps: Steps | None = None

    def __iter__(self) -> Iterator[Any]:
        t = self.training
        assert t is not None
        steps = self.steps = t.steps_of(self._loader)
        t.tell_unless_equal(self._wanted or math.ceil(self._epochs * (steps.per_epoch or 0)))
        yield from t.groups(steps)


class _Place(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """First of all callbacks: tells the Trainer where in the job it is."""

    def __init__(self, trainer: Trainer, orders: _Orders) -> None:
        self._trainer, self._orders = trainer, orders

    def on_train_begin(self, args: Any, state: Any, control: Any, **made: Any) -> None:
        t = self._orders.training = training(
            made["model"],
            made["optimizer"],
            Schedules(
                [getattr(made["lr_scheduler"], "scheduler", made["lr_scheduler"])], "step", True
            ),
            accumulate=self._orders.accumulate,
            scaler=getattr(self._trainer.accelerator, "scaler", None),
            evaluate=self._measure if self._trainer.eval_dataset is not None else None,
            higher_is_better=args.greater_is_better if args.metric_for_best_model else None,
            state={"trainer": DeclaredState(_Memory(self._trainer))},
        )
        t.one_epoch_at_a_time()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **made: Any) -> None:
        state.max_steps = sys.maxsize  # the last step of a copy is not the job's: orders end it

    def on_step_begin(self, args: Any, state: Any, control: Any, **made: Any) -> None:
        assert self._orders.training is not None
        here, trainer = self._orders.training.position, self._trainer
        for count in ("_globalstep_last_logged", "_initial_global_step"):  # losses are means
            if hasattr(trainer, count):
                setattr(trainer, count, getattr(trainer, count) + here - state.global_step)
        state.global_step = here

    def on_step_end(self, args: Any, state: Any, control: Any, **made: Any) -> None:
        steps = self._orders.steps
        if steps and steps.source.per_epoch:
            state.epoch = steps.first_of(state.global_step) / steps.source.per_epoch

    def _measure(self) -> dict[str, float]:
        """Callbacks, such as early stopping, do not hear of an evaluation that is hadar's."""
        handler = self._trainer.callback_handler
        callbacks, handler.callbacks = handler.callbacks, []
        found = self._trainer.evaluate()
        handler.callbacks = callbacks
        quality = {
            name: value
            for name, value in found.items()
            if isinstance(value, (int, float)) and not any(part in name for part in _NO_QUALITY)
        }
        best = f"eval_{(self._trainer.args.metric_for_best_model or '').removeprefix('eval_')}"
        return {**({best: quality[best]} if best in quality else {}), **quality}


class _Memory:
    """What the Trainer would put into its own checkpoints: the best figure so far, and what
    callbacks declare, such as a patience."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        state = self._trainer.state
        return {
            "best": {name: getattr(state, name) for name in _BEST},
            "callbacks": {name: c.state()["attributes"] for name, c in self._callbacks().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["best"].items():
            setattr(self._trainer.state, name, value)
        for name, callback in self._callbacks().items():
            for attribute, value in state["callbacks"].get(name, {}).items():
                setattr(callback, attribute, value)

    def _callbacks(self) -> dict[str, Any]:
        callbacks = self._trainer.callback_handler.callbacks
        stateful = (c for c in callbacks if isinstance(c, ExportableState))
        return {f"{type(c).__name__}/{i}": c for i, c in enumerate(stateful)}


class _Leave(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Last of all callbacks: when no order is left, what ends is not an epoch."""

    def __init__(self, orders: _Orders) -> None:
        self._orders = orders

    def on_epoch_end(self, args: Any, state: Any, control: Any, **made: Any) -> None:
        assert self._orders.training is not None
        if self._orders.training.has_left:
            control.should_training_stop = True
            control.should_evaluate = control.should_log = control.should_save = False
