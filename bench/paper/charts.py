"""Plots as SVG text, lines and grouped bars with ranges: nothing to install, nothing to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0f766e", "#d97706", "#2563eb", "#9333ea", "#dc2626", "#475569", "#65a30d")
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 64, 56
_INK, _FAINT = "#1f2937", "#e5e7eb"


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, as a share of the axis."""
        if self.is_log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            powers = [10.0**n for n in range(first, last + 1)]
            return [p for p in powers if self.low <= p <= self.high * 1.0001]
        step = _round_step((self.high - self.low) / 6)
        count = math.floor((self.high - self.low) / step + 1e-9)
        return [self.low + i * step for i in range(count + 1)]


def axis(label: str, values: Sequence[float], is_log: bool = False) -> Axis:
    """From zero to a little above the largest; a logarithmic one from the least."""
    if is_log:
        return Axis(label, min(values) / 1.3, max(values) * 1.3, is_log)
    top = max(values, default=1.0) * 1.04
    step = _round_step(top / 6)
    return Axis(label, 0.0, step * math.ceil(top / step - 1e-9))


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(rough))
    return next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999)


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"1e{math.log10(value):.0f}" if math.log10(value).is_integer() else f"{value:.0e}"
    return f"{value:,.10g}"


class _Frame:
    """The picture's box, its title, axes and legend."""

    def __init__(self, title: str, x: Axis | None, y: Axis) -> None:
        self.x, self.y = x, y
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" '
            f'font-size="13" fill="{_INK}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
        ]
        for tick in y.ticks():
            self._horizontal(tick)
        self._text(16, (TOP + HEIGHT - BOTTOM) / 2, y.label, "middle", turned=True)
        if x:
            for tick in x.ticks():
                self._text(self.across(tick), HEIGHT - BOTTOM + 20, _number(tick), "middle")
            self._text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x.label, "middle")

    def across(self, value: float) -> float:
        assert self.x
        return LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - TOP - BOTTOM)

    def legend(self, names: Sequence[str], marks: Sequence[str]) -> None:
        at = float(LEFT)
        for name, mark in zip(names, marks, strict=True):
            self.parts.append(mark.format(x=at, y=44))
            self._text(at + 26, 48, name, "start")
            at += 46 + 7.2 * len(name)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'
        )

    def _horizontal(self, tick: float) -> None:
        y = self.down(tick)
        self.line(LEFT, y, WIDTH - RIGHT, y, f'stroke="{_FAINT}"')
        self._text(LEFT - 8, y + 4, _number(tick), "end")

    def _text(self, x: float, y: float, text: str, anchor: str, turned: bool = False) -> None:
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
        )

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


Points = Sequence[tuple[float, float]]


def lines(title: str, x: Axis, y: Axis, series: Mapping[str, Points], dots: bool = False) -> str:
    """One line for each series, in the order given."""
    frame = _Frame(title, x, y)
    marks = []
    for colour, dash, points in zip(COLOURS, _dashes(), series.values(), strict=False):
        style = f'stroke="{colour}" stroke-width="2.2" stroke-dasharray="{dash}" fill="none"'
        path = " ".join(f"{frame.across(a):.1f},{frame.down(b):.1f}" for a, b in points)
        frame.parts.append(f'<polyline points="{path}" {style} stroke-linejoin="round"/>')
        if dots:
            for a, b in points:
                frame.parts.append(
                    f'<circle cx="{frame.across(a):.1f}" cy="{frame.down(b):.1f}" r="3.2" '
                    f'fill="{colour}"/>'
                )
        marks.append(f'<path d="M{{x}} {{y}}h20" {style}/>')
    frame.legend(list(series), marks)
    return frame.svg()


@dataclass(frozen=True, slots=True)
class Bar:
    value: float
    low: float | None = None
    high: float | None = None


def bars(title: str, y: Axis, groups: Sequence[str], series: Mapping[str, Sequence[Bar]]) -> str:
    """Groups of bars side by side; a bar with a range has it drawn over it."""
    frame = _Frame(title, None, y)
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = min(36.0, 0.8 * room / len(series))
    for colour, (number, row) in zip(COLOURS, enumerate(series.values()), strict=False):
        for group, bar in enumerate(row):
            left = LEFT + (group + 0.5) * room + (number - len(series) / 2) * width
            top = frame.down(bar.value)
            frame.parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width - 2:.1f}" '
                f'height="{HEIGHT - BOTTOM - top:.1f}" fill="{colour}"/>'
            )
            if bar.low is not None and bar.high is not None and bar.high > bar.low:
                middle = left + (width - 2) / 2
                _range(frame.line, middle, frame.down(bar.low), frame.down(bar.high))
    for group, name in enumerate(groups):
        frame._text(LEFT + (group + 0.5) * room, HEIGHT - BOTTOM + 20, name, "middle")
    swatch = '<path d="M{{x}} {{y}}h14" stroke="{}" stroke-width="12"/>'
    frame.legend(list(series), [swatch.format(colour) for colour in COLOURS[: len(series)]])
    return frame.svg()


def tallest(series: Mapping[str, Sequence[Bar]]) -> list[float]:
    return [bar.high or bar.value for row in series.values() for bar in row]


def _range(line: Callable[..., None], x: float, low: float, high: float) -> None:
    style = f'stroke="{_INK}" stroke-width="1.2"'
    line(x, low, x, high, style)
    for end in (low, high):
        line(x - 4, end, x + 4, end, style)


def _dashes() -> Iterator[str]:
    while True:
        yield from ("none", "7 4", "2 3", "9 3 2 3", "12 4")
