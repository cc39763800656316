"""How long one round's decision takes, from 32 to 100,000 jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bench import decisions
from bench.paper.cache import Cache
from bench.paper.charts import axis, lines
from bench.paper.section import Setting, Text

TITLE = "Scalability of decisions"
SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000, 30_000, 100_000)
QUICK = (32, 128, 512, 2048, 10_000)
PAPER_S = 420.0


@dataclass(frozen=True, slots=True)
class Decision:
    """Milliseconds; None where the linear program takes too long to be worth it."""

    jobs: int
    first: float
    later: float
    max_min: float | None
    makespan: float | None


def measure(setting: Setting, cache: Cache) -> list[Decision]:
    decisions.measure(32, 1)  # imports and first calls
    sizes = QUICK if setting.quick else SIZES
    return [cache.get(f"{jobs} jobs", Decision, partial(decide, jobs)) for jobs in sizes]


def decide(jobs: int) -> Decision:
    first, later, *programs = decisions.measure(jobs, 3)
    return Decision(jobs, first, later, *(programs or (None, None)))


def write(found: list[Decision], text: Text) -> None:
    text.say(
        "As many GPUs as jobs, three kinds in equal parts, every job with speeds of its own; "
        "processor time. "
        "*First* is the first round of all; *later* one that is decided anew. Hadar keeps what it "
        "decided while nothing happens, which costs next to nothing and is not shown."
    )

    def cell(ms: float | None) -> str:
        return "–" if ms is None else f"{ms:,.1f}"

    rows = [
        (f"{d.jobs:,}", cell(d.first), cell(d.later), cell(d.max_min), cell(d.makespan))
        for d in found
    ]
    head = ("jobs", "Hadar, first", "Hadar, later", "Gavel, max-min", "Gavel, makespan")
    text.table((head[0], *(f"{name}, ms" for name in head[1:])), rows)
    series = {
        "Hadar, first": [(d.jobs, d.first) for d in found],
        "Hadar, later": [(d.jobs, d.later) for d in found],
        "Gavel, max-min": [(d.jobs, d.max_min) for d in found if d.max_min],
        "Gavel, makespan": [(d.jobs, d.makespan) for d in found if d.makespan],
    }
    points = [point for each in series.values() for point in each]
    text.picture(
        "scalability",
        "Time of one decision by the number of jobs",
        lines(
            "One round's decision",
            axis("jobs", [jobs for jobs, _ in points], is_log=True),
            axis("milliseconds", [ms for _, ms in points], is_log=True),
            series,
            dots=True,
        ),
    )
    at = next(d for d in found if d.jobs >= 2000)
    rival = f" and {(at.max_min or 0) / at.later:,.0f} × than Gavel's program" if at.max_min else ""
    text.say(
        "**Why they differ.** The paper reports less than 7 minutes at some 2,000 jobs and a curve "
        "like Gavel's. Its memo over server states grows with everything that can be free; ours "
        f"is a greedy pass at the prices of the fluid optimum: {at.first:,.0f} ms at first and "
        f"{at.later:,.0f} ms later at {at.jobs:,} jobs, {PAPER_S * 1e3 / at.first:,.0f} × less "
        f"than the paper's limit{rival} on the same machine."
    )
