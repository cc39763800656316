"""Updates of the weights: at the scaled learning rate, whoever calls ``optimizer.step()``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hadar_cli.node.contract import Order
from hadar_cli.node.log_phrases import SECOND_BACKWARD, say_once
from hadar_cli.node.training.gangs.errors import CannotShare
from hadar_cli.node.training.gangs.losses import MEAN, SUM, terms_of
from hadar_cli.node.training.gangs.noise import NoiseScale, square_of
from hadar_cli.node.training.misuse.refused import Refused
from hadar_cli.node.training.splitting import split

_MEASURED = 8  # one step in so many tells the noise of its gradient, where one device is at it


class CannotSplit(RuntimeError):
    """A batch was split to fit the card, and the script cannot put its pieces together."""


class ScalerState:
    """A ``GradScaler``'s state. One that is switched off, as on a card with bfloat16, has none:
    where a card without it goes on, its scale stays what it was."""

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._scaler.load_state_dict(state)


@dataclass(frozen=True, slots=True)
class Piece:
    """Which part of its step's batch the script has in hand: all of it, or a micro-batch."""

    share: float = 1.0
    count: int = 1
    is_last: bool = True


class Updates:
    """Watches a script's optimizers, and does ``t.step``'s share of the work."""

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Any,
        accumulates: bool = False,
    ) -> None:
        self.accumulates = accumulates  # as the script says
        self._models, self._optimizers, self._scaler = models, optimizers, scaler
        self.happened = False  # since the step began
        self.leaves_rest = False  # a mini-batch was given since the last update
        self._scale = self._order_scale = 1.0
        self.noise: NoiseScale | None = None  # None: nobody asks for it, or the script cannot tell
        self._adds = 0  # times that t.step made an update
        self._first_share = 1.0
        self._per_batch: list[float] = []  # what a split batch's last piece told of the whole
        self._part: Any = None  # the square of the gradient of a step's first piece
        self.piece = Piece()
        self._updates_itself = True  # the script does, unless t.step is at it
        self._mark: Any = None  # of gradients that wait for the next piece
        self._batches = self._batches_left = 1  # of the step's mini-batches
        self._steps = 0  # begun since the last update
        self._has_gradients = False  # of ``add``, that wait for an update
        self._clip_norm: float | None = None
        self._unscaled: dict[int, list[Any]] = {}
        self._first_rate: Any = None
        self._last_rate: Any = None
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)

    def begin(self, order: Order) -> None:
        """A new order; gradients of the last one do not belong to its weights."""
        self._scale = self._order_scale = order.lr_scale
        is_asked = order.update is not None and order.member is None
        self.noise = NoiseScale(order.update[0]) if is_asked and order.update else None
        self._adds = 0
        self._first_rate = self._last_rate = None
        self._clear_pending()
        self.piece = Piece()

    def begin_step(self, batches: int, steps: int = 1) -> None:
        """One update begins, of that many mini-batches, which counts for so many steps."""
        self.happened, self.piece = False, Piece()
        self._scale = self._order_scale * steps
        self._batches = self._batches_left = batches
        self._steps += 1

    @property
    def may_skip(self) -> bool:
        """Whether a step without an update may be right: with a ``GradScaler``, or with gradients
        of ``t.step(loss, update=False)`` that wait for it."""
        return bool(self._scaler) or self._has_gradients

    def rates(self) -> tuple[float, float] | None:
        """The learning rate of the order's first and last update, as the schedule sets it."""
        if self._first_rate is None:
            return None
        return float(self._first_rate), float(self._last_rate)

    def add(self, loss: torch.Tensor, clip_norm: float | None, update: bool) -> int:
        """Backward, and an update after the step's last mini-batch: of how many steps."""
        self._check_mark()
        if self.piece.count > 1:
            self._check_piece(loss)
        if (share := self.piece.share / self._batches) != 1.0:
            loss = loss * share
        if self._scaler:
            loss = self._scaler.scale(loss)
        _backward(loss)
        if not self.piece.is_last:
            if self.noise and self._mark is None and self._steps == self._batches == 1:
                self._first_share, self._part = self.piece.share, self._square()
            self._mark = self._gradients_mark()
            return 0
        self._has_gradients = True
        self._clip_norm = clip_norm
        self._batches_left -= 1
        if not update or self._batches_left > 0:
            return 0
        steps = max(1, self._steps)
        self._adds += 1
        if self.noise and self._part is not None:
            self.noise.note_first(self._square(), self._part, self._first_share)
            self._part = None
        self._update()
        return steps

    def _check_piece(self, loss: torch.Tensor) -> None:
        """A piece's loss is weighted by its samples."""
        try:
            terms = terms_of([loss])
        except CannotShare:  # of which nobody can tell
            return
        if any(term.kind == SUM and not term.factors for term in terms):
            raise CannotSplit("its loss is a sum over samples: t.step weights means")
        counts = [float(term.count) / self.piece.share for term in terms if term.kind == MEAN]
        if self._per_batch and any(
            abs(mine - other) > 1e-3 * other
            for mine, other in zip(counts, self._per_batch, strict=False)
        ):
            say_once(
                "hadar: a mini-batch is split to fit the card, and its pieces, means over unlike "
                "numbers of tokens, are weighted by their samples"
            )
        self._per_batch = counts if self.piece.is_last else self._per_batch or counts

    def _square(self) -> Any:
        grads = (p.grad for model in self._models for p in model.parameters())
        return square_of(grad for grad in grads if grad is not None)

    def pieces(self, batch: Any, count: int) -> Iterator[Any]:
        """The batch in parts that fit the card, whose gradients ``add`` puts together."""
        parts = self._halves(batch) if count == 1 else parts_of(batch, count)
        self.leaves_rest = True
        for number, (part, share) in enumerate(parts, start=1):
            self.piece = Piece(share, len(parts), number == len(parts))
            yield part
        self.piece = Piece()

    def _halves(self, batch: Any) -> list[tuple[Any, float]]:
        """The whole, or where the noise of its gradient is measured, two halves of it."""
        if self.noise and self._adds and self._adds % _MEASURED == 1:  # t.step can join them
            try:
                return split(batch, 2)
            except TypeError:
                self.noise = None
        return [(batch, 1.0)]

    def flush(self) -> None:
        """An order ends: steps that count must be in the weights."""
        if self._has_gradients:
            self._update()

    def _check_mark(self) -> None:
        """Gradients of a step's earlier pieces must still be there for the next."""
        mark, self._mark = self._mark, None
        if mark is not None and mark != self._gradients_mark():
            raise CannotSplit("the gradients of a micro-batch were cleared: leave that to t.step")

    def _gradients_mark(self) -> Any:
        """What changes when gradients are cleared or written to."""
        for model in self._models:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    return id(parameter), parameter.grad.data_ptr(), parameter.grad._version
        return ()

    def _update(self) -> None:
        self._updates_itself = False
        try:
            self._step()
        finally:
            self._updates_itself = True

    def _step(self) -> None:
        if self._clip_norm is not None:
            for optimizer in self._optimizers if self._scaler else ():
                self._scaler.unscale_(optimizer)
            for model in self._models:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self._clip_norm)
        for optimizer in self._optimizers:
            if self._scaler:
                self._scaler.step(optimizer)  # which leaves out an update with infinite gradients
            else:
                optimizer.step()
        if self._scaler:
            self._scaler.update()
        self._clear()

    def _clear_pending(self) -> None:
        if self._has_gradients or self._mark is not None:
            self._clear()

    def _clear(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._steps, self._has_gradients, self._mark = 0, False, None

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Schedulers never see the scale: it is there for the length of the update."""
        if self._updates_itself and self.piece.share < 1.0:
            raise CannotSplit(
                f"a batch is split into {self.piece.count} micro-batches to fit this card, and "
                "only t.step(loss) can put them together"
            )
        groups = optimizer.param_groups
        self._last_rate = groups[0]["lr"]
        if self._first_rate is None:
            self._first_rate = self._last_rate
        if self._scale != 1.0:
            self._unscaled[id(optimizer)] = [
                {key: group[key] for key in ("lr", "betas") if key in group} for group in groups
            ]
            for group in groups:
                group["lr"] = group["lr"] * self._scale
                if "betas" in group:
                    # Each update stands for ``scale`` of them: Adam must forget as much faster.
                    group["betas"] = tuple(beta**self._scale for beta in group["betas"])

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.happened, self.leaves_rest = True, False
        unscaled = self._unscaled.pop(id(optimizer), None)
        if unscaled is not None:
            for group, own in zip(optimizer.param_groups, unscaled, strict=True):
                group.update(own)


def _backward(loss: torch.Tensor) -> None:
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if SECOND_BACKWARD not in str(error):
            raise
        raise Refused(
            "t.step(loss) goes backward through a graph that the script has been through already",
            "t.step(loss) stands for loss.backward() and optimizer.step(): leave these out. Or "
            "keep them, leave out t.step, and say t.log(loss)",
        ) from error


def parts_of(batch: Any, count: int) -> list[tuple[Any, float]]:
    """The batch in so many parts, each with its share of the samples."""
    if count == 1:
        return [(batch, 1.0)]
    try:
        return split(batch, count)
    except TypeError as error:
        raise CannotSplit(str(error)) from error


def unwrapped(wrapper: Any, name: str) -> Any:
    """The optimizer or scheduler inside one of accelerate's."""
    inner = getattr(wrapper, name, None)
    return inner if hasattr(inner, "state_dict") and hasattr(inner, "step") else wrapper


def as_list(value: Any) -> list[Any]:
    """What a script gives one or several of."""
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not _is_module(value) else [value]


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)  # Sequential is iterable, yet one model
