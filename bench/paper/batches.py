"""Batches of jobs like those of the paper's trace-driven evaluation, drawn from a seed.

The paper draws 480 jobs from a Microsoft trace, sorts them by the GPU-hours they need into small
(0-1), medium (1-10), large (10-50) and extra-large (60-100), and gives each a model of that size.
Here sizes and gangs are drawn with the shares that the trace has. Jobs are written and read in
Gavel's format, so that a file of the real trace can stand in for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hadar_cli.simulation.traces import Throughputs, Trace, read_throughputs, read_trace

# Steps/s of whole gangs, to three digits, from scheduler/simulation_throughputs.json of Gavel
# (github.com/stanford-futuredata/gavel); one batch size for each model of the paper's table.
TABLE = Path(__file__).with_name("throughputs.csv")

# Share of jobs, GPU-hours on a V100, and the models of that size in the paper's table.
SIZES: Mapping[str, tuple[float, tuple[float, float], tuple[str, ...]]] = {
    "S": (0.09, (0.0, 1.0), ("ResNet-18 (batch size 128)",)),
    "M": (0.54, (1.0, 10.0), ("CycleGAN",)),
    "L": (0.31, (10.0, 50.0), ("LM (batch size 80)", "Transformer (batch size 64)")),
    "XL": (0.06, (60.0, 100.0), ("ResNet-50 (batch size 64)",)),
}
FASTEST = "v100"
GANGS = {1: 0.72, 2: 0.11, 4: 0.12, 8: 0.05}


def models_of(table: Throughputs) -> dict[str, tuple[str, ...]]:
    """By size: all batch sizes that the table has of the models that the paper names."""
    found = {}
    for size, (_, _, named) in SIZES.items():
        stems = {name.partition(" (")[0] for name in named}
        found[size] = tuple(sorted(m for m in table.models if m.partition(" (")[0] in stems))
    return found


def draw(seed: int, jobs: int, table: Throughputs, shorter: float = 1.0) -> list[str]:
    """Lines of a trace in Gavel's format, of jobs that are all there from the beginning.

    ``shorter`` divides their lengths, for batches so large that days of theirs tell nothing new.
    """
    rng = np.random.default_rng([seed, jobs])
    models = models_of(table)
    sizes, gangs = list(SIZES), list(GANGS)
    lines = []
    for _ in range(jobs):
        size = sizes[rng.choice(len(sizes), p=[SIZES[s][0] for s in sizes])]
        low, high = SIZES[size][1]
        model = str(rng.choice(models[size]))
        # Only what was measured in gangs trains in gangs; small jobs do not ask for any.
        may_gang = size != "S" and (model, 2, FASTEST) in table.gang_rates
        gang = int(rng.choice(gangs, p=list(GANGS.values()))) if may_gang else 1
        gpu_hours = max(0.02, rng.uniform(low, high)) / shorter
        steps = round(3600 * gpu_hours * table.device_rate(model, gang, FASTEST))
        lines.append(_line(model, max(1, steps), gang))
    return lines


def _line(model: str, steps: int, gang: int) -> str:
    fields: Sequence[object] = (model, "-", "-", "-", 1, steps, gang, 1, "-1.000000", 0)
    return "\t".join(map(str, fields))


def batch(seed: int, jobs: int, table: Throughputs, shorter: float = 1.0) -> Trace:
    """A batch by way of a file, as any other trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"batch{jobs}_seed{seed}.trace"
        path.write_text("\n".join(draw(seed, jobs, table, shorter)) + "\n")
        return read_trace(path)


def own_table() -> Throughputs:
    return read_throughputs(TABLE)
