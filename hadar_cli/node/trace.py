"""What a process trains and which files it reads, written down for ``hadar try``.

    python -m hadar_cli.node.trace UPDATES SCRIPT|-m MODULE ARGS…

runs a script as by hand, up to so many updates, or all (0). Under orders, a worker with
``HADAR_TRACE`` records itself in the same way. Torch's own hooks see every forward pass, loss and
update, whoever asks for them, so both can be compared, and no script has to be changed for it.

The record is a file of JSON lines: ``{"open": path}``, ``{"length": steps}``, ``{"begin": weights,
"size": their count}`` before the first update, ``{"batches": …, "losses": …, "lr": …, "weights":
…}`` for every update, ``{"replaced": sampler}`` where hadar's random numbers stand for the global
ones, ``{"ticks_too_late": bool}`` when the process ends.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hadar_cli.node.contract import TRACE

_MOST_OPENED = 2000
_NO_UPDATE_AFTER = 50  # times the wanted updates, of losses that none came of
_OF_PYTHON = (".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link")
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib", "/opt/", "/run/", "/var/")

_recorder: Recorder | None = None


class Recorder:
    """Writes the record of this process, and of those it forks."""

    def __init__(self, path: str, most_updates: int = 0) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._most_updates = most_updates
        self._opened: set[str] = set()
        self._batches: list[str] = []
        self._losses: list[float] = []
        self._updates: dict[Any, int] = {}  # by optimizer
        self._rates: dict[Any, list[float]] = {}  # of its last update
        self._wants_batch, self._begun, self._passes = True, False, 0

    def note(self, **entry: Any) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    # -- files -------------------------------------------------------------------------------

    def watch_files(self) -> None:
        sys.addaudithook(self._hear)

    def _hear(self, event: str, words: tuple[Any, ...]) -> None:
        if event != "open" or len(self._opened) >= _MOST_OPENED:
            return
        path, _, flags = words
        if isinstance(path, (str, bytes)) and flags & os.O_ACCMODE == os.O_RDONLY:
            name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - of names that are no paths
            if name not in self._opened and not _is_of_python(name):
                self._opened.add(name)
                self.note(open=name)

    # -- training ----------------------------------------------------------------------------

    def watch_training(self) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        register_module_forward_pre_hook(self._forward)
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._updated)
        backward = torch.autograd.backward

        def noted(tensors: Any, *args: Any, **options: Any) -> None:
            self._lost(tensors)
            backward(tensors, *args, **options)

        torch.autograd.backward = noted
        atexit.register(self._ends)

    def _forward(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """The first input of a pass is the batch; what is passed on inside the model is not."""
        if self._wants_batch and module.training and (found := _digest(inputs)):
            self._wants_batch = False
            self._batches.append(found)

    def _lost(self, tensors: Any) -> None:
        several = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        self._losses.append(sum(float(t.detach().float().mean()) for t in several))
        self._wants_batch = True
        self._passes += 1
        if self._most_updates and self._passes > self._most_updates * _NO_UPDATE_AFTER:
            self._leave()

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if not self._begun:
            self._begun = True
            self.note(begin=_weights(optimizer), size=_size(optimizer))

    def _updated(self, optimizer: Any, *_: Any) -> None:
        rates = self._rates[optimizer] = _rates(optimizer)
        self.note(
            batches=self._batches,
            losses=self._losses,
            lr=rates,
            weights=_weights(optimizer),
        )
        self._batches, self._losses, self._wants_batch = [], [], True
        count = self._updates[optimizer] = self._updates.get(optimizer, 0) + 1
        if count == self._most_updates:
            self._leave()

    def _ends(self) -> None:
        """Rates that still change when no update comes any more are those of a schedule that was
        ticked too late."""
        changed = [_rates(optimizer) != rates for optimizer, rates in self._rates.items()]
        self.note(ticks_too_late=any(changed))

    def _leave(self) -> None:
        sys.stdout.flush()
        os._exit(0)


def begin(path: str, most_updates: int = 0) -> None:
    """Records this process from now on. Its training too, if there is a torch: a script may leave
    it to another file to import that."""
    global _recorder
    _recorder = Recorder(path, most_updates)
    _recorder.watch_files()
    if find_spec("torch"):
        _recorder.watch_training()


def note_length(steps: int) -> None:
    """How many steps the script by itself would train."""
    if _recorder:
        _recorder.note(length=steps)


def note_replaced(sampler: str) -> None:
    """A sampler draws from global random numbers, for which the job's seed stands under hadar."""
    if _recorder:
        _recorder.note(replaced=sampler)


def _is_of_python(name: str) -> bool:
    if name.endswith(_OF_PYTHON) or name.startswith(_OF_THE_SYSTEM):
        return True
    return "site-packages" in name or name.startswith((sys.prefix, sys.base_prefix))


def _digest(value: Any) -> str:
    """Of the tensors in it; empty where there are none."""
    import torch

    digest, found = hashlib.sha256(), False
    values = list(value.values()) if isinstance(value, dict) else value
    for each in values if isinstance(values, (list, tuple)) else ():
        if isinstance(each, torch.Tensor):
            found = True
            flat = each.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{each.dtype}{tuple(each.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        elif inner := _digest(each):
            found = True
            digest.update(inner.encode())
    return digest.hexdigest()[:16] if found else ""


def _rates(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def _weights(optimizer: Any) -> list[float]:
    """Two numbers that other weights would not have: the sum, and the sum of squares."""
    total = squares = 0.0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            values = parameter.detach().double()
            total += float(values.sum())
            squares += float((values * values).sum())
    return [total, squares]


def _size(optimizer: Any) -> int:
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def main() -> None:
    updates, *words = sys.argv[1:]
    is_module = words[0] == "-m"
    begin(os.environ.pop(TRACE), int(updates))
    here = str(Path.cwd())
    sys.path += [here, f"{here}/src"]
    if is_module:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(words[0]).resolve().parent)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    # By its name: the script's `training` must find the recorder of this process.
    from hadar_cli.node import trace

    trace.main()
