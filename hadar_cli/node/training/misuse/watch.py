"""Looks on while a script trains under orders, and refuses what would count for nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hadar_cli.node.log_phrases import (
    BEGUN_AGAIN,
    EARLY_UPDATE,
    LEFT_UNTRAINED,
    NO_UPDATE,
    OWN_STATE,
    RUNS_AHEAD,
    say_once,
)
from hadar_cli.node.training.misuse.left_out import Optimizers, refuse_schedulers_left_out
from hadar_cli.node.training.misuse.own_state import carried_names, script_frames
from hadar_cli.node.training.misuse.refused import Refused
from hadar_cli.node.training.misuse.shadows import Shadows, refused

_MOST_NAMED = 6
_NOT_TRAINING = (
    "give t.loader the training data alone, and leave the loader of an evaluation as it is; "
    "hadar evaluates by training(..., evaluate=...)"
)
_PREFETCH = "Write t.loader(Prefetcher(loader)), not Prefetcher(t.loader(loader))"
_OUTSIDE = (
    "take the batches of every update from t.loader(...), or turns of a loop without data from "
    "t.loader(range(n), batch_size=None); for gradients of several mini-batches, an epoch's last "
    "ones too, say training(..., accumulate=N)"
)


_taken: set[Path | None] = set()  # results of orders that a script has begun
_hooks: list[Any] = []  # of this process's last watch, on all optimizers


class _Updates(Protocol):
    """Of the step under way."""

    happened: bool
    leaves_rest: bool  # mini-batches came after the last one
    accumulates: bool

    @property
    def may_skip(self) -> bool: ...


class Watch:
    """Of one ``Training``, from its first order to its last."""

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any],
        kept: Mapping[str, Any],
        updates: _Updates,
    ) -> None:
        self._updates, self._kept = updates, kept
        self._shadows: Shadows | None = None
        self._models, self._given, self._schedulers = models, optimizers, schedulers
        self._optimizers = Optimizers(models, optimizers)
        self._steps = 0  # begun in this process
        self._is_in_step = self._is_in_loop = self._is_flushing = False
        self._heard = False  # a gradient or an update
        self._was_ahead = False
        self._is_ahead = False  # the second step was asked for before anything came of the first
        self._idle = 0  # steps since something was last heard or begun
        self._hooks: list[Any] = []
        self._lengths: list[int | None] = []  # of the data sets that t.loader was given
        self._groups = 0  # of the optimizers, when the first order began
        self._is_on = False  # by hand a script may do as it likes

    def begin(self, result: Path | None) -> None:
        """The first order, by where its result goes: nobody else of this process may have it."""
        if result in _taken:
            raise Refused(
                "training(...) is called a second time, and a process has its orders once",
                "call training(...) once, before the loop over epochs, with all models and "
                "optimizers in lists",
            )
        _taken.add(result)
        while _hooks:
            _hooks.pop().remove()
        _hooks.append(register_optimizer_step_pre_hook(lambda o, *_: self._optimizers.begins(o)))
        _hooks.append(register_optimizer_step_post_hook(lambda o, *_: self._updated(o)))
        self._is_on, self._groups = True, self._count_groups()

    def end(self) -> None:
        """No order is left; updates are still heard, as they would be lost."""
        self._stop_listening()

    def loader_of(self, per_epoch: int | None) -> None:
        """A data set is given to t.loader, of so many steps an epoch."""
        before = self._lengths[-1:]
        self._lengths.append(per_epoch)
        if self._is_on and before and before != [per_epoch]:
            raise Refused(
                f"t.loader is given one data set of {_steps(before[0])} an epoch and another of "
                f"{_steps(per_epoch)}: which step of the job a mini-batch is would depend on the "
                "loop that reads it",
                f"{_NOT_TRAINING}. Training data that changes must have as many steps every epoch",
            )

    # -- what is under way -------------------------------------------------------------------

    def loop_begins(self) -> None:
        if not self._is_on:
            return
        if not torch.is_grad_enabled():
            raise Refused(
                "a loop over t.loader begins where gradients are off (no_grad), so it evaluates: "
                "its mini-batches would be counted as steps that were trained",
                _NOT_TRAINING,
            )
        self._is_in_loop = True
        self._listen()

    def loop_begins_again(self) -> None:
        """No step is left for it, be it an epoch of the script's own or another part of it."""
        say_once(f"{BEGUN_AGAIN}: for epochs of its own a script writes t.epochs(range(...))")
        if idle := self._optimizers.without_update():
            say_once(f"{LEFT_UNTRAINED}: {', '.join(idle)}")

    def _look_at_the_script(self) -> None:
        """At the first step, when all that it keeps is there; a framework's loop is one, too."""
        frames = list(script_frames(sys._getframe()))
        sources = [getattr(each, "source", each) for each in self._kept.values()]
        given = [*self._models, *self._given, *self._schedulers, *sources]
        self._shadows = Shadows(self._models, given, frames)
        if names := carried_names(frames, given):
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            say_once(f"{OWN_STATE}: {', '.join(names[:_MOST_NAMED])}{more}")

    def step_begins(self) -> None:
        if not self._is_on:
            return
        if not self._steps:
            refuse_schedulers_left_out(self._given, self._schedulers)
            self._look_at_the_script()
            self._listen()
        if self._count_groups() > self._groups:
            raise Refused(
                "a parameter group came to an optimizer after training had begun: a process that "
                "goes on from here would begin without its state",
                "give the optimizer all groups before training(...), and thaw layers by "
                "requires_grad_(True): until then an optimizer leaves them alone",
            )
        self._steps += 1
        self._is_in_step = True

    def step_ends(self) -> None:
        if not self._is_on:
            return
        if not self._updates.happened and not self._updates.may_skip:
            waits = self._updates.accumulates and any(map(_has_gradient, self._given))
            if waits and self._is_in_loop:  # a framework has a mind of its own
                raise Refused(
                    "the last of a step's accumulated mini-batches made no update",
                    "(i + 1) % N == 0 or t.ends_epoch: not a count up to len(loader), for an order "
                    "may begin within an epoch",
                )
            say_once(f"{NO_UPDATE}; if it accumulates, say training(..., accumulate=N)")
        if self._updates.happened and self._updates.leaves_rest:
            say_once(f"{EARLY_UPDATE}: gradients after it are lost where another copy goes on")
        self._is_in_step = False
        self._idle += not self._heard
        self._is_ahead = self._steps == 1 and not self._heard
        if self._heard:
            self._stop_listening()

    def loop_ends(self) -> None:
        """A loop is through, or an order: it must have trained something."""
        if self._hooks and self._idle:
            raise Refused(
                f"a loop over t.loader made {self._idle} steps, and no gradient came to any weight "
                "that training was given: they would be counted as trained",
                f"{_NOT_TRAINING}. Give training the model that the loop trains, and build it "
                "before, not anew after it",
            )
        if self._is_on:
            self._listen()

    def order_ends(self, flush: Callable[[], None], begins_job: bool) -> None:
        """``flush`` makes an update of gradients that are left."""
        self._is_flushing = True
        flush()
        self._is_flushing = False
        self.loop_ends()
        if self._shadows and self._steps and (name := self._shadows.changed()):
            if begins_job:
                raise refused(name)
            say_once(f"{OWN_STATE}: {name}")  # a job is not lost for it when it has come so far

    def _count_groups(self) -> int:
        return sum(len(optimizer.param_groups) for optimizer in self._given)

    # -- what it hears -----------------------------------------------------------------------

    def _listen(self) -> None:
        """For the first gradient: one is enough, so that most steps are heard by nobody."""
        self._stop_listening()
        self._heard, self._idle = False, 0
        trained = (p for m in self._models for p in m.parameters() if p.requires_grad)
        self._hooks = [p.register_hook(self._hear) for p in trained]  # type: ignore[no-untyped-call]

    def _stop_listening(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hear(self, _: torch.Tensor) -> None:
        self._heard = True

    def _updated(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._optimizers.ends(optimizer, self._steps if self._is_in_step else None):
            return
        if not self._is_in_step and not self._is_flushing:
            raise Refused(
                "an update was made outside of the loop over t.loader, where it is of no step: "
                "it would be lost, or made by every copy anew",
                _PREFETCH if self._was_ahead else _OUTSIDE,
            )
        if self._is_ahead and self._steps > 1:
            self._was_ahead = True
            say_once(f"{RUNS_AHEAD}: every order's last is lost. {_PREFETCH}")
        self._heard |= _has_gradient(optimizer)
        self._is_ahead = False


def _steps(count: int | None) -> str:
    return "nobody knows how many steps" if count is None else f"{count} steps"


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
