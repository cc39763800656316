"""Policies side by side: a table of their measures, and how far each was at any time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import TypeAlias

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hadar_cli.report.format import NOTHING, duration, percent, plain
from hadar_cli.report.terminal.tables import BEST, measured, table
from hadar_cli.simulation.scenario import PolicyResult, Work

_WIDEST = 120
_ROOMY = 118  # columns from which the table shows everything
_LEVELS = " ▁▂▃▄▅▆▇█"

# A policy's share of something in each of so many cells of the time, given the devices.
_Curve: TypeAlias = Callable[[PolicyResult, int, int, float], Iterator[float]]

# Measures of which one policy can be the best: title, attribute, and whether more is better.
_MEASURES = (
    ("TTD", "ttd_s", False),
    ("mean JCT", "mean_jct_s", False),
    ("median JCT", "median_jct_s", False),
    ("CRU", "cru", True),
    ("GRU", "gru", True),
)


def show(results: Sequence[PolicyResult], devices: int, console: Console) -> None:
    """Prints the comparison; the best value of each measure is marked."""
    width = min(console.width, _WIDEST)
    for part in _parts(results, devices, width):
        console.print(part)


def _parts(results: Sequence[PolicyResult], devices: int, width: int) -> Iterator[RenderableType]:
    yield _comparison(results, width)
    remark = f"{BEST} best   × bound: TTD over the least possible, for gangs or for forked jobs"
    yield Text(remark, "dim", no_wrap=True, overflow="ellipsis")
    if any(result.worst_rho is not None for result in results):
        yield Text(_fairness(results), "dim")
    if any(result.user_rho for result in results):
        yield Text(_fairness_to_users(results), "dim")
    if any(result.policy.startswith("gavel") for result in results):
        yield Text(_ON_GAVEL, "dim")
    for result in results:
        if result.unfinished:
            why = plain(result.problem or "", 200)
            yield Text(f"{result.policy} left {result.unfinished} jobs unfinished: {why}", "yellow")
    yield ""
    ends_at = max((r.finished_s[-1] for r in results if r.finished_s), default=0.0)
    if ends_at:
        yield from _plot("Jobs done", "of all jobs", _completions, results, devices, width, ends_at)
        yield ""
        yield from _plot(
            "GPUs training", "of all GPUs", _utilisations, results, devices, width, ends_at
        )


_ON_GAVEL = (
    "Gavel as its authors simulate it: devices that come free inside a round stay idle, and spread"
    " gangs lose nothing. Like the others: --policy gavel:refills=true,pays_spread=true"
)


def _fairness(results: Sequence[PolicyResult]) -> str:
    """ρ is a job's completion time over that with an equal share of the devices."""
    found = [
        f"{plain(result.policy, 32)} {result.worst_rho:.2f} ({percent(result.beyond_fair)})"
        for result in results
        if result.worst_rho is not None
    ]
    return f"finish-time fairness, worst ρ (jobs beyond 1): {', '.join(found)}"


def _fairness_to_users(results: Sequence[PolicyResult]) -> str:
    found = []
    for result in results:
        if result.user_rho:
            worst = max(result.user_rho, key=lambda user: result.user_rho[user])
            beyond = percent(fmean(rho > 1 for rho in result.user_rho.values()))
            told = f"{result.user_rho[worst]:.2f} of {plain(worst, 32)} ({beyond})"
            found.append(f"{plain(result.policy, 32)} {told}")
    return f"by user, worst mean ρ (users beyond 1): {', '.join(found)}"


def _comparison(results: Sequence[PolicyResult], width: int) -> Table:
    roomy = width >= _ROOMY
    titles = [">TTD", ">× bound", *(f">{title}" for title, _, _ in _MEASURES[1:])]
    more = [">rounds", ">restarts", ">changed", ">decision"] if roomy else [">restarts"]
    rows = table("policy", *titles, *more, gap=2 if roomy else 1)
    best = {name: _best(results, name, more) for _, name, more in _MEASURES}
    for result in results:
        cells = [_cell(result, name, best[name]) for _, name, _ in _MEASURES]
        restarts = Text(f"{result.restarts:,}")
        extra = [
            Text(f"{result.rounds:,}"),
            restarts,
            Text(percent(result.changed_rounds)),
            Text(f"{result.decision_ms['mean']:.1f} ms"),
        ]
        over = Text(_over_bound(result))
        rows.add_row(
            plain(result.policy, 32), cells[0], over, *cells[1:], *(extra if roomy else [restarts])
        )
    return rows


def _best(results: Sequence[PolicyResult], measure: str, more: bool) -> float | None:
    """The best value, if there is more than one to choose from."""
    values = [v for r in results if (v := getattr(r, measure)) is not None and not r.unfinished]
    if len(values) < 2:
        return None
    return float(max(values) if more else min(values))


def _cell(result: PolicyResult, measure: str, best: float | None) -> Text:
    value = getattr(result, measure)
    text = percent(value) if measure in ("cru", "gru") else duration(value)
    return measured(text, best is not None and value == best and not result.unfinished)


def _over_bound(result: PolicyResult) -> str:
    if not result.ttd_s or not result.lower_bound_s:
        return NOTHING
    return f"{result.ttd_s / result.lower_bound_s:.3f}"


# -- curves ----------------------------------------------------------------------------------


def _plot(
    title: str,
    remark: str,
    shares_of: _Curve,
    results: Sequence[PolicyResult],
    devices: int,
    width: int,
    ends_at: float,
) -> Iterator[Text]:
    """A row for each policy over the same time: the higher the block, the larger the share."""
    margin = min(24, max(len(r.policy) for r in results))
    cells = width - margin - 4
    yield Text.assemble((title, "bold"), (f"   {remark}, over time", "dim"))
    for result in results:
        row = "".join(_level(share) for share in shares_of(result, devices, cells, ends_at))
        yield Text(f"{plain(result.policy, margin):<{margin}} ▕{row}▏", no_wrap=True)
    end, half = duration(ends_at), duration(ends_at / 2)
    axis = f"{'0':<{cells // 2}}{half:<{cells - cells // 2 - len(end)}}{end}"
    yield Text(f"{'':<{margin}}  {axis}", "dim", no_wrap=True)


def _level(share: float) -> str:
    """A block as high as the share; something, however little, is never shown as nothing."""
    top = len(_LEVELS) - 1
    return _LEVELS[max(int(share > 0), min(top, round(share * top)))]


def _completions(result: PolicyResult, devices: int, cells: int, ends_at: float) -> Iterator[float]:
    jobs = len(result.finished_s) + result.unfinished
    for cell in range(cells):
        yield bisect_right(result.finished_s, (cell + 1) * ends_at / cells) / max(1, jobs)


def _utilisations(
    result: PolicyResult, devices: int, cells: int, ends_at: float
) -> Iterator[float]:
    for busy_s in spread_over(result.work, cells, ends_at):
        yield busy_s / (devices * ends_at / cells)


def spread_over(work: Sequence[Work], cells: int, ends_at: float) -> list[float]:
    """Device-seconds of training in each of ``cells`` equal parts of the time."""
    width = ends_at / cells
    busy = [0.0] * cells
    change = [0.0] * (cells + 1)  # in the number of devices that train through a whole cell
    for one in work:
        first, last = int(one.begin / width), min(int(one.end / width), cells - 1)
        if first >= last:
            busy[last] += one.devices * (one.end - one.begin)
            continue
        busy[first] += one.devices * ((first + 1) * width - one.begin)
        busy[last] += one.devices * (one.end - last * width)
        change[first + 1] += one.devices
        change[last] -= one.devices
    devices = 0.0
    for cell in range(cells):
        devices += change[cell]
        busy[cell] += devices * width
    return busy
