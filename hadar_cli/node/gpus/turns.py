"""Fair turns between runs on a node's devices, without a server: each agent looks, and yields.

A run that has use for a device keeps a claim beside the device's lock: a file that it holds locked,
so that a claim whose process is gone counts no more. Every agent sees the same claims and the same
holder, adds up how long each run has held the device since they share it, and comes to the same
rule. Who holds it leaves it to the run that has had it least, once it is ahead of that one by half
of a turn. Turns are short at first and grow with the time that was shared, so that the shares are
alike in runs of a minute and of a day. A free device goes to the run that has had it least. Nobody
is forced: a run that ignores the rule is waited for, as any colleague's process is.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hadar_cli.node.gpus.cards import CardLock, identity, lock_name, locks_beside, visible

_EVERY_S, _SHARED_EVERY_S = 0.5, 0.2
_AGAIN_S = 5.0  # news are told again, in case the head missed them
_SHORTEST_TURN_S = 4.0
_STARTS = 3.0  # a turn is no shorter than so many starts of a copy
_OF_TIME = 0.3  # what a turn is of the time that each has had on the average
_GRACE_S = 15.0  # a free device is kept so long for the run whose turn it is
_USE_S = 5.0  # a device is kept so long by a run that has it, or could, and does not use it
_COMES_S = 120.0  # what is on its way there is waited for so long
_IDLE_S = 15.0  # the same of one that had use for it just now: its copies may be merged
_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0  # before a device is claimed again that was not used
_SWAP_S = (
    1.0  # so long after its last worker a run still has a device: the next one may be starting
)
_ALIKE_S = 1.0  # two runs' looks may differ by so much
_LONGEST_LOOK_S = 5.0  # a machine that slept has given nobody anything
_MOST_CLAIMS = 32  # of one device; nobody has so many colleagues


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that has use for a device; ``at`` is its directory on this node, its identity here."""

    at: str
    who: str
    since: float  # on the machine's monotonic clock: when it began to wait
    comes: bool = False  # a copy of it is on its way there
    leaves: bool = False  # it gives the device away as soon as its copy has handed in


@dataclass(slots=True)
class Shares:
    """How long each of the runs that want a device has held it since they share it."""

    seconds: dict[str, float] = field(default_factory=dict)

    def pass_time(self, runs: Collection[str], holder: str, seconds: float) -> None:
        """Alone, nobody counts; who comes later begins with the least of the others."""
        if len(runs) < 2:
            self.seconds.clear()
            return
        kept = {run: had for run, had in self.seconds.items() if run in runs}
        least = min(kept.values(), default=0.0)
        self.seconds = {run: kept.get(run, least) for run in runs}
        if holder in self.seconds:
            self.seconds[holder] += min(seconds, _LONGEST_LOOK_S)

    @property
    def mean_s(self) -> float:
        return sum(self.seconds.values()) / max(1, len(self.seconds))

    def of(self, run: str) -> float:
        return self.seconds.get(run, math.inf)


def whose_turn(
    me: Claim, others: Sequence[Claim], shares: Shares, turn_s: float | None
) -> Claim | None:
    """Which of the others is to have the device; None: me. ``turn_s``: of mine, while I hold it."""
    mine = shares.of(me.at)
    if turn_s is not None:
        behind = [other for other in others if mine - shares.of(other.at) >= turn_s / 2]
        return min(behind, key=lambda o: shares.of(o.at)) if behind else None
    before = [other for other in others if _is_before(other, me, shares.of(other.at) - mine)]
    return min(before, key=lambda o: (shares.of(o.at), o.since)) if before else None


def _is_before(other: Claim, me: Claim, more_s: float) -> bool:
    if math.isnan(more_s) or abs(more_s) <= _ALIKE_S:
        return (other.since, other.at) < (me.since, me.at)
    return more_s < 0


class _Device:
    """One device, as this run looks at it."""

    def __init__(self, run: str, at: str, lock: str, turn_s: float) -> None:
        self._run, self._at, self._lock, self._longest_turn_s = run, at, lock, turn_s
        self._claim_lock = CardLock(claim_name(lock, at), mode=0o644)
        self._claim: Claim | None = None
        self._shares = Shares()
        self._looked_at: float | None = None
        self._holder, self._held_by, self._held_since = "", "", 0.0
        self._has_begun, self._start_s = (
            False,
            0.0,
        )  # since it is ours: to train, and after how long
        self._free_since: float | None = None  # None while its lock is held
        self._offered_since: float | None = None  # since when it is ours to take
        self._used_at = -math.inf  # when the head last had an order for it
        self._claims_from, self._pause_s = 0.0, _PAUSE_S

    def look(self, now: float, is_wanted: bool) -> dict[str, Any]:
        """Why it is not ours now, if so, and who else wants it; ``is_wanted`` by our own head."""
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        self._used_at = now if is_wanted else self._used_at
        claims = {claim.at: claim for claim in read_claims(self._lock, now)}
        was_mine = self._is_mine
        self._see_holder(claims, now)
        others = [claim for claim in claims.values() if claim.at != self._at]
        is_unused = bool(others) and self._is_unused(is_wanted, now)
        self._keep_claim(is_unused, was_mine, now)
        runs = {claim.at for claim in others} | ({self._at} if self._claim else set())
        self._shares.pass_time(runs, self._holder, passed_s)
        why = self._objection(others, is_unused, now)
        if why or self._is_mine:
            self._offered_since = None
        elif self._offered_since is None:
            self._offered_since = now
        self._tell(comes=is_wanted and not (why or self._is_mine), leaves=bool(why))
        return {"why": why, "wanted_by": sorted(claim.who for claim in others)}

    def trains(self, since: float) -> None:
        """A copy of ours trains there, from then on."""
        if self._is_mine and not self._has_begun:
            self._has_begun, self._start_s = True, max(0.0, since - self._held_since)

    @property
    def _is_mine(self) -> bool:
        return self._holder == self._at

    def _see_holder(self, claims: Mapping[str, Claim], now: float) -> None:
        """Between two workers of one run the lock is free for a moment, and the device is not."""
        lock, before = CardLock(self._lock), self._holder
        if lock.is_held():
            # One that is just writing its note, or has just left, is taken for the one before.
            if isinstance(told := lock.note().get("at"), str):
                self._holder, self._held_by = told, lock.holder()
            self._free_since = None
        else:
            self._free_since = now if self._free_since is None else self._free_since
            claim = claims.get(self._holder)
            if not claim or claim.leaves or now - self._free_since >= _SWAP_S:
                self._holder = ""
        if self._holder != before:
            self._held_since, self._has_begun = now, False

    def _is_unused(self, is_wanted: bool, now: float) -> bool:
        """Whether we have it, or could, and have no use for it."""
        if self._is_mine:
            return now - max(self._used_at, self._held_since) > _IDLE_S
        patience_s = _COMES_S if is_wanted else _USE_S
        return self._offered_since is not None and now - self._offered_since > patience_s

    def _objection(self, others: Sequence[Claim], is_unused: bool, now: float) -> str:
        if self._holder and not self._is_mine:
            return f"{self._held_by} trains on it"
        if self._is_mine and is_unused:
            return f"{min(others, key=lambda o: self._shares.of(o.at)).who} has use for it"
        me = self._claim or Claim(self._at, self._run, now)
        first = whose_turn(me, others, self._shares, self._turn_s(now) if self._is_mine else None)
        if first and self._free_since is not None:
            patience_s = _COMES_S if first.comes else _GRACE_S
            if now - self._free_since > patience_s:
                return ""  # who was to have it does not come
        return f"{first.who} has its turn" if first else ""

    def _turn_s(self, now: float) -> float:
        """Long beside what a start costs, and short beside the time that was shared so far."""
        if not self._has_begun and now - self._held_since < self._longest_turn_s:
            return math.inf
        turn_s = max(_SHORTEST_TURN_S, _STARTS * self._start_s, _OF_TIME * self._shares.mean_s)
        return min(self._longest_turn_s, turn_s)

    def _keep_claim(self, is_unused: bool, was_mine: bool, now: float) -> None:
        """Claims the device, unless it was ours for a while and we had no use for it."""
        if is_unused:
            self._claims_from, self._offered_since = now + self._pause_s, None
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self.leave()
        elif self._is_mine:
            self._pause_s = _PAUSE_S
            self._claims_from = now
        if self._claim is None and now >= self._claims_from:
            if self._claim_lock.take(self._note(claim := Claim(self._at, self._run, now))):
                self._claim = claim
        elif self._claim and was_mine and not self._is_mine:  # given away: it waits from now
            self._write(replace(self._claim, since=now))

    def _tell(self, comes: bool, leaves: bool) -> None:
        """The others, by the claim."""
        if self._claim and (self._claim.comes, self._claim.leaves) != (comes, leaves):
            self._write(replace(self._claim, comes=comes, leaves=leaves))

    def _write(self, claim: Claim) -> None:
        self._claim = claim
        self._claim_lock.write(self._note(claim))

    def _note(self, claim: Claim) -> dict[str, Any]:
        told = {"comes": claim.comes, "leaves": claim.leaves}
        return {"run": self._run, "at": self._at, "since": claim.since, **told}

    def leave(self) -> None:
        self._claim_lock.give_back()
        self._claim = None


class Turns:
    """On a thread of its own. Tells the agent of every device that is not this run's to use now."""

    def __init__(self, run: Path, name: str, asked: Mapping[str, Any], door: str) -> None:
        self._run, self._name, self._door = run, name, door
        self._turn_s, self._asked = float(asked["turn_s"]), asked["devices"]
        self._lock = threading.Lock()
        self._news: dict[str, Any] | None = None
        self._devices: dict[int, _Device] = {}
        self._has_left = False
        self.wanted: frozenset[int] = frozenset()  # devices that our head has orders for
        threading.Thread(target=self._watch, daemon=True, name="turns").start()

    def news(self) -> dict[str, Any] | None:
        with self._lock:
            news, self._news = self._news, None
        return news

    def train(self, trained_s: Mapping[str, float]) -> None:
        """How long workers have trained by now; the turns of their devices count from then on."""
        for worker, seconds in trained_s.items():
            number, _, _ = worker.partition("-")  # its name begins with its device's
            with self._lock:
                if device := self._devices.get(int(number)):
                    device.trains(time.monotonic() - seconds)

    def leave(self) -> None:
        """Takes the claims away; the locks are the workers'."""
        with self._lock:
            self._has_left = True
            for device in self._devices.values():
                device.leave()

    def _watch(self) -> None:
        clear_claims()
        devices = dict(self._find_devices())
        told: object = None
        told_at = 0.0
        while devices:
            now = time.monotonic()
            with self._lock:
                if self._has_left:
                    return
                self._devices = devices
                wanted = self.wanted
                seen = [{"index": i, **one.look(now, i in wanted)} for i, one in devices.items()]
                if seen != told or now > told_at + _AGAIN_S:
                    told, told_at, self._news = seen, now, {"devices": seen}
            is_shared = any(device["wanted_by"] for device in seen)
            time.sleep(_SHARED_EVERY_S if is_shared else _EVERY_S)

    def _find_devices(self) -> Iterator[tuple[int, _Device]]:
        for device in self._asked:
            index, card = device["index"], device["card"]
            name = lock_name(self._door, index)
            if card:
                shown = visible(card["index"], card["uuid"], os.environ)
                name = identity(shown[next(reversed(shown))])
            if name:
                yield index, _Device(self._name, str(self._run), name, self._turn_s)


def claim_name(lock: str, at: str) -> str:
    return f"{lock}-claim-{os.getuid()}-{hashlib.sha256(at.encode()).hexdigest()[:16]}"


def read_claims(lock: str, now: float) -> list[Claim]:
    """All live ones of a device; each was written by who knows whom."""
    found: dict[str, Claim] = {}
    for one in locks_beside(f"{lock}-claim-", _MOST_CLAIMS):
        if not one.is_held():
            continue
        told = one.note()
        at, since = told.get("at"), told.get("since")
        if not isinstance(at, str) or not isinstance(since, int | float) or isinstance(since, bool):
            continue
        if math.isfinite(since):
            says = [told.get(name) is True for name in ("comes", "leaves")]
            found.setdefault(at, Claim(at, one.holder(), min(since, now), *says))
    return list(found.values())


def clear_claims() -> None:
    """Removes what agents and workers of this user left that were killed."""
    for one in locks_beside("", 1000, "-claim-"):
        one.remove_if_left()
    for one in locks_beside("device-local-", 1000):
        one.clear_if_left()
