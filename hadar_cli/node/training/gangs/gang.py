"""One process's side of its gang: its part of every mini-batch, and what all agree on."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hadar_cli.node.contract import Membership, MemberSpeed, Update
from hadar_cli.node.training.gangs.backward import Run, send_passes_to, weighted
from hadar_cli.node.training.gangs.cutting import Cutter, Part
from hadar_cli.node.training.gangs.errors import CannotShare
from hadar_cli.node.training.gangs.losses import SAMPLES, Kind, kind_of
from hadar_cli.node.training.gangs.meeting import Meeting
from hadar_cli.node.training.gangs.noise import NoiseScale
from hadar_cli.node.training.gangs.reduction import Reduction
from hadar_cli.node.training.gangs.shares import Balance
from hadar_cli.node.training.gangs.timing import Memory, Speed, Stopwatch

_NO_PASS = _ORDER_ENDS = -1
_UNLIKE = 1e-3  # of frozen weights' absolute sum; devices add in different orders
GO, LATE, SIGNAL, SCRIPT = range(4)  # whether a member wants to stop after this step, and why


@dataclass(frozen=True, slots=True)
class Trained:
    """What of a script its gang has to know."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]

    def parameters(self) -> list[torch.nn.Parameter]:
        of_models = [p for model in self.models for p in model.parameters()]
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return [*of_models, *(p for group in groups for p in group["params"])]

    def changing(self) -> list[torch.Tensor]:
        """What training changes: members begin with rank 0's."""
        buffers = [buffer for model in self.models for buffer in model.buffers()]
        return list(dict.fromkeys([*(p for p in self.parameters() if p.requires_grad), *buffers]))

    def frozen_size(self) -> float:
        """Of weights that never change: too large to send, and built alike everywhere."""
        frozen = [p.detach() for p in self.parameters() if not p.requires_grad]
        numbers = [p for p in frozen if p.is_floating_point()]
        return sum(float(p.abs().sum(dtype=torch.float64)) for p in numbers)

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def least_samples(self) -> int:
        """BatchNorm cannot do with one."""
        modules = [module for model in self.models for module in model.modules()]
        return 1 + any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in modules)


class Piece(Protocol):
    """Which part of a mini-batch the script has in hand: all of it, or a micro-batch."""

    @property
    def count(self) -> int: ...

    @property
    def is_last(self) -> bool: ...


class GangPace(Protocol):
    """Emulated speed within a step."""

    def catch_up(self) -> None: ...

    def go_on(self) -> None: ...


class Gang:
    """A member's view of its gang, from the meeting to the next one.

    Within a step the script runs as if alone, on fewer samples. Its backward passes are weighted,
    and on the step's last mini-batch they end with everybody's gradients in place of its own.
    """

    def __init__(
        self,
        member: Membership,
        trained: Trained,
        pace: GangPace | None,
        piece: Callable[[], Piece],
    ) -> None:
        _refuse_wrapped(trained.models)
        self.member, self._trained, self._pace, self._piece = member, trained, pace, piece
        device = trained.device
        self._meeting = Meeting(member, device)
        shares = member.shares or (1.0 / member.size,) * member.size
        self._balance = Balance(shares)
        self.cutter = Cutter(member.rank, shares, trained.least_samples)
        self._reduction = Reduction(self._meeting, trained.parameters, self._keep_pace)
        self._stopwatch, self._memory = Stopwatch(device), Memory(device)
        self._device = device
        self.stop = GO
        self._vote: Callable[[], int] = lambda: GO
        self._hear: Callable[[Any, Any], None] = lambda total, weight: None
        self._in_step = self._in_pass = self._has_exchanged = False
        self._step = self._steps = self._passes = 0
        self._batches = self._batches_left = 0
        self._part = Part(0, 0, 0, 1)
        self._totals: dict[int, Any] = {}  # by pass: what the last one's loss was a mean over
        self._constants: set[int] = set()  # passes whose script divides by a number of its own
        self._loss_weight: Any = 0.0
        self._losses: Any = 0.0  # noted since the last exchange, weighted
        self._losses_weight = 0.0
        self._waits_since, self._waited_s = 0.0, 0.0
        self._speeds = [Speed() for _ in range(member.size)]
        self.noise: NoiseScale | None = None  # of the order's gradients, if its job asks for it
        send_passes_to(self)

    def leave(self) -> None:
        send_passes_to(None)
        self._reduction.close()
        self._meeting.close()

    def begin_alike(self) -> None:
        """Has everyone start with rank 0's weights, where there is no checkpoint to start with."""
        sizes = [row[0] for row in self._meeting.gather([self._trained.frozen_size()])]
        if max(sizes) - min(sizes) > _UNLIKE * max(sizes):
            raise CannotShare("its frozen weights differ from process to process: seed first")
        self._meeting.from_first(self._trained.changing())

    # -- an order, its steps and their mini-batches ------------------------------------------

    def begin_order(self, hear: Callable[[Any, Any], None], update: Update | None = None) -> None:
        """``hear`` is told what the losses of all members add up to, and their weight."""
        self.noise = NoiseScale(update.batches) if update else None
        self._reduction.measures = self.noise is not None
        self.stop, self._steps, self._hear = GO, 0, hear
        self._reduction.forget()
        self._stopwatch.reset()
        self._losses, self._losses_weight, self._waited_s = 0.0, 0.0, 0.0
        self._speeds = [Speed() for _ in range(self.member.size)]

    def begin_step(self, number: int, batches: int, vote: Callable[[], int]) -> None:
        """``vote`` says whether this member wants to stop after the step, and why."""
        self._meeting.need_all(True)
        self._vote = vote
        self._step, self._passes = number, 0
        self._batches = self._batches_left = batches
        self._in_step, self._has_exchanged = True, False
        self._steps += 1
        if self._steps == 1:
            self._go_on()

    def begin_batch(self) -> None:
        self._part = self.cutter.next_part()
        self._batches_left -= 1
        self._loss_weight = self._part.weight

    def end_step(self) -> None:
        """The wish to stop travels with the gradients; in a step without any, alone."""
        if not self._has_exchanged:
            self._exchange(_NO_PASS, False)
            self._go_on()
        self._stopwatch.step_ends()
        self._in_step = False

    def end_order(self) -> tuple[MemberSpeed, ...]:
        """Adds up what is left of the losses; who had which share, and how fast."""
        if self._steps:
            self._step = _ORDER_ENDS
            self._exchange(_NO_PASS, False)  # that all are at the end, before anything is added up
            self._hear_losses(self._sum(self._tail(0.0)))
        self._meeting.need_all(False)
        shares = self._balance.shares
        return tuple(
            MemberSpeed(rank, share, speed.step_s, speed.wait_s)
            for rank, (share, speed) in enumerate(zip(shares, self._speeds, strict=True))
        )

    def note(self, loss: torch.Tensor | float, piece: float) -> None:
        """A loss of this member's samples, or of a piece of them."""
        if self._part.samples:
            value = torch.as_tensor(loss, device=self._device).detach().float()
            weight = torch.as_tensor(self._loss_weight, device=self._device)
            # A mean over nothing, of samples without a token that counts, is no number.
            self._losses = self._losses + piece * torch.where(weight > 0, weight * value, 0.0)
            self._losses_weight += piece * self._part.weight

    # -- a backward pass ---------------------------------------------------------------------

    def backward(self, run: Run, roots: Sequence[torch.Tensor], seeds: Any) -> None:
        """One call of backward: weighted, and then with everybody's gradients."""
        if self._in_pass or not self._in_step:  # one within another, or no step's
            run(roots, seeds)
            return
        is_last = self._batches_left == 0 and self._piece().is_last
        count, weight, total = self._weigh(self._kind(roots))
        self._in_pass = True
        try:
            self._reduction.open(self._passes if is_last else None)
            run(roots, weighted(roots, seeds, weight))
            self._keep_pace()
            if is_last:
                self._add_up(count, total)
            else:
                self._reduction.pile_up()
        finally:
            self._in_pass = False

    def _kind(self, roots: Sequence[torch.Tensor]) -> Kind:
        if len(roots) != 1 or self._piece().count > 1:  # whose shares count samples, too
            return SAMPLES
        kind = kind_of(roots[0])
        if not kind.is_known:
            _say_assumed(type(roots[0].grad_fn).__name__)
            return SAMPLES
        return kind

    def _weigh(self, kind: Kind) -> tuple[Any, Any, Any]:
        """What this member's loss counts, its gradients' weight, and the total that this supposes:
        the last step's, where this one's is not known before all gradients are."""
        part = self._part
        is_sum = kind.is_sum or (kind.by_script and self._passes in self._constants)
        if is_sum or kind.count is None:
            self._loss_weight = float(part.samples > 0) if is_sum else part.weight
            return 0.0, self._loss_weight, None
        found = torch.as_tensor(kind.count, dtype=torch.float32, device=self._device)
        count = found.detach().reshape(()) * float(part.samples > 0)
        total = self._totals.get(self._passes)
        if total is None or self._batches > 1:
            rows = self._meeting.gather([float(count), float(part.samples)])
            is_first = kind.by_script and self._passes not in self._totals
            if is_first and len({row[1] for row in rows}) == 1:
                _say_assumed("a division")  # by a constant, or by samples: here it could be both
            elif is_first and _is_constant(rows):
                self._constants.add(self._passes)
                return self._weigh(kind)
            total = torch.tensor(sum(row[0] for row in rows), device=self._device)
            self._totals[self._passes], self._loss_weight = total, count / total
            return 0.0, self._loss_weight, None
        return count, count / total, total

    def _add_up(self, count: Any, total: Any) -> None:
        number, has_more = self._passes, self._reduction.has_more()
        self._waits_since = time.monotonic()
        tail = self._tail(count)
        sent = tail if self._meeting.is_direct else tail.cpu()
        work = self._meeting.sum_later(sent)
        any_has_more = self._exchange(number, has_more)
        self._meeting.wait(work)
        found, factor = sent.to(tail.device), None
        if total is not None:
            factor, self._loss_weight = total / found[0], count / found[0]
            self._totals[number] = found[0]
        self._hear_losses(found)
        self._reduction.finish(number, any_has_more, factor)
        if self.noise and not number and not any_has_more:
            self._note_noise(self.noise, found, factor)
        self._waited_s += time.monotonic() - self._waits_since
        self._passes += 1
        self._go_on()

    def _note_noise(self, noise: NoiseScale, tail: torch.Tensor, factor: Any) -> None:
        """Of a step's first pass: another one may train other weights."""
        helping = sum(share > 0 for share in self._balance.shares)
        if helping > 1:
            parts = tail[3] if factor is None else tail[3] * factor**2
            noise.note(self._reduction.square, parts, helping)

    def _tail(self, count: Any) -> torch.Tensor:
        """What travels beside the gradients: the count, the losses noted so far, and the square of
        its own gradient over its share of the batch."""
        tail = torch.zeros(4, device=self._device)
        tail[0], tail[1], tail[2] = count, self._losses, self._losses_weight
        if self.noise and self._part.samples:
            tail[3] = self._reduction.own_square / self._part.weight
        self._losses, self._losses_weight = 0.0, 0.0
        return tail

    def _hear_losses(self, tail: torch.Tensor) -> None:
        self._hear(tail[1], tail[2])

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        sent = tensor if self._meeting.is_direct else tensor.cpu()
        self._meeting.wait(self._meeting.sum_later(sent))
        return sent.to(tensor.device)

    # -- what all know of each other ---------------------------------------------------------

    def _exchange(self, number: int, has_more: bool) -> bool:
        """Tells the others how this member is, hears of them; whether one has more gradients."""
        part = self._part
        self._stopwatch.stop(part.end - part.first)
        samples, seconds = self._stopwatch.read()
        rows = self._meeting.gather(
            [
                *(float(self._step), float(number), float(self._vote()), float(has_more)),
                *(float(samples), seconds, self._waited_s),
                *(float(self.cutter.ahead), self._memory.most(samples)),
            ]
        )
        self._waited_s = 0.0
        self._check_together(rows)
        self.stop = max(self.stop, *(int(theirs[2]) for theirs in rows))
        self._rebalance(rows)
        self._has_exchanged = True
        return any(theirs[3] for theirs in rows)

    def _check_together(self, rows: list[list[float]]) -> None:
        mine = rows[self.member.rank]
        for rank, theirs in enumerate(rows):
            if theirs[:2] != mine[:2]:
                raise CannotShare(
                    f"rank {rank} is at backward pass {theirs[1]:.0f} of step {theirs[0]:.0f}, "
                    f"rank {self.member.rank} at {mine[1]:.0f} of {mine[0]:.0f}: one that decides "
                    "by its own samples whether it trains on them cannot share its steps"
                )

    def _rebalance(self, rows: list[list[float]]) -> None:
        for speed, theirs in zip(self._speeds, rows, strict=True):
            speed.note(theirs[5], theirs[6])
        self._balance.note([int(theirs[4]) for theirs in rows], [theirs[5] for theirs in rows])
        if better := self._balance.better(self._part.batch, [theirs[8] for theirs in rows]):
            self.cutter.change(better, int(max(theirs[7] for theirs in rows)))

    def _keep_pace(self) -> None:
        if self._pace:
            self._pace.catch_up()

    def _go_on(self) -> None:
        if self._pace:
            self._pace.go_on()
        self._stopwatch.start()


def _is_constant(rows: list[list[float]]) -> bool:
    """Whether all divide by the same number, whatever their samples: by the whole batch's, then."""
    counts, samples = zip(*(row for row in rows if row[1]), strict=True)
    return len(set(counts)) == 1 and len(set(samples)) > 1


def _refuse_wrapped(models: Sequence[torch.nn.Module]) -> None:
    for model in models:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise CannotShare("training shares the steps itself: give it the model without DDP")


@functools.cache
def _say_assumed(node: str) -> None:
    print(
        f"hadar: how a loss made by {node} is averaged cannot be seen: its gang takes it for a "
        "mean over samples",
        file=sys.stderr,
    )
