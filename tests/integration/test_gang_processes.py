"""Gangs of real processes: how they meet, go on, stop together and fall apart.

Those that run to their end run one after the other, in one go for the whole file; so do those that
somebody disturbs.
"""

import contextlib
import os
import signal
import socket
import threading

import pytest
import torch

from hadar_cli.node.contract import Membership
from hadar_cli.node.network import free_port, listening
from hadar_cli.node.training.gangs import meeting
from hadar_cli.node.training.gangs.errors import MemberLost
from hadar_cli.node.training.gangs.meeting import await_first, require_reach
from tests.support.gangs import PATIENCE_S, gang, start, start_all, wait_for

BEGIN = """
import torch
from hadar_cli import training
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
given = torch.Generator().manual_seed(5)
x, y = torch.randn(90, 8, generator=given), torch.randint(4, (90,), generator=given)
data = torch.utils.data.TensorDataset(x, y)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
"""
LOOP = """
with training(model, optimizer, evaluate=lambda: print("evaluates") or {"quality": 1.0}) as t:
    for x, y in t.loader(data, batch_size=20):
        t.step(torch.nn.functional.cross_entropy(model(x), y), clip_norm=0.5)
"""
SLOW = """
import os, time
from hadar_cli.node.training.gangs import meeting
if "hangs" in os.environ["HADAR_RESULT"]:
    meeting._SILENCE_S = 15.0
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        time.sleep(0.02)
        t.step(torch.nn.functional.cross_entropy(model(x), y))
"""


STOPS = """
import os
with training(model, optimizer) as t:
    for i, (x, y) in enumerate(t.loader(data, batch_size=20)):
        t.step(torch.nn.functional.cross_entropy(model(x), y))
        if i == 3 and os.environ["HADAR_RANK"] == "1":
            t.stop()
"""
TELLS = "print('sum', sum(p.double().sum().item() for p in model.parameters()))\n"
UNLIKE = BEGIN.replace("manual_seed(1)", "manual_seed(__import__('os').getpid())") + TELLS
LOADED = "import sys\nprint('loads', 'sympy' in sys.modules)\n"
LOSS = """
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        out = model(x)
        t.step({})
"""
REFUSED = {
    "whole batches": (
        """
with training(model, optimizer) as t:
    for x, y in t.loader([(x[:20], y[:20])] * 9, batch_size=None):
        t.step(torch.nn.functional.cross_entropy(model(x), y))
""",
        "nobody can tell which dimension of them is samples",
    ),
    "a loop that looks at its own samples": (
        """
import os
with training(model, optimizer) as t:
    for i, (x, y) in enumerate(t.loader(data, batch_size=20)):
        if i == 3 and os.environ["HADAR_RANK"] == "1":
            continue
        t.step(torch.nn.functional.cross_entropy(model(x), y))
""",
        "cannot share its steps",
    ),
    "a loop that one member leaves": (
        """
import os
with training(model, optimizer) as t:
    for i, (x, y) in enumerate(t.loader(data, batch_size=20)):
        t.step(torch.nn.functional.cross_entropy(model(x), y))
        if i == 3 and os.environ["HADAR_RANK"] == "1":
            break
""",
        "cannot share its steps",
    ),
    "a loss that compares samples": (
        LOSS.format("torch.nn.functional.cross_entropy(out @ out.T, torch.arange(len(out)))"),
        "its loss compares the samples of a mini-batch with each other",
    ),
    "a loss of what all samples have in common": (
        LOSS.format("(out.T @ out / len(out) - torch.eye(4)).square().sum()"),
        "its loss compares the samples of a mini-batch with each other",
    ),
    "a root of a mean": (
        LOSS.format("torch.nn.functional.mse_loss(out, x[:, :4]).sqrt()"),
        "made by Sqrt, is a mean over: if it is one over so many samples, tokens or pixels, say "
        "t.mean_over(so_many) before backward",
    ),
    "the worst samples of a mini-batch": (
        LOSS.format("out.square().sum(1).topk(2).values.mean()"),
        "made by Mean, is a mean over",
    ),
    "a factor by its own samples": (
        LOSS.format("out.square().mean() / out.square().mean().detach()"),
        "multiplied by a number that each member takes of its own samples",
    ),
    "gradients that no backward has made": (
        """
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        of = list(model.parameters())
        for p, p.grad in zip(of, torch.autograd.grad(loss, of)):
            pass
        optimizer.step()
""",
        "are no longer those of rank 0",
    ),
    "a learning rate by its own loss": (
        """
t = training(model, optimizer)
for x, y in t.loader(data, batch_size=20):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.param_groups[0]["lr"] = 0.01 * loss.item()
    optimizer.step()
""",
        "are no longer those of rank 0",
    ),
    "DDP": (
        """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(model)
with training(model, optimizer) as t:
    pass
""",
        "without DDP",
    ),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Gangs by name, and how they ended."""
    root = tmp_path_factory.mktemp("gangs")
    taken = f"tcp://127.0.0.1:{free_port('127.0.0.1')}"
    orders = ((0, 5), (5, 9), (9, 12))
    gangs = {
        "alone": (LOOP, gang(root / "alone", (1.0,), (0, 12), evaluate=True)),
        "goes on": (LOOP + LOADED, gang(root / "goes on", (0.7, 0.3), *orders, evaluate=True)),
        "by address": (LOOP, gang(root / "tcp", (0.7, 0.3), (0, 12), meets_at=taken)),
        "elsewhere": (LOOP, gang(root / "out", (0.7, 0.3), (0, 12), meets_at="tcp://192.0.2.1:9")),
        "stops": (STOPS, gang(root / "stops", (0.6, 0.4), (0, 90))),
    }
    cases = [(BEGIN + script, members) for script, members in gangs.values()]
    gangs["unlike"] = ("", gang(root / "unlike", (0.7, 0.3), (0, 3)))
    cases.append((UNLIKE + LOOP + TELLS, gangs["unlike"][1]))
    for name, (script, _) in REFUSED.items():
        gangs[name] = (script, gang(root / name, (0.6, 0.4), (0, 9)))
        cases.append((BEGIN + script, gangs[name][1]))
    impatient = "from hadar_cli.node.training.gangs import meeting\n"
    impatient += "meeting._KNOCK_S, meeting._MEET_S = 1.0, 3.0  # it may be silent, or refuse\n"
    at = list(gangs).index("elsewhere")
    cases[at] = (impatient + cases[at][0], cases[at][1])
    assert start_all(root, cases).wait(PATIENCE_S) == 0
    return {name: members for name, (_, members) in gangs.items()}


def ended_well(members) -> None:
    for member in members:
        assert member.code == 0, member.log


@pytest.mark.parametrize("name", ["goes on", "by address"])
def test_a_gang_comes_to_where_one_process_does(ended, name):
    members = ended[name]
    ended_well([*members, *ended["alone"]])
    ours, theirs = members[0].weights(len(members[0].orders) - 1), ended["alone"][0].weights()
    for tensor in theirs:
        torch.testing.assert_close(ours[tensor], theirs[tensor], rtol=1e-3, atol=1e-4, msg=tensor)


def test_a_gang_starts_without_the_mathematics_of_the_compiler(ended):
    """Torch imports it for gradients to start with: a second of every member's start."""
    assert all("loads False" in member.log for member in ended["goes on"])


def test_orders_of_one_gang_follow_in_the_same_processes(ended):
    first, second = ended["goes on"]
    assert [second.result(i)["slices"] for i in range(3)] == [[[0, 5]], [[5, 9]], [[9, 12]]]
    assert not list(second.directory.glob("weights*"))
    assert first.result()["evaluation"] == {"quality": 1.0}
    assert "evaluates" not in second.log and second.result()["evaluation"] is None
    told = second.result()["members"]
    assert [member["rank"] for member in told] == [0, 1]
    assert sum(member["share"] for member in told) == pytest.approx(1.0)
    assert all(member["step_s"] > 0 for member in told)


def test_without_a_checkpoint_all_begin_with_the_weights_of_rank_0(ended):
    ended_well(ended["unlike"])
    (before, after), (others, others_after) = (
        [line for line in member.log.splitlines() if line.startswith("sum")]
        for member in ended["unlike"]
    )
    assert before != others and after == others_after


def test_members_that_do_not_find_each_other_say_so(ended):
    """The address is nobody's here: rank 0 cannot listen, and the other one finds nobody."""
    first, second = ended["elsewhere"]
    assert "MemberLost: rank 0 cannot listen at tcp://192.0.2.1:9" in first.log.splitlines()[-1]
    assert "MemberLost: rank 0 is not reached at 192.0.2.1: " in second.log


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_script_that_cannot_share_says_so_by_name(ended, name):
    members = ended[name]
    assert all(member.code for member in members)
    told = [member.log.splitlines()[-1] for member in members]
    assert any("CannotShare" in line and REFUSED[name][1] in line for line in told), told
    assert all("CannotShare" in line or "MemberLost" in line for line in told), told


def test_a_script_that_stops_the_job_stops_it_for_all(ended):
    ended_well(ended["stops"])
    results = [member.result() for member in ended["stops"]]
    assert [(result["steps"], result["stopped"]) for result in results] == [(5, "script")] * 2


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """Gangs that would train for ever: of one a member is told to leave, of one it is killed, of
    one it hangs."""
    root = tmp_path_factory.mktemp("disturbed")
    gangs = {
        name: gang(root / name, (0.5, 0.3, 0.2), (0, 1_000_000), seconds=3600.0)
        for name in ("leaves", "killed", "hangs")
    }
    running = start(root, BEGIN + SLOW, *gangs.values())
    wait_for(lambda: all(members[0].steps > 3 for members in gangs.values()))
    os.kill(gangs["leaves"][2].pid, signal.SIGTERM)
    os.kill(gangs["killed"][1].pid, signal.SIGKILL)
    os.kill(gangs["hangs"][1].pid, signal.SIGSTOP)
    wait_for(lambda: all("MemberLost" in gangs["hangs"][i].log for i in (0, 2)))
    os.kill(gangs["hangs"][1].pid, signal.SIGKILL)
    running.wait(PATIENCE_S)
    return gangs


def test_a_signal_to_one_member_stops_all_after_the_same_step(disturbed):
    ended_well(disturbed["leaves"])
    results = [member.result() for member in disturbed["leaves"]]
    assert [result["stopped"] for result in results] == ["deadline", "deadline", "signal"]
    assert len({result["steps"] for result in results}) == 1
    assert 3 < results[0]["steps"] < 1_000_000


def test_a_member_that_is_killed_ends_the_others(disturbed):
    first, _, third = disturbed["killed"]
    for member in (first, third):
        assert member.code == 1 and "MemberLost" in member.log
        assert not member.orders[0].result.exists()


def test_nobody_waits_for_ever_for_a_member_that_hangs(disturbed):
    first, _, third = disturbed["hangs"]
    assert "rank 1 has said nothing for" in first.log
    assert first.code not in (0, None) and third.code not in (0, None)


def test_a_member_that_another_one_does_not_reach_is_named_with_the_fix(tmp_path):
    """Gloo would wait for it for a day."""
    store = torch.distributed.FileStore(str(tmp_path / "meeting"), 2)
    store.set("door/1", f"127.0.0.1 {free_port('127.0.0.1')}")
    member = Membership("g", 0, 2, "tcp://127.0.0.1:1")
    with pytest.raises(MemberLost, match=r"rank 1 is not reached at 127.0.0.1: .*`hadar check`"):
        require_reach(store, member, "127.0.0.1")


def test_a_member_that_does_not_come_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(meeting, "_MEET_S", 0.5)
    member = Membership("g", 0, 2, f"file://{tmp_path}/meeting")
    with pytest.raises(MemberLost, match="gang of 2 did not meet: rank 1 has not come"):
        meeting.Meeting(member, torch.device("cpu"))


def test_rank_0_behind_a_firewall_is_not_waited_for(monkeypatch):
    """A full queue drops who knocks, as firewalls do. One that is only late is waited for."""
    monkeypatch.setattr(meeting, "_KNOCK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        host, port = silent.getsockname()
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                queued = stack.enter_context(socket.socket())
                queued.setblocking(False)
                queued.connect_ex((host, port))
            with pytest.raises(MemberLost, match=r"rank 0 is not reached at 127.0.0.1: .*check`"):
                await_first(host, port)
    late, doors = free_port("127.0.0.1"), []
    threading.Timer(0.3, lambda: doors.append(listening("127.0.0.1", late))).start()
    await_first("127.0.0.1", late)
    doors.pop().close()
