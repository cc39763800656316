"""``hadar report --sweep``: the trials side by side, how far each came, and the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from hadar_cli.core.measures.sweeps import SweepSummary, TrialSummary
from hadar_cli.core.model import Job
from hadar_cli.report.format import count, figures, percent, plain
from hadar_cli.report.terminal.tables import measured, name, table

_STYLES = {"done": "green", "training": "cyan", "failed": "red", "cancelled": "yellow"}
_NOTHING = "–"


def show(sweeps: Sequence[SweepSummary], models: Path, console: Console) -> None:
    for sweep in sweeps:
        for part in _parts(sweep, models):
            console.print(part)


def _parts(sweep: SweepSummary, models: Path) -> Iterator[RenderableType]:
    share = sweep.steps / sweep.steps_of_full_training
    trained = f"{sweep.steps:,} of {sweep.steps_of_full_training:,} steps, {percent(share)}"
    yield Text.assemble(
        ("\n sweep ", "dim"),
        (plain(sweep.sweep, 40), "bold"),
        f"  {count(len(sweep.trials), 'trial')}, {trained} of training all to the end",
    )
    if sweep.rungs:
        yield Text(f" rungs  at {', '.join(f'{step:,}' for step in sweep.rungs)} counted steps")
    params = list(dict.fromkeys(key for trial in sweep.trials for key in trial.params))
    metric = plain(sweep.metric or "metric", 20)
    heads = [f">{plain(param, 20)}" for param in params]
    rows = table("  trial", *heads, ">steps", ">rungs", f">{metric}", "standing")
    for trial in _ranked(sweep):
        rows.add_row(*_row(trial, params, trial.name == sweep.best))
    yield rows
    if sweep.best:
        model = models / f"{sweep.best}.safetensors"
        yield Text.assemble(("\n best   ", "dim"), (plain(sweep.best, 64), "bold green"))
        yield Text(f"        {model if model.exists() else 'its model is put out when it is done'}")
    elif sweep.trials:
        why = "no trial reported a figure whose better side is known"
        if sweep.metric and all(trial.value is None for trial in sweep.trials):
            why = f"no trial reported '{plain(sweep.metric, 64)}'"
        yield Text(f"\n best   not known: {why}")


def sweep_plans(jobs: Sequence[Job]) -> Iterator[str]:
    """What each sweep is about to do, in a line."""
    sweeps: dict[str, list[Job]] = {}
    for job in jobs:
        if job.trial:
            sweeps.setdefault(job.trial.sweep, []).append(job)
    for sweep, trials in sweeps.items():
        first = trials[0]
        yield f"sweep {plain(sweep, 40)}: {count(len(trials), 'trial')}{_promise(first, trials)}"


def _promise(first: Job, trials: Sequence[Job]) -> str:
    search, promote = first.trial.search if first.trial else None, first.promote
    if search:
        at_once = f"at most {search.at_once} at once"
        return f" of {search.trials}; Optuna suggests the others by {search.metric}, {at_once}"
    if not promote:
        return ""
    number, target = len(trials), first.target_steps
    if number == 1:
        return "; there is nobody to compare it with: it trains to the end"
    rungs = [
        f"the best {promote.contenders(number, place + 1)} at step {step:,}"
        for place, step in enumerate(promote.rungs)
    ]
    steps = sum(promote.steps_at_place(place, number, target) for place in range(number))
    share = percent(steps / (number * target))
    told = f"{', '.join(rungs)} train on by their {promote.metric}"
    return f"; {told}: {share} of the steps of training all to the end"


def _ranked(sweep: SweepSummary) -> list[TrialSummary]:
    """The furthest first, among these the best."""
    sign = -1 if sweep.higher_is_better else 1

    def rank(trial: TrialSummary) -> tuple[int, bool, float]:
        value = trial.value
        return -len(trial.promoted_at), value is None, sign * (value or 0.0)

    return sorted(sweep.trials, key=rank)


def _row(trial: TrialSummary, params: Sequence[str], is_best: bool) -> list[RenderableType]:
    value = _NOTHING if trial.value is None else figures(trial.value)
    return [
        Text("  ") + name(trial.name),
        *(_written(trial.params.get(param)) for param in params),
        f"{trial.steps:,}",
        "▪" * len(trial.promoted_at),
        measured(value, is_best),
        Text(trial.standing, _STYLES.get(trial.standing, "dim")),
    ]


def _written(value: str | bool | int | float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{value:g}" if isinstance(value, float) else plain(str(value), 20)
