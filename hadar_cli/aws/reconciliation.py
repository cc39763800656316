"""Makes a run's rental log agree with EC2: instances that nobody noted, and that ended unseen."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence

from hadar_cli.aws.machines import Machine
from hadar_cli.core.measures.costs import Rental
from hadar_cli.core.model import Node
from hadar_cli.runs.rentals import RentalLog

UNLISTED_S = 120.0  # a new instance may be missing from lists
_LISTED_S = 45 * 60.0  # one that has ended is in lists for an hour
_SLACK_S = 120.0  # of an instance that ends itself
NO_SWITCH = "if the head dies, nothing ends it but `hadar clean` or `hadar cancel`"
_UNKNOWN = "a head died while it asked for it: it may have been given, and have ended by itself"


class Reconciliation:
    """Of one list of instances, made at ``now``; ``looked_at`` is when the last one was made."""

    def __init__(
        self, rental_log: RentalLog, nodes: Mapping[str, Node], now: float, looked_at: float | None
    ) -> None:
        self._rental_log, self._nodes, self._now = rental_log, nodes, now
        self._looked_at = looked_at or 0.0

    def reconcile(self, found: Sequence[Machine], unlisted: Collection[str]) -> None:
        """``unlisted`` need not be in the list: they are too young, or were let go just now."""
        for machine in found:
            self._rental_log.grant(machine.ask, machine.id, machine.type)
            if machine.id not in unlisted:
                self._note_unknown(machine)
            for rental in self._going(machine):
                if machine.is_over:
                    latest = self._ended_by(rental)
                    self._rental_log.end(rental, min(machine.ended_at or latest, latest))
                elif (
                    machine.ask == rental.ask and machine.launched_at < rental.since - _SLACK_S
                ):  # a clock was set back
                    self._rental_log.backdate(machine.id, machine.launched_at)
        there = {*unlisted, *(one.id for one in found)}
        for rental in self._rental_log.going:
            if not rental.instance:
                self._reconcile_ask(rental)
            elif rental.instance not in there:
                self._rental_log.end(rental, self._ended_by(rental))

    def _going(self, machine: Machine) -> list[Rental]:
        return [rental for rental in self._rental_log.going if rental.instance == machine.id]

    def _note_unknown(self, machine: Machine) -> None:
        """It costs from its launch on, whoever launched it with the run's tags."""
        node, was_rented = self._nodes.get(machine.node), machine.id in self._rental_log
        aws = node.aws if node else None
        is_own = aws is not None and not aws.is_ours  # it may have ended before we had it
        if self._going(machine) or (machine.is_over and (was_rented or is_own)):
            return
        dearest = max((one.price_per_hour or 0.0 for one in self._nodes.values()), default=0.0)
        price = node.price_per_hour if node else dearest
        self._rental_log.begin(
            Rental(
                machine.id,
                machine.node,
                machine.type,
                price or 0.0,
                machine.launched_at,
                is_spot=aws is not None and aws.spot,
                ask=uuid.uuid4().hex,
            )
        )

    def _reconcile_ask(self, rental: Rental) -> None:
        """No list shows what was asked for: it was not given, or ended long ago."""
        if self._now < rental.since + UNLISTED_S:
            return
        was_looked_for = self._looked_at > rental.since + UNLISTED_S
        if was_looked_for or self._now < rental.since + _LISTED_S:
            self._rental_log.refuse(rental.ask)
        else:
            self._rental_log.end(rental, self._ended_by(rental), _UNKNOWN)

    def _ended_by(self, rental: Rental) -> float:
        """At the latest, one that is gone. Without a head it ended itself, if it could."""
        if rental.note == NO_SWITCH:
            return self._now
        aws = [node.aws for node in self._nodes.values() if node.aws]
        quiet_s = 60 * max((one.idle_minutes for one in aws), default=0.0) + _SLACK_S
        return min(self._now, max(rental.since, self._looked_at) + quiet_s)
