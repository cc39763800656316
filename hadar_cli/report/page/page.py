"""Puts the page together: one run's story, or a comparison of several."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from hadar_cli import __version__
from hadar_cli.core.measures.costs import RunCosts
from hadar_cli.core.measures.summary import RunSummary
from hadar_cli.core.state import RunState
from hadar_cli.report.format import (
    NOTHING,
    clock,
    count,
    duration,
    figures,
    money,
    percent,
    plain,
    when,
)
from hadar_cli.report.log import Entry, RunLog
from hadar_cli.report.page import charts, settings
from hadar_cli.report.page.comparison import of_runs
from hadar_cli.report.page.figure import Figure
from hadar_cli.report.page.gantt import gantt
from hadar_cli.report.page.learning import learning
from hadar_cli.report.page.markup import chart, embedded, section, table, text, tile
from hadar_cli.report.page.sweep import of_sweep
from hadar_cli.report.record import RunRecord
from hadar_cli.report.terminal.runs import MEASURES, Comparison, compare, measure_text

_MOST_EVENTS = 1000


def render(records: Sequence[RunRecord]) -> str:
    """The whole page, with everything it needs inside."""
    page = _Page()
    if len(records) == 1:
        title, body = records[0].summary.run, _story(records[0], page)
    else:
        title = " / ".join(record.summary.run for record in records)
        body = _comparison(records, page)
    return _fill(title, "\n".join(body), page.figures)


def parts(record: RunRecord, present: str = "") -> tuple[str, dict[str, Any]]:
    """One run's body and figures, with the HTML of what is going on ``present`` in it."""
    page = _Page()
    return "\n".join(_story(record, page, present)), page.figures


def render_live(title: str, body: str, figures: dict[str, Any]) -> str:
    """The page with a script that asks the server for its parts again and again."""
    scripts = _file("page.js") + _file("live.js")
    return _fill(title, body, figures, scripts, connects=" connect-src 'self';")


def _fill(
    title: str, body: str, figures: dict[str, Any], scripts: str = "", connects: str = ""
) -> str:
    from plotly.offline import get_plotlyjs  # slow to import

    return Template(_file("page.html")).substitute(
        version=__version__,
        title=text(f"hadar: {title}", 120),
        connects=connects,
        style=_file("page.css"),
        body=body,
        figures=embedded(figures),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        script=scripts or _file("page.js"),
    )


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


class _Page:
    """Remembers which figures were placed, for the script that draws them."""

    def __init__(self) -> None:
        self.drawn: list[Figure] = []

    @property
    def figures(self) -> dict[str, Any]:
        return {one.id: {"data": one.data, "layout": one.layout} for one in self.drawn}

    def place(self, figure: Figure, heading: str = "h2") -> str:
        self.drawn.append(figure)
        return chart(figure, heading)


def _header(title: str, remark: str, under: str) -> str:
    return f"""<header><div><h1>{title} <small>{remark}</small></h1>
<p>{under}</p></div>
<nav><button id="theme" type="button">Theme</button>
<button id="print" type="button">Print</button></nav></header>
<main>"""


# -- one run ---------------------------------------------------------------------------------------


def _story(record: RunRecord, page: _Page, present: str = "") -> Iterator[str]:
    summary, facts = record.summary, record.facts
    kind = "good" if summary.state in ("finished", "running") else "bad"
    yield _header(
        f"{text(summary.mix)} under {text(summary.policy)}",
        f'<span class="{kind}">{text(summary.state)}</span>',
        f"run {text(summary.run)}, started {text(when(facts.started_at))}",
    )
    yield '<div class="tiles">' + "".join(_tiles(summary, record.costs)) + "</div>"
    yield f'<div id="present">{present}</div>'
    yield section(page.place(gantt(record.timeline, facts.mix.jobs)))
    for place, sweep in enumerate(record.sweeps):
        parallel, *lines = of_sweep(sweep, place, summary.ttd_s)
        yield section(page.place(parallel))
        yield '<div class="pair">' + "".join(section(page.place(one)) for one in lines) + "</div>"
    shown = list(charts.of_run(record))
    yield '<div class="pair">' + "".join(section(page.place(one)) for one in shown[:2]) + "</div>"
    yield section(page.place(shown[2]))
    yield '<div class="pair">' + "".join(section(page.place(one)) for one in shown[3:]) + "</div>"
    yield section(
        "<h2>Loss and quality</h2>",
        '<p class="soft">Training loss at every merge; ◆ quality on held-out data.</p>',
        '<div class="many">'
        + "".join(page.place(one, "h3") for one in learning(record))
        + "</div>",
        kind="long",
    )
    if record.facts.forecast:
        yield section("<h2>Forecast against what happened</h2>", *_forecasts(record))
    yield section(*_jobs(summary), kind="long")
    if record.costs:
        yield section(*_costs(record.costs), kind="long")
    yield section(*_events(record), kind="long")
    yield section(*settings.configuration(record), kind="long")
    yield section(*settings.reproduction(record), kind="long")
    yield _footer()


def _tiles(summary: RunSummary, costs: RunCosts | None) -> Iterator[str]:
    bound = summary.lower_bound_s
    finished = summary.state == "finished"
    against = f"{summary.ttd_s / bound:.2f} × lower bound {duration(bound)}" if bound else ""
    yield tile("TTD", duration(summary.ttd_s), against if finished else "so far")
    done = sum(job.steps_done == job.steps_target for job in summary.jobs)
    failed = sum(job.failed is not None for job in summary.jobs)
    jobs = f"{done} of {count(len(summary.jobs), 'job')} done" + (
        f", {failed} failed" * bool(failed)
    )
    yield tile("Mean JCT", duration(summary.mean_jct_s), jobs)
    yield tile("CRU", percent(summary.cru), f"{percent(summary.cru_paper)} of allocated slots")
    counted = sum(job.steps_done for job in summary.jobs)
    effective = sum(job.effective_steps for job in summary.jobs)
    yield tile("Steps counted", f"{counted:,}", f"{effective:,.0f} effective")
    merges = sum(job.merges for job in summary.jobs)
    yield tile("Rounds", f"{summary.rounds:,}", f"{count(merges, 'merge')}")
    if costs:
        planned = "" if costs.planned is None else f"{money(costs.planned, costs.unit)} planned"
        yield tile("Cost", money(costs.total, costs.unit), planned)


def _costs(costs: RunCosts) -> Iterator[str]:
    yield "<h2>Costs</h2>"
    rows = [[job, money(share, costs.unit)] for job, share in costs.jobs.items()]
    rows += [["starting, waiting, idling", money(costs.rest, costs.unit)]]
    yield table(("job", "share"), [*rows, ["all", money(costs.total, costs.unit)]])
    if costs.rentals:
        now = time.time()
        columns = ("instance", "node", "type", "an hour", "seconds", "cost", "")
        yield table(
            columns,
            [
                [
                    one.instance or "unknown",
                    one.node,
                    f"{one.type}{', spot' * one.is_spot}",
                    money(one.price_per_hour, costs.unit),
                    f"{one.seconds(now):,.0f}",
                    money(one.cost(now), costs.unit),
                    one.note if one.until else f"still runs; {one.note}",
                ]
                for one in costs.rentals
            ],
        )


def _forecasts(record: RunRecord) -> Iterator[str]:
    from hadar_cli.simulation.forecast import review  # numpy and the solver

    times_s = {job.name: job.jct_s for job in record.summary.jobs}
    for verdict in review(record.facts, record.happened):
        forecast = verdict.forecast
        rows = [("TTD", forecast.ttd_s, verdict.ttd_s, verdict.ttd_error)] + [
            (f"JCT of {name}", expected_s, times_s.get(name), verdict.jct_errors.get(name))
            for name, expected_s in forecast.jct_s.items()
        ]
        yield f"<h3>{text(verdict.when)}</h3>"
        yield f'<p class="soft">{text(forecast.basis)}</p>'
        yield table(
            ("", "forecast", "happened", "forecast off by"),
            [
                [name, duration(expected_s), duration(real_s), _signed(error)]
                for name, expected_s, real_s, error in rows
            ],
        )


def _signed(error: float | None) -> str:
    return NOTHING if error is None else f"{100 * error:+.1f} %"


def _jobs(summary: RunSummary) -> Iterator[str]:
    yield "<h2>Jobs</h2>"
    yield table(
        ("job", "workload", "JCT", "steps", "metric", "untrained", "trained", "loss", "copies"),
        [
            [
                job.name,
                job.workload,
                duration(job.jct_s),
                f"{job.steps_done:,}/{job.steps_target:,}",
                plain(job.metric or "–", 30),
                figures(job.untrained_value),
                figures(job.value),
                figures(job.loss),
                str(job.copies),
            ]
            for job in summary.jobs
        ],
    )


def _events(record: RunRecord) -> Iterator[str]:
    entries = list(_log(record))
    left_out = len(entries) - _MOST_EVENTS
    yield "<h2>What happened</h2>"
    if left_out > 0:
        yield f'<p class="soft">The last {_MOST_EVENTS:,} of {len(entries):,} events.</p>'
    rows = "\n".join(
        f'<tr><td class="number">{clock(entry.t)}</td>'
        f'<td class="{entry.tone or "soft"}">{text(entry.words)}</td></tr>'
        for entry in entries[-_MOST_EVENTS:]
    )
    yield f'<div class="log" tabindex="0"><table><tbody>{rows}</tbody></table></div>'


def _log(record: RunRecord) -> Iterator[Entry]:
    state = RunState(record.facts.mix.jobs)
    log = RunLog(state)
    for event in state.following(record.happened):
        yield from log.hear(event)
    yield from log.growing


def _footer() -> str:
    return f"<footer>Made by hadar {text(__version__)}. This page loads nothing.</footer></main>"


# -- several runs ----------------------------------------------------------------------------------


def _comparison(records: Sequence[RunRecord], page: _Page) -> Iterator[str]:
    compared = compare(records)
    mixes = dict.fromkeys(one.mix for one in compared.runs)
    yield _header(
        text(" / ".join(mixes)),
        f"{count(len(records), 'run')} compared",
        text(", ".join(one.run for one in compared.runs)),
    )
    for caveat in compared.caveats:
        yield f'<p class="caveat">{text(caveat)}</p>'
    yield section("<h2>Side by side</h2>", _measures(compared))
    shown = [page.place(one) for one in of_runs(records, compared)]
    yield '<div class="pair">' + "".join(map(section, shown)) + "</div>"
    longest_s = max(record.timeline.ends_at for record in records)
    for place, record in enumerate(records):
        title = f"{record.summary.run}: {record.summary.policy}, slot {record.facts.mix.slot_s:g} s"
        jobs = record.facts.mix.jobs
        yield section(page.place(gantt(record.timeline, jobs, f"gantt-{place}", title, longest_s)))
    yield section(*settings.differences(records), kind="long")
    for record in records:
        yield section(*settings.reproduction(record), kind="long")
    yield _footer()


def _measures(compared: Comparison) -> str:
    fields = [field for field, _ in MEASURES.values()]
    columns = ("run", "policy", "slot", "state", *MEASURES, "rounds")
    rows, best = [], []
    for n, one in enumerate(compared.runs):
        values = [measure_text(field, getattr(one, field)) for field in fields]
        rows.append(
            [one.run, one.policy, f"{one.slot_s:g} s", one.state, *values, f"{one.rounds:,}"]
        )
        best += [(n, 4 + i) for i, f in enumerate(fields) if compared.best.get(f) == one.run]
    return table(columns, rows, best=best)
