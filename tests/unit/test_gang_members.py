"""A gang's order as its members' orders, their reports as one."""

from dataclasses import replace

import pytest

from hadar_cli.core.model import Gpu, Job, Node
from hadar_cli.core.reasons import Loss
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder, CopyResult, Failed, HandedIn, NodeGone, Progressed
from hadar_cli.node.network import place_of
from hadar_cli.nodes.gangs import Abandon, FindPort, Gangs, MemberOrder, Start, TellHead

T4 = Gpu("t4", 65.0, 16.0)
NODES = (
    Node("here", "local", gpus=(T4, T4)),
    Node("too", "local"),
    Node("a", "10.0.0.1", gpus=(T4,), network="lab"),
    Node("b", "b.lab", gpus=(T4,), network="lab", address="fd00::2"),
)
RUNS = {node.name: f"/runs/{node.name}" for node in NODES}
RESULT = CopyResult(10, ((0, 10),), 0.1, 1.0, 0.1, "steps")


def order(attempt: str, *gang: str, **fields) -> CopyOrder:
    job = Job(0, "job", 100, 8)
    steps = StepSet.of([(0, 10)])
    made = CopyOrder(attempt, job, gang[0], steps, 30.0, None, 1, 1, 1, 0, 1, 2)
    return replace(made, gang=gang if len(gang) > 1 else (), **fields)


class Talk:
    """Gangs that say at once what they want."""

    def __init__(self) -> None:
        self._gangs = Gangs(NODES, RUNS)
        self.now = 0.0

    def __call__(self, event: str, *facts):
        if event == "hear":
            facts = (*facts, self.now)
        answer = getattr(self._gangs, event)(*facts)
        self._gangs.validate()
        return self._gangs.take() if answer is None else answer


@pytest.fixture
def talk() -> Talk:
    return Talk()


def members(actions) -> list[MemberOrder]:
    return [action.order for action in actions if isinstance(action, Start)]


def told(actions):
    return [action.report for action in actions if isinstance(action, TellHead)]


def handed_in(attempt: str, **fields) -> HandedIn:
    return HandedIn(attempt, RESULT, None if "." in attempt else "weights", **fields)


def test_who_is_alone_is_left_alone(talk):
    alone = order("x", "too")
    assert talk("start", alone) == [Start(alone)]
    for report in (Progressed("x", 1, 0.1), HandedIn("x", RESULT, "w"), NodeGone(("too",), "why")):
        assert talk("hear", report) == [TellHead(report)]


def test_every_member_has_the_same_steps_and_its_own_place(talk):
    found = members(talk("start", order("x", "here:0", "here:1", "too", shares=(0.5, 0.3, 0.2))))
    assert [m.device for m in found] == ["here:0", "here:1", "too"]
    assert [m.attempt for m in found] == ["x", "x.1", "x.2"]
    assert [m.returns_weights for m in found] == [True, False, False]
    assert {m.steps for m in found} == {StepSet.of([(0, 10)])} and not any(m.gang for m in found)
    places = [m.member for m in found]
    assert [(p.rank, p.size, p.gang) for p in places] == [(0, 3, "x"), (1, 3, "x"), (2, 3, "x")]
    assert {p.meets_at for p in places} == {"file:///runs/here/gangs/x"}
    assert {p.shares for p in places} == {(0.5, 0.3, 0.2)}


def test_members_on_several_machines_meet_at_a_port_of_the_first(talk):
    assert talk("start", order("x", "b", "a")) == [FindPort("x", "b", "fd00::2")]
    assert {m.member.meets_at for m in members(talk("port_found", "x", 4242))} == {
        "tcp://[fd00::2]:4242"
    }


def test_without_a_port_the_gang_is_lost_and_says_where(talk):
    talk("start", order("x", "a", "b"))
    [lost] = told(talk("no_port", "x", "address in use"))
    assert (lost.attempt, lost.reason, lost.device) == ("x", Loss.CANNOT_MEET, "a")
    assert "10.0.0.1" in lost.why and "address in use" in lost.why


def test_the_gang_hands_in_when_all_have(talk):
    talk("start", order("x", "here:0", "here:1"))
    assert talk("hear", Progressed("x.1", 3, 0.3)) == []
    assert talk("hear", handed_in("x", stays=True, warm=True)) == []
    [report] = told(talk("hear", handed_in("x.1", stays=True, warm=False)))
    assert report == HandedIn("x", RESULT, "weights", warm=False, stays=True)
    assert talk("hear", handed_in("x.1")) == []  # repeated: nobody is waiting for it


def test_the_loss_of_one_is_that_of_all(talk):
    talk("start", order("x", "here:0", "here:1", "too"))
    talk("hear", handed_in("x.1"))
    actions = talk("hear", Failed("x.2", Loss.EXITED, "it exited with code 1", "log"))
    assert Abandon(("x",)) in actions
    [lost] = told(actions)
    assert (lost.attempt, lost.reason, lost.device, lost.log) == ("x", Loss.EXITED, "too", "log")
    assert lost.why == "its member on too: it exited with code 1"


def test_once_rank_0_has_handed_in_a_loss_costs_a_process_only(talk):
    talk("start", order("x", "here:0", "here:1"))
    talk("hear", handed_in("x", stays=True))
    [report] = told(talk("hear", Failed("x.1", Loss.EXITED, "killed")))
    assert isinstance(report, HandedIn) and not report.stays


def test_nobody_waits_long_for_members_that_trail(talk):
    talk("start", order("x", "here:0", "here:1"))
    talk("hear", handed_in("x", stays=True))
    assert talk("look", 1.0) == []
    actions = talk("look", 60.0)
    assert Abandon(("x.1",)) in actions
    assert told(actions) == [handed_in("x")]


def test_a_gang_that_goes_on_keeps_its_name(talk):
    talk("start", order("x", "here:0", "here:1"))
    found = members(talk("start", order("y", "here:0", "here:1", follows="x")))
    assert [m.follows for m in found] == ["x", "x.1"]
    assert {m.member.gang for m in found} == {"x"}
    talk("hear", handed_in("x", stays=True))
    talk("hear", handed_in("x.1", stays=True))
    [again, _] = members(talk("start", order("z", "here:0", "here:1", follows="y")))
    assert again.member.gang == "x"
    anew = members(talk("start", order("w", "here:0", "here:1")))
    assert {m.member.gang for m in anew} == {"w"}


def test_what_follows_a_gang_that_waits_for_its_port_waits_too(talk):
    talk("start", order("x", "a", "b"))
    assert talk("start", order("y", "a", "b", follows="x")) == []
    sent = [m.attempt for m in members(talk("port_found", "x", 4242))]
    assert sent == ["x", "x.1", "y", "y.1"]


def test_what_follows_a_gang_without_a_port_is_lost_with_it(talk):
    talk("start", order("x", "a", "b"))
    talk("start", order("y", "a", "b", follows="x"))
    lost = {report.attempt: report.reason for report in told(talk("no_port", "x", "gone"))}
    assert lost == {"x": Loss.CANNOT_MEET, "y": Loss.PROCESS_GONE}


def test_an_adopted_gang_is_all_of_its_members(talk):
    adopted = talk("adopt", [order("x", "here:0", "too"), order("y", "here:1")])
    assert [o.attempt for o in adopted] == ["x", "x.1", "y"]
    [lost] = told(talk("hear", Failed("x.1", Loss.NODE_FORGOT, "forgotten")))
    assert (lost.attempt, lost.device) == ("x", "too")


def test_a_recall_is_for_every_member(talk):
    talk("start", order("x", "here:0", "too"))
    assert talk("members_of", ["x", "y"]) == ["x", "x.1", "y"]


def test_who_ended_because_of_another_is_not_to_blame(talk):
    talk("start", order("x", "here:0", "here:1", "too"))
    assert talk("hear", Failed("x", Loss.MEMBER_LOST, "rank 2 is gone")) == []
    actions = talk("hear", Failed("x.2", Loss.EXITED, "killed"))
    assert Abandon(("x.1",)) in actions
    [lost] = told(actions)
    assert (lost.reason, lost.device) == (Loss.EXITED, "too")


def test_where_all_lost_each_other_the_first_to_say_so_is_believed(talk):
    talk("start", order("x", "here:0", "here:1"))
    talk("hear", Failed("x.1", Loss.MEMBER_LOST, "rank 0 is not there"))
    [lost] = told(talk("hear", Failed("x", Loss.MEMBER_LOST, "rank 1 is gone")))
    assert (lost.reason, lost.device) == (Loss.MEMBER_LOST, "here:1")
    talk("start", order("y", "here:0", "here:1"))
    talk("hear", Failed("y.1", Loss.MEMBER_LOST, "rank 0 is not there"))
    actions = talk("look", 60.0)
    assert Abandon(("y",)) in actions and told(actions)[0].device == "here:1"


def test_a_home_and_odd_names_survive_the_way_to_the_node(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    gangs = Gangs(NODES[:1], {"here": "~/my runs/#1"})
    gangs.start(order("x", "here:0", "here:1"))
    [first, _] = members(gangs.take())
    assert place_of(first.member.meets_at).path == "/home/me/my runs/#1/gangs/x"
