"""Parts of ``scripts/faults``: each runs by size and reports one row of the table.

A section is a function in a module of this folder that is named in ``MODULES``:

    @section("bit flips")
    def run_flips(size: Size) -> Findings:
        return Findings(trials=…, fired=…, checked=…, violations=[…])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TypeAlias

MODULES = (
    "simulation",
    "real",
    "crash",
    "soak",
    "fuzz",
    "flips",
    "engines",
    "engine_mix",
)  # in the order of the table


@dataclass(frozen=True, slots=True)
class Size:
    """How much to run; ``seed`` is the first of the seeds, ``scenario`` chooses real faults."""

    is_full: bool = False
    seed: int = 1
    processes: int = 1
    scenario: str = ""


@dataclass(slots=True)
class Findings:
    """What came of a section. A trial is what may be violated once: a schedule, a run, an input."""

    trials: int = 0
    fired: Counter[str] = field(default_factory=Counter)  # faults by kind
    checked: int = 0  # invariants looked at, each time one was
    violations: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)  # from a fault to the next commit
    steps: int = 0  # counted
    steps_redone: int | None = None  # trained beyond those
    skipped: list[str] = field(default_factory=list)  # what cannot be done here, and why
    details: dict[str, Mapping[str, object]] = field(default_factory=dict)  # tables by title


Section: TypeAlias = Callable[[Size], Findings]


@dataclass(frozen=True, slots=True)
class _Entry:
    run: Section
    waits: bool


SECTIONS: dict[str, _Entry] = {}


def section(name: str, waits: bool = False) -> Callable[[Section], Section]:
    """Decorator: the section runs under this name; one that mostly waits runs beside the others."""

    def register(run: Section) -> Section:
        SECTIONS[name] = _Entry(run, waits)
        return run

    return register


def load() -> dict[str, _Entry]:
    for module in MODULES:
        import_module(f"tests.faults.{module}")
    return SECTIONS
