"""In which order jobs choose their devices: who may end late, and who is soon done.

The cheapest job first keeps the mean completion time low. The end of the last job asks for more:
a job that needs nearly all the time that is left must not wait. So there is a *horizon*, the time
that the work here and the jobs still to come will take, and a *reserve*, a share of it. Whoever
would eat into the reserve chooses before the others, but for *short jobs*, so cheap
that all of them together take no more than a quarter of the time that the longest job has to spare,
and the *overdue*, who have waited for longer than is fair. Where lengths are uncertain, the longest
job is meant, and who would eat into the reserve, in the bad case.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray
from hadar_cli.core.policies.gangs.market import Market

SOON, CRITICAL, LATE, WIDE, REST = range(5)  # in this order they choose
SPENT_ON_SHORT_JOBS = 0.25  # of the time that the longest job has to spare
WIDE_ENOUGH = 0.5  # of the horizon: gangs that pack badly and together take this long go before
OVERDUE = {"balanced": 1.5, "fairness": 0.8}  # times the fair completion time
STARTS_FOR_A_TURN = 2  # a job that takes another's devices costs two starts: its own, and later his


@dataclass(frozen=True, slots=True)
class JobOrder:
    """All jobs in the order in which they choose."""

    order: IntArray
    is_critical: BoolArray  # in need of the fastest devices
    worth_s: float  # a move of theirs has to save this much


def order_jobs(
    market: Market,
    objective: str,
    reserve: float,
    fluid_s: float,
    widest_s: FloatArray | None = None,
) -> JobOrder:
    """``fluid_s`` is the time that the work needs at least, however it is divided.

    ``widest_s`` is what jobs need at their widest that leave their size open, 0 of the others.
    """
    queue, runs = market.queue, market.runs
    horizon_s = max(fluid_s, market.longest_s) + queue.arrivals_s
    # Jobs of equal length have to take turns at the devices that there are too few of. With a turn
    # of x seconds they end x apart, and pay horizon/x starts: this x makes the sum of both least.
    turn_s = sqrt(queue.restart_s * horizon_s)
    bonus_s = np.where(runs, turn_s, 0.0)
    is_critical = market.shortest_s + bonus_s >= (1 - reserve) * horizon_s
    last = market.cost + np.where(runs, 0.0, STARTS_FOR_A_TURN * queue.restart_s * market.share)
    if objective == "balanced":
        tier = np.where(_are_wide(market, horizon_s), WIDE, REST)
        tier[market.home_s >= (1 - reserve) * horizon_s] = LATE
        tier[is_critical] = CRITICAL
        if widest_s is not None and (can_widen := widest_s > 0).any():
            # They widen when the others have gone, and are late only if even that will not do.
            is_late = widest_s + bonus_s >= horizon_s
            tier[can_widen] = np.where(is_late, CRITICAL, REST)[can_widen]
        spare_s = horizon_s - turn_s - float(market.shortest_s.max(initial=0.0))
        cheapest = _sorted(market, last)
        tier[cheapest[np.cumsum(market.cost[cheapest]) <= SPENT_ON_SHORT_JOBS * spare_s]] = SOON
    elif objective == "makespan":
        tier = np.where(is_critical, CRITICAL, LATE)
    else:
        tier = np.full(len(queue), REST)
    # Of a batch that came at once nobody waits for others who were there before.
    if objective == "fairness" or (objective == "balanced" and queue.met):
        tier[_unfairness(market) >= OVERDUE[objective]] = SOON
    is_critical = tier == CRITICAL
    for j in np.flatnonzero(runs & is_critical).tolist():  # on slow devices one would like to move
        held = queue.running[market.ids[j]]
        bonus_s[j] *= market.rate(j, held) / market.top_rate[j]
    longest = (-(market.shortest_s + bonus_s), -(market.home_s + bonus_s))
    within = np.choose(tier, (last, *longest, last, last))
    order = _sorted(market, within)
    order = order[np.argsort(tier[order].astype(np.int8), kind="stable")]
    return JobOrder(order, is_critical, max(turn_s, queue.restart_s))


def _sorted(market: Market, by: FloatArray) -> IntArray:
    """Jobs by this, ascending; of equals those who run, then who came first, then by number.

    Few are equal, and sorting by four columns takes long.
    """
    order = np.argsort(by)
    ascending = by[order]
    if (ascending[1:] == ascending[:-1]).any():
        queue = market.queue
        order = np.lexsort((queue.ids, queue.arrived_s, ~market.runs, by))
    return order


def _are_wide(market: Market, horizon_s: float) -> BoolArray:
    """Gangs that do not divide the cluster evenly and whose work takes much of the time left.

    Twenty devices hold two gangs of eight and waste four: left to the end, such gangs cannot
    fill the cluster, while narrow jobs beside them can at any time.
    """
    queue, strict = market.queue, ~market.queue.elastic
    # What all gangs of each width cost, and then all that are at least as wide.
    cost = np.bincount(queue.gang[strict], market.cost[strict])
    narrowest = len(cost)
    everything, work = float(market.prices @ queue.capacity), 0.0
    for width in np.flatnonzero(cost)[::-1].tolist():
        worth = float(market.prices @ (queue.capacity // width * width))
        work += cost[width]
        if 0 < worth < 0.999 * everything and work >= WIDE_ENOUGH * horizon_s * worth:
            narrowest = width
    return strict & (queue.gang >= narrowest)


def _unfairness(market: Market) -> FloatArray:
    """Finish-time fairness of each job if it ran from now on: JCT over that in an equal share."""
    queue, devices = market.queue, max(1, int(market.queue.capacity.sum()))
    usual_rate = queue.gang * (queue.rates @ queue.capacity) / devices
    crowd = max(1.0, max(queue.met, len(queue)) / devices)
    fair_s = crowd * queue.target / np.maximum(usual_rate, 1e-300)
    waited_s = queue.now_s - queue.arrived_s
    ratio: FloatArray = (waited_s + market.shortest_s) / np.maximum(fair_s, 1e-9)
    return ratio
