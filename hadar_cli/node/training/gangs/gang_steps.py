"""Whoever shares a process's steps with it: its gang, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from hadar_cli.node.contract import MemberSpeed, Order
from hadar_cli.node.training.gangs.cutting import Cutter
from hadar_cli.node.training.gangs.gang import GO, SCRIPT, Gang, GangPace, Piece, Trained
from hadar_cli.node.training.gangs.noise import NoiseScale


class Losses(Protocol):
    """Where an order's losses add up."""

    def log(self, loss: torch.Tensor | float, share: float) -> None: ...

    def hear_loss(self, total: Any, weight: Any) -> None: ...


class GangSteps:
    """Takes a training loop's steps through its gang; alone, it does nothing to them."""

    def __init__(
        self,
        trained: Trained,
        pace: GangPace | None,
        vote: Callable[[int], int],
        piece: Callable[[], Piece],
    ) -> None:
        self._trained, self._pace, self._vote, self._piece = trained, pace, vote, piece
        self._gang: Gang | None = None
        self._losses: Losses | None = None

    def join(self, order: Order, losses: Losses) -> None:
        """The gang of an order: the one that this process is in, another one, or none.

        ``losses`` are the order's, of all members.
        """
        self._losses, member = losses, order.member
        if self._gang and not (member and member.gang == self._gang.member.gang):
            self._gang.leave()
            self._gang = None
        if member and member.size > 1:
            if not self._gang:
                self._gang = Gang(member, self._trained, self._pace, self._piece)
                if not order.checkpoint_in:
                    self._gang.begin_alike()
            self._gang.begin_order(losses.hear_loss, order.update)
            if member.rank:  # rank 0 goes on as if alone; dropout is not to be the same for all
                torch.manual_seed((order.seed * 1_000_003 + member.rank) % 2**63)

    @property
    def cutter(self) -> Cutter | None:
        return self._gang.cutter if self._gang else None

    def is_over(self, steps: int) -> bool:
        """Whether to stop after so many steps: what all have agreed on, or what one wants."""
        return self.stop(steps) != GO

    def stop(self, steps: int) -> int:
        return self._gang.stop if self._gang else self._vote(steps)

    @property
    def is_done(self) -> bool:
        """Whether a member's script has ended the job."""
        return self._gang is not None and self._gang.stop == SCRIPT

    def begin_step(self, number: int, steps: int, batches: int) -> None:
        if self._gang:
            self._gang.begin_step(number, batches, lambda: self._vote(steps + 1))

    def each(self, group: Iterable[Any]) -> Iterator[Any]:
        """A step's mini-batches one after the other."""
        for batch in group:
            if self._gang:
                self._gang.begin_batch()
            yield batch

    def mean_over(self, count: float) -> None:
        if self._gang:
            self._gang.mean_over = float(count)

    def end_step(self) -> None:
        if self._gang:
            self._gang.end_step()

    @property
    def noise(self) -> NoiseScale | None:
        return self._gang.noise if self._gang else None

    def end_order(self) -> tuple[MemberSpeed, ...]:
        return self._gang.end_order() if self._gang else ()

    def log(self, loss: torch.Tensor | float, share: float) -> None:
        if self._gang:
            self._gang.note(loss, share)
        elif self._losses:
            self._losses.log(loss, share)
