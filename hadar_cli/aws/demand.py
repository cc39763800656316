"""Whether a node is to ask for an instance now: is there work, and were the last ones of use."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from hadar_cli.nodes.wire import NoMoreError, NotYetError

_SHORT_S = 30.0  # jobs wait for so long before instances are started for them again
_MOST = 3  # that ended before anybody trained there
_PAUSES_S = (5.0, 15.0, 60.0)  # the last one repeats
_NO_ROOM = "Capacity"  # in whatever AWS says while it has none; it will have some


class Demand:
    """For all of the run's nodes; told again and again, from any thread."""

    def __init__(self) -> None:
        self._resting: set[str] = set()  # nodes whose instances were ended for want of work
        # When jobs began to wait for machines; they do until somebody tells otherwise.
        self._short_since: float | None = time.monotonic()

    def need(self, is_short: bool) -> None:
        """Whether jobs wait for machines."""
        if not is_short:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = time.monotonic()
        elif time.monotonic() > self._short_since + _SHORT_S:
            self.wake()

    def wake(self) -> None:
        """There may be work for all."""
        self._resting.clear()
        self._short_since = time.monotonic()

    def rest(self, node: str) -> bool:
        """A node that has nothing to do may end its instance, unless jobs wait; whether it may."""
        if self._short_since is None:
            self._resting.add(node)
        return node in self._resting

    def rests(self, node: str) -> bool:
        return node in self._resting


@dataclass(slots=True)
class _Row:
    useless: int = 0
    pauses: int = 0
    not_before: float = 0.0
    why: str = ""


class Tries:
    """Instances that were of no use, in a row: after each a node waits longer, then gives up.

    For all of the run's nodes, and all their threads.
    """

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()

    def succeed(self, node: str) -> None:
        """Its instance is of use."""
        with self._lock:
            self._rows.pop(node, None)

    def fail(self, node: str, why: str) -> None:
        """Its instance ended before anybody could train there."""
        self.put_off(node, why, is_useless=_NO_ROOM not in why)

    def put_off(self, node: str, why: str, is_useless: bool = False) -> None:
        """There is none for it now."""
        with self._lock:
            row = self._rows.setdefault(node, _Row())
            row.why = why
            row.useless += is_useless
            row.not_before = time.monotonic() + _PAUSES_S[min(row.pauses, len(_PAUSES_S) - 1)]
            row.pauses += 1

    def require(self, node: str) -> None:
        """Raises NoMoreError after too many, NotYetError as long as it is too early for another."""
        with self._lock:
            row = self._rows.get(node, _Row())
        if row.useless >= _MOST:
            raise NoMoreError(
                f"its last {row.useless} instances ended before anybody could train there: "
                f"{row.why}",
                fix="mend the template, its image or its security group; `aws ec2 "
                "describe-instances` says more",
            )
        if (wait_s := row.not_before - time.monotonic()) > 0:
            raise NotYetError(f"{row.why}; asked for again in {wait_s:.0f} s", kind="no use")
