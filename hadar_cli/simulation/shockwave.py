"""Shockwave's public workloads: jobs whose batch grows on the way, as in its authors' figures.

A trace tells each job's steps at the batch it begins with, and how it adapts: ``static`` never,
``accordion`` takes the largest batch outside its critical epochs, ``gns`` doubles it at given
epochs, as the gradient grows noisier. An epoch is the whole data, however large the batch, and
takes as long as the table of throughputs says for that batch. The column of durations in the trace
leaves all this out. Here a job keeps its steps, and its rate on each kind is the mean over all its
epochs. As in their simulator, gangs that are spread over nodes lose nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from hadar_cli.core.model import Job
from hadar_cli.errors import InputError, unknown
from hadar_cli.simulation.traces import Throughputs, Trace, model_key, read_text, read_trace

FIELDS, MODE = 12, 7  # of a line, and which of them says how the job adapts
MODES = ("static", "accordion", "gns")
_SAMPLES = {  # of an epoch
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
    "A3C": 4,
    "CycleGAN": 6_287,
}
_LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
# Epochs at which the batch doubles under ``gns``: by model and GPUs, then by the first batch.
_DOUBLES: Mapping[tuple[str, int], Mapping[int, tuple[int, ...]]] = {
    ("ResNet-18", 1): {16: (31, 41, 51, 71), 32: (21, 31, 51), 64: (11, 31), 128: (11,)},
    ("ResNet-18", 2): {16: (21, 31, 91, 111), 32: (11, 21, 41), 64: (21, 41), 128: (41,)},
    ("ResNet-18", 4): {16: (11, 21, 81, 91), 32: (21, 31, 61), 64: (11, 61), 128: (11,)},
    ("ResNet-50", 1): {64: (101,)},
    ("ResNet-50", 2): {32: (101, 111), 64: (81,)},
    ("ResNet-50", 4): {32: (131, 221), 64: (191,)},
    ("LM", 1): {5: (31, 41, 61, 71), 10: (11, 21, 41), 20: (11, 41), 40: (11,)},
    ("LM", 2): {5: (31, 51, 61, 71), 10: (11, 31, 41), 20: (31, 41), 40: (11,)},
    ("LM", 4): {5: (11, 31, 71, 91), 10: (11, 31, 61), 20: (11, 61), 40: (61,)},
    ("Recommendation", 1): {
        512: (21, 41, 71, 91),
        1024: (21, 51, 91),
        2048: (21, 41),
        4096: (41,),
    },
}
_NAME = re.compile(r"(\S+) \(batch size (\d+)\)")


def is_workload(path: Path) -> bool:
    return read_text(path).partition("\n")[0].count("\t") == FIELDS - 1


def read_workload(path: Path, table: Throughputs) -> Trace:
    """The jobs of a trace, each a model of its own with its rates."""
    trace, modes = read_trace(path), _modes(path)
    rates: dict[tuple[str, int, str], float] = {}
    jobs, problems = [], list(trace.problems)
    for job in trace.jobs:
        line = trace.lines[job.id]
        if (mode := modes[line]) not in MODES:
            error = unknown(f"unknown way to adapt {mode!r}", mode, MODES)
            problems.append(InputError(error.message, file=str(path), line=line, fix=error.fix))
            continue
        if job.workload in table.models:  # else its own name says best what is missing
            named = replace(job, workload=f"{job.workload} #{job.id}")
            for kind in table.kinds:
                if rate := _rate(job, mode, table, kind):
                    rates[named.workload, job.gpus, kind] = rate
            job = named
        jobs.append(job)
    return Trace(trace.source, tuple(jobs), trace.lines, tuple(problems), Throughputs(rates))


def _modes(path: Path) -> dict[int, str]:
    lines = enumerate(read_text(path).splitlines(), 1)
    return {number: line.split("\t")[MODE].strip() for number, line in lines if line.strip()}


def _rate(job: Job, mode: str, table: Throughputs, kind: str) -> float:
    """The gang's steps per second, as the mean over all epochs; 0 where it cannot run."""
    name = _NAME.fullmatch(job.workload)
    if name is None or name[1] not in _SAMPLES:
        return job.gpus * table.device_rate(job.workload, job.gpus, kind)
    model, first = name[1], int(name[2])
    samples = _SAMPLES[model]
    needed_s, epochs = 0.0, Counter(batches(model, first, job.gpus, mode, job.target_steps))
    for batch, count in epochs.items():
        rate = job.gpus * table.device_rate(model_key(model, batch), job.gpus, kind)
        if rate <= 0:
            return 0.0
        needed_s += count * samples / batch / rate
    return job.target_steps / needed_s


def batches(model: str, first: int, gpus: int, mode: str, steps: int) -> Iterator[int]:
    """The batch of every epoch of a job that would need so many steps at its first batch."""
    epochs = math.ceil(steps / math.ceil(_SAMPLES[model] / first))
    largest = _LARGEST.get(model, first)
    doubles = _DOUBLES.get((model, gpus), {}).get(first, ())
    for epoch in range(epochs):
        batch = first
        if mode == "accordion" and epoch > 0.3 * epochs and not _is_critical(model, first, epoch):
            batch = largest
        elif mode == "gns":
            times = sum(epoch >= at for at in doubles)
            if times > 1 and epoch == epochs - 1:  # so it is in their simulator
                times = 0
            batch = min(first * 2**times, largest)
        yield batch


def _is_critical(model: str, first: int, epoch: int) -> bool:
    """Whether Accordion holds to the small batch."""
    match model:
        case "ResNet-18":
            begin = 20 if first == 256 else 10
            return epoch < begin or 150 <= epoch < 160 or 250 <= epoch < 260
        case "ResNet-50":
            return epoch < 600 and epoch % 30 < 10
        case "LM":
            return epoch < 10
        case "Recommendation":
            begin = {512: 30, 1024: 30, 2048: 40}.get(first, 10)
            return epoch < begin or 60 <= epoch < 70 or 80 <= epoch < 90
    return False
