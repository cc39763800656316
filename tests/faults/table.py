"""What ``scripts/faults`` prints: a row for every section, and details below each other."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.sections import Findings

_HEADS = (
    "section",
    "trials",
    "faults fired",
    "checked",
    "violations",
    "95 % bound",
    "recovery p50",
    "p99",
    "redone",
)


def rows(findings: Mapping[str, Findings]) -> str:
    """A table that Markdown takes too."""
    lines = [_HEADS, *(_row(name, found) for name, found in findings.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADS))]
    text = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _row(name: str, found: Findings) -> tuple[str, ...]:
    waits = sorted(found.recoveries_s)
    redone = found.steps_redone
    return (
        name,
        f"{found.trials:,}",
        f"{found.fired.total():,}",
        f"{found.checked:,}",
        f"{len(found.violations)}",
        f"{3 / found.trials:.1e}" if found.trials else "",
        f"{waits[len(waits) // 2]:.1f} s" if waits else "",
        f"{waits[len(waits) * 99 // 100]:.1f} s" if waits else "",
        "" if redone is None else f"{redone:,} of {found.steps:,}",
    )


def print_details(name: str, found: Findings, only_skipped: bool = False) -> None:
    for title, figures in found.details.items() if not only_skipped else ():
        print(f"{name}: {title}")
        width = max((len(figure) for figure in figures), default=0)
        for figure, value in figures.items():
            print(f"  {figure:<{width}}  {value}")
        print()
    for what in found.skipped:
        print(f"{name}: SKIPPED {what}")
