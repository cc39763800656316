"""Gradients of all members added up, in buckets that leave while backward still goes on.

A pass is one call of backward on a step's last mini-batch: a script that clips the gradients after
it clips those of the whole batch. Every pass of a step has its own plan of buckets, because a
script with two optimizers trains other weights in each. The plan is what was found the last time;
gradients beyond it are added up once all members know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hadar_cli.node.training.gangs.errors import CannotShare
from hadar_cli.node.training.gangs.meeting import Meeting
from hadar_cli.node.training.gangs.noise import square_of

_BUCKETS = 4  # of a model, unless they would be larger or smaller than these
_LARGEST_BYTES, _SMALLEST_BYTES = 25 << 20, 1 << 18

Parameter = torch.nn.Parameter


class Bucket:
    """Some parameters whose gradients travel together, and the room for them."""

    def __init__(self, parameters: Sequence[Parameter], meeting: Meeting) -> None:
        self.parameters = parameters
        self._meeting = meeting
        kind = _number_kind(parameters[0])
        if kind.itemsize < 4 and meeting.is_on_host:  # gloo adds halves in halves
            kind = torch.float32
        counts = [_plain(p.detach()).numel() for p in parameters]
        # Behind the numbers, how many members have a gradient for each parameter at all.
        self._room = torch.zeros(sum(counts) + len(counts), dtype=kind, device=parameters[0].device)
        parts = torch.split(self._room, [*counts, len(counts)])
        self._slots, self._owners = list(parts[:-1]), parts[-1]
        self.waits_for = set(parameters)
        self._work: Any = None
        self._sent: torch.Tensor | None = None
        self._absent: list[bool] = []
        self.own_square: Any = 0.0  # of this member's gradient

    @property
    def square(self) -> Any:
        """Of everybody's gradient, once it is received."""
        return square_of(self._slots)

    @property
    def is_sent(self) -> bool:
        return self._work is not None

    def send(self, measures: bool = False) -> None:
        self._absent = [parameter.grad is None for parameter in self.parameters]
        with torch.no_grad():
            for parameter, slot in zip(self.parameters, self._slots, strict=True):
                if parameter.grad is None:
                    slot.zero_()
                elif parameter.grad.is_sparse:
                    raise CannotShare("sparse gradients cannot be shared: make them dense")
                else:
                    slot.copy_(_plain(parameter.grad).reshape(-1))
            self._owners.copy_(torch.tensor([float(not absent) for absent in self._absent]))
        self.own_square = square_of(self._slots) if measures else 0.0
        self._sent = self._room if self._meeting.is_direct else self._room.cpu()
        self._work = self._meeting.sum_later(self._sent)

    def receive(self, factor: torch.Tensor | None) -> None:
        """Waits, and puts the sums where the members' own gradients were."""
        self._meeting.wait(self._work)
        assert self._sent is not None
        if self._sent is not self._room:
            self._room.copy_(self._sent)
        with torch.no_grad():
            if factor is not None:
                self._room[: len(self._room) - len(self.parameters)].mul_(factor)
            # Numbers of a GPU are only looked at where this member had no gradient of its own.
            owners = self._owners.tolist() if any(self._absent) else [1.0] * len(self._slots)
            for parameter, slot, count in zip(self.parameters, self._slots, owners, strict=True):
                if count and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                if parameter.grad is not None:
                    grad = _plain(parameter.grad)
                    grad.copy_(slot.view_as(grad))
        self._work = self._sent = None
        self.waits_for = set(self.parameters)


class Reduction:
    """Adds up the gradients of a pass; made once a gang, with the weights that are trained."""

    def __init__(
        self,
        meeting: Meeting,
        parameters: Callable[[], Iterable[Parameter]],
        before_bucket: Callable[[], None],
        after_bucket: Callable[[], None],
    ) -> None:
        self._meeting, self._parameters = meeting, parameters
        self._before_bucket, self._after_bucket = before_bucket, after_bucket
        self._known: list[Parameter] = []  # in an order that is the same for all members
        self._hooks: dict[Parameter, Any] = {}
        self._plans: dict[int, list[Bucket]] = {}
        self._bucket_of: dict[Parameter, Bucket] = {}
        self._plan: list[Bucket] = []
        self._next = 0  # bucket to send; they leave in order, or members would mix them up
        self._is_open = False
        self.measures = False  # the squares of gradients
        self._reduced: dict[Parameter, torch.Tensor] = {}
        self._bases: dict[Parameter, torch.Tensor] = {}

    def close(self) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def forget(self) -> None:
        """A new order: whatever gradients there are belong to nothing that was added up."""
        self._reduced.clear()
        self._bases.clear()

    def open(self, number: int | None) -> None:
        """Before a pass: by its number in the step, or None where its gradients only pile up."""
        self._know_parameters()
        for parameter, grad in self._reduced.items():
            if parameter.grad is grad:  # already everybody's: only what is new is to be added
                self._bases[parameter] = grad
                parameter.grad = None
        self._reduced.clear()
        if number is None:
            return
        self._plan = self._plans.setdefault(number, [])
        self._bucket_of = {p: bucket for bucket in self._plan for p in bucket.parameters}
        self._next, self._is_open = 0, True

    def has_more(self) -> bool:
        """After backward: sends the rest of the plan; whether this member has more than that."""
        self._is_open = False
        for bucket in self._plan[self._next :]:
            bucket.send(self.measures)
        return any(p.grad is not None and p not in self._bucket_of for p in self._known)

    def finish(self, number: int, any_has_more: bool, factor: torch.Tensor | None) -> None:
        """Waits for the sums. Where some member has more, all of it is added up and planned."""
        for bucket in self._plan:
            bucket.receive(factor)
        if any_has_more:
            self._plan_anew(number, factor)
        self._add_bases()
        self._reduced = {p: p.grad for p in self._known if p.grad is not None}

    @property
    def own_square(self) -> Any:
        """Of this member's gradient of the pass, by its plan."""
        return sum(bucket.own_square for bucket in self._plan)

    @property
    def square(self) -> Any:
        """Of everybody's."""
        return sum(bucket.square for bucket in self._plan)

    def pile_up(self) -> None:
        """After a pass whose gradients wait for the step's next mini-batch."""
        self._add_bases()

    def _plan_anew(self, number: int, factor: torch.Tensor | None) -> None:
        more = [p for p in self._known if p not in self._bucket_of]
        owners = [float(p.grad is not None) for p in more]
        found = [sum(column) for column in zip(*self._meeting.gather(owners), strict=True)]
        wanted = [p for p, count in zip(more, found, strict=True) if count]
        extra = self._buckets(wanted)
        for bucket in extra:
            bucket.send()
        for bucket in extra:
            bucket.receive(factor)
        planned = [p for p in self._known if p in self._bucket_of or p in set(wanted)]
        self._plans[number] = self._buckets(planned[::-1])  # as backward comes to them

    def _buckets(self, parameters: Sequence[Parameter]) -> list[Bucket]:
        size = sum(p.numel() * p.element_size() for p in parameters)
        largest = min(_LARGEST_BYTES, max(_SMALLEST_BYTES, size // _BUCKETS))
        groups: list[list[Parameter]] = []
        held, last = 0, None
        for parameter in parameters:
            kind = (parameter.device, parameter.dtype)
            if kind != last or held >= largest:
                groups.append([])
                held, last = 0, kind
            groups[-1].append(parameter)
            held += parameter.numel() * parameter.element_size()
        return [Bucket(group, self._meeting) for group in groups]

    def _know_parameters(self) -> None:
        self._known = list(dict.fromkeys(self._parameters()))
        for parameter in self._known:
            if parameter.requires_grad and parameter not in self._hooks:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._hooks[parameter] = register(self._has_gradient)

    def _has_gradient(self, parameter: Parameter) -> None:
        bucket = self._bucket_of.get(parameter) if self._is_open else None
        if bucket is None:
            return
        if bucket.is_sent:
            raise CannotShare(
                "backward came to a weight twice, after its gradient was sent: where a script uses "
                "torch.utils.checkpoint, say use_reentrant=False"
            )
        bucket.waits_for.discard(parameter)
        while self._next < len(self._plan) and not self._plan[self._next].waits_for:
            self._before_bucket()
            self._plan[self._next].send(self.measures)
            self._after_bucket()
            self._next += 1

    def _add_bases(self) -> None:
        with torch.no_grad():
            for parameter, base in self._bases.items():
                parameter.grad = base if parameter.grad is None else base.add_(parameter.grad)
        self._bases.clear()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _number_kind(parameter: Parameter) -> torch.dtype:
    return _plain(parameter.detach()).dtype
