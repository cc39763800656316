"""Transfers with one node side by side: each has a session of its own, up to what is of use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.wire import LinkLostError

_LOOK_S = 1.0  # while waiting for one that is in use


class TransferPool:
    """Sessions that are lent out, one transfer each. Where no further one can be opened, those
    that there are have to do."""

    def __init__(self, open_session: Callable[[], TransferSession | None], most: int) -> None:
        self._open_session, self._most, self._room = open_session, most, most
        self._changed = threading.Condition()
        self._idle: list[TransferSession] = []
        self._lent: set[TransferSession] = set()
        self._opening = 0

    @contextmanager
    def lent(self, tell: Callable[[], None]) -> Iterator[TransferSession | None]:
        """A session for one transfer, None where there are none of this kind; ``tell`` is called
        all the while others have them all."""
        session = self._take(tell)
        if not session:
            yield None
            return
        try:
            yield session
        except BaseException:  # bytes may be under way: nobody could tell them from answers
            with self._changed:
                self._lent.discard(session)
                self._changed.notify_all()
            session.close()
            raise
        with self._changed:
            if is_kept := session in self._lent:
                self._lent.remove(session)
                self._idle.append(session)
            self._changed.notify_all()
        if not is_kept:  # closed in the meantime
            session.close()

    def _take(self, tell: Callable[[], None]) -> TransferSession | None:
        while True:
            with self._changed:
                if self._idle:
                    session = self._idle.pop()
                    self._lent.add(session)
                    return session
                is_room = len(self._lent) + self._opening < self._room
                if is_room:
                    self._opening += 1
                else:
                    self._changed.wait(_LOOK_S)
            if is_room:
                opened, are_others = self._open_one()
                if opened or not are_others:
                    return opened
            tell()

    def _open_one(self) -> tuple[TransferSession | None, bool]:
        """A new one, if it can be had, and whether there are others to wait for."""
        session, others = None, 0
        try:
            session = self._open_session()
        except LinkLostError:
            if not self._lent and not self._idle:
                raise
        finally:
            with self._changed:
                self._opening -= 1
                others = len(self._lent) + len(self._idle)
                if session:
                    self._lent.add(session)
                else:
                    self._room = max(1, others)
                self._changed.notify_all()
        return session, others > 0

    def close(self) -> None:
        """Ends all sessions, those that are lent out as well; the next one is opened anew."""
        with self._changed:
            ended = [*self._idle, *self._lent]
            self._idle.clear()
            self._lent.clear()
            self._room = self._most
            self._changed.notify_all()
        for session in ended:
            session.close()
