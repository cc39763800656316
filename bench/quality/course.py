"""One training of one workload, forked or not: real steps and real merges on virtual time.

Every copy is the workload's own script under the same contract as on a node: it loads the merged
checkpoint, trains its slice of the steps at its learning rate and leaves its weights, which the
head's own merge makes one again. Only the devices are virtual: copies train one after another in
this process, each for the steps that a device of its speed would have done.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench.quality.scheduled import merges_in_mix
from hadar_cli.core.estimates.merging import copy_lr_scale, solo_steps, warmth
from hadar_cli.core.model import MergeRules
from hadar_cli.node.contract import Order
from hadar_cli.node.training.checkpoints import checkpoint
from hadar_cli.node.training.checkpoints.rounding import Rounding
from hadar_cli.weights.merging import Contribution, merge
from hadar_cli.workloads import CATALOG

# The paper's lab (nodes.toml): TITAN RTX, T4, T400, RTX 3090 and A2000, the fastest being one.
LAB = (0.80, 0.42, 0.12, 1.00, 0.45)
ALONE = (1.00,)
MERGING = 0.05  # of the time: what `merge.every_s: auto` allows it


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a job is trained: on which devices, merged how and how often (in counted steps)."""

    name: str
    rules: MergeRules = MergeRules()  # noqa: RUF009 (frozen)
    every: int = 10
    speeds: tuple[float, ...] = LAB
    base_lr: float = 1.0  # a factor on the workload's own
    in_mix: bool = False  # on the devices, and merged when, a real run of M-5 did it


@dataclass(frozen=True, slots=True)
class Outcome:
    """Held-out loss and the workload's own measure; time in steps of the fastest device.

    ``leader`` is the loss of the copy with most steps in the last merge, had it been kept instead.
    """

    loss: float
    measure: float
    time: float
    leader: float | None = None
    bytes_in: float | None = None  # what the copies handed in for a merge, on average
    curve: tuple[tuple[int, float], ...] = ()  # held-out loss after so many counted steps, if asked


def shares(total: int, speeds: Sequence[float]) -> list[int]:
    """``total`` steps divided over devices by their speeds, by largest remainders."""
    exact = [total * speed / sum(speeds) for speed in speeds]
    counts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(speeds)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def meetings(recipe: Recipe, steps: int, workload: str = "", seed: int = 0) -> Iterator[list[int]]:
    """The steps of every device until each merge; the first ones are the fastest device's alone."""
    if recipe.in_mix:
        yield from merges_in_mix(workload, seed)
        return
    done = solo(recipe, steps) if len(recipe.speeds) > 1 else 0
    if done:
        yield [done if speed == max(recipe.speeds) else 0 for speed in recipe.speeds]
    while done < steps:
        counted = min(recipe.every, steps - done)
        yield shares(counted, recipe.speeds)
        done += counted


def solo(recipe: Recipe, steps: int) -> int:
    """The first steps, of the fastest device alone: it is the only job, so the others idle."""
    return min(steps, solo_steps(recipe.rules, steps, others_idle=True))


def time_taken(recipe: Recipe, steps: int) -> float:
    """In steps of the fastest device, merging included."""
    time = 0.0
    for counts in meetings(recipe, steps):
        forked = sum(count > 0 for count in counts) > 1
        rate = sum(recipe.speeds) / (1 + MERGING) if forked else max(recipe.speeds)
        time += sum(counts) / rate
    return time


def steps_alone(recipe: Recipe, steps: int) -> int:
    """What the fastest device alone does while the recipe does ``steps``."""
    return round(time_taken(recipe, steps) * max(recipe.speeds))


def run(
    workload: str, recipe: Recipe, steps: int, seed: int, folder: Path, looks: int = 0
) -> Outcome:
    """Train the workload's ``tiny`` preset for ``steps`` counted steps.

    With ``looks`` its held-out loss is taken about so often in the second half of them.
    """
    script = _Script(workload, recipe.base_lr, steps, seed, folder)
    base: Path | None = None
    done = handed_in = merges = 0
    curve: list[tuple[int, float]] = []
    for generation, counts in enumerate(meetings(recipe, steps, workload, seed)):
        scale = copy_lr_scale(recipe.rules, counts, done, steps)
        begun, forked = done, sum(map(bool, counts)) > 1
        rules = recipe.rules if forked else MergeRules()
        script.meet(base, done, generation, scale, rules)
        contributions = []
        for copy, count in enumerate(counts):
            if count:
                out = folder / f"copy{copy}"
                script.train(copy, range(done, done + count), out)
                contributions.append(Contribution(copy, out, count, script.batch_size))
                done += count
        merged = folder / f"merged{generation % 2}"
        warm = warmth(recipe.rules, begun, steps)
        made = merge(contributions, base, merged, recipe.rules, warm)
        if made.refused:
            return Outcome(math.inf, math.nan, math.inf)  # diverged: NaN, or far from the others
        base = merged
        handed_in += made.bytes_in if forked else 0
        merges += forked
        script.keep_optimizer(merged, made.has_optimizer)
        if looks and done >= steps / 2 * (1 + len(curve) / looks):
            curve.append((done, script.evaluate(merged)[0]))
    assert base is not None
    time = math.nan if recipe.in_mix else time_taken(recipe, steps)
    leader = max(contributions, key=lambda copy: copy.steps)
    can_compare = forked and recipe.rules.hand_in == "full"  # an update is no model
    compared = script.evaluate(leader.path)[0] if can_compare else None
    bytes_in = handed_in / merges if merges else None
    return Outcome(*script.evaluate(base), time, compared, bytes_in, tuple(curve))


_orders = itertools.count()  # done in this process, each with a result of its own


class _Script:
    """A workload's script under orders, as a node's agent would give them."""

    def __init__(self, workload: str, base_lr: float, steps: int, seed: int, folder: Path) -> None:
        self._workload, self._base_lr, self._seed = CATALOG[workload], base_lr, seed
        self._folder = folder
        self._module = _prepared(self._workload.module)
        self.batch_size = self._workload.batch_size["tiny"]
        self._order = Order(0, (), math.inf, total_steps=steps, job_seed=_seed(seed))
        self._workers: dict[int, _Worker] = {}
        self._optimizer = folder / "optimizer"

    def meet(
        self, base: Path | None, done: int, generation: int, lr_scale: float, rules: MergeRules
    ) -> None:
        """From now on copies start from ``base``, after ``done`` steps of the job."""
        self._generation = generation
        self._order = replace(
            self._order,
            checkpoint_in=base,
            global_step=done,
            lr_scale=lr_scale,
            hand_in=rules.hand_in if base else "full",
            keeps_optimizer=base is not None and generation % rules.optimizer_every != 0,
            optimizer_in=self._optimizer if self._optimizer.exists() else None,
        )

    def keep_optimizer(self, merged: Path, has_optimizer: bool) -> None:
        """For copies to come, once there are weights without the optimizer's state."""
        if has_optimizer:
            shutil.copyfile(merged, self._optimizer)

    def train(self, copy: int, steps: range, out: Path) -> None:
        seed = _seed(self._seed, self._generation, copy)
        slices = ((steps.start, steps.stop),)
        with self._workers.setdefault(copy, _Worker()).at_work():
            self._run(
                replace(self._order, checkpoint_out=out, steps=len(steps), slices=slices, seed=seed)
            )

    def evaluate(self, weights: Path) -> tuple[float, float]:
        """Held-out loss, and the workload's own measure."""
        result = self._run(replace(self._order, checkpoint_in=weights, evaluate=True))
        quality = result["evaluation"]
        return quality["loss"], quality[self._workload.metric]

    def _run(self, order: Order) -> dict[str, Any]:
        path = self._folder / f"result-{next(_orders)}"
        order = replace(order, result=path)
        with _environment(order.variables()), _scaled(self._module, self._base_lr):
            self._module.main(["--preset", "tiny"])
        result: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        return result


class _Worker:
    """What a copy's process keeps between its orders, which all run in this one."""

    def __init__(self) -> None:
        self._rounding = Rounding()
        self._states: list[dict[str, Any]] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        load, save = checkpoint.load, checkpoint.save

        def load_as_warm(path: Path, parts: Any, optimizer_in: Path | None, _: bool) -> Any:
            object.__setattr__(parts, "rounding", self._rounding)
            for optimizer, state in zip(parts.optimizers, self._states, strict=False):
                optimizer.load_state_dict(state)
            return load(path, parts, optimizer_in, was_merged=bool(self._states))

        def save_and_keep(path: Path, parts: Any, *args: Any, **kwargs: Any) -> None:
            save(path, parts, *args, **kwargs)
            self._states = [deepcopy(one.state_dict()) for one in parts.optimizers]

        vars(checkpoint).update(load=load_as_warm, save=save_and_keep)
        try:
            yield
        finally:
            vars(checkpoint).update(load=load, save=save)


@functools.cache
def _prepared(name: str) -> ModuleType:
    """The script, made to draw its data once only and to measure a loss beside its own measure."""
    torch.set_num_threads(1)
    module = importlib.import_module(name)
    measure, build, module_load = module.evaluate, module.build_model, module.load
    built: list[torch.nn.Module] = []

    def evaluate(model: torch.nn.Module, held_out: Any) -> dict[str, float]:
        quality: dict[str, float] = measure(model, held_out)
        return {**quality, "loss": _loss(module, quality, model, held_out)}

    def build_model(*args: Any) -> torch.nn.Module:
        """A new one only for first weights; a checkpoint overwrites all of an old one's."""
        if not built or not os.environ["HADAR_CKPT_IN"]:
            built[:] = [build(*args)]
        return built[0].train()

    # Of IC's own 300 held-out images a dozen are missed: too few to tell two models apart.
    patterns = getattr(module, "draw_patterns", None)
    drawn = functools.partial(patterns, held_out=2000) if patterns else None
    load = functools.cache(lambda *args: drawn() if drawn else module_load(*args))
    vars(module).update(load=load, evaluate=evaluate, build_model=build_model)
    return module


def _loss(
    module: ModuleType, quality: dict[str, float], model: torch.nn.Module, held_out: Any
) -> float:
    if "perplexity" in quality:
        return math.log(quality["perplexity"])
    if "mse" in quality:
        return quality["mse"]
    batches = DataLoader(held_out, batch_size=100, collate_fn=getattr(module, "pad", None))
    return fmean(module.batch_loss(model, batch).item() for batch in batches)


@contextmanager
def _scaled(module: ModuleType, factor: float) -> Iterator[None]:
    """The workload's base learning rate, times ``factor``."""
    build = module.build_optimizer

    def build_scaled(*args: Any) -> tuple[Any, Any]:
        optimizer, scheduler = build(*args)
        for group in optimizer.param_groups:
            group["lr"] *= factor
            group["initial_lr"] *= factor
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
        return optimizer, scheduler

    vars(module)["build_optimizer"] = build_scaled
    try:
        yield
    finally:
        vars(module)["build_optimizer"] = build


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _seed(*parts: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "little")
