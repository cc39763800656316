"""How fast a gang trains, and which share of a mini-batch each of its members takes.

A member needs ``a + c·b`` seconds for a share b of the batch: the part ``a`` does not get shorter
with its share (launching kernels, the optimizer, the loop itself). *Proportional* shares let all
members of a step end at once, so that a gang runs at nearly the sum of its members' speeds; a
member whose ``a`` alone takes longer than the others need for everything gets no share. *Equal*
shares, which DDP has and the paper assumes, run at W times the slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from hadar_cli.core.events import CopyFinished, CopyStarted
from hadar_cli.core.model import Device

EQUAL, PROPORTIONAL = "equal", "proportional"
SHARES = (PROPORTIONAL, EQUAL)
MEETING_S = 0.002  # of each member: what an exchange of gradients takes, however small
LOOPBACK_S = 0.6e-9  # of each member and byte; 1, 10 and 45 MB among five took 11, 29 and 138 ms
NETWORK_S = 9e-9  # of a byte, at 1 Gb/s, of which each member sends and receives nearly two copies
GAIN = 1.1  # times as fast as the fastest alone: less is not worth the others' company
# A gang's order tells its speed by so many steps, the first of which wait for everybody's start, or
# by a few that took long: one that is too slow may never come to more of them in a slot.
_LEAST_STEPS, _FEW_STEPS, _LONG_S = 8, 2, 3.0
FIXED = 0.05  # of the time that a whole batch takes a device: what a smaller share does not save


def gang_rate(rates: Sequence[float], shares: str, fixed: float = FIXED) -> float:
    """Steps per second of devices that do ``rates`` alone, together.

    Rates that were measured in gangs hold what these cost: nothing is ``fixed`` beside them.
    """
    if not rates or min(rates) <= 0:
        return 0.0
    if len(rates) == 1:
        return rates[0]
    if shares == EQUAL:
        return len(rates) * min(rates)
    helping = _helping(rates, fixed)
    return sum(helping) / _work(len(helping), fixed)


def exchange_s(members: int, size: float, is_far: bool) -> float:
    """What adding up so many bytes of gradients takes, by experience, before it is measured."""
    if members < 2:
        return 0.0
    way_s = 2 * (members - 1) / members * size * NETWORK_S if is_far else 0.0
    return members * (MEETING_S + LOOPBACK_S * size) + way_s


def are_far(devices: Sequence[Device]) -> bool:
    """Whether a gang of these exchanges gradients over a network."""
    return len({device.node for device in devices}) > 1 and devices[0].is_networked


class Speeds(Protocol):
    """Steps per second of a job on one device, and on several together."""

    def rate(self, job_id: int, device_name: str) -> float: ...

    def gang(self, job_id: int, device_names: Sequence[str]) -> float: ...


def best_gang(
    job_id: int, best: str, others: Iterable[str], rates: Speeds
) -> tuple[tuple[str, ...], float]:
    """The gang around ``best`` and its rate: the fastest join first, each as long as it helps."""
    gang: tuple[str, ...] = (best,)
    rate = rates.rate(job_id, best)
    for device in sorted(others, key=lambda name: -rates.rate(job_id, name)):
        wider = rates.gang(job_id, (*gang, device))
        if rates.rate(job_id, device) > 0 and wider > rate:
            gang, rate = (*gang, device), wider
    return gang, rate


def shares_of(rates: Sequence[float], shares: str) -> tuple[float, ...]:
    """Each device's part of a mini-batch; 0 for one that does not help, all equal if ``()``."""
    if shares == EQUAL or len(rates) < 2 or min(rates) <= 0:
        return ()
    helping = _helping(rates, FIXED)
    step_s = _work(len(helping), FIXED) / sum(helping)
    parts = [max(0.0, step_s * rate - FIXED) / (1 - FIXED) for rate in rates]
    whole = sum(parts)
    return tuple(part / whole for part in parts)


def seconds_of(share: float, rate: float) -> float:
    """What its share of a step takes a device that does ``rate`` alone."""
    return (FIXED + (1 - FIXED) * share) / rate if rate > 0 else 0.0


def rate_alone(share: float, seconds: float) -> float:
    """What a member that takes so long for its share would do alone, in steps per second."""
    return (FIXED + (1 - FIXED) * share) / seconds if seconds > 0 else 0.0


def tells_speed(done: CopyFinished) -> bool:
    """Whether a gang's hand-in says enough of how fast it is."""
    is_long = done.train_s >= _LONG_S and done.steps >= _FEW_STEPS
    return done.steps >= _LEAST_STEPS or is_long


def speeds_seen(copy: CopyStarted, done: CopyFinished) -> list[tuple[str, float, float, float]]:
    """What a hand-in tells of devices: each with the batches it did, and the seconds it would take
    for them alone. Last their size, in mini-batches: more than one where these were joined."""
    batches, steps = done.update
    passes = done.steps / steps
    if not copy.gang:
        return [(copy.device, passes, done.train_s, batches)]
    if not tells_speed(done):
        return []
    seen = []
    for device, (share, step_s) in zip(copy.gang, done.members, strict=False):
        if (size := share * batches) > 1 and step_s > 0:
            seen.append((device, passes, passes * step_s, size))
        elif share > 0 and step_s > 0:
            seen.append((device, passes, passes / rate_alone(size, step_s), 1.0))
    return seen


def steps_seen(copy: CopyStarted, done: CopyFinished) -> list[tuple[str, int, float]]:
    """The same in the job's steps: those it counted, and the seconds they would take alone."""
    batches = done.update[0]
    seen = speeds_seen(copy, done)
    return [(device, done.steps, seconds * batches / size) for device, _, seconds, size in seen]


def steps_of(copy: CopyStarted, done: CopyFinished) -> dict[str, int]:
    """The steps by device, those of a gang by what each member took of them."""
    shares = [share for share, _ in done.members]
    if len(shares) != len(copy.devices) or sum(shares) <= 0:
        shares = [1.0] * len(copy.devices)
    counted: dict[str, int] = {}
    so_far, whole = 0.0, sum(shares)
    for device, share in zip(copy.devices, shares, strict=True):
        before, so_far = round(done.steps * so_far / whole), so_far + share
        counted[device] = round(done.steps * so_far / whole) - before
    return counted


def _work(members: int, fixed: float) -> float:
    """What a step costs all members together, in whole batches."""
    return 1 - fixed + members * fixed


def _helping(rates: Sequence[float], fixed: float) -> list[float]:
    """The rates of those members that get a share, the fastest first."""
    fastest_first = sorted(rates, reverse=True)
    helping = fastest_first[:1]
    for rate in fastest_first[1:]:
        step_s = _work(len(helping), fixed) / sum(helping)
        if fixed / rate >= step_s:
            break
        helping.append(rate)
    return helping
