"""Results that are not what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hadar_cli.engine.ports import CopyOrder, CopyResult

LIES = [
    "lie: too many steps",
    "lie: negative steps",
    "lie: steps not given",
    "lie: another job's steps",
    "lie: steps repeated",
    "lie: steps uncounted",
    "lie: no weights",
    "lie: figures not finite",
]
BAD_WEIGHTS = [
    "weights of another shape",
    "another frozen part",
    "weights not finite",
    "weights unreadable",
    "update of other weights",
]


def tell(lie: str, order: CopyOrder, true: CopyResult, dice: Random) -> CopyResult:
    """The result as a lying or broken worker would send it."""
    match lie:
        case "lie: too many steps":
            more = len(order.steps) + dice.randint(1, 1000)
            return replace(true, steps=more, slices=((0, more),))
        case "lie: negative steps":
            return replace(true, steps=-true.steps - 1, slices=((5, 4),))
        case "lie: steps not given":
            first = order.job.target_steps + dice.randint(-3, 3)
            return replace(true, steps=max(1, true.steps), slices=((first, first + true.steps),))
        case "lie: another job's steps":
            first = max(0, order.steps.ranges[0][0] - 7) if order.steps else 0
            return replace(true, slices=((first, first + true.steps),))
        case "lie: steps repeated":
            return replace(true, steps=2 * true.steps, slices=true.slices * 2)
        case "lie: steps uncounted":
            return replace(true, steps=true.steps + 1)
        case "lie: figures not finite":
            odd = dice.choice((math.nan, math.inf, -math.inf, -1.0))
            quality = true.quality and dict.fromkeys(true.quality, odd)
            return replace(true, start_s=odd, train_s=odd, save_s=odd, loss=odd, quality=quality)
    return true
