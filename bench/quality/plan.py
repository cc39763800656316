"""What is compared: the recipes, how long each workload trains, and which seeds judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.quality.course import ALONE, Recipe, steps_alone
from bench.quality.scheduled import STEPS, forked_in_mix, steps_in_mix
from hadar_cli.core.model import PAPER_MERGE, OuterStep

TUNED = (1, 2, 3, 4, 5)
HELD_OUT = (11, 12, 13, 14, 15)
TIMED = HELD_OUT[:3]  # of the time to quality, which takes longer trainings, too
FURTHER = (16, 17, 18, 19, 20)  # held out too: for the default of a lone job, which scatters most
EVERY_ROUND = 150

DEFAULT = Recipe("HadarE")
IN_MIX = Recipe("HadarE in M-5", in_mix=True)
PLAIN = Recipe("plain mean", PAPER_MERGE)
# Saved and loaded every round but never merged: what Hadar does with a job. Bit for bit the same
# as training without a stop, but for the random numbers of dropout.
UNFORKED = Recipe("unforked", speeds=ALONE, every=EVERY_ROUND)
FASTEST = Recipe("fastest alone", speeds=ALONE, every=EVERY_ROUND)  # in the time HadarE takes
BASE_LRS = (0.5, 2.0, 4.0)


def _with(name: str, **rules: object) -> Recipe:
    return replace(DEFAULT, name=name, rules=replace(DEFAULT.rules, **rules))  # type: ignore[arg-type]


CHOICES = (  # one rule changed; where it is the default, the run is the same and not repeated
    PLAIN,
    _with("`rule: mean`", rule="mean"),
    _with("`rule: progress`", rule="progress"),
    _with("`lr_scale: none`", lr_scale="none"),
    _with("`lr_scale: sqrt`", lr_scale="sqrt"),
    _with("`lr_scale: linear`", lr_scale="linear"),
    _with("`optimizer_state: average`", optimizer_state="average"),
    _with("`optimizer_state: leader`", optimizer_state="leader"),
    _with("`optimizer_state: reset`", optimizer_state="reset"),
)
AMOUNTS = (
    _with("`solo: 0`", solo=0.0),
    _with("`solo: 0.1`", solo=0.1),
    _with("`solo: 0.2`", solo=0.2),
    _with("`warmup: 0.05`", warmup=0.05),
    _with("`warmup: 0.3`", warmup=0.3),
    _with("`hand_in: bf16`", hand_in="bf16"),
    _with("`outer: {lr: 0.7, momentum: 0.9}`", outer=OuterStep()),
    _with("the same, `lr_scale: none`", lr_scale="none", outer=OuterStep()),
    replace(DEFAULT, name="merged 2 x as rarely", every=2 * DEFAULT.every),
    replace(DEFAULT, name="merged 10 x as rarely", every=10 * DEFAULT.every),
)
# What travels: two workloads on held-out seeds, as each takes a minute or two.
TRAVELLING = (
    DEFAULT,
    _with("`hand_in: int8`", hand_in="int8"),
    _with("`hand_in: int4`", hand_in="int4"),
    _with("`optimizer_every: 3`", optimizer_every=3),
    _with("`int4`, `optimizer_every: 10`", hand_in="int4", optimizer_every=10),
)
TRAVELLED = ("language_model", "recommender")
TRAVEL_SEEDS = HELD_OUT[:3]


@dataclass(frozen=True, slots=True)
class Task:
    """One training to be done."""

    workload: str
    recipe: Recipe
    steps: int
    seed: int
    looks: int = 0  # at the held-out loss on the way


def tasks(recipes: Sequence[Recipe], seeds: Sequence[int]) -> Iterator[Task]:
    """Every recipe on every workload, seed by seed; and what those of the mix are compared with."""
    for seed in seeds:
        for recipe in recipes:
            for workload in STEPS:
                yield task(workload, recipe, seed)
                if recipe.in_mix:
                    yield unforked_like(workload, recipe, seed)


def task(workload: str, recipe: Recipe, seed: int) -> Task:
    """The fastest device alone stops when HadarE has done all steps, and plans for that.

    A job that the mix's run never forked was trained unforked, and need not be trained again.
    """
    steps = STEPS[workload]
    if recipe.name == FASTEST.name:
        steps = steps_alone(DEFAULT, steps)
    if recipe.in_mix and forked_in_mix(workload, seed):
        steps = steps_in_mix(workload)
    elif recipe.in_mix:
        recipe = replace(UNFORKED, name=recipe.name)
    return Task(workload, recipe, steps, seed)


def unforked_like(workload: str, recipe: Recipe, seed: int, unforked: Recipe = UNFORKED) -> Task:
    """Unforked training with as many steps as the recipe's, but for those that stop early."""
    one = task(workload, recipe, seed)
    steps = one.steps if recipe.in_mix else STEPS[workload]
    return Task(workload, unforked, steps, seed)


def at_base_lr(recipe: Recipe, factor: float) -> Recipe:
    return replace(recipe, name=f"{recipe.name}, base rate x {factor:g}", base_lr=factor)


AT_BEST_RATE = (DEFAULT, *(r for r in CHOICES if r.name in ("`rule: mean`", "`lr_scale: sqrt`")))
JUDGED = (UNFORKED, IN_MIX, DEFAULT, PLAIN, FASTEST)
TUNING = (UNFORKED, DEFAULT, *CHOICES)
MORE_TUNING = (*AMOUNTS, *(at_base_lr(UNFORKED, factor) for factor in BASE_LRS))  # on fewer seeds
FEWER = TUNED[:2]
