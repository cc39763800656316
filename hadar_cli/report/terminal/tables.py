"""Tables in one style: no lines, dim headings, numbers to the right."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from hadar_cli.report.format import plain

BEST = "*"


def table(*headings: str, gap: int = 2) -> Table:
    """An empty table with ``gap`` cells between its columns.

    A heading that starts with ``>`` is of numbers, set to the right; one that starts with ``~`` may
    be cut or wrapped where the terminal is narrow.
    """
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for heading in headings:
        made.add_column(
            heading.lstrip(">~"),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=not heading.startswith("~"),
        )
    return made


def measured(text: str, is_best: bool) -> Text:
    """A cell of a comparison; the best of its column is marked, and none is shifted by that."""
    return Text(f"{text}{BEST}" if is_best else f"{text} ", "bold green" if is_best else "")


def name(text: str) -> Text:
    """A cell that shrinks to fit, but never wraps."""
    return Text(plain(text, 40), no_wrap=True, overflow="ellipsis")
