"""The API for training scripts: at most five changed lines, an ordinary loop when run by hand.

    from hadar_cli import training

    with training(model, optimizer, scheduler) as t:
        for x, y in t.loader(dataset, batch_size=64):
            loss = criterion(model(x), y)
            t.step(loss)

or, around a loop that keeps its epochs, its ``DataLoader`` and its own updates:

    t = training(model, optimizer, scheduler)
    for epoch in t.epochs(range(10)):
        for x, y in t.loader(train_loader): ...

Between rounds the loop pauses inside ``loader``: the copy hands in its weights, waits for merged
ones and goes on in the same process. A step is one update, of one or more mini-batches.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from hadar_cli.node.contract import Order, is_under_orders
from hadar_cli.node.slices import Slices, before
from hadar_cli.node.training import randomness
from hadar_cli.node.training.attempt import Attempt, Evaluate, Evaluation, unfinished
from hadar_cli.node.training.batches import NOT_SAID, Group, Steps, reads_ahead, source_of
from hadar_cli.node.training.checkpoints import checkpoint
from hadar_cli.node.training.checkpoints.plain_state import with_state_dict
from hadar_cli.node.training.gangs.gang import GO, LATE, SCRIPT, SIGNAL, Trained
from hadar_cli.node.training.gangs.gang_steps import GangSteps
from hadar_cli.node.training.loader import Loader, loader_of
from hadar_cli.node.training.misuse.watch import Watch
from hadar_cli.node.training.pacing import Pace
from hadar_cli.node.training.quick_torch import spare_the_compiler
from hadar_cli.node.training.schedules import Schedules
from hadar_cli.node.training.updates import ScalerState, Updates, as_list, unwrapped

STOPPED_BY_SCRIPT = "script"  # in a result: the job is done, with what it has

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
    higher_is_better: bool | None = None,
    epochs: int = 1,
) -> Training:
    """The context that makes a loop resumable, divisible and mergeable.

    ``schedule`` says what the scheduler counts when ``t.step`` ticks it: ``"step"`` or ``"epoch"``.
    A step is one update, of ``accumulate`` mini-batches. ``scaler`` is a ``GradScaler``;
    ``state`` names what else to keep: dicts, and objects by their ``state_dict`` or attributes.
    ``evaluate`` returns held-out quality, e.g. ``{"accuracy": 0.93}``, in evaluation mode.
    ``higher_is_better`` is said of its first figure, where the name does not tell.
    ``epochs`` counts only when the script is run by hand and its loop has none of its own.
    """
    if accumulate < 1:
        raise ValueError(f"accumulate={accumulate}: an update needs a mini-batch")
    optimizers = [unwrapped(o, "optimizer") for o in as_list(optimizer)]
    schedules = scheduler
    if not isinstance(scheduler, Schedules):  # a framework's own, of which it knows more
        schedules = Schedules([unwrapped(s, "scheduler") for s in as_list(scheduler)], schedule)
    extras = {name: with_state_dict(name, value) for name, value in (state or {}).items()}
    extras |= {"scaler": ScalerState(scaler)} if scaler else {}
    parts = checkpoint.Parts(as_list(model), optimizers, schedules.schedulers, extras)
    updates = Updates(parts.models, optimizers, scaler, accumulate > 1)
    evaluation = Evaluation(evaluate, higher_is_better) if evaluate else None
    return Training(parts, updates, schedules, accumulate, evaluation, epochs)


class Training:
    """A copy's training loop under orders; made by ``training``."""

    def __init__(
        self,
        parts: checkpoint.Parts,
        updates: Updates,
        schedules: Schedules,
        accumulate: int,
        evaluation: Evaluation | None,
        epochs: int,
    ) -> None:
        self._parts, self._updates, self._schedules = parts, updates, schedules
        self._accumulate, self._evaluation, self._epochs = accumulate, evaluation, epochs
        self._by_hand = not is_under_orders()
        order = Order.by_hand(0) if self._by_hand else Order.from_variables(os.environ)
        self._pace = Pace(order.emulate_speed) if order.emulate_speed else None
        self._now = Attempt(order, self._pace)
        trained = Trained(parts.models, parts.optimizers)
        self.gang_steps = GangSteps(trained, self._pace, self._vote, lambda: updates.piece)
        self._told_to_leave = self._stopping = self._left_early = self._begun = False
        self._in_epochs = self._has_own_steps = False  # which a framework counts
        self._last_attempt, self.reader = "", object()  # that handed in weights; see Loader
        self.has_left = False  # no order is left, and none will come
        self._watch = Watch(parts.models, parts.optimizers, parts.schedulers, parts.extras, updates)
        self._source: Steps | None = None
        self._source_key: Any = None
        self._mini: int | None = None  # the number of the mini-batch that the script has

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
                if self._stopping:
                    break
                self._schedules.epoch_ends()
            if self._evaluation:
                self._evaluation.show(self._parts.models)
            return
        while not self.has_left:
            position = self._now.position
            if position is None or self._stopping:  # a side task has no epoch, the next order may
                self._start_clock()
                self.has_left = not self._next_order()
                continue
            phi = self.per_epoch or max(1, self._now.order.total_steps // max(1, len(span)))
            yield span.start + span.step * (position // phi)
            if self._left_early and not self._stopping and self._source:
                self._source.refuse_part_of_epoch(self._now.position)
            self._schedules.epoch_ends()

    def loader(self, data: Any, batch_size: int | None = NOT_SAID, **options: Any) -> Loader:
        """This copy's mini-batches of ``data``: a data set, or the script's own ``DataLoader``.

        With a data set, ``options`` are those of PyTorch's ``DataLoader``; it is shuffled unless
        they say ``shuffle=False``; ``batch_size=None``: its entries are mini-batches already.
        """
        return loader_of(self, self.steps_of(data, batch_size, options), data)

    def step(
        self, loss: torch.Tensor, *, clip_norm: float | None = None, update: bool = True
    ) -> None:
        """Backward, optimizer, scheduler, metrics. ``update=False`` only accumulates gradients."""
        share = self._updates.piece.share
        self._schedules.stepped(self._updates.add(loss, clip_norm, update))
        self.gang_steps.log(loss, share)

    def mean_over(self, count: float) -> None:
        """Says, before its backward, over how many samples, tokens, pixels a loss is a mean."""
        self.gang_steps.mean_over(count)

    def log(self, loss: torch.Tensor | float) -> None:
        """Notes the loss, for scripts that do backward and update themselves."""
        self.gang_steps.log(loss, self._updates.piece.share)

    def stop(self) -> None:
        """The job is done, with the steps it has: the loop ends before its next mini-batch."""
        self._stopping = True

    def finish(self) -> None:
        """Hands in what a loop that was left early has done: the job is done with it."""
        if not self._by_hand and self._begun and not self._now.is_handed_in:
            self._hand_in(STOPPED_BY_SCRIPT)
        self.has_left = True
        self._watch.end()
        unfinished.discard(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        if self._by_hand and self._evaluation:
            self._evaluation.show(self._parts.models)
        self.finish()

    # -- batches, order after order ----------------------------------------------------------

    @property
    def result(self) -> Path | None:
        return self._now.order.result

    @property
    def per_epoch(self) -> int | None:
        """φ: steps of an epoch, where they are known."""
        return self._source.per_epoch if self._source else None

    @property
    def position(self) -> int:
        """The number of the job's step that is trained now."""
        return self._now.steps if self._by_hand else self._now.position or 0

    @property
    def ends_epoch(self) -> bool:
        """Whether the script has an epoch's last mini-batch."""
        phi = self._source.source.per_epoch if self._source else None
        return phi is not None and self._mini is not None and (self._mini + 1) % phi == 0

    def batches(self, source: Steps) -> Iterator[Any]:
        """What ``Loader`` iterates: the mini-batches of all orders, or inside ``epochs`` of one."""
        self._watch.loop_begins()
        for group in self.groups(source):
            self._mini = source.first_of(self.position) - 1
            for batch in self.gang_steps.each(group):
                self._mini += 1
                yield from self._updates.pieces(batch, self.micro_batches)
        self._watch.loop_ends()

    def groups(self, source: Steps) -> Iterator[Group]:
        """The same step by step, all of whose mini-batches come together."""
        if self._by_hand:
            yield from self._groups_by_hand(source)
            return
        if self.has_left and not self._in_epochs:
            self._watch.loop_begins_again()
        epoch: int | None = None
        while not self.has_left:
            left = self._now.left
            if left and self._in_epochs and source.per_epoch:
                starts_in = left[0][0] // source.per_epoch
                if epoch is not None and starts_in != epoch:
                    return
                epoch = starts_in
                left = before(left, (epoch + 1) * source.per_epoch)
            self._start_clock()
            done = self._now.steps + sum(end - first for first, end in left)
            yield from self._train(source, left)
            if self._now.steps < done or not self._now.left:
                self.has_left = not self._next_order()

    def tell_unless_equal(self, steps: int) -> None:
        self._now.tell_unless_equal(steps)

    def one_epoch_at_a_time(self) -> None:
        """For frameworks, which loop over epochs themselves."""
        self._begin()
        self._in_epochs, self._epochs, self._has_own_steps = True, 0, True

    def _groups_by_hand(self, source: Steps) -> Iterator[Group]:
        phi = source.per_epoch
        if phi:
            self._now.steps = -(-self._now.steps // phi) * phi  # past what a break has left out
        for _ in range(1 if self._in_epochs else self._epochs):
            for group in source.once(self._now.steps // phi if phi else 0):
                yield from self._one(group)
                if self._stopping:
                    return

    def _train(self, source: Steps, slices: Slices) -> Iterator[Group]:
        for group in source.groups(slices, self.gang_steps.cutter, self._now.order.update):
            if self.gang_steps.is_over(self._now.steps) or not group.reach(self._is_wanted):
                return
            yield from self._one(group)

    def _one(self, group: Group) -> Iterator[Group]:
        """A step is done when the script asks for the next one, or leaves after it."""
        self._left_early = False
        self._schedules.step_begins(None if self._by_hand else self.position)
        self._updates.begin_step(len(group), group.steps)
        self._watch.step_begins()
        self.gang_steps.begin_step(self.position, self._now.steps, len(group))
        try:
            yield group
        except GeneratorExit:
            self._now.steps += self._updates.happened * group.steps
            self._left_early = True
            raise
        self.gang_steps.end_step()
        self._watch.step_ends()
        if self._now.is_first and not self._now.steps and not self._by_hand:
            checkpoint.check(self._parts)  # before hours of training that could not be handed in
        self._schedules.step_ends(self._updates.happened, group.steps)
        self._now.step_done(group.steps)

    def steps_of(
        self, data: Any, batch_size: int | None = NOT_SAID, options: dict[str, Any] | None = None
    ) -> Steps:
        """The job's steps, of what a script gives to ``loader``."""
        self._begin()
        key = (id(data), batch_size)
        if self._source is None or key != self._source_key:
            self._has_own_steps |= (state := getattr(data, "gradient_state", None)) is not None
            size = max(self._accumulate, getattr(state, "num_steps", 1))
            source = source_of(data, batch_size, self._now.order.job_seed, options or {})
            self._source, self._source_key = Steps(source, size, reads_ahead(data)), key
            self._watch.loader_of(self.per_epoch)
            if self._in_epochs or self._by_hand:
                self.tell_unless_equal(self._epochs * (self.per_epoch or 0))
        return self._source

    @property
    def micro_batches(self) -> int:
        """The pieces that every mini-batch is split into, as it does not fit the card whole."""
        return self._now.order.micro_batches

    # -- one order ---------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._begun and not self._by_hand:
            self._begun = True
            signal.signal(signal.SIGTERM, self._on_sigterm)
            unfinished.add(self)
            self._watch.begin(self.result)
            self._begin_order()

    def _begin_order(self) -> None:
        order = self._now.order
        self._updates.begin(order)
        notes: dict[str, Any] = {}
        if order.checkpoint_in:
            keeps = self._last_attempt in order.merged_of
            self._last_attempt *= keeps  # or else its optimizer's state is no longer its own
            notes = checkpoint.load(order.checkpoint_in, self._parts, order.optimizer_in, keeps)
            self._schedules.take(notes.get("schedule", {}))
        elif self._now.is_first:  # the process's, and the job's
            checkpoint.begin(self._parts)
        randomness.begin(order.seed if order.num_copies > 1 else None, notes.get("random"))
        self.gang_steps.join(order, self._now)
        if order.evaluate and self._evaluation and order.is_first_of_gang:
            self._now.evaluate(self._evaluation, self._parts.models)

    def _start_clock(self) -> None:
        if not self._now.clock_runs:
            if self._now.order.checkpoint_in:
                self._schedules.move_to(self._now.order.global_step, self.per_epoch)
            self._now.start_clock()

    def _vote(self, steps: int) -> int:
        """Whether to stop after so many steps of the order, and why."""
        if self._stopping or self._told_to_leave:
            return SCRIPT if self._stopping else SIGNAL
        return LATE if self._now.is_late(steps) else GO

    def _is_wanted(self) -> bool:
        return not self._told_to_leave or self.gang_steps.cutter is not None  # gangs leave together

    def _stopped_because(self) -> str:
        self._stopping |= self.gang_steps.is_done
        if self._stopping:
            return STOPPED_BY_SCRIPT
        if self._now.steps >= self._now.order.steps:
            return "steps"
        return "signal" if self._told_to_leave else "deadline"

    def _next_order(self) -> bool:
        """Hands in, then waits for what to do next; False when the copy is to leave."""
        self._hand_in(self._stopped_because())
        order = self._now.next_order(lambda: not self._stopping and not self._told_to_leave)
        if order is None:
            self.finish()
            return False
        self._now = Attempt(order, self._pace, self._now)
        self._begin_order()
        return True

    def _hand_in(self, stopped: str) -> None:
        order = self._now.order
        self._watch.order_ends(self._updates.flush, not order.checkpoint_in)
        members = self.gang_steps.end_order()
        self._now.begin_saving()
        if order.checkpoint_out:
            notes = {"schedule": self._schedules.notes(), "random": randomness.notes()}
            base = order.checkpoint_in if order.hand_in != "full" else None
            kind, is_whole = order.hand_in, not order.keeps_optimizer
            checkpoint.save(order.checkpoint_out, self._parts, notes, base, kind, is_whole)
        self._now.saved()
        if order.checkpoint_out or order.member:
            self._last_attempt = order.hands_in_as
        stays = order.next_order is not None and stopped in ("steps", "deadline")
        noise = None if self._has_own_steps else self.gang_steps.noise or self._updates.noise
        self._now.leave_result(stopped, stays, self._updates.rates(), self._source, members, noise)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._told_to_leave = True
        if self._left_early and self._epochs:  # a framework leaves its loop after every epoch
            self.finish()
