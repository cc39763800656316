"""What a device of each kind is worth: from the fluid optimum, or by the paper's Eq. 5-7."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np

from hadar_cli.core.arrays import FloatArray, IntArray
from hadar_cli.core.policies.gangs.queue import Queue

# Softness of the choice between kinds while prices are sought, sharper with every stage. The last
# one blurs prices by about its inverse, well under what a change of devices costs a job.
STAGES = (8.0, 32.0, 128.0, 400.0)
STEPS = 40
WARM_STAGES = (200.0,)  # the next round goes on from the last one's prices, which are nearly right
WARM_STEPS = 6
TOLERANCE = 1e-2  # of the loads, in ln units; at the last stage 1/400 of it in the prices
FLOOR = 1e-9  # of the largest price: a kind that nobody wants stays a bargain, not a gift


@dataclass(frozen=True, slots=True)
class FluidPrices:
    """λ_r, the price of one device-second with Σ c_r·λ_r = 1, and the seconds all work takes."""

    per_second: FloatArray
    value_s: float


def fluid_prices(
    remaining: FloatArray, rates: FloatArray, capacity: IntArray, start: FloatArray | None = None
) -> FluidPrices:
    """Prices from the dual of the fluid makespan LP: argmax Σ_j rem_j·min_r(λ_r/X_jr), c·λ = 1.

    Mirror ascent: kinds that the work overloads at the present prices get dearer, by ratios;
    ``start`` is a warm start. The value bounds every schedule's time from below whatever the
    accuracy, for every λ is dual feasible.
    """
    there = capacity > 0
    lam = np.where(there, 1.0 if start is None else start, 0.0)
    if not lam.any():
        lam = there.astype(np.float64)
    c = capacity[there].astype(np.float64)
    # Jobs of one kind of model share their rates, so their work counts as one job's.
    classes, steps = _classes(rates[:, there], remaining)
    works = (steps > 0) & classes.any(axis=1)
    if not works.any():
        return FluidPrices(lam / max(float(lam @ capacity), 1.0), 0.0)
    with np.errstate(divide="ignore"):
        work = np.ascontiguousarray((steps[works, None] / classes[works]).T)  # kinds × classes
    lam[there] = _ascend(np.maximum(lam[there], FLOOR), work, c, is_cold=start is None)
    return FluidPrices(lam, float((work * lam[there][:, None]).min(axis=0).sum()))


def _classes(rates: FloatArray, remaining: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The different rows, and the work of all jobs that have them; np.unique takes far longer.

    By their sums, equal rows come together; where two rows only have the same sum, one of them may
    be listed twice, which changes nothing.
    """
    if not rates.size:
        return rates, remaining
    order = np.argsort(rates.sum(axis=1), kind="stable")
    rows = rates[order]
    starts = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    return rows[starts], np.add.reduceat(remaining[order], starts)


def _ascend(lam: FloatArray, work: FloatArray, c: FloatArray, is_cold: bool) -> FloatArray:
    log_lam = np.log(lam / (lam @ c)).tolist()
    log_work = np.log(work)
    load = np.where(np.isfinite(work), work, 0.0) / c[:, None]  # of each device, if all went there
    sizes: list[float] = c.tolist()
    stages, steps = (STAGES, STEPS) if is_cold else (WARM_STAGES, WARM_STEPS)
    for sharpness in stages:
        for _ in range(steps):
            weight = log_work + np.array(log_lam)[:, None]
            weight *= -sharpness
            weight -= np.maximum.reduce(weight)
            np.exp(weight, out=weight)
            weight /= np.add.reduce(weight)  # where each job goes, softly, at these prices
            loads = np.einsum("rj,rj->r", weight, load).tolist()
            if not _reprice(log_lam, loads, sizes, sharpness):
                break
    return np.asarray(np.exp(log_lam))


def _reprice(log_lam: list[float], loads: list[float], sizes: list[float], sharp: float) -> bool:
    """Makes kinds dearer whose devices have more than their share to do, and the others cheaper.

    False if all have the same. There are few kinds: plain numbers are quicker than arrays.
    """
    highest, mean = max(loads), sum(loads) / len(loads)
    if highest <= FLOOR:
        return False
    misses = [log(max(load, FLOOR * highest) / mean) for load in loads]
    if max(misses) < TOLERANCE and min(misses) > -TOLERANCE:
        return False
    moved = [p + max(-2.0, min(2.0, m)) / sharp for p, m in zip(log_lam, misses, strict=True)]
    least = max(log_lam) - 20
    moved = [max(price, least) for price in moved]
    total = log(sum(n * exp(price) for n, price in zip(sizes, moved, strict=True)))
    log_lam[:] = [price - total for price in moved]
    return True


@dataclass(frozen=True, slots=True)
class PaperPrices:
    """Eq. 5: a kind's price grows exponentially with the share of its devices that is taken."""

    lowest: float  # U_min, Eq. 7
    highest: float  # U_max, Eq. 6
    capacity: tuple[int, ...]
    age: FloatArray  # slots since each job arrived
    t_min: FloatArray  # slots that each job still needs at its fastest

    def at(self, kind: int, load: int) -> float:
        """Of one device when ``load`` of its kind are taken; beyond reach if there is none."""
        if self.capacity[kind] == 0:
            return float("inf")
        return float(self.lowest * (self.highest / self.lowest) ** (load / self.capacity[kind]))

    def utility(self, j: int, slots: float) -> float:
        """U_j when the job ends in so many slots: t_min over all the time since it arrived."""
        return float(self.t_min[j] / (self.age[j] + max(1.0, slots)))


def paper_prices(queue: Queue) -> PaperPrices:
    """The bounds of Eq. 6 and 7, from the work that remains, with time in slots of at least one."""
    gang = queue.gang.astype(np.float64)
    able = np.where(queue.rates > 0, queue.rates, np.nan)
    with np.errstate(all="ignore"):
        t_min = queue.remaining / (gang * np.nanmax(able, axis=1)) / queue.slot_s
        t_max = queue.remaining / (gang * np.nanmin(able, axis=1)) / queue.slot_s
    t_min, t_max = np.nan_to_num(t_min).clip(min=1.0), np.nan_to_num(t_max).clip(min=1.0)
    age = np.maximum(queue.now_s - queue.arrived_s, 0.0) / queue.slot_s
    eta = max(1.0, float(queue.capacity.sum() / (t_max * gang).min()))
    highest = float((t_min / (age + t_min) / gang).max())
    at_the_end = t_min / (age + t_max.sum())
    lowest = float((at_the_end / (t_max * gang)).min()) / (4 * eta)
    capacity = tuple(int(c) for c in queue.capacity)
    return PaperPrices(lowest, highest, capacity, age, t_min)
