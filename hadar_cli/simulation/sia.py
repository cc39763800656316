"""Sia's public workloads and profiles: jobs by application, and how fast each trains at any size.

The profiles are a folder for each application (``placements-KIND.csv`` and ``scalability-KIND.csv``
with seconds a step by placement and local batch, ``validation-BATCH.csv`` with the gradient's
square and variance in every epoch). Progress is counted in steps of the smallest batch: a step of
a larger one is worth its *gain*, by the gradient noise scale, as in Pollux and Sia. Speeds are the
mean over all epochs, and placements that were never measured are interpolated between those that
were. Each application has the slowdown by which Sia's authors calibrate their simulator.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from hadar_cli.core.arrays import FloatArray
from hadar_cli.core.estimates.goodput import gain
from hadar_cli.core.model import Job
from hadar_cli.errors import InputError, unknown
from hadar_cli.simulation.traces import Throughputs, Trace, model_key, read_text

PER_NODE = {"aws": 4, "quad": 4}  # GPUs of a node; eight of every other kind
COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
_SLOWDOWN = {"cifar10": 1.8, "ncf": 1.5, "gpt_pmp": 1.0}  # 1.2 of every other application
_BATCHES = 30  # tried between the smallest and the largest batch

Times = tuple[float, float]  # of a step, and of the exchange in it


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch of an application adds, and its gradient by batch size."""

    progress: float
    square: FloatArray
    variance: FloatArray


class Application:
    """The profiles of one application on one kind of GPU."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.name, self.kind = folder.name, kind
        self._per_node = PER_NODE.get(kind, 8)
        self._measured: dict[tuple[int, int], dict[int, list[Times]]] = {}  # by nodes and replicas
        self._placed: dict[tuple[int, ...], dict[int, list[Times]]] = {}
        for row in _rows(folder / f"placements-{kind}.csv"):
            nodes = _rotated(tuple(int(digit) for digit in str(int(row["placement"]))))
            self._placed.setdefault(nodes, {}).setdefault(int(row["local_bsz"]), []).append(
                (row["step_time"], row["sync_time"])
            )
            self._note((len(nodes), sum(nodes)), row)
        for row in _rows(folder / f"scalability-{kind}.csv"):
            self._note((int(row["num_nodes"]), int(row["num_replicas"])), row)
        self._batches, self.epochs = _epochs(folder)
        self.least_batch, self.most_batch = int(self._batches[0]), int(self._batches[-1])
        self._slowdown = _SLOWDOWN.get(folder.name, 1.2)
        self._tables: dict[int, dict[int, Times]] = {}  # by replicas

    @property
    def steps(self) -> float:
        """Of the smallest batch, to the end."""
        return sum(epoch.progress for epoch in self.epochs)

    def rate(self, replicas: int, batch: int | None = None) -> float:
        """Steps of the smallest batch per second; with the best batch of every epoch, if free."""
        batches = [batch] if batch else self._choices(replicas)
        best = np.zeros(len(self.epochs))
        for one in batches:
            setup = self._setup(replicas, one, fixed=batch is not None)
            if setup is not None:
                size, seconds = setup
                best = np.maximum(best, self._gains(size) / seconds / self._slowdown)
        if not best.all():
            return 0.0
        progress = np.array([epoch.progress for epoch in self.epochs])
        needed_s = float((progress / best).sum())
        return self.steps / needed_s

    def _choices(self, replicas: int) -> list[int]:
        least = max(self.least_batch, min(self._locals(replicas)) * replicas)
        if least > self.most_batch:
            return []
        return sorted({round(b) for b in np.geomspace(least, self.most_batch, _BATCHES)})

    def _setup(self, replicas: int, batch: int, fixed: bool) -> tuple[int, float] | None:
        """The batch that is trained, and the seconds of a step, with accumulation where needed."""
        sizes = self._locals(replicas)
        local = math.ceil(batch / replicas - 1e-8)
        passes = math.ceil(local / max(sizes) - 1e-8)
        if replicas == 1 and batch > self.least_batch:
            passes = max(2, passes)  # one batch alone tells nothing of the gradient's noise
        atomic = min(math.ceil(local / passes - 1e-8), self.most_batch // (replicas * passes))
        if atomic > max(sizes) or (atomic < min(sizes) and not fixed):
            return None
        step_s, sync_s = self._times(replicas, max(atomic, min(sizes)))
        return replicas * atomic * passes, step_s + (passes - 1) * (step_s - sync_s)

    def _gains(self, batch: int) -> FloatArray:
        """Of one step with this batch in every epoch, in steps of the smallest batch."""
        clipped = min(max(batch, self.least_batch), self.most_batch)
        square = [np.interp(clipped, self._batches, epoch.square) for epoch in self.epochs]
        variance = [np.interp(clipped, self._batches, epoch.variance) for epoch in self.epochs]
        scale = np.full(len(self.epochs), batch / self.least_batch)
        return gain(scale, np.array(square), np.array(variance))

    def _locals(self, replicas: int) -> list[int]:
        """Batches of one replica that were measured with so many."""
        return sorted(self._table(replicas))

    def _table(self, replicas: int) -> dict[int, Times]:
        """Times by local batch with the nodes filled one after another."""
        if replicas not in self._tables:
            full, rest = divmod(replicas, self._per_node)
            nodes = (self._per_node,) * full + ((rest,) if rest else ())
            table = self._placed.get(_rotated(nodes)) or self._between(len(nodes), replicas)
            self._tables[replicas] = {size: _mean(times) for size, times in table.items()}
        return self._tables[replicas]

    def _between(self, nodes: int, replicas: int) -> dict[int, list[Times]]:
        """Between the nearest numbers of replicas that were measured on so many nodes, or fewer."""
        if (nodes, replicas) in self._measured:
            return self._measured[nodes, replicas]
        on = [n for n, _ in self._measured if n <= nodes]
        near = [r for n, r in self._measured if n == max(on, default=1)]
        below = max((r for r in near if r <= replicas), default=min(near))
        above = min((r for r in near if r >= replicas), default=max(near))
        low, high = (self._measured[max(on, default=1), r] for r in (below, above))
        part = (replicas - below) / (above - below) if above > below else 0.0
        both = {size: (_mean(low[size]), _mean(high[size])) for size in low.keys() & high.keys()}
        return {
            size: [(a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1]))]
            for size, (a, b) in both.items()
        }

    def _times(self, replicas: int, local: int) -> Times:
        table, sizes = self._table(replicas), self._locals(replicas)
        step_s, sync_s = zip(*(table[size] for size in sizes), strict=True)
        return float(np.interp(local, sizes, step_s)), float(np.interp(local, sizes, sync_s))

    def _note(self, where: tuple[int, int], row: Mapping[str, float]) -> None:
        times = self._measured.setdefault(where, {}).setdefault(int(row["local_bsz"]), [])
        times.append((row["step_time"], row["sync_time"]))


class Profiles:
    """All applications of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = {path.parent.name for path in folder.glob("*/placements-*.csv")}
        self.applications = tuple(sorted(names))
        if not self.applications:
            raise InputError(
                "holds no profiles",
                file=str(folder),
                fix="expected Sia's: APPLICATION/placements-KIND.csv and validation-BATCH.csv",
            )
        self.of = cache(self._of)

    def _of(self, name: str, kind: str) -> Application | None:
        """None where the application was not measured on this kind."""
        if name not in self.applications:
            raise unknown(f"unknown application {name!r}", name, self.applications)
        folder = self.folder / name
        return Application(folder, kind) if (folder / f"placements-{kind}.csv").exists() else None

    @property
    def kinds(self) -> tuple[str, ...]:
        paths = self.folder.glob("*/placements-*.csv")
        return tuple(sorted({path.stem.removeprefix("placements-") for path in paths}))


def read_workload(
    path: Path, profiles: Profiles, capacity: Mapping[str, int], free: bool = False
) -> Trace:
    """Sia's jobs with the speeds of its profiles on so many GPUs of each kind.

    As they ask for replicas and batch; ``free``, or of the category ``adaptive``, with any number
    of GPUs and the batch that is best with it.
    """
    jobs, lines, problems = [], {}, []
    rates: dict[tuple[str, int, str], float] = {}
    reader = csv.DictReader(read_text(path).splitlines())
    if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise InputError(
            f"missing column {missing[0]}",
            file=str(path),
            line=1,
            fix=f"beside Sia's profiles, Sia's workloads: {', '.join(COLUMNS)}",
        )
    for number, row in enumerate(reader):
        line = reader.line_num
        try:
            job, sizes = _job(number, row, profiles, free, max(capacity.values(), default=1))
        except (ValueError, TypeError, KeyError) as error:
            problems.append(
                InputError(f"is not a job of Sia's: {error}", file=str(path), line=line)
            )
            continue
        except InputError as error:
            problems.append(InputError(error.message, file=str(path), line=line, fix=error.fix))
            continue
        for size in sizes:
            for kind, most in capacity.items():
                key = job.workload, size, kind
                application = profiles.of(row["application"], kind)
                if application and size <= most and key not in rates:
                    rates[key] = application.rate(size, None if job.sizes else job.batch_size)
        jobs.append(job)
        lines[job.id] = line
    return Trace(str(path), tuple(jobs), lines, tuple(problems), Throughputs(rates))


def _job(
    number: int, row: Mapping[str, str], profiles: Profiles, free: bool, widest: int
) -> tuple[Job, Sequence[int]]:
    """The job, and all sizes that it may be of."""
    name, replicas = row["application"], int(float(row["num_replicas"]))
    batch = int(float(row["batch_size"]))
    known = [one for kind in profiles.kinds if (one := profiles.of(name, kind))]
    is_free = free if row.get("category") in (None, "") else row["category"] == "adaptive"
    job = Job(
        id=number,
        name=row["name"],
        target_steps=round(known[0].steps),
        batch_size=batch,
        workload=name if is_free else model_key(name, batch),
        gpus=replicas,
        sizes=(1, widest) if is_free else None,
        arrives_s=float(row["time"]),
    )
    if replicas < 1 or batch < 1 or not 0 <= job.arrives_s < math.inf:
        raise ValueError("replicas and batch are at least 1, and its time is 0 or later")
    return job, range(1, widest + 1) if is_free else (replicas,)


def _epochs(folder: Path) -> tuple[FloatArray, list[Epoch]]:
    """Batch sizes, and what every epoch adds: the least that any of them has done by then."""
    paths = folder.glob("validation-*.csv")
    tables = {int(path.stem.split("-")[1]): list(_rows(path)) for path in paths}
    if not tables:
        raise InputError("holds no validation-BATCH.csv", file=str(folder))
    batches = sorted(tables)
    count = min(map(len, tables.values()))
    ends = [min(tables[b][e]["progress"] for b in batches) for e in range(count)]
    epochs = [
        Epoch(
            ends[e] - (ends[e - 1] if e else 0.0),
            np.array([tables[b][e]["grad_sqr"] for b in batches]),
            np.array([tables[b][e]["grad_var"] for b in batches]),
        )
        for e in range(count)
    ]
    return np.array(batches, dtype=np.float64), epochs


def _rows(path: Path) -> Iterator[Mapping[str, float]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            for row in reader:
                yield {name: float(value) for name, value in row.items()}
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"is not one of Sia's tables: {error}", file=str(path)) from error


def _rotated(nodes: Sequence[int]) -> tuple[int, ...]:
    """The same placement for all orders of its nodes that go round."""
    return min(tuple(nodes[i:]) + tuple(nodes[:i]) for i in range(len(nodes)))


def _mean(times: Sequence[Times]) -> Times:
    step_s, sync_s = np.mean(times, axis=0).tolist()
    return step_s, sync_s
