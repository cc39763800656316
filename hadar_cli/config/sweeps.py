"""Reads the fields of a job that make it a sweep: ``grid``, ``sample``, ``optuna``, ``promote``,
``stop``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

from hadar_cli.config.fields import Reader, Spot, integer, list_of, number, record, scalar, table_of
from hadar_cli.config.fields import text as words
from hadar_cli.core.estimates.quality import higher_is_better
from hadar_cli.core.model import Job, Plateau, Promotion, Search, Trial, Value
from hadar_cli.suggestions import suggest

MOST_TRIALS = 10_000
_PARAMETER = re.compile(r"(env\.)?-{0,2}[A-Za-z_][\w.-]*")
_LONGEST_NAME = 60
_DIGITS = 4  # of drawn numbers: names and tables stay readable


def _range(value: Any, spot: Spot) -> tuple[float, float]:
    ends = list_of(number(-1e300, 1e300))(value, spot)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise spot.error("is no range", "Give two numbers, the smaller first: [0.001, 0.1].")
    return ends[0], ends[1]


def _drawn(value: Any, spot: Spot) -> tuple[str, Any]:
    """How a value is drawn: from a list, or from ``uniform``, ``log`` or ``int`` ranges."""
    if isinstance(value, list):
        return "choice", _values(value, spot)
    found = record({"uniform": _range, "log": _range, "int": _range})(value, spot)
    if len(found) != 1:
        fix = "Give one of them, e.g. {log: [0.0001, 0.1]}, or a list to choose from."
        raise spot.error("needs one of 'uniform', 'log' and 'int'", fix)
    ((kind, ends),) = found.items()
    if kind == "log" and ends[0] <= 0:
        raise spot.inside("log").error("goes down to 0 or below", "Begin above 0.")
    if kind == "int" and math.ceil(ends[0]) > math.floor(ends[1]):
        fix = "Give whole numbers, e.g. [16, 128]; 'uniform' draws others."
        raise spot.inside("int").error("has no whole number in it", fix)
    return kind, ends


def _value(value: Any, spot: Spot) -> Value:
    """Not true and false: some scripts read ``true``, some ``True``, some any word as true."""
    if isinstance(value, bool):
        fix = 'Write the word that the script is given, in quotes: "true", "True", "1".'
        raise spot.error(f"should be text or a number, not {str(value).lower()}", fix)
    return scalar(value, spot)


def _values(value: Any, spot: Spot) -> tuple[Value, ...]:
    values = list_of(_value)(value, spot)
    if not values:
        raise spot.error("lists no values", "Add some, e.g. [0.1, 0.01].")
    return values


def _different(value: Any, spot: Spot) -> tuple[Value, ...]:
    values = _values(value, spot)
    for place, one in enumerate(map(repr, values)):
        if one in map(repr, values[:place]):
            raise spot.error(f"lists {one} twice", "Leave one out: its trials would be the same.")
    return values


SWEEP_FIELDS: dict[str, Reader[Any]] = {
    "grid": table_of(_different, _PARAMETER),
    "sample": table_of(_drawn, _PARAMETER),
    "trials": integer(1, MOST_TRIALS),
    "promote": record(
        {
            "metric": words(),
            "keep": integer(2, 1000),
            "rungs": list_of(integer(1, 10**12)),
        },
    ),
    "optuna": record({"metric": words(), "at_once": integer(1, 1000)}),
    "stop": record(
        {"metric": words(), "patience": integer(1, 10**6), "every": integer(1, 10**12)},
        required=("patience",),
    ),
}


def unfold(
    job: Job, row: Mapping[str, Any], spot: Spot, seed: int, metric: str | None
) -> list[Job]:
    """The job as often as it is wanted, or its trials; ``metric`` is what its workload measures."""
    if "stop" in row:
        job = replace(job, stop=_plateau(row["stop"], job, spot.inside("stop"), metric))
    if "grid" not in row and "sample" not in row:
        for name in ("trials", "promote", "optuna"):
            if name in row:
                problem, fix = "there is nothing to sweep", "Add 'grid' or 'sample'."
                raise spot.inside(name).error(problem, fix)
        if "count" not in row:
            return [job]
        return [replace(job, name=f"{job.name}-{n + 1}") for n in range(row["count"])]
    if "count" in row:
        raise spot.inside("count").error("cannot stand beside a sweep", "Keep one of the two.")
    if "optuna" in row:
        search, job = _search(row, job, spot, seed, metric), replace(job, fork=job.fork or 1)
        return more_trials(job, search, 0, suggest(search, is_higher(search.metric, job), ()))
    points = list(_points(row, spot, f"{seed} {job.name}"))
    if "promote" in row:
        promote = _promotion(row["promote"], job, len(points), spot.inside("promote"), metric)
        job = replace(job, promote=promote)
        if job.fork is None:  # a trial's model must not depend on the machines that it was given
            job = replace(job, fork=1, mode="alone" if job.mode == "auto" else job.mode)
    names = _names(job.name, points)
    return [_trial(job, names[i], i, point) for i, point in enumerate(points)]


def _points(row: Mapping[str, Any], spot: Spot, seed: str) -> Iterator[dict[str, Value]]:
    grid, sample = row.get("grid", {}), row.get("sample", {})
    for name, table in (("grid", grid), ("sample", sample)):
        if name in row and not table:
            raise spot.inside(name).error("sweeps nothing", "Name a parameter: {lr: [0.1, 0.01]}.")
    if both := grid.keys() & sample.keys():
        raise spot.inside("sample").error(f"'{min(both)}' is in 'grid', too", "Keep one of them.")
    if sample and "trials" not in row:
        raise spot.error("'sample' needs 'trials'", "Say how many to draw, e.g. trials: 20.")
    if "trials" in row and not sample:
        raise spot.inside("trials").error("needs 'sample'", "A grid has as many as it has points.")
    draws = row["trials"] if sample else 1
    count = math.prod(map(len, grid.values())) * draws
    if count > MOST_TRIALS:
        problem = f"makes {count:,} trials, more than {MOST_TRIALS:,}"
        raise spot.error(problem, "Leave out values, or draw some: sample, trials.")
    dice = Random(seed)  # noqa: S311 - anybody may know what comes
    drawn = [{name: _draw(how, dice) for name, how in sample.items()} for _ in range(draws)]
    for point in product(*grid.values()):
        for one in drawn:
            yield {**dict(zip(grid, point, strict=True)), **one}


def _search(row: Mapping[str, Any], job: Job, spot: Spot, seed: int, metric: str | None) -> Search:
    at = spot.inside("optuna")
    for name in ("grid", "promote"):
        if name in row:
            fix = "Give its values in 'sample'." if name == "grid" else "Keep one of the two."
            raise at.error(f"cannot stand beside '{name}'", fix)
    if "trials" not in row or not row["sample"]:
        next(_points(row, spot, ""))  # says what is missing
    found = row["optuna"]
    return Search(
        space={name: (kind, tuple(ends)) for name, (kind, ends) in row["sample"].items()},
        metric=_metric(found.get("metric"), metric, job, at),
        trials=row["trials"],
        at_once=min(row["trials"], found.get("at_once", 5)),
        seed=seed,
    )


def more_trials(
    job: Job, search: Search, first: int, points: Sequence[Mapping[str, Value]]
) -> list[Job]:
    """Trials of the sweep that ``job`` is made into, numbered from ``first`` on."""
    width = len(str(search.trials))
    trials = []
    for place, point in enumerate(points, first):
        one = _trial(job, f"{job.name}-{place + 1:0{width}}", place, point)
        assert one.trial
        trials.append(replace(one, trial=replace(one.trial, search=search)))
    return trials


def base_of(job: Job) -> Job:
    """The job that a trial was made of."""
    assert job.trial
    swept = {name.removeprefix("env.") for name in job.trial.params if name.startswith("env.")}
    env = {name: value for name, value in job.launch.env.items() if name not in swept}
    words_added = 2 * (len(job.trial.params) - len(swept))
    args = job.launch.args[: len(job.launch.args) - words_added]
    launch = replace(job.launch, args=args, env=env)
    return replace(job, name=job.trial.sweep, trial=None, launch=launch)


def is_higher(metric: str, job: Job) -> bool:
    return bool(higher_is_better(metric, job.higher_is_better))


def _draw(how: tuple[str, Any], dice: Random) -> Value:
    kind, ends = how
    if kind == "choice":
        chosen: Value = dice.choice(ends)
        return chosen
    if kind == "int":
        return dice.randint(math.ceil(ends[0]), math.floor(ends[1]))
    if kind == "log":
        return float(f"{math.exp(dice.uniform(*map(math.log, ends))):.{_DIGITS}g}")
    return float(f"{dice.uniform(*ends):.{_DIGITS}g}")


def _trial(job: Job, name: str, number: int, point: Mapping[str, Value]) -> Job:
    launch = job.launch
    args, env = list(launch.args), dict(launch.env)
    for parameter, value in point.items():
        if parameter.startswith("env."):
            env[parameter.removeprefix("env.")] = str(value)
        else:
            dashes = "" if parameter.startswith("-") else "--"
            args += [f"{dashes}{parameter}", str(value)]
    return replace(
        job,
        name=name,
        trial=Trial(job.name, number, dict(point)),
        launch=replace(launch, args=tuple(args), env=env),
    )


def _names(base: str, points: list[dict[str, Value]]) -> list[str]:
    """Names from the values, as long as these are short and tell the trials apart."""
    names = [
        "-".join([base, *(f"{_short(name)}{_plain(value)}" for name, value in point.items())])
        for point in points
    ]
    if len(set(names)) == len(names) and max(map(len, names)) <= _LONGEST_NAME:
        return names
    width = len(str(len(points)))
    return [f"{base}-{number:0{width}}" for number in range(1, len(points) + 1)]


def _short(parameter: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "", parameter.removeprefix("env."))


def _plain(value: Value) -> str:
    written = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9._-]+", "_", written)


def _metric(given: str | None, default: str | None, job: Job, spot: Spot) -> str:
    metric = given or default
    if metric is None:
        fix = "Name what the script's evaluation returns, e.g. metric: accuracy."
        raise spot.error("'metric' is missing", fix)
    if default and metric != default:
        problem = f"the workload measures '{default}', not '{metric}'"
        raise spot.inside("metric").error(problem, f"Leave it out, or: metric: {default}")
    if higher_is_better(metric, job.higher_is_better) is None:
        problem = f"whether more of '{metric}' is better is not known"
        raise spot.inside("metric").error(
            problem, "Add higher_is_better: true or false to the job."
        )
    return metric


def _promotion(
    found: Mapping[str, Any], job: Job, trials: int, spot: Spot, metric: str | None
) -> Promotion:
    keep, target = found.get("keep", 3), job.target_steps
    rungs = found.get("rungs")
    if rungs is None:
        rungs = _rungs(trials, keep, target)
    if not rungs or max(rungs) >= target:
        raise spot.error(
            f"has rungs beyond the job's {target:,} steps" if rungs else "has no rungs",
            "Give steps below that, e.g. rungs: [100, 300].",
        )
    named = _metric(found.get("metric"), metric, job, spot)
    return Promotion(named, keep, tuple(sorted(set(rungs))))


def _rungs(trials: int, keep: int, target: int) -> set[int]:
    """Half of the target, a quarter and so on, so that a few finish; few trials: a quarter alone.

    Who is dropped too early is lost for good: with 27 trials, twice as far apart costs 39 % of all
    steps where ``keep`` times as far costs 26 %, and finds the best far more often.
    """
    count = int(math.log(trials, keep) + 1e-9) - 1
    halvings = range(1, count + 1) if count > 1 else (2,)
    return {max(1, target // 2**power) for power in halvings}


def _plateau(found: Mapping[str, Any], job: Job, spot: Spot, metric: str | None) -> Plateau:
    every = found.get("every", max(1, job.target_steps // 20))
    named = _metric(found.get("metric"), metric, job, spot)
    if every >= job.target_steps > 1:
        raise spot.inside("every").error(
            f"is beyond the job's {job.target_steps:,} steps: it would never be measured",
            "Give fewer steps, or leave it out: a twentieth of them.",
        )
    return Plateau(named, found["patience"], every)
