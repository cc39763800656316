"""Numbers, times and foreign text as people read them; shared by the report and the live view."""

from __future__ import annotations

import math
import re

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
