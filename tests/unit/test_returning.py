"""When a node whose link broke, or that is gone, is tried again."""

from __future__ import annotations

from itertools import pairwise

from hadar_cli.core.reasons import Absence
from hadar_cli.nodes.session.returning import RETURN_EVERY_S, Returning
from hadar_cli.nodes.wire import LinkLostError, LoginRefusedError

BROKEN, REFUSED = LinkLostError("reset"), LoginRefusedError("no key is taken", "set identity_file")


def test_a_broken_link_is_mended_at_once_and_then_ever_more_patiently():
    returning = Returning()
    returning.mend(until=100.0)
    pauses = [returning.pause_s(BROKEN, now) or 0.0 for now in range(8)]
    assert all(one <= other for one, other in pairwise(pauses))
    assert pauses[-1] > 10 * pauses[0]
    assert returning.pause_s(BROKEN, 101.0) is None  # the node is gone
    assert returning.after_s(BROKEN) == RETURN_EVERY_S


def test_a_login_that_is_refused_while_a_link_is_mended_is_not_tried_again_within_seconds():
    """Keys may be taken away in the middle of a run, and fail2ban counts."""
    returning = Returning()
    returning.mend(until=100.0)
    assert returning.pause_s(REFUSED, 0.0) is None
    waits = [returning.after_s(REFUSED) for _ in range(4)]
    assert waits[0] >= 60.0 and waits == sorted(waits)
    returning.succeed()
    assert returning.after_s(REFUSED) == waits[0]


def test_an_absence_is_told_once_as_long_as_its_reason_lasts():
    returning = Returning()
    told = [returning.is_told(BROKEN, Absence.AWAY) for _ in range(3)]
    assert told == [False, True, True]
    assert not returning.is_told(REFUSED, Absence.GONE)
