"""How many copies of a job are worth their merges.

A copy on a slow device adds little to a merge and may make the others wait for its weights. What
counts is the training that a merge is worth, in steps of one device alone, per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hadar_cli.core.estimates.merging import LR_SCALES

_ABOUT_AS_FAST = 0.85  # of the fastest


def worth(steps: Sequence[float], lr_scale_rule: str) -> float:
    """How many steps of one device alone the merge of copies with these steps is worth.

    A mean moves the model by Στ²/Στ steps, times the factor on the copies' learning rate: under
    ``linear`` that is Στ, all steps; under ``none`` less than the fastest copy did on its own.
    """
    return _worth(sum(steps), sum(tau * tau for tau in steps), lr_scale_rule)


def _worth(total: float, squares: float, lr_scale_rule: str) -> float:
    return squares / total * LR_SCALES[lr_scale_rule](total**2 / squares) if squares else 0.0


@lru_cache(maxsize=4096)
def forks_that_pay(
    rates: tuple[float, ...],
    costs_s: tuple[float, ...],
    interval_s: float,
    lr_scale_rule: str,
    left: float = float("inf"),
) -> tuple[int, ...]:
    """Which devices should train copies of a job, fastest first: those worth most per second.

    ``rates`` are the job's steps/s by device, ``costs_s`` what a merge costs each device in
    transfer and loading, ``interval_s`` the training between merges, ``left`` the steps that are
    still to do: of few, a merge is too large a part. Copies are fetched and sent at the same time,
    so a merge costs as much as its costliest copy. A lone copy needs no merge, and its weights
    travel while it goes on: of those about as fast as the fastest, the cheapest.
    """
    by_rate = sorted((i for i, rate in enumerate(rates) if rate > 0), key=lambda i: -rates[i])
    if not by_rate:
        return ()
    alike = [i for i in by_rate if rates[i] >= _ABOUT_AS_FAST * rates[by_rate[0]]]
    lone = min(alike, key=lambda i: costs_s[i])
    best: tuple[int, ...] = (lone,)
    most = rates[lone]
    # The best choice leaves out no device that is both faster and cheaper than one it has: so it
    # is the fastest few among those that cost no more than some bound.
    for bound in sorted({costs_s[i] for i in by_rate}):
        affordable = [i for i in by_rate if costs_s[i] <= bound]
        total = squares = cost_s = 0.0  # of a second's training
        for count, i in enumerate(affordable, start=1):
            total, squares, cost_s = (
                total + rates[i],
                squares + rates[i] ** 2,
                max(cost_s, costs_s[i]),
            )
            trains_s = min(interval_s, left / total)
            pace = _worth(total, squares, lr_scale_rule) * trains_s / (trains_s + cost_s)
            if count > 1 and pace > most:
                best, most = tuple(affordable[:count]), pace
    return best
