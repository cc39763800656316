"""What every benchmark hands back, and how that is shown, kept and held against an earlier run.

A benchmark is a file with ``rows(quick)``: it measures ours beside a rival or a physical limit, in
turns, and yields a ``Row`` for each case. Only ratios are compared between runs: machines differ,
and what else they do slows both sides alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeAlias

import msgspec

WORSE = 0.8  # of the baseline's ratio: less is a regression, unless the spreads overlap


@dataclass(frozen=True, slots=True)
class Row:
    """``ratio`` says how many times better ours is: below one, the rival or the limit wins."""

    case: str
    unit: str
    ours: float
    rival: str
    theirs: float
    ratio: float
    worst: float  # ratio over the repeats
    best: float
    repeats: int


Rows: TypeAlias = dict[str, list[Row]]  # by benchmark


def beside(
    case: str,
    unit: str,
    ours: Sequence[float],
    rival: str,
    theirs: Sequence[float],
    more_is_better: bool = False,
) -> Row:
    """The row of repeated measurements; a single rival figure stands beside each of ours."""
    pairs = list(zip(ours, theirs if len(theirs) > 1 else list(theirs) * len(ours), strict=True))
    ratios = [mine / other if more_is_better else other / mine for mine, other in pairs]
    return Row(
        case=case,
        unit=unit,
        ours=median(ours),
        rival=rival,
        theirs=median(theirs),
        ratio=median(ratios),
        worst=min(ratios),
        best=max(ratios),
        repeats=len(pairs),
    )


def line(row: Row) -> str:
    spread = f" ({row.worst:.3g} … {row.best:.3g}, {row.repeats} ×)" if row.repeats > 1 else ""
    ours, theirs = f"{row.ours:.4g} {row.unit}", f"{row.rival} {row.theirs:.4g}"
    return f"  {row.case:36} {ours:>16}   {theirs:36} ratio {row.ratio:.3g}{spread}"


@dataclass(frozen=True, slots=True)
class Change:
    """A case that both runs measured, and how its ratio changed."""

    bench: str
    before: Row
    now: Row

    @property
    def factor(self) -> float:
        return self.now.ratio / self.before.ratio

    @property
    def is_worse(self) -> bool:
        return self.factor < WORSE and self.now.best < self.before.worst


def changes(before: Mapping[str, Sequence[Row]], now: Rows) -> Iterator[Change]:
    for bench, rows in now.items():
        known = {row.case: row for row in before.get(bench, ())}
        yield from (Change(bench, known[row.case], row) for row in rows if row.case in known)


@dataclass(frozen=True, slots=True)
class Run:
    """All rows of one run, and where they come from."""

    commit: str
    when: str
    machine: str
    rows: Rows


def write(path: Path, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def read(path: Path) -> Run:
    return msgspec.json.decode(path.read_bytes(), type=Run)
