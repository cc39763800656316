"""Fixed columns of cells. Rich's tables lay themselves out anew for every frame, at ten times the
cost, and wrap what does not fit; these rows are cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from hadar_cli.report.format import fit

Line: TypeAlias = list[Segment]
Drawing: TypeAlias = Callable[[int], str]  # of a width


@dataclass(frozen=True, slots=True)
class Column:
    """``grows``: its part of what is left over; ``needs``: shown in grids at least that wide."""

    title: str
    width: int
    right: bool = False
    grows: int = 0
    needs: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, or what draws one to the width it is given."""

    content: str | Drawing
    style: Style | None = None


class Grid:
    """Lays columns out over a width, one space apart, and sets rows in them."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        self._columns = [column for column in columns if width >= column.needs]
        self._width = width
        spare = width - sum(c.width + 1 for c in self._columns) + 1
        parts = max(1, sum(column.grows for column in self._columns))
        self._widths = [max(0, c.width + spare * c.grows // parts) for c in self._columns]

    def titles(self, style: Style) -> Line:
        return self.row({c.title: Cell(c.title, style) for c in self._columns})

    def row(self, cells: Mapping[str, Cell | str]) -> Line:
        """A line with these cells under their titles; columns not named stay empty."""
        line: Line = []
        for column, width in zip(self._columns, self._widths, strict=True):
            cell = cells.get(column.title, "")
            cell = Cell(cell) if isinstance(cell, str) else cell
            drawn = cell.content if isinstance(cell.content, str) else cell.content(width)
            text = fit(drawn, width)
            padding = Segment(" " * (width - cell_len(text)))
            styled = Segment(text, cell.style)
            line += [padding, styled] if column.right else [styled, padding]
            line.append(Segment(" "))
        return cut(line[:-1], self._width)


def cut(line: Line, width: int) -> Line:
    """At most ``width`` cells of the line, and no empty segments."""
    cropped = Segment.adjust_line_length(line, width, pad=False)
    return [segment for segment in cropped if segment.text]
