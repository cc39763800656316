"""Quality of forked training: see page.py for what is compared and results.py for what is kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.quality import costs
from bench.quality.page import best_base_lr, judgement, page
from bench.quality.plan import (
    AT_BEST_RATE,
    DEFAULT,
    FEWER,
    FURTHER,
    HELD_OUT,
    JUDGED,
    MORE_TUNING,
    PLAIN,
    STEPS,
    TIMED,
    TRAVEL_SEEDS,
    TRAVELLED,
    TRAVELLING,
    TUNED,
    TUNING,
    UNFORKED,
    Task,
    at_base_lr,
    task,
    tasks,
)
from bench.quality.reached import train_for
from bench.quality.results import Kept, Results, measure
from bench.quality.scheduled import keep

ROOT = Path(__file__).parents[2]


def at_best_rates(results: Results) -> list[Task]:
    """The judged recipes once more, each workload at the base rate that serves it best."""
    chosen = []
    for workload, steps in STEPS.items():
        factor = best_base_lr(results, workload)
        for recipe in (UNFORKED, DEFAULT, PLAIN):
            one = at_base_lr(recipe, factor)
            chosen += [Task(workload, one, steps, seed) for seed in HELD_OUT]
        for recipe in AT_BEST_RATE:
            one = at_base_lr(recipe, factor)
            chosen += [Task(workload, one, steps, seed) for seed in FEWER]
    return chosen


def travelling() -> list[Task]:
    """Smaller hand-ins, and whole ones of the same day beside them."""
    return [
        task(workload, recipe, seed)
        for workload in TRAVELLED
        for seed in TRAVEL_SEEDS
        for recipe in TRAVELLING
    ]


def time_to_quality(kept: Kept, processes: int) -> None:
    best = {workload: best_base_lr(kept.quality, workload) for workload in STEPS}

    def train(missing: list[Task]) -> None:
        measure(missing, kept.curves, processes)

    train_for(kept.costs, best, TIMED, train, kept.curves, kept.quality)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two held-out seeds, few recipes")
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    parser.add_argument("--travel", action="store_true", help="only what smaller hand-ins cost")
    parser.add_argument("--time", action="store_true", help="only the time to quality")
    parser.add_argument("--costs", action="store_true", help="measure what the lab costs, and end")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=Path, nargs="+", help="keep the merges of these runs of M-5")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results/quality.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/quality.md")
    args = parser.parse_args()

    args.results.parent.mkdir(exist_ok=True)
    if args.runs:
        keep(args.runs)
    if args.costs:
        costs.measure()
        return
    kept = Kept.beside(args.results)
    results, travel = kept.quality, kept.travel
    if args.quick:
        measure(tasks(JUDGED, HELD_OUT[:2]), results, args.processes)
        print(judgement(results, HELD_OUT[:2]))
        return
    if args.travel:
        measure(travelling(), travel, args.processes)
    elif args.time:
        time_to_quality(kept, args.processes)
    elif not args.page:
        measure(tasks((UNFORKED, DEFAULT), FURTHER), results, args.processes)
        measure(tasks(JUDGED, HELD_OUT), results, args.processes)
        measure(tasks(TUNING, TUNED), results, args.processes)
        measure(tasks(MORE_TUNING, FEWER), results, args.processes)
        measure(at_best_rates(results), results, args.processes)
        measure(travelling(), travel, args.processes)
        time_to_quality(kept, args.processes)
    args.out.write_text(page(kept))
    print(judgement(results, HELD_OUT, FURTHER))


if __name__ == "__main__":
    main()
