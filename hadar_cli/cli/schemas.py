"""The JSON Schema of every ``--json``, made from the records that commands print.

`scripts/schemas` publishes them in docs/schemas; a test keeps those up to date.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hadar_cli.cli import records
from hadar_cli.config import schemas as files
from hadar_cli.core.measures.sweeps import SweepSummary
from hadar_cli.core.model import Node
from hadar_cli.report.record import ReportedRun
from hadar_cli.report.terminal.runs import Comparison
from hadar_cli.selftest.findings import Selftest
from hadar_cli.simulation.scenario import PolicyResult
from hadar_cli.trial.words import Check
from hadar_cli.visits.inspection import NodeCheck
from hadar_cli.visits.visit import Tidied

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A job that could not be simulated, by its line in the trace."""

    file: str | None
    line: int | None
    field: str | None
    problem: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The answer of `hadar try`."""

    ok: bool
    checks: tuple[Check, ...]
    not_looked_at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """What `hadar run` would be expected to take here, and what that rests on."""

    ttd_s: float
    basis: str


@dataclass(frozen=True, slots=True)
class Simulation:
    """The answer of `hadar simulate`."""

    jobs: int
    devices: int
    slot_s: float
    restart_s: float
    sync_s: float
    left_out: tuple[LeftOut, ...]
    policies: tuple[PolicyResult, ...]
    forecast: ExpectedRun | None = None


def outputs() -> dict[str, tuple[str, Any]]:
    """By the name of its schema: the command, and the type of what its ``--json`` prints."""
    return {
        "report": ("hadar report RUN, hadar run MIX and hadar resume RUN", ReportedRun),
        "report-sweep": ("hadar report RUN --sweep", list[SweepSummary]),
        "report-list": ("hadar report --list", list[records.RunOutline]),
        "report-compare": ("hadar report RUN RUN…", Comparison),
        "run-dry-run": ("hadar run MIX --dry-run", records.Plan),
        "status": ("hadar status", records.Status),
        "explain": ("hadar explain RUN", records.Explained),
        "logs": ("hadar logs [RUN] JOB", records.JobLogs),
        "cancel": ("hadar cancel RUN", records.Cancelled),
        "request": (
            "hadar add, cancel RUN JOB…, pause, continue, priority, close, nodes add, nodes drain",
            records.Asked,
        ),
        "check": ("hadar check", list[NodeCheck]),
        "profile-nodes": ("hadar profile nodes", records.Profile),
        "nodes-list": ("hadar nodes list", list[Node]),
        "policies": ("hadar policies", list[records.PolicyOutline]),
        "selftest": ("hadar selftest", Selftest),
        "clean": ("hadar clean", dict[str, Tidied]),
        "simulate": ("hadar simulate", Simulation),
        "try": ("hadar try SCRIPT", Trial),
        "replay": ("hadar replay RUN", records.Replay),
    }


def schema(name: str) -> dict[str, Any]:
    command, kind = outputs()[name]
    about = {"$schema": _DIALECT, "title": f"{command} --json"}
    return about | msgspec.json.schema(kind)


def published() -> dict[str, str]:
    """One file for each schema, of outputs and of files, by its name."""
    wanted = {f"{name}.json": text(name) for name in outputs()}
    return wanted | {f"{kind}.schema.json": files.text(kind) for kind in files.SCHEMAS}


def publish(folder: Path) -> None:
    """Writes all of them; takes away all others."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = published()
    for path in folder.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for file, content in wanted.items():
        (folder / file).write_text(content, encoding="utf-8")


def text(name: str) -> str:
    """The schema as it is published."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
