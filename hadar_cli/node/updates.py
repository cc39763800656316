"""Updates of the weights: at the scaled learning rate, whoever calls ``optimizer.step()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Updates:
    """Watches a script's optimizers, and does ``t.step``'s share of the work."""

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Any,
        accumulate: int,
    ) -> None:
        if accumulate < 1:
            raise ValueError(f"accumulate={accumulate}: an update needs a mini-batch")
        self._models, self._optimizers = models, optimizers
        self._scaler, self._accumulate = scaler, accumulate
        self.happened = False  # since someone set it to False
        self._scale = 1.0
        self._pending = 0  # mini-batches whose gradients wait for an update
        self._clip_norm: float | None = None
        self._unscaled: dict[int, list[Any]] = {}
        self._first_rate: Any = None
        self._last_rate: Any = None
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)

    def begin(self, lr_scale: float) -> None:
        """A new order; gradients of the last one do not belong to its weights."""
        self._scale = lr_scale
        self._first_rate = self._last_rate = None
        if self._pending:
            self._clear()

    def rates(self) -> list[float] | None:
        """The learning rate of the order's first and last update, as the schedule sets it."""
        if self._first_rate is None:
            return None
        return [float(self._first_rate), float(self._last_rate)]

    def add(self, loss: torch.Tensor, clip_norm: float | None, update: bool) -> int:
        """Backward, and an update when enough mini-batches have come together: of how many."""
        if self._accumulate > 1:
            loss = loss / self._accumulate
        if self._scaler:
            loss = self._scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self._pending += 1
        self._clip_norm = clip_norm
        if not update or self._pending < self._accumulate:
            return 0
        batches = self._pending
        self._update()
        return batches

    def flush(self) -> None:
        """An order ends: steps that count must be in the weights."""
        if self._pending:
            self._update()

    def _update(self) -> None:
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

    def _clear(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._pending = 0

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Schedulers never see the scale: it is there for the length of the update."""
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
        self.happened = True
        unscaled = self._unscaled.pop(id(optimizer), None)
        if unscaled is not None:
            for group, own in zip(optimizer.param_groups, unscaled, strict=True):
                group.update(own)
