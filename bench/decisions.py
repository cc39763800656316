"""How long one round's decision takes: Hadar beside Gavel's linear programs, in one process.

    python -m bench.decisions [--most JOBS] [--repeat N]

As many GPUs as jobs, three kinds in equal parts, a third of the jobs in gangs of 2, 4 or 8. Every
job has rates of its own, which is the worst case: jobs that share a model are priced together.
``cold`` is the first round of all, ``warm`` a later one that is decided anew; rounds in which Hadar
keeps what it decided, as it does while nothing happens, cost next to nothing and are not shown. The
ratios compare with the warm round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from bench.frame import Row, beside
from hadar_cli.core.policies.baselines.gavel import Gavel, GavelMakespan
from hadar_cli.core.policies.gangs.hadar import Hadar
from hadar_cli.core.policies.gangs.queue import Queue

SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000)
LARGEST_LP = 4096  # beyond this the programs take minutes and tell nothing new


def make_queue(jobs: int, seed: int = 0) -> Queue:
    rng = np.random.default_rng(seed)
    speed = np.array([4.0, 2.5, 1.0]) * np.exp(rng.normal(0, 0.5, (jobs, 3)))
    steps = np.exp(rng.uniform(8, 14, jobs))
    third = -(-jobs // 3)
    return Queue(
        now_s=0.0,
        slot_s=360.0,
        kinds=("v100", "p100", "k80"),
        capacity=np.full(3, third),
        per_node=np.full(3, 4),
        ids=np.arange(jobs),
        remaining=steps,
        target=steps.copy(),
        gang=rng.choice([1, 1, 1, 1, 1, 1, 2, 4, 8], jobs),
        elastic=np.zeros(jobs, dtype=bool),
        arrived_s=np.zeros(jobs),
        attained_s=np.zeros(jobs),
        rounds_on=np.zeros((jobs, 3)),
        rates=speed,
    )


def best_of(repeat: int, decide: Callable[[], object]) -> float:
    """Milliseconds of processor time, of the least disturbed run."""
    times = []
    for _ in range(repeat):
        began = time.process_time()
        decide()
        times.append(time.process_time() - began)
    return 1e3 * min(times)


def measure(jobs: int, repeat: int) -> list[float]:
    queue = make_queue(jobs)
    first = Hadar().allocate(queue)
    later = replace(queue, now_s=360.0, remaining=0.99 * queue.remaining, running=first.allocations)
    row = [
        best_of(repeat, lambda: Hadar().allocate(queue)),
        best_of(repeat, lambda: Hadar().allocate(later, first.memory)),
    ]
    if jobs <= LARGEST_LP:
        row.append(best_of(1 if jobs > 1000 else repeat, lambda: Gavel().allocate(queue)))
        row.append(best_of(1 if jobs > 1000 else repeat, lambda: GavelMakespan().allocate(queue)))
    return row


def rows(quick: bool) -> Iterator[Row]:
    measure(32, 1)  # imports and first calls
    for jobs in (32, 512) if quick else (32, 512, 2048):
        _, warm, fair, makespan = zip(*(measure(jobs, 3) for _ in range(3)), strict=True)
        yield beside(f"{jobs} jobs, against max-min", "ms", warm, "Gavel's LP", fair)
        yield beside(f"{jobs} jobs, against makespan", "ms", warm, "Gavel's LP", makespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    measure(32, 1)  # imports and first calls
    print(f"{'jobs':>6} {'cold':>9} {'warm':>9} {'max-min LP':>18} {'makespan LP':>18}   (ms)")
    for jobs in (size for size in SIZES if size <= options.most):
        cold, warm, *programs = measure(jobs, options.repeat)
        cells = " ".join(f"{ms:>9.1f} {ms / warm:>6.1f} ×" for ms in programs)
        print(f"{jobs:>6} {cold:>9.1f} {warm:>9.1f} {cells}", flush=True)


if __name__ == "__main__":
    main()
