"""When a node whose link broke, or that is gone, is tried again, and what is said of it."""

from __future__ import annotations

from hadar_cli.core.reasons import Absence
from hadar_cli.errors import RefusedError
from hadar_cli.nodes.wire import (
    AgentError,
    LoginRefusedError,
    NoMoreError,
    NotYetError,
    SupersededError,
)

_PAUSES_S = (0.0, 0.1, 0.3, 1.0, 2.0, 3.0)  # before attempts to mend; the last one repeats
RETURN_EVERY_S = 5.0  # a node that is gone is looked for
LOGIN_AGAIN_S = (60.0, 120.0, 300.0)  # a refused login: more rarely than gets the head locked out


class Returning:
    """Counts the attempts to mend a link, and refused logins in a row."""

    def __init__(self) -> None:
        self._mending_until, self._pause, self._login_refusals = 0.0, 0, 0
        self.absence: Absence | None = None  # why it is gone, as it was told; None: it is there
        self._told: set[str] = set()  # kinds of waiting, while that lasts

    def mend(self, until: float) -> None:
        """The link broke just now."""
        self._mending_until, self._pause = until, 0

    def succeed(self) -> None:
        self._login_refusals, self.absence = 0, None
        self._told.clear()

    def is_told(self, error: Exception, absence: Absence) -> bool:
        """Whether the node's absence was told for the same reason; from now on it is."""
        kind, was_told = getattr(error, "kind", ""), self._told
        if absence is not self.absence:
            self.absence, self._told = absence, {kind}
            return False
        self._told = {*was_told, kind}
        return kind in was_told

    def pause_s(self, error: Exception, now: float) -> float | None:
        """Before the next attempt to mend; None: the node is gone."""
        known_to_last = isinstance(error, LoginRefusedError | NotYetError)
        if now > self._mending_until or is_hopeless(error) or known_to_last:
            return None
        self._pause = min(self._pause + 1, len(_PAUSES_S) - 1)
        return _PAUSES_S[self._pause]

    def after_s(self, error: Exception) -> float:
        """Before the next look for a node that is gone."""
        if not isinstance(error, LoginRefusedError):
            return RETURN_EVERY_S
        self._login_refusals += 1
        return LOGIN_AGAIN_S[min(self._login_refusals, len(LOGIN_AGAIN_S)) - 1]


def is_hopeless(error: Exception) -> bool:
    return isinstance(error, RefusedError | SupersededError | NoMoreError)


def absence_for(error: Exception, was_there: bool) -> Absence:
    """Why a node is gone that could not be reached for this."""
    if isinstance(error, RefusedError):
        return Absence.REFUSED
    if isinstance(error, NotYetError):
        return Absence.AWAITED
    comes_back = was_there and not is_hopeless(error) and not isinstance(error, AgentError)
    return Absence.AWAY if comes_back else Absence.GONE


def in_words(error: Exception) -> str:
    fix = getattr(error, "fix", None)
    told = f"{error}; {fix}" if fix else str(error)
    return f"{told}; tried again, but rarely" if isinstance(error, LoginRefusedError) else told
