"""A run's summary on the terminal, from 80 columns up, with colour or without."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hadar_cli.core.measures.costs import RunCosts
from hadar_cli.core.measures.forecast import Verdict
from hadar_cli.core.measures.summary import DeviceSummary, JobSummary, Note, RunSummary
from hadar_cli.report.format import (
    NOTHING,
    bar,
    bytes,
    duration,
    figures,
    money,
    percent,
    plain,
    rate,
    times,
)
from hadar_cli.report.record import RunRecord
from hadar_cli.report.terminal import gantt
from hadar_cli.report.terminal.tables import name, table
from hadar_cli.report.ways import way_words, why_words

_WIDEST = 120
_ROOMY, _ROOMIEST = 106, 118  # columns from which the tables show more, and everything
_NOTES = 12
_MOST_WAYS = 12  # jobs
_COSTS = 12  # jobs whose share is shown

# Where time goes: what it is called, its shade without colour, its colour.
_PARTS = {
    "busy_s": ("training", "█", "green"),
    "start_s": ("start", "▓", "yellow"),
    "transfer_s": ("transfer", "▒", "blue"),
    "merge_s": ("merge", "░", "magenta"),
    "evaluate_s": ("evaluate", "=", "cyan"),
    "lost_s": ("lost", "×", "red"),
    "no_work_s": ("no work", "·", "bright_black"),
    "idle_s": ("idle", "─", "bright_black"),
}
STATE_STYLES = {"finished": "green", "running": "cyan", "stopped": "yellow", "unfinished": "yellow"}


def show(record: RunRecord, console: Console) -> None:
    """Prints a run's summary."""
    width = min(console.width, _WIDEST) - 2
    jobs = [job.id for job in record.facts.mix.jobs]
    for part in _parts(record, jobs, width):
        indented = Padding(part, (0, 0, 0, 1), expand=False) if part else ""
        console.print(indented, width=width + 1, no_wrap=True)


def _parts(record: RunRecord, jobs: list[int], width: int) -> Iterator[RenderableType]:
    summary, timeline = record.summary, record.timeline
    yield ""
    yield _title(summary, width)
    yield ""
    yield _headline(summary, record.verdict, record.costs)
    yield ""
    yield from _where_time_went(summary, width)
    yield _heading("Jobs")
    yield _jobs(summary.jobs, width)
    yield from _ways(summary.jobs)
    yield from _remarks(summary.jobs)
    yield from _costs(record.costs)
    yield ""
    yield _heading("Devices")
    yield _devices(summary, width)
    yield ""
    if lines := gantt.chart(timeline, jobs, width):
        legend = f"   letters train, {gantt.AROUND} start, transfer or evaluate"
        lost = f", {gantt.LOST} lost" if summary.overhead.lost_s else ""
        yield _heading("Devices over time", legend + lost)
        yield from lines
        yield ""
    yield from _notes(summary, width)
    yield from _next_step(summary)


def _heading(title: str, remark: str = "") -> Text:
    return Text.assemble((title, "bold"), (remark, "dim"), no_wrap=True, overflow="ellipsis")


def _title(summary: RunSummary, width: int) -> Text:
    mix, policy = plain(summary.mix, 24), plain(summary.policy, 16)
    left = Text.assemble(
        (mix, "bold"),
        " under ",
        (policy, "bold"),
        "  ",
        (summary.state, STATE_STYLES[summary.state]),
    )
    run = plain(summary.run, max(8, width - len(left) - 6))
    return left.append(f"run {run}".rjust(width - len(left)), "dim")


def _headline(summary: RunSummary, verdict: Verdict | None, costs: RunCosts | None) -> Table:
    grid = Table.grid(padding=(0, 3, 0, 0))
    done = sum(job.steps_done for job in summary.jobs)
    target = sum(job.steps_target for job in summary.jobs)
    finished = sum(job.steps_done == job.steps_target for job in summary.jobs)
    rows = [
        ("TTD", duration(summary.ttd_s), _against_bound(summary)),
        (
            "mean JCT",
            duration(summary.mean_jct_s),
            f"{finished} of {len(summary.jobs)} jobs and {done:,} of {target:,} steps done"
            f" in {summary.rounds} round{'s' * (summary.rounds != 1)}",
        ),
        (
            "CRU",
            percent(summary.cru),
            f"{percent(summary.cru_paper)} of allocated slots only, the paper's measure",
        ),
    ]
    if verdict:
        rows.append(("forecast", duration(verdict.forecast.ttd_s), _against_forecast(verdict)))
    if costs:
        rows.append(("cost", money(costs.total, costs.unit), _against_plan(costs)))
    for measure, value, remark in rows:
        grid.add_row(measure, Text(value, "bold"), Text(remark, "dim", overflow="ellipsis"))
    return grid


def _against_plan(costs: RunCosts) -> str:
    said = [f"{money(costs.planned, costs.unit)} planned"] if costs.planned is not None else []
    said += [f"{money(costs.rest, costs.unit)} of it for starting, waiting and idling"]
    said += [f"budget {money(costs.budget, costs.unit)}"] if costs.budget is not None else []
    return "; ".join(said)


def _costs(costs: RunCosts | None) -> Iterator[RenderableType]:
    """Each job's share, and what must not be missed of rented machines."""
    if not costs:
        return
    shares = [f"{plain(job, 24)} {money(share, costs.unit)}" for job, share in costs.jobs.items()]
    more = [f"and {len(shares) - _COSTS} more"] if len(shares) > _COSTS else []
    yield Text(f"cost: {', '.join(shares[:_COSTS] + more)}", "dim", overflow="fold", no_wrap=False)
    for rental in costs.rentals:
        if rental.until is None:
            note = f"; {rental.note}" if rental.note else ""
            where = f"{rental.instance or 'an instance'} ({plain(rental.node, 24)})"
            yield Text(f"{where} still runs{note}", "yellow", overflow="fold", no_wrap=False)


def _against_bound(summary: RunSummary) -> str:
    if not summary.lower_bound_s:
        return ""
    bound = f"lower bound {duration(summary.lower_bound_s)}"
    if summary.state != "finished":
        return f"so far; {bound} for the whole mix"
    return f"{summary.ttd_s / summary.lower_bound_s:.2f} × its {bound}, at the speeds measured"


def _against_forecast(verdict: Verdict) -> str:
    if verdict.ttd_error is None:
        return "TTD expected before the start"
    off = f"{percent(abs(verdict.ttd_error))} too {'long' if verdict.ttd_error > 0 else 'short'}"
    return f"TTD expected before the start: {off}"


def _where_time_went(summary: RunSummary, width: int) -> Iterator[RenderableType]:
    seconds = {"busy_s": summary.busy_s} | {
        part: getattr(summary.overhead, part) for part in _PARTS if part != "busy_s"
    }
    total = sum(seconds.values())
    if not total:
        return
    count = len(summary.devices)
    yield _heading("Where the time went", f"   {count} devices × {duration(summary.ttd_s)}")
    strip = Text(no_wrap=True)
    drawn = until = 0.0
    for part, (_, shade, style) in _PARTS.items():
        until += seconds[part]
        cells = round(until / total * width) - round(drawn / total * width)
        strip.append(shade * cells, style)
        drawn = until
    yield strip
    yield from _legend(seconds, total, width)
    yield ""


def _legend(seconds: dict[str, float], total: float, width: int) -> Iterator[Text]:
    line = Text(no_wrap=True)
    for part, (title, shade, style) in _PARTS.items():
        if not seconds[part]:
            continue
        entry = Text.assemble((shade, style), f" {title} {percent(seconds[part] / total)}")
        if line and len(line) + 3 + len(entry) > width:
            yield line
            line = Text(no_wrap=True)
        line.append("   " if line else "").append_text(entry)
    yield line


def _jobs(jobs: tuple[JobSummary, ...], width: int) -> Table:
    roomy = width >= _ROOMY
    titles = ["", "~job", ">JCT", ">steps", ">effective", "metric", ">untrained", ">trained"]
    titles += [">loss", ">copies", ">merges", ">speed-up"] if roomy else []
    has_bytes = width >= _ROOMIEST and any(
        job.bytes_in for job in jobs
    )  # simulated copies hand in nothing
    titles += [">a merge"] if has_bytes else []
    rows = table(*titles, gap=2 if roomy else 1)
    for i, job in enumerate(jobs):
        complete = job.steps_done == job.steps_target
        forks = str(job.copies), str(job.merges), times(job.speedup)
        more = [figures(job.loss), *forks] if roomy else []
        more += [bytes(job.bytes_in / max(1, job.merges))] if has_bytes else []
        rows.add_row(
            Text(gantt.key(i), gantt.colour(i)),
            name(job.name),
            Text("failed", "red") if job.failed else duration(job.jct_s),
            Text(f"{job.steps_done:,}/{job.steps_target:,}", "" if complete else "yellow"),
            f"{job.effective_steps:,.0f}",
            plain(job.metric or NOTHING, 12),
            figures(job.untrained_value),
            Text(figures(job.value), "bold"),
            *more,
        )
    return rows


def _ways(jobs: tuple[JobSummary, ...]) -> Iterator[Text]:
    """How each job used the devices, where hadar had a choice: else nobody wonders."""
    told = [(i, job.ways) for i, job in enumerate(jobs) if job.ways]
    told = [(i, ways) for i, ways in told if ways.decided_by != "mix"]
    if all(ways.decided_by == "policy" for _, ways in told):
        return
    for i, ways in told[:_MOST_WAYS]:
        yield Text.assemble(
            (f"{gantt.key(i)}  ", gantt.colour(i)),
            way_words(ways),
            (f"; {why_words(ways)}", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )


def _remarks(jobs: tuple[JobSummary, ...]) -> Iterator[Text]:
    for job in jobs:
        if job.improved is False:
            yield Text.assemble(
                (f"{plain(job.name, 24)} is worse than untrained: ", "yellow"),
                f"{plain(job.metric or '', 24)} {figures(job.untrained_value)},"
                f" then {figures(job.value)}.",
                no_wrap=True,
                overflow="ellipsis",
            )
        if not job.forking_pays:
            yield Text.assemble(
                (f"Forking did not pay for {plain(job.name, 24)}: ", "yellow"),
                f"merged, its copies got as far as {job.effective_steps:,.0f} steps;"
                f" one alone did {job.lead_steps:,}.",
                no_wrap=True,
                overflow="ellipsis",
            )


def _devices(summary: RunSummary, width: int) -> Table:
    positions = {job.name: i for i, job in enumerate(summary.jobs)}
    cells = 24 if width >= _ROOMY else 12
    rows = table("~device", "~kind", "busy", ">steps", ">measured", ">formula", "~jobs")
    for device in summary.devices:
        share = f" {percent(device.busy_share):>6}"
        rows.add_row(
            name(device.name),
            name(device.kind),
            Text.assemble((bar(device.busy_share, cells), "green"), share),
            f"{device.steps:,}",
            rate(device.steps_per_s),
            Text(rate(device.estimated_steps_per_s), "dim"),
            _letters(device, positions),
        )
    return rows


def _letters(device: DeviceSummary, positions: dict[str, int]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for job in device.jobs:
        text.append(gantt.key(positions[job]), gantt.colour(positions[job]))
    return text


def _notes(summary: RunSummary, width: int) -> Iterator[RenderableType]:
    wasted_s = sum(device.wasted_s for device in summary.devices)
    if not summary.notes and not wasted_s:
        return
    shown = summary.notes[-_NOTES:]
    earlier = len(summary.notes) - len(shown)
    yield _heading("Out of the ordinary", f"   and {earlier:,} earlier" if earlier else "")
    for note in shown:
        yield _note(note, width)
    if wasted_s:
        yield Text(
            f"{duration(wasted_s)} of training did not count: "
            "its weights were refused or never merged.",
            no_wrap=True,
            overflow="ellipsis",
        )
    yield ""


def _note(note: Note, width: int) -> Text:
    where = " on ".join(plain(one, 24) for one in (note.job, note.device) if one)
    head = f"{duration(note.t):>9}  "
    what = f"{note.what}{': ' if where else ''}{where}"
    why = plain(note.why, max(1, width - len(head) - len(what) - 2))
    return Text.assemble((head, "dim"), (what, "yellow"), f"  {why}" if why else "", no_wrap=True)


def _next_step(summary: RunSummary) -> Iterator[RenderableType]:
    run = plain(summary.run, 60)
    if summary.state == "running":
        yield Text("Still running: what copies are doing now shows as lost until they hand in.")
        yield ""
        return
    for job in summary.jobs:
        if job.failed:
            told = f"Job {plain(job.name, 40)} failed: ", "red"
            yield Text.assemble(told, plain(job.failed, 400), "; the others went on.")
    if summary.state != "finished":
        yield Text.assemble("Go on where it stopped:  ", (f"hadar resume {run}", "bold"))
        yield ""
