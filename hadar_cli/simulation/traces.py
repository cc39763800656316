"""Readers of other people's job traces and of measured throughputs.

Layouts of Gavel's and Shockwave's (tab-separated, without a header) and a plain CSV with one are
known. A file that cannot be a trace is refused; a bad line is one problem with its place, so that
all of them can be shown at once and the rest still be used.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hadar_cli.core.arrays import FloatArray
from hadar_cli.core.model import Job
from hadar_cli.errors import InputError, unknown

SPREAD = "_unconsolidated"  # what Gavel's tables append to the kind for spread gangs

# Columns by number of fields: of Shockwave's traces, of Gavel's batch and physical ones, and of its
# older Philly ones.
GAVEL_LAYOUTS = {
    12: {"model": 0, "total_steps": 5, "num_gpus": 6, "arrival_s": 11},
    10: {"model": 0, "total_steps": 5, "num_gpus": 6, "arrival_s": 9},
    7: {"model": 0, "total_steps": 4, "arrival_s": 5, "num_gpus": 6},
}
# What numbers too large and expressions too deep raise, when Python itself is to read them.
_NONSENSE = (ValueError, ArithmeticError, SyntaxError, RecursionError, MemoryError)
_BATCH = re.compile(r"batch size ([1-9][0-9]{0,8})\)$")
CSV_COLUMNS = ("job_id", "arrival_s", "model", "num_gpus", "total_steps")


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs that can be used, and what is wrong with the others."""

    source: str
    jobs: tuple[Job, ...]
    lines: Mapping[int, int]  # by job id
    problems: tuple[InputError, ...] = ()
    rates: Throughputs | None = None  # where the trace brings its own


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Steps per second of whole gangs by (model, gang size, kind), as measured."""

    gang_rates: Mapping[tuple[str, int, str], float]
    models: frozenset[str] = field(init=False)
    _sizes: Mapping[tuple[str, str], Sequence[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", frozenset(model for model, _, _ in self.gang_rates))
        sizes: dict[tuple[str, str], list[int]] = {}
        for model, size, kind in self.gang_rates:
            sizes.setdefault((model, kind), []).append(size)
        object.__setattr__(self, "_sizes", sizes)

    @property
    def kinds(self) -> tuple[str, ...]:
        known = dict.fromkeys(kind for _, _, kind in self.gang_rates)
        return tuple(kind for kind in known if not kind.endswith(SPREAD))

    def problem(self, job: Job, kinds: Sequence[str]) -> str | None:
        """Why the job's rates cannot be told, or None."""
        if job.workload not in self.models:
            return str(unknown(f"unknown model {job.workload!r}", job.workload, self.models))
        sizes = range(job.sizes[0], job.sizes[1] + 1) if job.sizes else (job.gpus,)
        if not any(self.device_rate(job.workload, n, kind) for n in sizes for kind in kinds):
            return f"{job.workload!r} on {job.gpus} GPUs runs on none of {', '.join(kinds)}"
        return None

    def device_rate(self, model: str, gang: int, kind: str) -> float:
        """Of one device in such a gang; 0 where it cannot run.

        A gang size that was never measured scales from the next smaller one that was, without
        loss: an optimistic guess, the same for every policy.
        """
        sizes = self._sizes.get((model, kind), ())
        measured = max((g for g in sizes if g <= gang), default=None)
        rate = self.gang_rates[model, measured, kind] / measured if measured else 0.0
        return max(rate, 0.0)

    def matrices(self, jobs: Sequence[Job], kinds: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Jobs × kinds, one device's steps per second: consolidated, and spread over nodes."""
        seen: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
        for job in jobs:
            key = job.workload, job.gpus
            if key not in seen:
                packed = [self.device_rate(*key, kind) for kind in kinds]
                spread = [self.device_rate(*key, kind + SPREAD) for kind in kinds]
                usable = [s if p and s else p for p, s in zip(packed, spread, strict=True)]
                seen[key] = packed, usable
        rows = [seen[job.workload, job.gpus] for job in jobs]
        packed_rows, spread_rows = zip(*rows, strict=True) if rows else ((), ())
        shape = (len(jobs), len(kinds))
        return (
            np.array(packed_rows, dtype=np.float64).reshape(shape),
            np.array(spread_rows, dtype=np.float64).reshape(shape),
        )


def read_trace(path: Path) -> Trace:
    """Any known layout, told apart by its first line."""
    text = read_text(path)
    first = text.partition("\n")[0]
    if "\t" in first:
        return _read_gavel(path, text)
    return _read_csv(path, text)


def read_throughputs(path: Path) -> Throughputs:
    """Gavel's JSON, or a CSV with model, batch_size, num_gpus, gpu_type and steps_per_s."""
    text = read_text(path)
    rates = _gavel_table(path, text) if path.suffix == ".json" else _csv_table(path, text)
    if not rates:
        raise InputError("holds no throughputs", file=str(path))
    return Throughputs(rates)


def model_key(model: str, batch_size: str | int | None) -> str:
    """As Gavel's tables spell it; a model without a batch size stands alone."""
    return f"{model} (batch size {batch_size})" if batch_size not in (None, "") else model


def why_not(job: Job, rates: Throughputs | None, kinds: Sequence[str], devices: int) -> str | None:
    """Why the job cannot run on so many devices of these kinds, None if it can."""
    if job.least_gpus > devices:
        return f"{job.name!r} asks for {job.least_gpus} GPUs; the cluster has {devices}"
    return rates.problem(job, kinds) if rates else None


# -- traces ----------------------------------------------------------------------------------


def _read_gavel(path: Path, text: str) -> Trace:
    def rows() -> Iterator[tuple[int, Mapping[str, str]]]:
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            fields = line.split("\t")
            layout = GAVEL_LAYOUTS.get(len(fields))
            if layout is None:
                raise InputError(
                    f"{len(fields)} tab-separated fields; Gavel has 7 or 10, Shockwave 12",
                    file=str(path),
                    line=number,
                    fix="check the line against the others, or use a CSV with a header",
                )
            named = {name: fields[column].strip() for name, column in layout.items()}
            yield number, {"job_id": str(number - 1), **named}

    return _gather(path, rows())


def _read_csv(path: Path, text: str) -> Trace:
    reader = csv.DictReader(text.splitlines())
    columns = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = columns
    missing = [name for name in CSV_COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            file=str(path),
            line=1,
            fix=f"a trace needs {', '.join(CSV_COLUMNS)}; batch_size is optional",
        )
    rows = [(reader.line_num, row) for row in reader]
    trace = _gather(path, iter(rows))
    kinds = [name.removeprefix("tput_") for name in columns if name.startswith("tput_")]
    rates: dict[tuple[str, int, str], float] = {}
    jobs = {line: trace_job for trace_job in trace.jobs for line in (trace.lines[trace_job.id],)}
    for line, row in rows:
        for kind in kinds:
            value = _number(row.get(f"tput_{kind}"))
            if line in jobs and value is not None:
                rates[jobs[line].workload, jobs[line].gpus, kind] = value
    own = Throughputs(rates) if rates else None
    return Trace(trace.source, trace.jobs, trace.lines, trace.problems, own)


def _gather(path: Path, rows: Iterable[tuple[int, Mapping[str, str | None]]]) -> Trace:
    jobs: list[Job] = []
    lines: dict[int, int] = {}
    problems: list[InputError] = []
    for line, row in rows:
        try:
            job = _job(row)
            if job.id in lines:
                raise _BadField("job_id", f"{job.id} is also on line {lines[job.id]}")
        except _BadField as error:
            problems.append(
                InputError(error.why, file=str(path), line=line, field=error.field, fix=error.fix)
            )
            continue
        jobs.append(job)
        lines[job.id] = line
    if not jobs and not problems:
        raise InputError("holds no jobs", file=str(path))
    return Trace(str(path), tuple(jobs), lines, tuple(problems))


class _BadField(Exception):
    def __init__(self, field: str, why: str, fix: str | None = None) -> None:
        super().__init__(why)
        self.field, self.why, self.fix = field, why, fix


def _job(row: Mapping[str, str | None]) -> Job:
    model = (row.get("model") or "").strip()
    if not model:
        raise _BadField("model", "is empty")
    key = model_key(model, (row.get("batch_size") or "").strip())
    batch = _BATCH.search(key)
    gpus, sizes = _gpus(row)
    return Job(
        id=_whole(row, "job_id", least=0),
        name=key,
        target_steps=_whole(row, "total_steps", least=1),
        batch_size=int(batch[1]) if batch else 1,
        workload=key,
        gpus=gpus,
        sizes=sizes,
        elastic=(row.get("elastic") or "").strip().lower() in ("1", "true", "yes"),
        arrives_s=_arrival(row),
        user=(row.get("user") or "").strip(),
    )


def _gpus(row: Mapping[str, str | None]) -> tuple[int, tuple[int, int] | None]:
    """A number, or a range from which a policy may choose: ``1..8``."""
    text = row.get("num_gpus") or ""
    least, dots, most = text.partition("..")
    if not dots:
        return _whole(row, "num_gpus", least=1), None
    ends = [_whole({"num_gpus": end}, "num_gpus", least=1) for end in (least, most)]
    if ends[0] > ends[1]:
        raise _BadField("num_gpus", f"{text!r} is no range", fix="write it as 1..8")
    return ends[1], (ends[0], ends[1])


def _whole(row: Mapping[str, str | None], field: str, least: int) -> int:
    value = _number(row.get(field))
    if value is None or value != int(value):
        raise _BadField(field, f"{row.get(field)!r} is not a whole number")
    if value < least:
        raise _BadField(field, f"is {int(value)}", fix=f"it must be at least {least}")
    return int(value)


def _arrival(row: Mapping[str, str | None]) -> float:
    value = _number(row.get("arrival_s"))
    if value is None or value < 0:
        raise _BadField("arrival_s", f"{row.get('arrival_s')!r} is not a time of 0 s or later")
    return value


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e15 else None


# -- throughputs -----------------------------------------------------------------------------


def _gavel_table(path: Path, text: str) -> dict[tuple[str, int, str], float]:
    """The "null" entries: jobs that have their GPUs to themselves."""
    try:
        table: Any = json.loads(text)
        return {
            (*_gavel_key(key), kind): _rate(entry["null"])
            for kind, entries in table.items()
            for key, entry in entries.items()
            if "null" in entry
        }
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", file=str(path), line=error.lineno) from error
    except (AttributeError, LookupError, TypeError, *_NONSENSE) as error:
        raise InputError(
            f"is not a table of throughputs: {error}",
            file=str(path),
            fix='expected {kind: {"(\'model (batch size N)\', gpus)": {"null": steps_per_s}}}',
        ) from error


def _gavel_key(key: str) -> tuple[str, int]:
    model, gang = ast.literal_eval(key)
    return str(model), int(gang)


def _rate(value: Any) -> float:
    rate = float(value)
    if not math.isfinite(rate):
        raise ValueError(f"{rate} is no rate")
    return rate


def _csv_table(path: Path, text: str) -> dict[tuple[str, int, str], float]:
    reader = csv.DictReader(text.splitlines())
    needed = ("model", "num_gpus", "gpu_type", "steps_per_s")
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(
            f"missing column {missing[0]}",
            file=str(path),
            line=1,
            fix=f"a table of throughputs needs {', '.join(needed)}",
        )
    rates = {}
    for row in reader:
        rate, gang = _number(row["steps_per_s"]), _number(row["num_gpus"])
        if rate is None or gang is None or gang < 1:
            raise InputError("needs numbers", file=str(path), line=reader.line_num)
        rates[model_key(row["model"], row.get("batch_size")), int(gang), row["gpu_type"]] = rate
    return rates


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from error
