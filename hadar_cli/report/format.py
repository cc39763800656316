"""Numbers, times and foreign text as people read them; shared by the report and the live view."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

NOTHING = "–"  # an en dash stands for what is not known
ELLIPSIS = "…"

_UNITS = ("B", "kB", "MB", "GB", "TB")
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)")
_BLOCKS = " ▏▎▍▌▋▊▉"


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12.3 s`, `2 m 05 s`, `3 h 07 m`, `4 d 02 h`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 59.95:
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    for large, small, size in (("d", "h", 3600), ("h", "m", 60), ("m", "s", 1)):
        base = 24 if large == "d" else 60
        if whole >= base * size:
            first, second = divmod(whole // size, base)
            return f"{sign}{first} {large} {second:02d} {small}"
    return f"{sign}{whole} s"


def percent(share: float | None) -> str:
    """`87.3 %`; whole numbers from 100 on."""
    if share is None or not math.isfinite(share):
        return NOTHING
    return f"{100 * share:.0f} %" if share >= 0.9995 else f"{100 * share:.1f} %"


def times(factor: float | None) -> str:
    return NOTHING if factor is None else f"{factor:.2f} x"


def rate(steps_per_s: float | None) -> str:
    """`34.5/s`, `0.27/s`, `1,240/s`: steps a second in three figures."""
    if steps_per_s is None or not math.isfinite(steps_per_s):
        return NOTHING
    return f"{figures(steps_per_s)}/s"


def bytes(count: float) -> str:
    """`7.7 MB`, in powers of 1,000."""
    for unit in _UNITS[:-1]:
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def money(amount: float | None, unit: str = "$") -> str:
    """`$12.30`, and of little money what counts of it: `$0.0021`."""
    if amount is None or not math.isfinite(amount):
        return NOTHING
    return f"{unit}{amount:,.2f}" if not 0 < amount < 0.1 else f"{unit}{figures(amount, 2)}"


def figures(value: float | None, count: int = 3) -> str:
    """At least ``count`` significant figures; no exponent where one can do without."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{count - 1}e}"
    magnitude = int(f"{value:e}".partition("e")[2]) if value else 0
    decimals = max(0, count - 1 - magnitude)
    if decimals and abs(round(value, decimals)) >= 10.0 ** (magnitude + 1):
        decimals -= 1  # rounding made it one digit longer
    return f"{value:,.{decimals}f}"


def plain(text: str, limit: int) -> str:
    """Foreign text as one harmless line: no control characters, at most ``limit`` long.

    Unprintable covers escape sequences, newlines and marks that turn the writing direction.
    Rich markup is not touched: put the result in a ``rich.text.Text``, or escape it.
    """
    text = _ESCAPES.sub("", text[: 8 * limit + 100])
    kept = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + ELLIPSIS


def bar(share: float, width: int) -> str:
    """A bar of exactly ``width`` cells, filled to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)


def clock(seconds: float) -> str:
    """`0:07`, `2:05`, `3:07:00`: a moment of the run, short and of steady width."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def brief(seconds: float) -> str:
    """`45s`, `2m10s`, `3m`, `3h07m`, `4d02h`: how long, without a space."""
    if not math.isfinite(seconds):
        return NOTHING
    words = duration(round(seconds)).replace(".0 ", "").replace(" ", "")
    return re.sub(r"(?<=[dhm])00[hms]$", "", words)


def count(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def fit(text: str, cells: int) -> str:
    """At most so many cells of a text, without control characters; an ellipsis marks a cut."""
    text = plain(text, 4 * cells + 4)
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + ELLIPSIS if cells > 0 else ""


def fit_name(text: str, cells: int) -> str:
    """As ``fit``, cut in the middle: names of a sweep's trials differ at their end."""
    text = plain(text, 200)
    begin, end = cells // 3, cells - cells // 3 - 1
    if cell_len(text) <= cells or end < 1 or not text.isascii():
        return fit(text, cells)
    return text[:begin] + ELLIPSIS + text[-end:]


def when(timestamp: str) -> str:
    """`2026-11-16 06:26`: an ISO timestamp to the minute."""
    return plain(timestamp[:16].replace("T", " "), 16)
