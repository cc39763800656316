"""Whose turn it is on a device, from claims that anybody may have left."""

from __future__ import annotations

import fcntl
import math
import os

import pytest

from hadar_cli.core.model import Gpu, Node
from hadar_cli.core.reasons import Absence
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

    def __init__(self, name: str, turn_s: float = TURN_S, start_s: float = 0.0) -> None:
        self.at = f"/home/{name}/.hadar/runs/{name}/node"
        self.device = turns._Device(name, self.at, "device-22-0", turn_s)
        self.worker = CardLock("device-22-0")
        self.start_s = start_s
        self.held_s = self.trained_s = 0.0
        self.has_use = True
        self._comes_at = math.inf  # when the copy that was ordered is there

    def look(self, now: float, passed_s: float) -> None:
        """As agent and head together do: leave when it is another's turn, come when it is free."""
        told = self.device.look(now, self._comes_at < math.inf)
        is_mine = self.worker._descriptor >= 0
        self.held_s += passed_s if is_mine else 0.0
        if is_mine and now >= self._comes_at + self.start_s:
            self.trained_s += passed_s
            self.device.trains(self._comes_at + self.start_s)
        if told["why"]:
            self.worker.give_back()
            self._comes_at = math.inf
        elif self.has_use and not is_mine and self.worker.take({"run": "r", "at": self.at}):
            self._comes_at = now


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


def test_shares_are_equal_in_a_minute_and_turns_grow_in_an_hour():
    one, other = Run("one", 120.0), Run("other", 120.0)
    now = share(40.0, one, other)
    while now < 3600.0:  # from then on always, whenever one of them ends
        now = share(5.0, one, other, begins=now)
        assert one.held_s == pytest.approx(other.held_s, rel=0.2), now
    assert one.held_s + other.held_s > 0.95 * 3600


def test_a_turn_is_long_beside_a_start():
    runs = [Run("one", 300.0, start_s=20.0), Run("other", 300.0, start_s=20.0)]
    share(1500.0, *runs)
    assert sum(run.trained_s for run in runs) > 0.6 * 1500
    for run in runs:
        assert run.held_s == pytest.approx(750, rel=0.1)


def test_what_is_on_its_way_to_a_free_device_is_waited_for():
    coming, other = Run("coming"), Run("other")
    coming.has_use = False  # its copy is ordered, and its process takes its time to come
    for half_seconds in range(80):
        now = half_seconds / 2
        coming.device.look(now, True)
        other.look(now, 0.5)
    assert other.held_s == 0.0
    share(60.0, coming, other, begins=now)  # and then it never comes
    assert other.held_s > 40


def test_a_device_is_left_at_once_to_whoever_has_use_for_it():
    idle, busy = Run("idle", 600.0), Run("busy", 600.0)
    now = share(100.0, idle)
    for _ in range(240):  # its process waits there, and its head has no order for it
        now += 0.5
        if idle.device.look(now, False)["why"]:
            idle.worker.give_back()
        busy.look(now, 0.5)
    assert busy.held_s > 90


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
    assert whose_turn(me, [other], shares, None) == other
    assert whose_turn(other, [me], shares, None) is None
    assert whose_turn(me, [other], shares, TURN_S) is None  # it has had less
    ahead = Shares({"/me": 9.0, "/other": 3.5})
    assert whose_turn(me, [other], ahead, TURN_S) == other
    assert whose_turn(me, [other], ahead, 2 * TURN_S) is None  # by less than half a turn


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
        DeviceWanted("n", ("run b of bob",)),
        DeviceTaken("n", "run b of bob has its turn", Absence.TURN),
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


def test_why_the_tools_of_a_node_fail_is_said_on_one_line():
    other_users = OtherUsers(Node("n", "host", (Gpu("RTX 3090", 35.0, 24.0),)))
    list(other_users.judge(told("")))
    failed = {
        "event": "gpus",
        "minute_of_day": 0,
        "gpus": [],
        "gpu_problem": "nvidia-smi: no\nNVML",
    }
    [taken] = other_users.judge({"event": "gpus", **failed})
    assert isinstance(taken, DeviceTaken)
    assert "(nvidia-smi: no NVML)" in taken.why


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
        assert run.device.look(1.0, False)["why"] == ""
        file.write('{"at": "/elsewhere", "run": "theirs", "user": "ada"}')
        file.flush()
        assert run.device.look(2.0, False)["why"] == "run theirs of ada trains on it"
        file.truncate(0)  # between two notes it is the one that it was
        assert run.device.look(3.0, False)["why"] == "run theirs of ada trains on it"
