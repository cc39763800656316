"""What a script uses and did not give to ``training``: it would stay behind with every process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.lr_scheduler import LRScheduler

from hadar_cli.node.training.misuse.refused import Refused

_SCHEDULER_FIX = (
    "training(model, optimizer, scheduler), or a list of several. One that is done with, as of a "
    "search for a learning rate: `del` it"
)
_OPTIMIZER_FIX = (
    "training(model, [one, other]), with every optimizer of the loop, made before it. Of one "
    "around another (SAM, Lookahead), give the inner one, whose step is called"
)


def refuse_schedulers_left_out(
    optimizers: Sequence[torch.optim.Optimizer], given: Sequence[Any]
) -> None:
    """Raises Refused if a scheduler moves the rate of one of the optimizers and was not given."""
    known = {id(scheduler) for scheduler in _with_parts(given)}
    for optimizer in optimizers:
        for scheduler in _schedulers_of(optimizer):
            if id(scheduler) not in known:
                raise Refused(
                    f"{type(scheduler).__name__} moves the learning rate and was not given to "
                    "training: it would start anew in every process, and not know of the steps of "
                    "other copies",
                    _SCHEDULER_FIX,
                )


def _schedulers_of(optimizer: torch.optim.Optimizer) -> Iterator[LRScheduler]:
    """All that there are: nobody keeps a list, but each of them refers to its optimizer."""
    for owner in gc.get_referrers(optimizer):
        if type(owner) is dict and owner.get("optimizer") is optimizer:
            yield from (o for o in gc.get_referrers(owner) if isinstance(o, LRScheduler))
        elif isinstance(owner, LRScheduler) and owner.optimizer is optimizer:
            yield owner


def _with_parts(schedulers: Iterable[Any]) -> Iterator[Any]:
    """Schedulers, and those that they are made of."""
    for scheduler in schedulers:
        yield scheduler
        for value in vars(scheduler).values():
            inner = value if isinstance(value, (list, tuple)) else [value]
            yield from _with_parts(s for s in inner if isinstance(s, LRScheduler))


class Optimizers:
    """Hears every optimizer's step, those given to ``training`` and any other."""

    def __init__(
        self, models: Sequence[torch.nn.Module], given: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._models, self._given = models, {id(optimizer) for optimizer in given}
        self._idle = {id(o): f"{i} ({type(o).__name__})" for i, o in enumerate(given, start=1)}
        self._depth = self._steps_given = 0  # of those that were given
        self._before: dict[int, int] = {}  # steps of those given, when another one's began
        self._seen = WeakKeyDictionary[torch.optim.Optimizer, int]()  # others, and when first

    def begins(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._given:
            self._depth += 1
            self._steps_given += 1
            self._idle.pop(id(optimizer), None)
        else:
            self._before[id(optimizer)] = self._steps_given

    def without_update(self) -> list[str]:
        """Of those that were given, by their places."""
        return list(self._idle.values())

    def ends(self, optimizer: torch.optim.Optimizer, step: int | None) -> bool:
        """Whether it was one of those given. Another one is refused, unless it trains something of
        the moment, as the inner loop of MAML does, or outside of steps, as an evaluation does."""
        if id(optimizer) in self._given:
            self._depth -= 1
            return True
        is_around_given = self._before.pop(id(optimizer), 0) < self._steps_given
        if is_around_given or self._depth:
            return False
        lasts = step is not None and self._seen.setdefault(optimizer, step) != step
        if lasts or self._trains_the_models(optimizer):
            raise Refused(
                f"{type(optimizer).__name__} made an update and was not given to training: what it "
                "trains would neither be handed in whole nor follow the steps of other copies",
                _OPTIMIZER_FIX,
            )
        return False

    def _trains_the_models(self, optimizer: torch.optim.Optimizer) -> bool:
        ours = {id(parameter) for model in self._models for parameter in model.parameters()}
        return any(id(p) in ours for group in optimizer.param_groups for p in group["params"])
