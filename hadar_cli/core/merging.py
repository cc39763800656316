"""What averaging copies is worth, in steps.

A mean of copies that did τ_i steps, weighted by τ_i, moves the model only Στ²/Στ steps. These
factors win the difference back, by the learning rate or by a longer stride.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from hadar_cli.core.model import MergeRules
from hadar_cli.errors import InputError, nearest

LR_SCALES = ("none", "sqrt", "linear")
_HURRIED = 0.0125  # of the solo phase, where the other devices have nothing else to do
# But not less than these: early updates turn too fast to be averaged, however long the job.
_FIRST_STEPS = 250
_LESS_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity", "distance", "nll", "wer", "fid")
OUTLYING = 10.0  # an update this many times longer than the others' is no training


def effective_steps(steps: Sequence[float]) -> float:
    """How far the step-weighted mean of the copies moves: Στ²/Στ steps."""
    total = sum(steps)
    return sum(tau * tau for tau in steps) / total if total else 0.0


def n_eff(steps: Sequence[float]) -> float:
    """How many equal copies would average like these: (Στ)²/Στ². Without steps, one."""
    squares = sum(tau * tau for tau in steps)
    return sum(steps) ** 2 / squares if squares else 1.0


def progress_factor(steps: Sequence[int], warmth: float = 1.0) -> float:
    """The α that makes the mean go as far as the copy with most steps did: τ_max·Στ/Στ²."""
    squares = sum(tau * tau for tau in steps)
    full = max(steps) * sum(steps) / squares if squares else 1.0
    return 1.0 + (full - 1.0) * warmth


def outlying(steps: Sequence[int], lengths: Sequence[float]) -> list[int]:
    """Which updates (L2 distance from the base) are far longer than the others' for their steps.

    Updates grow between the root of the steps (noise) and the steps (drift), so one must stand out
    from the others' median by both. Two copies cannot tell which of them is wrong.
    """
    if len(steps) < 3:
        return []

    def stands_out(i: int, growth: float) -> bool:
        rates = [length / tau**growth for length, tau in zip(lengths, steps, strict=True)]
        others = median(rates[:i] + rates[i + 1 :])
        return bool(rates[i] > OUTLYING * others > 0)

    return [i for i in range(len(steps)) if stands_out(i, 0.5) and stands_out(i, 1.0)]


def is_better(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether ``one`` is the better quality, by the first figure that both have.

    More is better, but for what is called a loss, an error, a distance or a perplexity. A model
    without any figure has diverged.
    """
    name = next((name for name in one if name in other), None)
    if name is None:
        return bool(one) and not other
    less = any(word in name.lower() for word in _LESS_IS_BETTER)
    return one[name] < other[name] if less else one[name] > other[name]


def lr_scale(rule: str, n_eff: float) -> float:
    """The factor on each copy's learning rate under ``merge.lr_scale``."""
    if rule == "none":
        return 1.0
    if rule == "sqrt":
        return math.sqrt(n_eff)
    if rule == "linear":
        return n_eff
    near = nearest(rule, LR_SCALES)
    raise InputError(
        f"unknown learning-rate scale {rule!r}",
        field="merge.lr_scale",
        fix=f"did you mean {near!r}?" if near else f"choose one of {', '.join(LR_SCALES)}",
    )


def copy_lr_scale(rules: MergeRules, expected: Sequence[int], done: int, target: int) -> float:
    """The factor on the learning rate of copies that will bring ``expected`` steps to a merge."""
    full = lr_scale(rules.lr_scale, n_eff([steps for steps in expected if steps > 0]))
    return 1.0 + (full - 1.0) * warmth(rules, done, target)


def warmth(rules: MergeRules, done: int, target: int) -> float:
    """What share of their full height the factors have, on learning rates and on merges' strides.

    It rises from none to all over the job's first ``warmup`` share of steps.
    """
    warm_steps = rules.warmup * target
    return min(1.0, done / warm_steps) if warm_steps else 1.0


def solo_steps(rules: MergeRules, target: int, others_idle: bool = False) -> int:
    """The first steps of a job, done by one copy alone: fewer while devices stand idle for it."""
    steps = rules.solo * target
    if others_idle:
        steps = max(_HURRIED * steps, min(_FIRST_STEPS, steps))
    return max(1, round(steps))
