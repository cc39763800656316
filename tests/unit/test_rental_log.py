"""No dollar is spent unseen: whatever dies, when, and whatever a clock says."""

import time
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import format_datetime
from types import SimpleNamespace

import pytest

from hadar_cli.aws import account, budget, demand
from hadar_cli.aws.budget import PaidClock
from hadar_cli.aws.fleet import Fleet
from hadar_cli.aws.machines import Machine
from hadar_cli.aws.transport import AwsTransport, end_instances
from hadar_cli.core.measures.costs import spent
from hadar_cli.core.model import AwsRequest, Node
from hadar_cli.nodes.session.returning import is_hopeless
from hadar_cli.nodes.wire import LinkLostError, NoMoreError, NotYetError
from hadar_cli.runs.rentals import read_rentals

HOUR = 3600.0
OWN = "i-0123456789abcdef0"


class Killed(BaseException):
    """The head dies here."""


class Ec2:
    """As much of EC2 as a fleet asks; ``now`` is its own clock."""

    meta = SimpleNamespace(region_name="us-east-1")

    def __init__(self) -> None:
        self.now = time.time()
        self.instances: dict[str, dict] = {}
        self.fails: list[BaseException | str] = []  # after the deed, one by one
        self.launches = "running"

    def _moment(self, at: float | None = None) -> datetime:
        return datetime.fromtimestamp(at or self.now, timezone.utc)

    def _fail(self) -> None:
        if self.fails:
            failure = self.fails.pop(0)
            raise client_error(failure) if isinstance(failure, str) else failure

    def describe_launch_template_versions(self, **asked):
        return {"LaunchTemplateVersions": [{"LaunchTemplateData": {"InstanceType": "g5.xlarge"}}]}

    def get_paginator(self, name):
        return SimpleNamespace(paginate=self._paginate)

    def _paginate(self, Filters):
        [one] = Filters
        found = []
        for raw in self.instances.values():
            tags = {tag["Key"]: tag["Value"] for tag in raw["Tags"]}
            has = tags.get("hadar:token") if one["Name"].startswith("tag:") else raw["InstanceId"]
            found += [dict(raw)] if has in one["Values"] else []
        headers = {"HTTPHeaders": {"date": format_datetime(self._moment(), usegmt=True)}}
        return [{"Reservations": [{"Instances": found}], "ResponseMetadata": headers}]

    def run_instances(self, **asked):
        name = f"i-{len(self.instances):08d}"
        [tags, _] = asked["TagSpecifications"]
        raw = {"InstanceId": name, "InstanceType": "g5.xlarge", "Tags": tags["Tags"]}
        raw |= {"LaunchTime": self._moment(), "ClientToken": asked["ClientToken"]}
        raw |= {"State": {"Name": self.launches}, "PublicDnsName": "h"}
        self.instances[name] = raw
        self._fail()
        return {"Instances": [raw]}

    def describe_instances(self, InstanceIds):
        return {"Reservations": [{"Instances": [self.instances[one] for one in InstanceIds]}]}

    def create_tags(self, Resources, Tags):
        for one in Resources:
            self.instances[one]["Tags"] = list(Tags)

    def delete_tags(self, Resources, Tags):
        for one in Resources:
            self.instances[one]["Tags"] = []

    def start_instances(self, InstanceIds):
        for one in InstanceIds:
            self.instances[one] |= {"State": {"Name": "running"}, "LaunchTime": self._moment()}
        self._fail()

    def stop_instances(self, InstanceIds, state="stopped"):
        self._fail()
        for one in InstanceIds:
            why = f"User initiated ({self._moment():%Y-%m-%d %H:%M:%S} GMT)"
            self.instances[one] |= {"State": {"Name": state}, "StateTransitionReason": why}

    def terminate_instances(self, InstanceIds):
        self.stop_instances(InstanceIds, "terminated")


def client_error(code: str) -> Exception:
    from botocore.exceptions import ClientError

    return ClientError({"Error": {"Code": code, "Message": "no"}}, "RunInstances")


@pytest.fixture
def ec2(monkeypatch) -> Ec2:
    ec2 = Ec2()
    monkeypatch.setattr(account.Account, "client", lambda self, *which: ec2)
    monkeypatch.setattr(budget.Guard, "begin", lambda self: None)
    return ec2


def node(**fields) -> Node:
    request = {"template": "t", **fields}
    return Node("a", "aws", price_per_hour=1.0, aws=AwsRequest(**request))


class Head:
    """One life of a head, whose clock the test sets."""

    def __init__(self, directory, node: Node, now: float) -> None:
        self.node, self.now = node, now
        self.fleet = Fleet(account.Account(None, None, None), "r", "t", directory)
        self.fleet._clock = SimpleNamespace(now=lambda: self.now)
        self.transport = AwsTransport(node, self.fleet, no_machine)

    def cost(self) -> float:
        self.fleet.machines("a", 0.0)
        return spent(self.fleet.rental_log.rentals, self.now)


def no_machine(node: Node) -> None:
    raise AssertionError("nobody is to connect")


def test_what_a_head_launched_when_it_was_killed_is_paid_for_from_its_launch(ec2, tmp_path):
    began = ec2.now
    first = Head(tmp_path, node(), began)
    ec2.fails = [Killed()]
    with pytest.raises(Killed):
        first.fleet.start(first.node)
    [rental] = read_rentals(tmp_path)
    assert rental.until is None, "it counts from before it was asked for"
    ec2.now = began + HOUR
    second = Head(tmp_path, node(), began + HOUR)
    assert second.cost() == pytest.approx(1.0)
    [rental] = read_rentals(tmp_path)
    assert rental.instance in ec2.instances


def test_an_instance_that_no_head_has_noted_is_paid_for_by_aws_s_clock(ec2, tmp_path):
    """This computer's is two hours slow; its file was lost."""
    Head(tmp_path, node(), ec2.now).fleet.start(node())
    (tmp_path / "rentals.jsonl").unlink()
    head = Head(tmp_path, node(), ec2.now - HOUR)
    ec2.now += HOUR
    assert head.cost() == pytest.approx(1.0, abs=0.01)


def test_a_clock_that_was_set_back_makes_nothing_cheaper(ec2, tmp_path, monkeypatch):
    Head(tmp_path, node(), ec2.now).fleet.start(node())
    ec2.now += 2 * HOUR
    head = Head(tmp_path, node(), ec2.now - 1.9 * HOUR)
    assert head.cost() == pytest.approx(2.0, abs=0.01)
    clock = PaidClock()
    now = clock.now()
    monkeypatch.setattr(budget.time, "time", lambda: now - HOUR)
    assert clock.now() >= now


def test_every_start_of_one_s_own_instance_counts(ec2, tmp_path):
    ec2.instances[OWN] = {"InstanceId": OWN, "InstanceType": "g5.xlarge", "Tags": []}
    ec2.instances[OWN] |= {"State": {"Name": "stopped"}}
    head = Head(tmp_path, node(template=None, instance=OWN), ec2.now)
    for _ in range(2):
        machine = head.fleet.start(head.node)
        head.now, ec2.now = head.now + HOUR, ec2.now + HOUR
        head.fleet.end(head.node, [machine])
        head.now, ec2.now = head.now + HOUR, ec2.now + HOUR
    assert head.cost() == pytest.approx(2.0)
    first, second = read_rentals(tmp_path)
    assert first.until and second.until and first.instance == second.instance == OWN
    ec2.fails = [Killed()]
    with pytest.raises(Killed):
        head.fleet.start(head.node)
    third = Head(tmp_path, head.node, head.now + HOUR)
    ec2.now += HOUR
    assert third.cost() == pytest.approx(3.0)


def test_an_answer_that_never_came_is_counted_until_a_list_tells(ec2, tmp_path):
    from botocore.exceptions import ReadTimeoutError

    head = Head(tmp_path, node(), ec2.now)
    ec2.fails = [ReadTimeoutError(endpoint_url="ec2")]
    with pytest.raises(LinkLostError):
        head.fleet.start(head.node)
    assert head.fleet.awaits("a")
    head.now += 60
    assert head.cost() == pytest.approx(60 / HOUR, rel=0.1) and not head.fleet.awaits("a")
    assert end_instances(head.node, [head.fleet]) == (["i-00000000"], [])


def test_what_a_head_asked_for_when_it_was_killed_is_not_asked_for_twice(ec2, tmp_path):
    """A list may not show it for a while."""
    first = Head(tmp_path, node(), ec2.now)
    ec2.fails = [Killed()]
    with pytest.raises(Killed):
        first.transport._find()
    hidden, ec2.instances = ec2.instances, {}
    second = Head(tmp_path, node(), ec2.now + 5)
    with pytest.raises(NotYetError, match="no list shows yet"):
        second.transport._find()
    ec2.instances = hidden
    second.fleet._listed_at = -HOUR
    assert second.transport._find().id in hidden
    assert len(hidden) == 1


def test_what_was_never_given_costs_nothing(ec2, tmp_path):
    head = Head(tmp_path, node(), ec2.now)
    ec2.fails = ["VcpuLimitExceeded"]
    with pytest.raises(NoMoreError):
        head.fleet.start(head.node)
    ec2.fails = [Killed()]
    with pytest.raises(Killed):
        Head(tmp_path, node(), ec2.now).fleet.start(node())
    ec2.instances.clear()
    assert Head(tmp_path, node(), ec2.now + 130).cost() == 0.0
    assert read_rentals(tmp_path) == []


def test_one_that_ended_itself_without_a_head_costs_no_more_than_that(ec2, tmp_path):
    """Long ago, so that no list shows it; and one whose end AWS still knows."""
    began = ec2.now
    Head(tmp_path, node(), began).fleet.start(node())
    gone = ec2.instances.pop("i-00000000")
    ec2.now = began + 12 * HOUR
    head = Head(tmp_path, node(), ec2.now)
    head.fleet._looked_at = began + 60
    assert head.cost() == pytest.approx((60 + 15 * 60 + 120) / HOUR)
    (tmp_path / "rentals.jsonl").unlink()
    ec2.now = began
    Head(tmp_path, node(), began).fleet.start(node())
    [raw] = ec2.instances.values()
    ec2.now = began + 300
    ec2.terminate_instances(InstanceIds=[raw["InstanceId"]])
    ec2.now = began + HOUR / 2
    head = Head(tmp_path, node(), ec2.now)
    head.fleet._looked_at = began + 60
    assert head.cost() == pytest.approx(300 / HOUR, rel=0.02) and gone


@pytest.mark.parametrize("why", ["Client.InternalError", "Server.InsufficientInstanceCapacity"])
def test_instances_that_end_while_they_start_are_asked_for_ever_more_rarely(
    ec2, tmp_path, monkeypatch, why
):
    monkeypatch.setattr(demand, "_PAUSES_S", (0.0,))
    head = Head(tmp_path, node(), ec2.now)
    ec2.launches = "pending"
    for _ in range(3):
        with pytest.raises(NotYetError, match="is starting"):
            head.transport._find()
        for raw in ec2.instances.values():
            raw |= {"State": {"Name": "terminated"}, "StateReason": {"Message": why}}
        head.fleet._listed_at = 0.0
    if "Capacity" in why:
        monkeypatch.setattr(demand, "_PAUSES_S", (60.0,))
        head.fleet.tries.put_off("a", why)
        with pytest.raises(NotYetError, match=f"{why}; asked for again in 60 s") as waits:
            head.transport._find()
        assert not is_hopeless(waits.value) and waits.value.kind
    else:
        with pytest.raises(NoMoreError, match=f"last 3 instances ended .*{why}"):
            head.transport._find()
    assert len(ec2.instances) == 3
    assert head.cost() == pytest.approx(3 / 60), "a minute each at the most"


def test_one_that_lets_nobody_in_is_ended(ec2, tmp_path):
    head = Head(tmp_path, node(), ec2.now)
    machine = head.fleet.start(head.node)
    head.transport._machine = machine
    lost = LinkLostError("no route")
    with pytest.raises(NotYetError, match="boots"):
        head.transport._await_boot(machine, lost)
    head.now, ec2.now = head.now + 700, ec2.now + 700
    head.transport._await_boot(machine, lost)
    assert ec2.instances[machine.id]["State"]["Name"] == "terminated"
    with pytest.raises(NotYetError, match="let nobody in for 12 minutes: no route"):
        head.fleet.tries.require("a")


def test_an_instance_of_a_node_that_the_inventory_has_no_longer_is_ended(ec2, tmp_path):
    before = Node("b", "aws", price_per_hour=1.0, aws=AwsRequest(template="t"))
    Head(tmp_path, before, ec2.now).fleet.start(before)
    head = Head(tmp_path, node(), ec2.now + HOUR)
    ec2.now += HOUR
    head.transport.give_back()
    assert ec2.instances["i-00000000"]["State"]["Name"] == "running", "another may know it"
    head.fleet.knows_all = True
    head.fleet._listed_at = -HOUR
    head.fleet._count()
    assert ec2.instances["i-00000000"]["State"]["Name"] == "terminated"
    assert head.cost() == pytest.approx(1.0) and not head.fleet.rental_log.going


def test_the_last_dollar_ends_what_runs_even_if_aws_fails_at_first(ec2, tmp_path, monkeypatch):
    """And whether or not its node can be reached."""
    head = Head(tmp_path, node(budget=0.5), ec2.now)
    machine = head.fleet.start(head.node)
    head.now += HOUR / 2 - 300
    head.fleet._count()
    assert ec2.instances[machine.id]["State"]["Name"] == "running"
    assert not head.fleet.runs_out(head.node)
    head.now += 200
    assert "is used up" in head.fleet.runs_out(head.node), "copies hand in first"
    head.now += 90
    ec2.fails = ["InternalError"]
    head.fleet._count()
    assert ec2.instances[machine.id]["State"]["Name"] == "running"
    head.fleet._count()
    assert ec2.instances[machine.id]["State"]["Name"] == "terminated"
    assert not head.fleet.guard._is_needed()
    with pytest.raises(NoMoreError, match="used up"):
        head.fleet.start(head.node)
    assert head.cost() <= 0.5


def test_the_last_dollar_ends_what_runs_even_if_aws_no_longer_lists_it(ec2, tmp_path, monkeypatch):
    head = Head(tmp_path, node(budget=0.5), ec2.now)
    machine = head.fleet.start(head.node)
    monkeypatch.setattr(ec2, "_paginate", lambda Filters: ec2._fail())
    ec2.fails = ["RequestLimitExceeded"] * 9
    head.now += HOUR / 2 - 10
    head.fleet._listed_at = -HOUR
    monkeypatch.setattr(ec2, "stop_instances", lambda InstanceIds, state: ended.extend(InstanceIds))
    ended: list[str] = []
    head.fleet._count()
    assert ended == [machine.id]


@pytest.mark.parametrize("code", ["RequestExpired", "ExpiredToken", "UnauthorizedSSOTokenError"])
def test_credentials_that_run_out_are_waited_for_and_read_anew(monkeypatch, code):
    made: list[str] = []
    mine = account.Account(None, None, None)
    monkeypatch.setattr(mine, "_make", lambda service, region: made.append(service) or len(made))
    monkeypatch.setitem(account._ACCOUNTS, ("mine",), mine)
    assert mine.ec2 == mine.ec2 == 1
    for age_s in (0.0, 60.0):
        mine._opened_at -= age_s
        with pytest.raises(NotYetError) as waits, account.link_errors():
            raise client_error(code)
        assert "log in anew" in waits.value.fix and not is_hopeless(waits.value)
    assert mine.ec2 == 2, "and not at every refusal"


def found(head: Head) -> Machine:
    """The machine, once it is up."""
    with suppress(NotYetError):
        head.transport._find()
    head.fleet._listed_at = -HOUR
    head.transport._machine = head.transport._find()
    return head.transport._machine


def test_an_instance_that_aws_did_not_end_when_it_was_left_is_ended_later(
    ec2, tmp_path, monkeypatch
):
    head = Head(tmp_path, node(), ec2.now)
    machine = found(head)
    with monkeypatch.context() as expired:
        for name in ("get_paginator", "terminate_instances"):
            expired.setattr(ec2, name, _expired)
        with pytest.raises(NotYetError, match="RequestExpired"):
            head.transport.move_on()
        head.fleet._listed_at = -HOUR
        with pytest.raises(NotYetError, match="RequestExpired"):
            head.transport._find()
    other = found(head)
    assert other.id != machine.id
    assert ec2.instances[machine.id]["State"]["Name"] == "terminated"
    assert ec2.instances[other.id]["State"]["Name"] == "running"


def _expired(*args, **kwargs):
    raise client_error("RequestExpired")


def test_one_s_own_instance_that_was_left_is_the_node_s_again(ec2, tmp_path):
    ec2.instances[OWN] = {"InstanceId": OWN, "InstanceType": "g5.xlarge", "Tags": []}
    ec2.instances[OWN] |= {"State": {"Name": "stopped"}, "PublicDnsName": "h"}
    head = Head(tmp_path, node(template=None, instance=OWN), ec2.now)
    for _ in range(2):
        assert found(head).id == OWN
        head.fleet._listed_at = -HOUR
        assert head.transport._find().id == OWN
        assert ec2.instances[OWN]["State"]["Name"] == "running"
        head.transport.move_on()
        assert ec2.instances[OWN]["State"]["Name"] == "stopped"
