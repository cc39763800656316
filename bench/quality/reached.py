"""Time to quality: when unforked training's final loss is reached, beside the fastest device alone.

A merged training is looked at after its merges, and its time is that of the first look, of the mean
over seeds, which is no worse than unforked training's last. One that gets there never in as many
counted steps is planned longer. A shared step is the step of one device: its time alone counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from bench.quality.clock import LINKS, Lab, Link
from bench.quality.costs import Costs
from bench.quality.course import Recipe
from bench.quality.plan import DEFAULT, STEPS, UNFORKED, Task, at_base_lr
from bench.quality.results import Results
from hadar_cli.workloads import CATALOG

LOOKS = 12
WANTED = {"LAN": 2.0, "100 Mb/s": 1.6, "10 Mb/s": 1.0}  # times the fastest device, left to hadar
LONGER = (1.0, 1.25, 1.6)  # times unforked training's steps
PACES = (None, 0.3)  # seconds a step of the fastest device; None: the preset's own on the lab


@dataclass(frozen=True, slots=True)
class Case:
    """One workload at one rate, over one link, with steps of some length."""

    workload: str
    base_lr: float
    link: Link
    lab: Lab

    @property
    def recipe(self) -> Recipe:
        default = DEFAULT if self.base_lr == 1 else at_base_lr(DEFAULT, self.base_lr)
        return self.lab.forked(default)

    @property
    def is_forked(self) -> bool:
        return len(self.recipe.speeds) > 1

    def task(self, longer: float, seed: int) -> Task:
        return Task(self.workload, self.recipe, round(longer * self.lab.steps), seed, LOOKS)

    def target(self, seed: int) -> Task:
        unforked = UNFORKED if self.base_lr == 1 else at_base_lr(UNFORKED, self.base_lr)
        return Task(self.workload, unforked, self.lab.steps, seed)


@dataclass(frozen=True, slots=True)
class Gain:
    """Times the fastest device alone, by way; None: not measured; 0: the loss is not reached."""

    merge: float | None
    share: float
    auto: float | None
    quality: float | None  # loss after unforked training's number of steps, by its own
    seeds: int


def cases(
    costs: Mapping[str, Costs], rates: Mapping[str, Sequence[float]], pace: float | None
) -> Iterator[Case]:
    for workload, steps in STEPS.items():
        own = costs[workload]
        asked = own if pace is None else replace(own, step_s=pace)
        for factor in rates[workload]:
            for link in LINKS:
                yield Case(workload, factor, link, Lab(asked, link, steps))


def missing(case: Case, seeds: Sequence[int], results: Results, unforked: Results) -> list[Task]:
    """What is to be trained next for it; longer ones only where shorter ones do not get there."""
    if not case.is_forked:
        return []
    for longer in LONGER:
        tasks = [case.task(longer, seed) for seed in seeds]
        if left := [task for task in tasks if task not in results]:
            return left
        if _steps_to(case, longer, seeds, results, unforked):
            return []
    return []


def gain(case: Case, seeds: Sequence[int], results: Results, unforked: Results) -> Gain:
    """Of the seeds that were trained in full so far."""
    lab, alone_s = case.lab, case.lab.alone_s()
    share = alone_s / lab.shared_s()
    exact = share if lab.shares_to_its_end else None
    if not case.is_forked:
        return Gain(1.0, share, exact or 1.0, 1.0, len(seeds))
    known = [s for s in seeds if case.task(1.0, s) in results and case.target(s) in unforked]
    if not known:
        return Gain(None, share, exact, None, 0)
    mine = fmean(results[case.task(1.0, seed)].loss for seed in known)
    quality = mine / fmean(unforked[case.target(seed)].loss for seed in known)
    trained = known
    for longer in LONGER:
        trained = [seed for seed in known if case.task(longer, seed) in results]
        if not trained:
            return Gain(None, share, exact, quality, len(known))
        if steps := _steps_to(case, longer, trained, results, unforked):
            planned = replace(lab, steps=round(longer * lab.steps))
            merged_s = planned.merged_s(case.recipe, steps)
            auto_s = planned.merged_s(case.recipe, steps, planned.solo_rate())
            auto = exact or alone_s / auto_s
            return Gain(alone_s / merged_s, share, auto, quality, len(trained))
    return Gain(0.0, share, exact or 0.0, quality, len(trained))


def _steps_to(
    case: Case, longer: float, seeds: Sequence[int], results: Results, unforked: Results
) -> int:
    """The counted steps after which the mean loss over seeds is unforked training's; 0: never."""
    target = fmean(unforked[case.target(seed)].loss for seed in seeds)
    curves = [results[case.task(longer, seed)].curve for seed in seeds]
    for looks in zip(*curves, strict=True):
        if fmean(loss for _, loss in looks) <= target:
            return looks[0][0]
    return 0


def rates_of(best: Mapping[str, float]) -> dict[str, list[float]]:
    """The factors on each workload's own rate that it is judged at."""
    return {workload: sorted({1.0, factor}) for workload, factor in best.items()}


def train_for(
    costs: Mapping[str, Costs],
    best: Mapping[str, float],
    seeds: Sequence[int],
    train: Callable[[list[Task]], None],
    curves: Results,
    unforked: Results,
) -> None:
    """Trains what is missing for these costs and rates, longer where it has to be."""
    known = [case for pace in PACES for case in cases(costs, rates_of(best), pace)]
    while tasks := [task for case in known for task in missing(case, seeds, curves, unforked)]:
        train(sorted(tasks, key=lambda task: task.seed))


def table(gains: Mapping[Case, Gain], seeds: int) -> str:
    """A row for each workload and rate, a column for each link; with how many seeds a merged
    training was judged by, where fewer than these."""
    rows: dict[tuple[str, float], list[str]] = {}
    for case, found in gains.items():
        told = (found.merge, found.share, found.auto)
        cell = " / ".join(map(_times, told))
        cell += f" ({found.seeds})" if 0 < found.seeds < seeds else ""
        rows.setdefault((case.workload, case.base_lr), []).append(cell)
    names = {row: f"{CATALOG[row[0]].short}, rate x {row[1]:g}" for row in rows}
    lines = [["", *(link.name for link in LINKS)], ["---"] * (1 + len(LINKS))]
    lines += [[names[row], *cells] for row, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _times(factor: float | None) -> str:
    if factor is None:
        return "-"
    return f"{factor:.2f}" if factor else "never"


def verdict(gains: Mapping[Case, Gain]) -> str:
    """How many of the known cases are as fast as is wanted, by link."""
    words = []
    for link, least in WANTED.items():
        known = [g.auto for case, g in gains.items() if case.link.name == link]
        fast = [auto for auto in known if auto is not None and auto >= least]
        words.append(f"{link} {least:g} x or more: {len(fast)} of {len(known)}")
    return f"{'; '.join(words)}."
