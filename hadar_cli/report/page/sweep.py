"""A sweep on the page: which values led where, and quality against steps and against time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hadar_cli.core.measures.sweeps import Point, SweepSummary, TrialSummary
from hadar_cli.report.format import count, duration, figures, percent, plain
from hadar_cli.report.page.figure import Clock, Figure, Trace, axis, colour, label, layout

_PALE = "rgba(128,128,128,0.45)"
_WIDE = 30.0  # times the smallest: then a logarithm shows more


def of_sweep(sweep: SweepSummary, place: int, ends_at: float) -> Iterator[Figure]:
    """Parallel coordinates, then two charts of the metric, if anybody reported it."""
    yield _parallel(sweep, place)
    if not any(trial.points for trial in sweep.trials):
        return
    metric = label(sweep.metric or "metric")
    clock = Clock.lasting(ends_at)
    steps = axis("counted steps")
    yield _lines(sweep, f"sweep-{place}-steps", f"{metric} against steps", steps, lambda p: p.steps)
    by_time = clock.axis(ends_at)
    title = f"{metric} against time"
    yield _lines(sweep, f"sweep-{place}-time", title, by_time, lambda p: clock.at(p.t))


def _parallel(sweep: SweepSummary, place: int) -> Figure:
    """Drawn with plain lines: plotly's own parallel coordinates need WebGL, which many lack."""
    params = list(dict.fromkeys(key for trial in sweep.trials for key in trial.params))
    judged = [trial for trial in sweep.trials if trial.value is not None]
    shown = judged or sweep.trials
    metric = label(sweep.metric or "metric")
    scales = [_Scale.of(label(p), [trial.params.get(p) for trial in shown]) for p in params]
    scales.append(_Scale.of("steps", [trial.steps for trial in shown]))
    if judged:
        scales.append(_Scale.of(metric, [trial.value for trial in judged], sweep.higher_is_better))
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": label(trial.name),
            "x": list(range(len(scales))),
            "y": [scale.places[number] for scale in scales],
            "line": _line(trial, sweep),
            "hovertemplate": f"{label(trial.name)}<extra></extra>",
        }
        for number, trial in enumerate(shown)
    ]
    share = sweep.steps / sweep.steps_of_full_training
    best = f", best {plain(sweep.best, 64)}" if sweep.best else ""
    says = f"{count(len(sweep.trials), 'trial')}, {percent(share)} of the steps of training all"
    means = "better is up on the last axis" if judged else f"no trial reported {metric!r}"
    x_axis = axis("", tickvals=list(range(len(scales))), ticktext=[one.name for one in scales])
    shape = layout(360, x_axis, axis("", visible=False, range=[-0.12, 1.12]), showlegend=False)
    shape["annotations"] = [note for i, one in enumerate(scales) for note in one.ends(i)]
    return Figure(
        f"sweep-{place}",
        f"Sweep {plain(sweep.sweep, 40)}",
        f"{says}{best}. Every line is a trial; {means}",
        data,
        shape,
        ("trial", *params, "steps", sweep.metric or "metric", "standing"),
        [_row(trial, params) for trial in sweep.trials],
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """One of the parallel axes: where each trial is on it, from 0 to 1, and what its ends are."""

    name: str
    places: list[float]
    low: str
    high: str

    @staticmethod
    def of(name: str, values: Sequence[object], higher_is_better: bool | None = True) -> _Scale:
        """Numbers by their size, or their logarithm where they span much; words by their order."""
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            words = sorted({str(value) for value in values})
            numbers = [float(words.index(str(value))) for value in values]
            low, high = words[0], words[-1]
        else:
            found = [float(value) for value in values if isinstance(value, int | float)]
            least, most = min(found, default=0.0), max(found, default=0.0)
            spans = least > 0 and most > _WIDE * least
            numbers = [math.log(value) if spans else value for value in found]
            low, high = f"{least:.3g}", f"{most:.3g}"
        least, most = min(numbers, default=0.0), max(numbers, default=0.0)
        places = [(n - least) / (most - least) if most > least else 0.5 for n in numbers]
        if higher_is_better is False:
            places, low, high = [1 - place for place in places], high, low
        return _Scale(name, places, label(low), label(high))

    def ends(self, x: int) -> Iterator[Trace]:
        for text, y in ((self.low, -0.08), (self.high, 1.08)):
            yield {"x": x, "y": y, "text": text, "showarrow": False}


def _line(trial: TrialSummary, sweep: SweepSummary) -> Trace:
    if trial.name == sweep.best:
        return {"color": colour(0), "width": 4}
    went_on = [one.name for one in sweep.trials if one.promoted_at or not sweep.rungs]
    if trial.name in went_on:
        return {"color": colour(1 + went_on.index(trial.name)), "width": 2}
    return {"color": _PALE, "width": 1.5}


def _row(trial: TrialSummary, params: Sequence[str]) -> list[str]:
    value = "" if trial.value is None else figures(trial.value)
    told = [plain(str(trial.params.get(param, "")), 30) for param in params]
    return [plain(trial.name, 64), *told, f"{trial.steps:,}", value, trial.standing]


def _lines(
    sweep: SweepSummary,
    number: str,
    title: str,
    x_axis: Trace,
    x: Callable[[Point], float],
) -> Figure:
    """A line for each trial; those that went on stand out, the best most."""
    data: list[Trace] = []
    rows: list[list[str]] = []
    for trial in sweep.trials:
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(trial.name),
                "x": [x(point) for point in trial.points],
                "y": [point.value for point in trial.points],
                "line": _line(trial, sweep),
                "hovertemplate": f"{label(trial.name)}<br>%{{y:.4g}}<extra></extra>",
            }
        )
        rows += [
            [plain(trial.name, 64), f"{point.steps:,}", duration(point.t), figures(point.value)]
            for point in trial.points
        ]
    values = [point.value for trial in sweep.trials for point in trial.points]
    spans = bool(values) and min(values) > 0 and max(values) > _WIDE * min(values)
    kind = {"type": "log"} if spans else {"nticks": 6, "tickformat": ".3~g"}
    y_axis = axis(label(sweep.metric or "metric"), **kind)
    shape = layout(320, x_axis, y_axis, showlegend=False)
    says = "A point is a measurement; the best trial is thick, those that were dropped are pale"
    return Figure(number, title, says, data, shape, ("trial", "steps", "time", "value"), rows)
