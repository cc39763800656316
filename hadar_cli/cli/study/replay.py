"""``hadar replay``: a real run, as other policies would have scheduled it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.completion import RunName
from hadar_cli.cli.options import DEFAULT_RUNS, AsJson, RunsDir, print_json, stdout
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from hadar_cli.cli.records import Replay
    from hadar_cli.core.measures.summary import RunSummary
    from hadar_cli.simulation.fitting import Fit
    from hadar_cli.simulation.scenario import PolicyResult, Scenario


def replay(
    run: RunName = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME[:field=value],...|all", help="The policies to simulate.")
    ] = "all",
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Replay a run on paper under other policies, at the speeds and costs that it measured.

    The run's own policy is replayed as well. Compare it with what really happened to see how far
    the simulator can be trusted.
    """
    from hadar_cli.core.measures.metrics import summarise
    from hadar_cli.runs.store import find_run, read_journal
    from hadar_cli.simulation.fitting import scenario_like

    store = find_run(runs_dir, run)
    facts, happened = store.facts, read_journal(store.journal_path)
    scenario, fitted = scenario_like(facts, happened)
    if not fitted.sync_s:
        raise InputError(f"run {facts.id} has trained nothing that could be replayed", field="RUN")
    summary = summarise(facts.id, facts.mix, scenario.devices, happened)
    answer = _answer(summary, fitted, _play_all(scenario, policy))
    if as_json:
        print_json(dataclasses.asdict(answer))
        return
    console = stdout()
    console.print(_table(answer))
    for line in _remarks(answer, scenario):
        console.print(line, style="dim")


def _play_all(scenario: Scenario, policy: str) -> list[PolicyResult]:
    """The run's own policy first, then the others asked for."""
    from hadar_cli.cli.policy_options import choose_policies
    from hadar_cli.simulation.scenario import simulate

    own = scenario.mix.policy
    chosen = {own.name: own}
    for label, choice in choose_policies(policy, scenario.mix):
        if choice != own:
            chosen[label] = choice
    return [simulate(scenario, choice, label, _nobody) for label, choice in chosen.items()]


def _nobody(done: int) -> None:
    """Replays are short: no progress is shown."""


def _answer(summary: RunSummary, fitted: Fit, results: Sequence[PolicyResult]) -> Replay:
    from hadar_cli.cli.records import Replay, ReplayedPolicy

    own_s = results[0].ttd_s
    is_done = summary.state == "finished"
    real = ReplayedPolicy(
        policy=summary.policy,
        simulated=False,
        ttd_s=summary.ttd_s if is_done else None,
        mean_jct_s=summary.mean_jct_s if is_done else None,
        cru=summary.cru,
        rounds=summary.rounds,
        unfinished=sum(job.steps_done < job.steps_target for job in summary.jobs),
        ttd_change=None,
    )
    replayed = (
        ReplayedPolicy(
            policy=result.policy,
            simulated=True,
            ttd_s=result.ttd_s,
            mean_jct_s=result.mean_jct_s,
            cru=result.cru,
            rounds=result.rounds,
            unfinished=result.unfinished,
            ttd_change=result.ttd_s / own_s - 1 if result.ttd_s and own_s else None,
        )
        for result in results
    )
    costs = fitted.costs
    return Replay(
        run=summary.run,
        start_s=costs.start_s,
        first_start_s=costs.first_start_s,
        sync_s=costs.sync_s,
        simulation_gap=own_s / real.ttd_s - 1 if own_s and real.ttd_s else None,
        policies=(real, *replayed),
    )


def _table(answer: Replay) -> Table:
    from hadar_cli.report.format import NOTHING, duration, percent
    from hadar_cli.report.terminal.tables import table

    rows = table("POLICY", "", ">TTD", ">CHANGE", ">MEAN JCT", ">CRU", ">ROUNDS", ">LEFT")
    for one in answer.policies:
        change = NOTHING if one.ttd_change is None else f"{100 * one.ttd_change:+.1f} %"
        rows.add_row(
            one.policy,
            "on paper" if one.simulated else "as it happened",
            duration(one.ttd_s),
            change,
            duration(one.mean_jct_s),
            percent(one.cru),
            str(one.rounds),
            str(one.unfinished or NOTHING),
        )
    return rows


def _remarks(answer: Replay, scenario: Scenario) -> list[str]:
    from hadar_cli.report.format import duration

    first = answer.first_start_s
    costs = [f"start {duration(answer.start_s)}", f"sync {duration(answer.sync_s)}"]
    if first is not None:
        costs.insert(0, f"first start {duration(first)}")
    lines = [f"On paper, at run {answer.run}'s own speeds and costs: {', '.join(costs)}."]
    if answer.simulation_gap is None:
        lines.append("The run has not finished: nothing tells how far paper is from it.")
    else:
        gap = f"{100 * answer.simulation_gap:+.1f} %"
        lines.append(f"Paper against what happened, same policy: {gap}. CHANGE is paper's alone.")
    if scenario.losses:
        gone = ", ".join(f"{device} at {duration(at)}" for device, at in scenario.losses)
        lines.append(f"Devices are lost as they were: {gone}.")
    return lines
