"""What every chart of the page has in common: colours, axes, words, and the data as a table.

A figure is plain data in plotly's format; plotly.js, inside the page, draws it. Text and lines take
the page's colours when they are drawn, so that light and dark need one figure only.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hadar_cli.report.format import plain

Trace: TypeAlias = dict[str, Any]

# Okabe and Ito's colours, told apart with any kind of colour vision; the palest comes last.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
PATTERNS = ("", "/", ".", "x", "-", "\\", "+", "|")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "cross")
FAINT = "rgba(128,128,128,0.28)"  # visible on white and on black
GREY = "rgba(128,128,128,0.75)"

# Where time goes: its name, colour and pattern. Training stands out, idle time steps back.
PARTS = {
    "busy_s": ("training", "#009E73", ""),
    "start_s": ("start", "#E69F00", "/"),
    "transfer_s": ("transfer", "#56B4E9", "\\"),
    "merge_s": ("merge", "#CC79A7", "x"),
    "evaluate_s": ("evaluate", "#0072B2", "-"),
    "lost_s": ("lost", "#D55E00", "+"),
    "no_work_s": ("no work", "rgba(128,128,128,0.08)", "."),
    "idle_s": ("idle", "rgba(128,128,128,0.22)", ""),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its words: ``says`` is what it shows, for those who cannot see it."""

    id: str
    title: str
    says: str
    data: list[Trace]
    layout: dict[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]] = field(default_factory=list)
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time axis: seconds, minutes, hours or days, whichever suits the length."""

    unit: str
    seconds: int

    @classmethod
    def lasting(cls, ends_at: float) -> Clock:
        for unit, seconds in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
            if ends_at >= 3 * seconds:
                return cls(unit, seconds)
        return cls("seconds", 1)

    def at(self, seconds: float) -> float:
        return round(seconds / self.seconds, 5)

    def axis(self, ends_at: float) -> dict[str, Any]:
        return axis(self.unit, range=[0, self.at(ends_at) * 1.005])


def colour(position: int) -> str:
    return COLOURS[position % len(COLOURS)]


def pattern(position: int) -> dict[str, Any]:
    """Every job its own: colour alone tells nothing in a grey print."""
    shape = PATTERNS[position % len(PATTERNS)]
    return _marks(shape)


def part_marker(part: str) -> dict[str, Any]:
    _, fill, shape = PARTS[part]
    return {"color": fill, "line": {"width": 0}, "pattern": _marks(shape)}


def _marks(shape: str) -> dict[str, Any]:
    paint = {"fillmode": "overlay", "fgcolor": "#fff", "fgopacity": 0.35}
    return {"shape": shape, "size": 8, "solidity": 0.16, **paint}


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": FAINT,
        "zeroline": False,
        "automargin": True,
        "tickangle": 0,
        "fixedrange": False,
        **options,
    }


def percents(title: str, **options: Any) -> dict[str, Any]:
    return axis(title, tickformat=".0%", range=[0, 1.02], **options)


def layout(
    height: int, xaxis: dict[str, Any], yaxis: dict[str, Any], **more: Any
) -> dict[str, Any]:
    return {
        "height": height,
        "xaxis": xaxis,
        "yaxis": yaxis,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -0.2,
            "yanchor": "top",
            "traceorder": "normal",
        },
        "dragmode": False,
        "hoverlabel": {"align": "left"},
        **more,
    }


def upright_line(x: float, dash: str = "dot", width: float = 1) -> dict[str, Any]:
    line = {"color": GREY, "width": width, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def mark(x: float, words: str, y: float = 1.0) -> dict[str, Any]:
    """A word at the top of the chart."""
    return {
        "x": x,
        "y": y,
        "yref": "paper",
        "text": words,
        "showarrow": False,
        "yanchor": "bottom",
        "font": {"size": 10},
    }


def label(text: str, limit: int = 40) -> str:
    """Foreign text for plotly, which takes tags for markup."""
    return html.escape(plain(text, limit), quote=False)


def category(text: str) -> str:
    """A name below a bar: it breaks at underscores, for bars are narrow."""
    return label(text, 24).replace("_", "_<br>")
