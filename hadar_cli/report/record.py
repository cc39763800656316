"""A stored run as the report reads it: its facts, its journal, and what these add up to."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from hadar_cli.core.events import Event, HeadStarted, JobsAdded
from hadar_cli.core.measures.costs import RunCosts, costs_of
from hadar_cli.core.measures.forecast import Verdict, judge
from hadar_cli.core.measures.metrics import summarise
from hadar_cli.core.measures.summary import RunSummary
from hadar_cli.core.measures.timeline import Timeline, trace
from hadar_cli.core.model import Device, devices_ever
from hadar_cli.runs.rentals import read_rentals
from hadar_cli.runs.store import (
    RunFacts,
    RunStore,
    contradictions_of,
    is_driven,
    read_journal,
)

if TYPE_CHECKING:
    from hadar_cli.core.measures.history import JobHistory
    from hadar_cli.core.measures.sweeps import SweepSummary


@dataclass(frozen=True, slots=True)
class ReportedRun(RunSummary):
    """The summary with forecast and costs beside it: what `hadar report --json` prints."""

    forecast: Verdict | None
    costs: RunCosts | None


@dataclass(frozen=True)
class RunRecord:
    """One run, read once."""

    store: RunStore
    facts: RunFacts
    happened: list[Event]
    summary: RunSummary

    @property
    def devices(self) -> list[Device]:
        return devices_ever(self.facts.nodes)

    @cached_property
    def timeline(self) -> Timeline:
        goes_on = self.summary.state == "running"
        names, jobs = [device.name for device in self.devices], self.facts.mix.jobs
        return trace(names, self.happened, goes_on, jobs)

    @cached_property
    def histories(self) -> list[JobHistory]:
        from hadar_cli.core.measures.history import follow

        return follow(self.facts.mix.jobs, self.happened)

    @cached_property
    def sweeps(self) -> list[SweepSummary]:
        from hadar_cli.core.measures.sweeps import sweeps_of

        return sweeps_of(self.facts.mix.jobs, self.happened)

    @cached_property
    def costs(self) -> RunCosts | None:
        planned_s = self.facts.forecast.ttd_s if self.facts.forecast else None
        rentals = read_rentals(self.store.directory)
        jobs = self.facts.mix.jobs
        return costs_of(self.facts.nodes, jobs, self.timeline, rentals, planned_s, time.time())

    @property
    def verdict(self) -> Verdict | None:
        """The forecast made before the run began, if one was, beside what happened; nothing where
        the run was given more work since."""
        is_other = any(isinstance(event, JobsAdded) for event in self.happened)
        if self.facts.forecast is None or is_other or self.facts.waits_for_work:
            return None
        summary = self.summary
        times_s = {job.name: job.jct_s for job in summary.jobs if job.jct_s is not None}
        ttd_s = summary.ttd_s if summary.state == "finished" else None
        return judge("before the start", self.facts.forecast, ttd_s, times_s)

    @property
    def told(self) -> ReportedRun:
        known = {each.name: getattr(self.summary, each.name) for each in fields(RunSummary)}
        return ReportedRun(**known, forecast=self.verdict, costs=self.costs)

    @property
    def versions(self) -> dict[str, str]:
        """Of the last head that drove the run."""
        heads = [event.versions for event in self.happened if isinstance(event, HeadStarted)]
        return heads[-1] if heads else {}


def read_record(store: RunStore) -> RunRecord:
    happened = read_journal(store.journal_path)
    facts = store.facts.with_added(happened)
    driven = is_driven(store)
    with contradictions_of(store):
        summary = summarise(facts.id, facts.mix, devices_ever(facts.nodes), happened, driven)
    state = "running" if summary.state != "finished" and driven else summary.state
    return RunRecord(store, facts, happened, dataclasses.replace(summary, state=state))
