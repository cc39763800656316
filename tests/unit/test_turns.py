"""Whose turn it is on a device, from claims that anybody may have left."""

from __future__ import annotations

import fcntl
import os

import pytest

from hadar_cli.core.model import Gpu, Node
from hadar_cli.core.slurm import SlurmRequest
from hadar_cli.engine.ports import DeviceFree, DeviceTaken, DeviceWanted
from hadar_cli.node.gpus import cards, turns
from hadar_cli.node.gpus.cards import CardLock, door, lock_name
from hadar_cli.node.gpus.turns import Claim, Shares, claim_name, read_claims, whose_turn
from hadar_cli.nodes.other_users import OtherUsers

TURN_S = 10.0


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "LOCKS", tmp_path)
    return tmp_path


class Run:
    """A run's look at one device, and the worker that it has there."""

    def __init__(self, name: str) -> None:
        self.at = f"/home/{name}/.hadar/runs/{name}/node"
        self.device = turns._Device(name, self.at, "device-22-0", TURN_S)
        self.worker = CardLock("device-22-0")
        self.held_s = 0.0
        self.has_use = True

    def look(self, now: float, passed_s: float) -> None:
        """As agent and head together do: leave when it is another's turn, come when it is free."""
        told = self.device.look(now)
        is_mine = self.worker._descriptor >= 0
        self.held_s += passed_s if is_mine else 0.0
        if is_mine and told["why"]:
            self.worker.give_back()
        elif self.has_use and not is_mine and not told["why"]:
            self.worker.take({"run": "r", "at": self.at})


def share(seconds: float, *runs: Run, begins: float = 0.0) -> float:
    now, end = begins, begins + seconds
    while now < end:
        now += 0.5
        for run in runs:
            run.look(now, 0.5)
    return now


@pytest.mark.parametrize("count", [2, 4])
def test_runs_that_share_a_device_have_it_equally_long(count):
    runs = [Run(f"run{i}") for i in range(count)]
    share(count * 100.0, *runs)
    total = sum(run.held_s for run in runs)
    assert total > 0.8 * count * 100  # little is lost between turns
    for run in runs:
        assert run.held_s == pytest.approx(total / count, rel=0.1)


def test_a_newcomer_gets_a_turn_at_once_and_no_more_than_the_others_from_then_on():
    first, second = Run("first"), Run("second")
    now = share(500.0, first)
    assert first.held_s > 490
    had = first.held_s
    share(10.0, first, second, begins=now)
    assert second.held_s > 0
    share(400.0, first, second, begins=now + 10)
    assert second.held_s == pytest.approx(first.held_s - had, rel=0.1)


def test_a_run_without_use_for_the_device_costs_the_others_little():
    busy, idle = Run("busy"), Run("idle")
    idle.has_use = False
    share(1200.0, busy, idle)
    assert busy.held_s > 0.85 * 1200


def test_a_claim_counts_while_its_process_lives_and_no_longer(folder):
    claim = CardLock(claim_name("device-22-0", "/a"), mode=0o644)
    assert claim.take({"run": "r", "at": "/a", "since": 3.0})
    assert [one.at for one in read_claims("device-22-0", 10.0)] == ["/a"]
    assert oct(claim._path.stat().st_mode & 0o777) == "0o644"
    os.close(claim._descriptor)  # as by SIGKILL: the file stays
    assert read_claims("device-22-0", 10.0) == []
    held, left = CardLock("device-local-a-0"), CardLock("device-local-b-0")
    assert held.take({}) and left.take({})
    os.close(left._descriptor)
    turns.clear_claims()
    assert [file.name for file in folder.iterdir()] == ["hadar-device-local-a-0.lock"]


def test_claims_of_strangers_are_bounded_and_never_followed_or_waited_for(folder):
    strange = [
        '{"at": 5, "since": 1}',
        '{"at": "/x", "since": "now"}',
        '{"at": "/x", "since": NaN}',
        '{"at": "/x", "since": true}',
        "[" * 100_000,
        "no json",
        "",
    ]
    held = [CardLock(f"device-22-0-claim-7-{i}") for i in range(len(strange) + 100)]
    for lock in held:
        assert lock.take({"run": "r\x1b[2J" * 100, "at": f"/{id(lock)}", "since": 1e300})
    for lock, text in zip(held, strange, strict=False):
        lock._path.write_text(text)
    os.mkfifo(folder / "hadar-device-22-0-claim-7-pipe.lock")
    (folder / "hadar-device-22-0-claim-7-link.lock").symlink_to(held[-1]._path)
    claims = read_claims("device-22-0", 10.0)
    assert 0 < len(claims) <= 32
    assert all(claim.since <= 10.0 and len(claim.who) < 200 for claim in claims)
    turns.clear_claims()  # none of them is left by a dead process


def test_the_longest_waiting_of_equals_goes_first():
    me, other = Claim("/me", "me", 5.0), Claim("/other", "other", 4.0)
    shares = Shares({"/me": 3.0, "/other": 3.5})
    assert whose_turn(me, [other], shares, None, TURN_S) == other
    assert whose_turn(other, [me], shares, None, TURN_S) is None
    assert whose_turn(me, [other], shares, 99.0, TURN_S) is None  # it has had less


def test_devices_that_are_no_cards_are_known_by_the_server_that_leads_to_them():
    assert lock_name(door({"SSH_CONNECTION": "10.0.0.1 5022 10.0.0.2 2201"}), 1) == "device-2201-1"
    assert lock_name(door({}), 1) == ""
    assert lock_name(door({"SSH_CONNECTION": "a b c ../../x"}), 1) == ""


def told(why: str, *by: str) -> dict[str, object]:
    return {"event": "turns", "devices": [{"index": 0, "why": why, "wanted_by": list(by)}]}


def test_the_head_leaves_the_device_and_comes_back_and_knows_who_else_wants_it():
    other_users = OtherUsers(Node("n", "host"))
    assert other_users.turns == {"turn_s": 120.0, "devices": [{"index": 0, "card": None}]}
    assert list(other_users.judge(told(""))) == [DeviceFree("n")]
    assert list(other_users.judge(told("run b of bob has its turn", "run b of bob"))) == [
        DeviceTaken("n", "run b of bob has its turn"),
        DeviceWanted("n", ("run b of bob",)),
    ]
    assert list(other_users.judge(told("run b of bob trains on it", "run b of bob"))) == []
    assert list(other_users.judge(told("", "run b of bob"))) == [DeviceFree("n")]
    other_users.forget("n")  # a copy found it taken all the same
    assert list(other_users.judge(told("", "run b of bob"))) == [DeviceFree("n")]


def test_a_card_is_meant_by_the_number_or_the_name_that_the_inventory_gives_it():
    cards = (Gpu("RTX 3090", 35.0, 24.0, index=3), Gpu("A100", 70.0, 20.0, uuid="MIG-1"))
    turns = OtherUsers(Node("n", "host", cards)).turns
    assert turns and turns["devices"] == [
        {"index": 0, "card": {"index": 3, "uuid": None}},
        {"index": 1, "card": {"index": 1, "uuid": "MIG-1"}},
    ]


def test_a_new_connection_is_believed_only_once_it_has_told_all_and_told_anew():
    other_users = OtherUsers(Node("n", "host", (Gpu("RTX 3090", 35.0, 24.0),)))
    card = {"index": 0, "model": "RTX 3090", "memory_mb": 24e3, "others": ["ada"]}
    used = {"event": "gpus", "minute_of_day": 0, "gpus": [{**card, "others_mb": 12e3}]}
    free = {**used, "gpus": [{**card, "others": [], "others_mb": 0.0}]}
    for first, then, kind in (
        (free, used, DeviceTaken),
        (used, used, DeviceTaken),
        (used, free, DeviceFree),
    ):
        other_users.begin_anew()
        assert not list(other_users.judge(told("")))  # it may be a colleague's by now
        list(other_users.judge(first))
        other_users.begin_anew()
        assert not list(other_users.judge(told("")))
        assert [type(one) for one in other_users.judge(then)] == [kind]


def test_nobody_takes_turns_in_an_allocation_or_where_none_knows_which_device_is_meant():
    card = Gpu("RTX 3090", 35.0, 24.0)
    assert OtherUsers(Node("n", "login", (card,), slurm=SlurmRequest(time="1:00"))).turns is None
    assert OtherUsers(Node("n", "kubectl:pod", (card,), emulated_speed=0.5)).turns is None
    assert OtherUsers(Node("n", "kubectl:pod", (card,))).turns
    assert OtherUsers(Node("n", "local")).turns


def test_a_holder_that_is_just_writing_its_note_is_nobody_else(folder):
    run = Run("mine")
    path = folder / "hadar-device-22-0.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run.device.look(1.0)["why"] == ""
        file.write('{"at": "/elsewhere", "run": "theirs", "user": "ada"}')
        file.flush()
        assert run.device.look(2.0)["why"] == "run theirs of ada trains on it"
        file.truncate(0)  # between two notes it is the one that it was
        assert run.device.look(3.0)["why"] == "run theirs of ada trains on it"
