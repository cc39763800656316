"""How well the jobs learnt: loss and quality over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hadar_cli.core.measures.history import JobHistory
from hadar_cli.report.format import duration, figures, plain
from hadar_cli.report.page.figure import GREY, Clock, Figure, Trace, axis, colour, label, layout
from hadar_cli.report.record import RunRecord

_FEW_TICKS = {"nticks": 5, "tickmode": "auto", "tickformat": ".3~g"}
_MOST_JOBS = 24  # with a chart of their own


def learning(record: RunRecord) -> Iterator[Figure]:
    """Loss and quality over time, a chart for each job: their scales have nothing in common."""
    clock = Clock.lasting(record.summary.ttd_s)
    for place, history in enumerate(record.histories[:_MOST_JOBS]):
        if history.commits or history.measurements:
            yield _learning(place, history, clock, record.summary.ttd_s)


def _learning(place: int, history: JobHistory, clock: Clock, ends_at: float) -> Figure:
    losses = [(c.t, c.loss) for c in history.commits if c.loss is not None]
    metric = next((m for one in history.measurements for m in one.values), None)
    measured = [
        (m.t, m.values[metric]) for m in history.measurements if metric and metric in m.values
    ]
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "loss",
            "x": [clock.at(t) for t, _ in losses],
            "y": [loss for _, loss in losses],
            "line": {"color": colour(place), "width": 2.5},
            "marker": {"size": 5},
            "hovertemplate": f"loss %{{y:.4g}}<br>at %{{x:.2f}} {clock.unit}<extra></extra>",
        }
    ]
    both = layout(240, clock.axis(ends_at), axis("training loss", **_FEW_TICKS), showlegend=False)
    if metric:
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(metric),
                "x": [clock.at(t) for t, _ in measured],
                "y": [value for _, value in measured],
                "yaxis": "y2",
                "line": {"color": GREY, "dash": "dot", "width": 1.5},
                "marker": {"size": 11, "symbol": "diamond"},
                "cliponaxis": False,
                "hovertemplate": f"{label(metric)} %{{y:.4g}}<br>at %{{x:.2f}} {clock.unit}"
                "<extra></extra>",
            }
        )
        both["yaxis2"] = axis(
            f"◆ {label(metric)}", overlaying="y", side="right", showgrid=False, **_FEW_TICKS
        )
    return Figure(
        f"job-{place}",
        plain(history.job.name, 40),
        _learning_words(losses, metric, measured),
        data,
        both,
        ("time", "what", "value"),
        [[duration(t), "loss", figures(loss)] for t, loss in losses]
        + [[duration(t), plain(metric or "", 30), figures(value)] for t, value in measured],
    )


def _learning_words(
    losses: Sequence[tuple[float, float]],
    metric: str | None,
    measured: Sequence[tuple[float, float]],
) -> str:
    words = []
    if losses:
        words.append(f"loss {figures(losses[0][1])} → {figures(losses[-1][1])}")
    if metric and measured:
        values = " → ".join(figures(value) for _, value in (measured[0], measured[-1]))
        words.append(f"{plain(metric, 30)} {values if len(measured) > 1 else values.split(' ')[0]}")
    return ", ".join(words)
