"""One process's side of its gang: its part of every mini-batch, and what all agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hadar_cli.node.contract import Membership, MemberSpeed, Update
from hadar_cli.node.training.gangs.backward import Run, Weighing, Weights, send_passes_to
from hadar_cli.node.training.gangs.cutting import Cutter, Part
from hadar_cli.node.training.gangs.errors import CannotShare
from hadar_cli.node.training.gangs.losses import Term, terms_of
from hadar_cli.node.training.gangs.meeting import Meeting
from hadar_cli.node.training.gangs.noise import NoiseScale
from hadar_cli.node.training.gangs.reduction import Reduction
from hadar_cli.node.training.gangs.shares import Balance
from hadar_cli.node.training.gangs.timing import Memory, Speed, Stopwatch

_NO_PASS = _ORDER_ENDS = -1
_WIDTH = 16  # numbers that are told at once, whatever they are: those of another kind are noticed
_OF_STEP, _OF_LOSS = range(2)
_UNLIKE = 1e-3  # of weights, or their absolute sum; devices round and add in their own ways
_LOOKED_AT = 256  # numbers of the weights
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

    def some_weights(self) -> tuple[list[float], list[float]]:
        """As many numbers of all weights, and how far from rounding they are to be trusted."""
        weights = [p.detach().reshape(-1) for p in dict.fromkeys(self.parameters()) if p.numel()]
        taken = weights[:: -(-len(weights) // _LOOKED_AT)]
        each = _LOOKED_AT // max(1, len(taken))
        found, apart = [], []
        for weight in taken:
            some = weight[:: -(-len(weight) // each)][:each]
            numbers = torch.view_as_real(some)[..., 0] if some.is_complex() else some
            found.append(numbers.float().cpu())  # weights may lie on several devices
            apart += [max(_UNLIKE, 16 * _rounding(numbers.dtype))] * len(numbers)
        return (torch.cat(found).tolist() if found else []), apart

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

    def begin_step(self, samples: int) -> None: ...

    def catch_up(self) -> None: ...

    def pass_over(self) -> None: ...

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
        self._reduction = Reduction(
            self._meeting, trained.parameters, self._keep_pace, self._pass_over
        )
        self._stopwatch, self._memory = Stopwatch(device), Memory(device)
        self._device = device
        self.stop = GO
        self._vote: Callable[[], int] = lambda: GO
        self._hear: Callable[[Any, Any], None] = lambda total, weight: None
        self._in_step = self._in_pass = self._has_exchanged = False
        self._step = self._steps = self._passes = self._life = 0
        self._batches = self._batches_left = 0
        self._part = Part(0, 0, 0, 1)
        self._weighing = Weighing(self._tell_of_loss)
        self.mean_over: float | None = None  # what the script says of its next loss
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
        self._steps, self._life = self._steps + 1, self._life + 1
        if self._steps == 1:
            self._go_on()

    def begin_batch(self) -> None:
        self._part = self.cutter.next_part()
        self._batches_left -= 1
        self._loss_weight = self._part.weight
        if self._pace and self._batches_left == self._batches - 1:
            self._pace.begin_step(self._part.end - self._part.first)

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

    def _compare_weights(self) -> None:
        """They are the same numbers for all, or nearly: all make the same updates."""
        mine, apart = self._trained.some_weights()
        rows = self._meeting.gather([*mine, *[0.0] * (_LOOKED_AT - len(mine))])
        largest = max((abs(number) for number in rows[0]), default=0.0)
        for rank, theirs in enumerate(rows):
            for first, own, part in zip(rows[0], theirs, apart, strict=False):
                if abs(own - first) > part * (max(abs(own), abs(first)) + 0.01 * largest):
                    raise CannotShare(
                        f"the weights of rank {rank} are no longer those of rank 0: something of a "
                        "member's own samples has reached them by another way than backward, such "
                        "as a learning rate that follows its loss, or torch.autograd.grad"
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
        self._keep_pace()  # all along the step, or members would want the processor all at once
        weights = self._weigh(roots, seeds)
        self._loss_weight, self._in_pass = weights.loss, True
        try:
            self._reduction.open(self._passes if is_last else None)
            weights.run(run, roots, seeds)
            self._keep_pace()
            if is_last:
                self._add_up(weights.count, weights.total)
            else:
                self._reduction.pile_up()
        finally:
            self._in_pass = False

    def _weigh(self, roots: Sequence[torch.Tensor], seeds: Any) -> Weights:
        part = self._part
        if self._piece().count > 1:  # whose shares count samples, too
            return Weights((), part.weight, part.weight)
        told, self.mean_over = self.mean_over, None
        terms = terms_of(roots, seeds) if told is None else [Term.told(told)]
        return self._weighing.weigh(terms, self._passes, part, self._batches)

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
            self._weighing.note_total(found[0])
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
        samples, seconds = self._stopwatch.read()
        rows = self._tell_all(
            _OF_STEP,
            number,
            [
                *(float(self._vote()), float(has_more), float(samples), seconds, self._waited_s),
                *(float(self.cutter.ahead), self._memory.most(samples)),
            ],
        )
        self._waited_s = 0.0
        self.stop = max(self.stop, *(int(theirs[0]) for theirs in rows))
        self._rebalance(rows)
        is_first, is_rare = number <= 0, not self._life & (self._life - 1)
        if self._step == _ORDER_ENDS or (is_first and is_rare):  # ever more rarely
            self._compare_weights()
        self._has_exchanged = True
        return any(theirs[1] for theirs in rows)

    def _tell_of_loss(self, numbers: Sequence[float]) -> list[list[float]]:
        """What has to be known before backward; a member that waits for it does not work."""
        self._keep_pace()
        found = self._tell_all(_OF_LOSS, self._passes, numbers)
        self._go_on()
        return found

    def _tell_all(self, about: int, number: int, told: Sequence[float]) -> list[list[float]]:
        """Everyone's numbers, told at the same place of the same step."""
        self._stopwatch.stop(self._part.end - self._part.first)
        head = [float(about), float(self._step), float(number), float(len(told))]
        found: list[list[float]] = [[] for _ in range(self.member.size)]
        room = _WIDTH - len(head)
        for first in range(0, max(1, len(told)), room):
            row = [*head, *told[first : first + room]]
            rows = self._meeting.gather([*row, *[0.0] * (_WIDTH - len(row))])
            self._check_together(rows)
            for mine, theirs in zip(found, rows, strict=True):
                mine += theirs[len(head) : len(row)]
        return found

    def _check_together(self, rows: list[list[float]]) -> None:
        mine = rows[self.member.rank][:4]
        for rank, (about, step, number, count) in enumerate(row[:4] for row in rows):
            if [step, number] != mine[1:3]:
                raise CannotShare(
                    f"rank {rank} is at backward pass {number:.0f} of step {step:.0f}, "
                    f"rank {self.member.rank} at {mine[2]:.0f} of {mine[1]:.0f}: one that decides "
                    "by its own samples whether it trains on them cannot share its steps"
                )
            if [about, count] != [mine[0], mine[3]]:
                raise CannotShare(
                    f"the loss of rank {rank} is not made as that of rank {self.member.rank}: one "
                    "that adds up what its own samples ask for cannot share its steps"
                )

    def _rebalance(self, rows: list[list[float]]) -> None:
        """By all members' samples, seconds, seconds waited, batches cut ahead, room for samples."""
        samples, seconds, waited, ahead, most = zip(*(row[2:] for row in rows), strict=True)
        for speed, worked_s, waited_s in zip(self._speeds, seconds, waited, strict=True):
            speed.note(worked_s, waited_s)
        self._balance.note([int(count) for count in samples], seconds)
        if better := self._balance.better(self._part.batch, most):
            self.cutter.change(better, int(max(ahead)))

    def _keep_pace(self) -> None:
        if self._pace:
            self._pace.catch_up()

    def _pass_over(self) -> None:
        if self._pace:
            self._pace.pass_over()

    def _go_on(self) -> None:
        if self._pace:
            self._pace.go_on()
        self._stopwatch.start()


def _rounding(kind: torch.dtype) -> float:
    return float(torch.finfo(kind).eps) if kind.is_floating_point else 0.0


def _refuse_wrapped(models: Sequence[torch.nn.Module]) -> None:
    for model in models:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise CannotShare("training shares the steps itself: give it the model without DDP")
