"""Torch without its compiler, for scripts that compile nothing.

The first optimizer that is made, and its first step, import ``torch._dynamo``: two seconds and a
hundred megabytes of every copy that starts, only to tell a compiler where not to compile. As long
as nobody has imported the compiler there is nobody to tell; from then on all is as torch has it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any

import torch

_COMPILER = "torch._dynamo"
_TOLD_ONCE = "__dynamo_disable"  # where torch keeps what it told the compiler about a function


def spare_the_compiler() -> None:
    """Has optimizers do without the compiler until someone else imports it."""
    for kind in (torch.optim.Optimizer, *torch.optim.Optimizer.__subclasses__()):
        for name, method in list(vars(kind).items()):
            if isfunction(method) and hasattr(method, "__wrapped__"):
                wrapper = Path(method.__code__.co_filename).stem, method.__code__.co_name
                if wrapper == ("_compile", "inner"):
                    _defer(method)
                if wrapper == ("optimizer", "_use_grad"):
                    setattr(kind, name, _step_without_compiler(method))


def _defer(method: Any) -> None:
    """A method that the compiler must not touch: untouched anyway, while there is none."""
    plain = method.__wrapped__

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            delattr(plain, _TOLD_ONCE)  # torch sets its own
            return method(*args, **kwargs)
        return plain(*args, **kwargs)

    setattr(plain, _TOLD_ONCE, call)


def _step_without_compiler(step: Any) -> Callable[..., Any]:
    plain = step.__wrapped__

    @functools.wraps(plain)
    def call(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return call
