"""Transfer sessions, lent out side by side."""

from __future__ import annotations

import threading

import pytest

from hadar_cli.nodes.transfer_pool import TransferPool
from hadar_cli.nodes.wire import LinkLostError


class Session:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def nothing() -> None: ...


def pool_of(server_allows: int, most: int = 8) -> tuple[TransferPool, list[Session]]:
    opened: list[Session] = []

    def open_session() -> Session:
        if sum(not session.is_closed for session in opened) >= server_allows:
            raise LinkLostError("no more of them")
        opened.append(Session())
        return opened[-1]

    return TransferPool(open_session, most), opened  # type: ignore[arg-type]


def test_each_transfer_has_a_session_and_the_next_one_takes_it_over():
    pool, opened = pool_of(8)
    with pool.lent(nothing) as first, pool.lent(nothing) as second:
        assert first is not second
    with pool.lent(nothing) as third:
        assert third in (first, second)
    assert len(opened) == 2


def test_where_the_server_opens_no_more_the_next_one_waits_and_tells_so():
    pool, opened = pool_of(server_allows=1)
    is_waiting, is_done = threading.Event(), threading.Event()

    def transfer() -> None:
        with pool.lent(is_waiting.set):
            is_done.set()

    with pool.lent(nothing):
        other = threading.Thread(target=transfer)
        other.start()
        assert is_waiting.wait(30) and not is_done.is_set()
    other.join(30)
    assert is_done.is_set() and len(opened) == 1


def test_where_there_is_none_at_all_the_error_is_told():
    pool, _ = pool_of(server_allows=0)
    with pytest.raises(LinkLostError), pool.lent(nothing):
        pass


def test_one_that_broke_is_not_lent_again():
    pool, opened = pool_of(8)
    with pytest.raises(ValueError), pool.lent(nothing):
        raise ValueError
    with pool.lent(nothing) as session:
        assert session is opened[1]
    assert opened[0].is_closed


def test_closing_ends_those_that_are_lent_too():
    pool, opened = pool_of(8)
    with pool.lent(nothing) as session:
        pool.close()
        assert session is opened[0] and opened[0].is_closed
    with pool.lent(nothing) as other:
        assert other is opened[1]
