"""What averaging copies is worth, in steps.

A mean of copies that did τ_i steps, weighted by τ_i, moves the model only Στ²/Στ steps. These
factors win the difference back, by the learning rate or by a longer stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from hadar_cli.core.model import MergeRules

# The factor on each copy's learning rate under ``merge.lr_scale``, by how many copies count.
LR_SCALES: Mapping[str, Callable[[float], float]] = {
    "none": lambda n_eff: 1.0,
    "sqrt": math.sqrt,
    "linear": lambda n_eff: n_eff,
}
_HURRIED = 0.0125  # of the solo phase, where the other devices have nothing else to do
# But not less than these: early updates turn too fast to be averaged, however long the job.
_FIRST_STEPS = 250
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


def late_share(lr_scale: float, merges: int, cosine: float) -> float:
    """What share of its update a copy adds that comes ``merges`` too late.

    Without its factor on the learning rate it goes as far as its steps do alone; less far by its
    age, and by how much it goes back from where the others went since, if it does.
    """
    return (1.0 + min(0.0, cosine)) / ((1 + merges) * lr_scale)


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


def copy_lr_scale(rules: MergeRules, expected: Sequence[int], done: int, target: int) -> float:
    """The factor on the learning rate of copies that will bring ``expected`` steps to a merge."""
    full = LR_SCALES[rules.lr_scale](n_eff([steps for steps in expected if steps > 0]))
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
