"""What a node session decides, event by event; ``tests/faults`` tries it under everything else."""

from __future__ import annotations

import pytest

from hadar_cli.core.model import Gpu, Job, Launch, Node
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import (
    CopyOrder,
    DeviceTaken,
    Failed,
    HandedIn,
    Moving,
    NodeBack,
    NodeGone,
    NodeSilent,
    Progressed,
)
from hadar_cli.errors import RefusedError
from hadar_cli.node.agent_events import Exited, Finished, WorkerEnd
from hadar_cli.node.contract import Assignment
from hadar_cli.node.phases import UNMEASURED_S
from hadar_cli.nodes.session.decisions import LEASE_S, NodeSession
from hadar_cli.nodes.session.instructions import (
    Abort,
    Connect,
    Disconnect,
    EndWorkers,
    Fetch,
    Forget,
    Instruction,
    Release,
    Renew,
    Send,
    Tell,
)
from hadar_cli.nodes.session.returning import LOGIN_AGAIN_S, RETURN_EVERY_S
from hadar_cli.nodes.session.state import Phase, Stage
from hadar_cli.nodes.wire import AgentError, LinkLostError, LoginRefusedError, NotYetError

CARD = Gpu("t4", 65.0, 16.0)
NODE = Node("n", "local", gpus=(CARD, CARD))
ONE, TWO = (device.name for device in NODE.devices)
BROKEN = LinkLostError("the connection broke")
WEIGHTS = "a" * 64


def order(attempt: str, device: str = ONE, **fields: object) -> CopyOrder:
    job = Job(int(fields.pop("job", 0)), "j", 100, 8, launch=Launch(script="/x.py"))  # type: ignore[call-overload]
    steps = StepSet.of([(0, 10)])
    defaults = {"weights": None, "round": 1, "copy": 1, "num_copies": 1, "global_step": 0}
    return CopyOrder(
        attempt, job, device, steps, 30.0, job_seed=1, seed=1, **{**defaults, **fields}
    )  # type: ignore[arg-type]


def finished(waiting: bool = True, **result: object) -> Finished:
    return Finished({"steps": 10, "waiting": waiting, **result}, "/n/w", 9)


class Talk:
    """A session, and what it wants done; its state is checked after every event."""

    def __init__(self) -> None:
        self.session = NodeSession(NODE, epoch=1)
        self.now = 100.0

    def __call__(self, event: str, *facts: object) -> list[Instruction]:
        getattr(self.session, event)(*facts)
        self.session.validate()
        return self.session.take()

    def open(self, **known: Assignment) -> list[Instruction]:
        self.session.opening()
        return self("opened", known, self.now)

    def look(self, times: int = 1, heard: bool = False) -> list[Instruction]:
        wanted = []
        for _ in range(times):
            self.now += 1.0
            wanted += self("look", self.now if heard else 0.0, self.now)
        return wanted

    def train(self, attempt: str, device: str = ONE, **fields: object) -> Send:
        """Up to the moment when the copy runs."""
        [send] = self("start", order(attempt, device, **fields))
        assert isinstance(send, Send)
        self("ordered", attempt, Assignment(send.worker, 1), self.now)
        return send

    def hand_in(self, attempt: str) -> HandedIn:
        [fetch] = self("finished", attempt, finished())
        assert fetch == Fetch(attempt, "/n/w", 9)
        [forget, told] = self("fetched", attempt, WEIGHTS)
        assert forget == Forget(attempt) and isinstance(told, Tell)
        assert isinstance(told.report, HandedIn)
        return told.report


@pytest.fixture
def talk() -> Talk:
    talk = Talk()
    assert talk("begin", []) == [Connect()]
    assert talk.open() == []
    return talk


def reports(instructions: list[Instruction]) -> list[object]:
    return [i.report for i in instructions if isinstance(i, Tell)]


def losses(instructions: list[Instruction]) -> dict[str, Loss]:
    return {r.attempt: r.reason for r in reports(instructions) if isinstance(r, Failed)}


def test_a_copy_is_sent_fetched_and_handed_in(talk):
    assert talk.train("a").worker == "0-0-1-e1"
    report = talk.hand_in("a")
    assert (report.weights, report.result.steps, report.warm, report.stays) == (
        WEIGHTS,
        10,
        False,
        True,
    )
    assert not talk.session.held


def test_devices_do_not_wait_for_each_other(talk):
    [first] = talk("start", order("a", ONE))
    [other] = talk("start", order("b", TWO))
    assert (first.order.attempt, other.order.attempt) == ("a", "b")
    assert talk("start", order("ahead", ONE, follows="a")) == []  # after the first to that device
    [ahead] = talk("ordered", "a", Assignment(first.worker), 100.0)
    assert (ahead.order.attempt, ahead.worker) == ("ahead", first.worker)


def test_another_job_gets_a_worker_in_place_of_the_last(talk):
    first = talk.train("a")
    talk.hand_in("a")
    send = talk.train("b", job=1, weights=WEIGHTS)
    assert send.worker != first.worker and send.instead_of == first.worker


def test_a_worker_that_may_have_trained_is_not_taken_for_a_new_one(talk):
    """Its first result could not be fetched: an order from the first weights starts anew."""
    first = talk.train("a")
    for _ in range(3):
        talk("finished", "a", finished())
        talk("lost", BROKEN, talk.now)
        talk.open(a=Assignment(first.worker))
    assert losses(talk("finished", "a", finished())) == {"a": Loss.CONNECTION}
    send = talk.train("again")
    assert send.worker != first.worker and send.instead_of == first.worker
    talk.hand_in("again")
    assert talk.train("on", weights=WEIGHTS).worker == send.worker


def test_an_order_whose_answer_was_lost_is_not_sent_again(talk):
    [send] = talk("start", order("a"))
    assert talk("lost", BROKEN, talk.now) == [Connect()]
    assert talk.open(a=Assignment(send.worker)) == []
    assert talk.session.held["a"].stage is Stage.RUNNING


def test_an_order_that_never_arrived_is_sent_again_three_times(talk):
    talk("start", order("a"))
    for _ in range(2):
        talk("lost", BROKEN, talk.now)
        [send] = talk.open()
        assert send.order.attempt == "a"
    talk("lost", BROKEN, talk.now)
    assert losses(talk.open()) == {"a": Loss.CONNECTION}


def test_a_result_heard_before_the_answer_waits_for_it(talk):
    [send] = talk("start", order("a"))
    assert talk("finished", "a", finished()) == []
    assert talk("ordered", "a", Assignment(send.worker), 100.0) == [Fetch("a", "/n/w", 9)]
    talk("lost", BROKEN, talk.now)
    talk.session.opening()
    assert talk("finished", "a", finished()) == []  # told anew, before the agent is known
    known = {"a": Assignment(send.worker)}
    assert talk("opened", known, talk.now) == [Fetch("a", "/n/w", 9)]


def test_what_is_said_twice_is_heard_once(talk):
    talk.train("a")
    assert len(talk("finished", "a", finished())) == 1
    assert talk("finished", "a", finished()) == []
    assert len(talk("fetched", "a", WEIGHTS)) == 2
    assert talk("fetched", "a", WEIGHTS) == talk("finished", "a", finished()) == []
    assert talk("exited", "a", Exited(1, WorkerEnd.EXITED)) == []


def test_copies_of_an_earlier_head_are_adopted_or_given_up():
    talk = Talk()
    assert talk("begin", [order("a"), order("b", TWO)]) == [Connect()]
    assert talk.session.opening()[0] == ["a", "b"]
    assert losses(talk("opened", {"a": Assignment("w", 2)}, 100.0)) == {"b": Loss.NODE_FORGOT}
    assert talk.hand_in("a").warm
    assert talk.train("c", weights=WEIGHTS).worker == "w"


def test_a_follow_on_order_without_its_process_is_lost(talk):
    talk.train("a")
    talk("exited", "a", Exited(1, WorkerEnd.EXITED))
    assert losses(talk("start", order("ahead", follows="a"))) == {"ahead": Loss.PROCESS_GONE}


def test_a_recalled_copy_is_released_as_soon_as_it_runs(talk):
    [send] = talk("start", order("a"))
    assert talk("recall", None) == []
    assert talk("ordered", "a", Assignment(send.worker), 100.0) == [Release(send.worker)]
    assert talk("recall", ["a"]) == []  # it is leaving already


def test_a_nonsensical_result_costs_the_copy_and_its_worker(talk):
    send = talk.train("a")
    wanted = talk("finished", "a", Finished({"steps": "ten"}))
    assert wanted[0] == Release(send.worker) and losses(wanted) == {"a": Loss.BAD_RESULT}


# -- silence -------------------------------------------------------------------------------------


def test_a_node_is_asked_where_it_says_nothing_and_for_its_lease(talk):
    """At every third look, if it speaks by itself; at each, if it does not."""
    asked = [talk.look(heard=True) for _ in range(7)]
    assert asked == [[Renew()], [], [], [Renew()], [], [], [Renew()]]
    assert [Renew() in talk.look() for _ in range(3)] == [True, True, True]


def test_a_node_is_told_at_once_of_devices_that_the_head_has_use_for(talk):
    talk.look(heard=True)
    talk.train("a", TWO)
    assert talk.look(heard=True) == [Renew((1,))]
    assert talk.look(2, heard=True) == []
    talk.hand_in("a")
    assert talk.look(heard=True) == [Renew()]


def test_an_agent_that_is_new_is_asked_at_once(talk):
    assert talk.look(heard=True) == [Renew()]
    talk("lost", BROKEN, talk.now)
    talk.open()
    assert talk.look(heard=True) == [Renew()]


def test_a_silent_node_is_told_of_cut_off_given_up_and_looked_for(talk):
    talk.train("a")
    talk.look(heard=True)
    assert reports(talk.look(3)) == [NodeSilent((ONE, TWO))]
    assert Abort() not in talk.look(3)
    assert Abort() in talk.look(1)
    assert talk("lost", BROKEN, talk.now) == [Connect()]
    talk("unreachable", BROKEN, talk.now)
    wanted = talk.look(5)
    assert losses(wanted) == {"a": Loss.NODE_GONE}
    [gone] = [report for report in reports(wanted) if isinstance(report, NodeGone)]
    assert gone.reason is Absence.AWAY
    assert talk("unreachable", BROKEN, talk.now) == [Connect(RETURN_EVERY_S)]
    assert losses(talk("start", order("b"))) == {"b": Loss.NODE_GONE}
    assert reports(talk.open()) == [NodeSilent((ONE, TWO), is_over=True), NodeBack((ONE, TWO))]
    assert talk.train("c").worker


def test_a_short_silence_is_over_by_itself(talk):
    talk.train("a")
    talk.look(heard=True)
    talk.look(4)
    assert NodeSilent((ONE, TWO), is_over=True) in reports(talk.look(heard=True))
    assert talk.session.phase is Phase.OPEN


def test_a_broken_link_is_mended_for_as_long_as_the_lease_lasts(talk):
    talk.train("a")
    [at_once] = talk("lost", BROKEN, talk.now)
    [soon] = talk("unreachable", BROKEN, talk.now)
    assert at_once.after_s == 0.0 < soon.after_s < LEASE_S
    talk.now += LEASE_S + 0.1
    wanted = talk("unreachable", BROKEN, talk.now)
    assert losses(wanted) == {"a": Loss.NODE_GONE} and Connect(RETURN_EVERY_S) in wanted


def test_a_worker_that_said_it_leaves_is_told_to_by_the_next_order(talk):
    """A new one waits for its device; a script that lingers must not keep it for ever."""
    first = talk.train("a")
    talk("finished", "a", finished(waiting=False))
    talk("fetched", "a", "w")
    send = talk.train("b", job=1, weights=WEIGHTS)
    assert send.worker != first.worker and send.instead_of == first.worker


def test_a_refused_login_is_tried_again_but_rarely(talk):
    talk("lost", LinkLostError("cut"), 0.0)
    refusal = LoginRefusedError("refuses the login")
    gone = talk("unreachable", refusal, 0.1)
    assert [r.why for r in reports(gone) if isinstance(r, NodeGone)] == [
        "refuses the login; tried again, but rarely"
    ]
    waits = [i.after_s for i in gone if isinstance(i, Connect)]
    for _ in range(3):
        waits += [i.after_s for i in talk("unreachable", refusal, 1.0) if isinstance(i, Connect)]
    assert waits == [*LOGIN_AGAIN_S, LOGIN_AGAIN_S[-1]]
    # No more than four within ten minutes: fail2ban's own limit is five.
    tries = [sum(waits[:n]) for n in range(len(waits) + 1)]
    assert all(sum(t <= other < t + 600 for other in tries) <= 4 for t in tries)
    talk.open()
    talk("lost", LinkLostError("cut"), 0.0)
    again = talk("unreachable", refusal, 0.1)
    assert [i.after_s for i in again if isinstance(i, Connect)] == [LOGIN_AGAIN_S[0]]


def test_a_refused_node_is_never_looked_for(talk):
    talk.train("a")
    wanted = talk("lost", RefusedError("its host key has changed"), talk.now)
    [gone] = [report for report in reports(wanted) if isinstance(report, NodeGone)]
    assert gone.reason is Absence.REFUSED
    assert wanted[-1] == Disconnect() and talk.session.phase is Phase.REFUSED
    assert talk.look(20) == []


def test_a_node_that_leaves_is_let_go_once_its_copies_are_in(talk):
    talk.train("a")
    taken = [DeviceTaken(device, "its time is up") for device in (ONE, TWO)]
    leaving = {"event": "leaving", "why": "its time is up"}
    told = talk("used", leaving)
    assert [one for one in told if isinstance(one, Tell)] == [Tell(one) for one in taken]
    assert [type(one) for one in told if not isinstance(one, Tell)] == [Release]
    [refused] = talk("start", order("late", TWO))
    assert refused == Tell(Failed("late", Loss.ORDER_REFUSED, "its time is up"))
    talk("finished", "a", finished(waiting=False))
    *_, handed_in, gone, connect = talk("fetched", "a", WEIGHTS)
    assert isinstance(handed_in.report, HandedIn)
    assert gone == Tell(NodeGone((ONE, TWO), "its time is up", Absence.AWAITED))
    assert connect == Connect(moves_on=True)


def test_a_promised_node_is_awaited_and_told_anew_when_it_fails(talk):
    talk("lost", BROKEN, talk.now)
    [gone, again] = talk("unreachable", NotYetError("in the queue"), talk.now)
    assert gone == Tell(NodeGone((ONE, TWO), "in the queue", Absence.AWAITED))
    assert again == Connect(RETURN_EVERY_S)
    assert talk("unreachable", NotYetError("in the queue"), talk.now) == [again]
    [gone, _] = talk("unreachable", LinkLostError("no python"), talk.now)
    assert gone == Tell(NodeGone((ONE, TWO), "no python", Absence.AWAY))
    assert Tell(NodeBack((ONE, TWO))) in talk.open()


def test_a_node_that_takes_no_orders_is_left_for_a_while(talk):
    full = AgentError("no space left on device")
    for attempt in "ab":
        talk("start", order(attempt))
        assert losses(talk("order_refused", attempt, full)) == {attempt: Loss.ORDER_REFUSED}
    talk("start", order("c"))
    wanted = talk("order_refused", "c", full)
    assert [type(i) for i in wanted[-2:]] == [EndWorkers, Connect]
    assert talk.session.phase is Phase.GONE


# -- clocks --------------------------------------------------------------------------------------


def test_no_clock_runs_while_files_move(talk):
    """Neither a slow push nor a slow pull makes a copy late; one that runs and is silent is."""
    talk("start", order("pushed"))
    talk.train("runs", TWO)
    talk.now += 60.0
    talk("finished", "runs", finished())
    talk.now += 10_000.0
    assert losses(talk.look(heard=True)) == {}
    talk("fetched", "runs", WEIGHTS)
    talk("ordered", "pushed", Assignment("0-0-1-e1"), talk.now)
    talk.now += UNMEASURED_S  # its supervisor may let it have so long to start, and its time
    assert losses(talk.look(heard=True)) == {}
    talk.now += 100.0
    assert losses(talk.look(heard=True)) == {"pushed": Loss.LATE}


def test_files_that_move_are_told_of_and_a_fetch_that_gets_on_is_never_given_up(talk):
    first = talk.train("a")
    assert talk("moved", "a", 1, 9) == []  # a word from before: nothing of it moves now
    for done in range(1, 6):
        [fetch] = talk("finished", "a", finished())
        assert reports(talk("moved", "a", done, 9)) == [Moving("a", done, 9, is_result=True)]
        talk("lost", BROKEN, talk.now)
        talk.open(a=Assignment(first.worker))
    for _ in range(2):
        assert talk("finished", "a", finished()) == [fetch]
        talk("moved", "a", 0, 9)  # nothing new
        talk("lost", BROKEN, talk.now)
        talk.open(a=Assignment(first.worker))
    assert losses(talk("finished", "a", finished())) == {"a": Loss.CONNECTION}


def test_a_closed_session_wants_nothing(talk):
    talk.train("a")
    talk.session.close()
    assert talk("finished", "a", finished()) == talk("start", order("b")) == talk.look(20) == []


def test_a_state_that_cannot_be_is_noticed(talk):
    talk.train("a")
    talk.session.phase = Phase.GONE
    with pytest.raises(AssertionError):
        talk.session.validate()


def test_a_copy_that_says_what_it_is_about_is_not_late_while_that_may_last(talk):
    talk.train("a")
    talk.train("b", TWO)
    talk("progressed", Progressed("a", 0, 0.0, None, 1800.0), talk.now)
    gone = losses(talk.look(int(UNMEASURED_S) + 100, heard=True))
    assert gone == {"b": Loss.LATE}
    assert losses(talk.look(1750 - int(UNMEASURED_S), heard=True)) == {}
    assert losses(talk.look(100, heard=True)) == {"a": Loss.LATE}
