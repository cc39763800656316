"""Parts of ``scripts/faults``: each runs by size and reports figures and violations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Size:
    """How much to run; ``seed`` is the first of the seeds."""

    is_full: bool = False
    seed: int = 1
    processes: int = 1


@dataclass(slots=True)
class Findings:
    """What a section has to say: tables by title, each of names and figures, and violations."""

    tables: dict[str, Mapping[str, object]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


Section: TypeAlias = Callable[[Size], Findings]
SECTIONS: dict[str, Section] = {}


def section(name: str) -> Callable[[Section], Section]:
    """Decorator: the section runs under this name, in the order of registration."""

    def register(run: Section) -> Section:
        SECTIONS[name] = run
        return run

    return register
