"""Machines that are rented: what the inventory may say, money, and an end without a head."""

import base64
import json
import os
import re
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from email import message_from_string
from pathlib import Path
from types import SimpleNamespace

import pytest

from hadar_cli.aws import account, dead_man_switch, prices
from hadar_cli.aws.budget import Budget, require_budget
from hadar_cli.aws.demand import Demand
from hadar_cli.aws.fleet import Fleet
from hadar_cli.aws.launching import check_launch
from hadar_cli.aws.transport import AwsTransport
from hadar_cli.config.inventory import nodes_of
from hadar_cli.config.strict_toml import parse_toml
from hadar_cli.core.measures.costs import Rental, costs_of, spent
from hadar_cli.core.measures.timeline import Span, Stretches, Timeline
from hadar_cli.core.model import AwsRequest, Job, Node
from hadar_cli.errors import InputError, RefusedError
from hadar_cli.node.metadata import MetadataWatch
from hadar_cli.nodes.session.returning import is_hopeless
from hadar_cli.nodes.wire import NoMoreError, NotYetError
from hadar_cli.report.format import money
from hadar_cli.runs.rentals import RentalLog, read_rentals
from tests.support.ec2 import _serve_metadata
from tests.support.sshd import free_ports

ENTRY = '[[aws.instances]]\nname = "a"\n'


def read(text: str) -> tuple[Node, ...]:
    return nodes_of(parse_toml(text, "nodes.toml"))


def test_an_entry_is_as_many_nodes_as_it_asks_for():
    account = '[aws]\nregion = "eu-west-1"\nbudget = 5\ntags = { Project = "x" }\n'
    launched = 'type = "g4dn.12xlarge"\ntemplate = "lt-1"\ncount = 2\nspot = true\n'
    own = '[[aws.instances]]\nname = "b"\nids = ["i-0123456789abcdef0"]\ngpus = []\n'
    one, two, mine = read(account + ENTRY + launched + own)
    assert (one.name, two.name, mine.name) == ("a-1", "a-2", "b")
    assert [gpu.model for gpu in one.gpus] == ["T4"] * 4 and one.is_allotted and not one.is_local
    assert one.aws == AwsRequest(
        type="g4dn.12xlarge",
        template="lt-1",
        spot=True,
        region="eu-west-1",
        budget=5.0,
        tags={"Project": "x"},
    )
    assert mine.aws and mine.aws.instance == "i-0123456789abcdef0" and not mine.aws.is_ours


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        ("[aws]\nbudget = 0\n" + ENTRY, "aws.budget", "above 0"),
        ("[aws]\nbudget = -3\n" + ENTRY, "aws.budget", "above 0"),
        ("[aws]\n", "aws", "instances"),
        (ENTRY + 'type = "g5.xlarge"', "aws.instances[0]", "template"),
        (ENTRY + 'template = "t"', "aws.instances[0]", "gpus"),
        (ENTRY + 'template = "t"\ntype = "m5.large"', "aws.instances[0].type", "gpus"),
        (ENTRY + 'ids = ["i-1"]\ngpus = []', "aws.instances[0].ids[0]", "i-0123456789abcdef0"),
        (ENTRY + 'ids = ["i-12345678"]\nspot = true\ngpus = []', "aws.instances[0].spot", "Leave"),
        (
            ENTRY + 'template = "t"\ncount = 2\nhost = "h"\ngpus = []',
            "aws.instances[0].host",
            "its",
        ),
        ('[aws]\nregion = "Mars"\n' + ENTRY, "aws.region", "us-east-1"),
        ("[aws]\nidle_minutes = 1\n" + ENTRY, "aws.idle_minutes", "from 5"),
    ],
)
def test_bad_entries_are_told_with_line_field_and_fix(text, field, fix):
    with pytest.raises(InputError) as caught:
        read(text)
    assert caught.value.field == field and fix in (caught.value.fix or "")
    assert caught.value.line


# -- money ----------------------------------------------------------------------------------------


def test_a_budget_is_projected_and_never_less_than_a_minute_is_charged():
    now = time.time()
    ended = Rental("i-1", "a", "t", 3.6, now - 1000, now - 999)
    going = Rental("i-2", "b", "t", 3.6, now - 1000)
    assert spent([ended], now) == pytest.approx(0.06)
    assert spent([ended, going], now) == pytest.approx(1.06)
    assert Budget(1.26).lasts_s([ended, going], now) == pytest.approx(200, abs=1)
    assert Budget(1.26).lasts_s([ended, going], now, more=3.6) == pytest.approx(100, abs=1)
    assert Budget(None).lasts_s([going], now) == float("inf")
    assert Budget(0.05).lasts_s([ended], now) == 0.0


def rented(price: float | None = None, **fields) -> Node:
    return Node("a", "aws", price_per_hour=price, aws=AwsRequest(template="t", **fields))


def test_what_cannot_pay_its_first_minutes_is_refused():
    require_budget([rented(12.0, budget=1.0), Node("here", "local")])
    with pytest.raises(InputError, match=r"\$2.00 in their first 5 minutes") as caught:
        require_budget([rented(12.0, budget=1.0), replace(rented(12.0, budget=1.0), name="b")])
    assert caught.value.fix and "$2.00" in caught.value.fix
    with pytest.raises(InputError, match="none is known of node a"):
        require_budget([rented(budget=1.0)])


def test_the_log_keeps_the_last_word_on_each_and_a_torn_line_is_none(tmp_path):
    rental_log = RentalLog(tmp_path)
    rental_log.begin(Rental("i-1", "a", "t", 1.0, 100.0))
    rental_log.begin(Rental("i-2", "a", "t", 1.0, 200.0))
    rental_log.end_instance("i-1", 160.0)
    rental_log.end_instance("i-1", 999.0)
    with (tmp_path / "rentals.jsonl").open("a") as file:
        file.write('\n{"instance":"i-3","no')
    first, second = read_rentals(tmp_path)
    assert (first.until, second.until) == (160.0, None)
    rental_log = RentalLog(tmp_path)
    rental_log.end_instance("i-2", 260.0)
    assert [rental.until for rental in read_rentals(tmp_path)] == [160.0, 260.0]


def test_costs_are_shared_by_the_time_that_copies_had_devices():
    dear = replace(rented(36.0, budget=9.0), name="b")
    nodes = [Node("a", "h", price_per_hour=3.6), dear, Node("free", "local")]
    jobs = [Job(0, "x", 10, 8), Job(1, "y", 10, 8)]
    spans = {"a": [Span("1", "a", 0, 0.0, 50.0)], "b": [Span("2", "b", 1, 10.0, 30.0)]}
    spans["free"] = [Span("3", "free", 1, 0.0, 100.0)]
    timeline = Timeline(100.0, spans, Stretches([]), Stretches([]), [])
    rentals = [Rental("i-1", "b", "t", 36.0, 1000.0, 1070.0)]
    costs = costs_of(nodes, jobs, timeline, rentals, 50.0, 2000.0)
    assert costs and costs.total == pytest.approx(0.1 + 0.7)  # a for 100 s, b for 70
    assert costs.jobs == {"x": pytest.approx(0.05), "y": pytest.approx(0.2)}
    assert costs.rest == pytest.approx(0.55)
    assert costs.planned == pytest.approx(0.05 + 0.5) and costs.budget == 9.0
    assert costs_of(nodes[2:], jobs, timeline, [], None, 0.0) is None
    assert (money(12.3), money(0.0021), money(None)) == ("$12.30", "$0.0021", "–")


# -- what AWS says no to --------------------------------------------------------------------------


def client_error(code: str) -> Exception:
    from botocore.exceptions import ClientError

    return ClientError({"Error": {"Code": code, "Message": "no"}}, "RunInstances")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", NotYetError),
        ("VcpuLimitExceeded", NoMoreError),
        ("UnauthorizedOperation", NoMoreError),
    ],
)
def test_a_launch_that_aws_turns_down_is_awaited_or_given_up(tmp_path, stubbed, code, kind):
    """moto has room for everybody; here the answers of RunInstances are AWS's own words."""
    stubbed(describe_launch_template_versions=TEMPLATE, run_instances=code)
    node = rented(1.0)
    transport = AwsTransport(node, Fleet.of(node.aws, "r", "t", tmp_path), no_machine)
    with pytest.raises(kind) as caught:
        transport._find()
    assert is_hopeless(caught.value) == (kind is NoMoreError)
    assert read_rentals(tmp_path) == []


@pytest.mark.parametrize("code", ["VcpuLimitExceeded", "InsufficientInstanceCapacity"])
def test_what_aws_foresees_is_refused_before_anything_is_started(stubbed, code):
    stubbed(describe_launch_template_versions=TEMPLATE, run_instances=code)
    with pytest.raises(InputError) as caught:
        check_launch(rented(1.0))
    assert caught.value.fix and caught.value.field == "node a"


def test_a_console_that_never_shows_a_key_ends_the_instance(tmp_path, stubbed):
    machine = {"InstanceId": "i-1", "State": {"Name": "running"}, "PublicDnsName": "h"}
    machine["Tags"] = [{"Key": "hadar:node", "Value": "a"}]
    ended = []
    stubbed(
        get_console_output={"Output": ""},
        terminate_instances=lambda **asked: ended.append(asked["InstanceIds"]),
        pages=[{"Reservations": [{"Instances": [machine]}]}],
    )
    node = rented(1.0)
    transport = AwsTransport(node, Fleet.of(node.aws, "r", "t2", tmp_path), no_machine)
    found = transport._machine = transport._find()
    with pytest.raises(NotYetError, match="shows no host key yet"):
        transport._located(found)
    transport._fleet.rental_log.backdate("i-1", time.time() - 700)
    with pytest.raises(RefusedError, match="no host key in 10 minutes") as caught:
        transport._located(replace(found, launched_at=time.time() - 700))
    assert ended == [["i-1"]] and "host_key" in (caught.value.fix or "")


def test_prices_come_from_aws_or_the_table_with_its_date(stubbed):
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "0.61"}}
    product = {"terms": {"OnDemand": {"x": {"priceDimensions": {"y": dimension}}}}}
    stubbed(
        get_products={"PriceList": [json.dumps(product)]},
        describe_spot_price_history={
            "SpotPriceHistory": [{"SpotPrice": "0.2"}, {"SpotPrice": "0.3"}]
        },
    )
    nodes = [rented(type="g4dn.xlarge"), rented(type="g4dn.xlarge", spot=True), rented(2.0)]
    found, words = prices.with_prices(nodes)
    assert [node.price_per_hour for node in found] == [0.61, 0.3, 2.0]
    assert "price list" in words[0] and "spot" in words[1]
    stubbed(get_products={"PriceList": []})
    [node], [words] = prices.with_prices(nodes[:1])
    assert node.price_per_hour == 0.526 and "own table of 2024-12" in words
    [node], [words] = prices.with_prices([rented(type="x9.large")])
    assert node.price_per_hour is None and "set price_per_hour" in words


TEMPLATE = {"LaunchTemplateVersions": [{"LaunchTemplateData": {"InstanceType": "g5.xlarge"}}]}


def no_machine(node: Node) -> None:
    raise AssertionError("nobody is to connect")


@pytest.fixture
def stubbed(monkeypatch):
    """A client whose answers the test gives: a response, an error's code, or a function."""

    def stub(pages=({"Reservations": []},), **answers) -> None:
        def answering(answer):
            def call(**asked):
                if isinstance(answer, str):
                    raise client_error(answer)
                return answer(**asked) if callable(answer) else answer

            return call

        client = SimpleNamespace(
            meta=SimpleNamespace(region_name="us-east-1"),
            get_paginator=lambda name: SimpleNamespace(paginate=lambda **asked: pages),
            **{name: answering(answer) for name, answer in answers.items()},
        )
        monkeypatch.setattr(account.Account, "client", lambda self, *which: client)

    return stub


# -- an end without a head ------------------------------------------------------------------------


def test_the_switch_shuts_down_once_nobody_is_heard_of(tmp_path):
    """The very script, run: its ``sleep`` waits for the test, its ``shutdown`` leaves a mark."""
    alive, mark, ticks = tmp_path / "alive", tmp_path / "mark", tmp_path / "ticks"
    os.mkfifo(ticks)
    looks = tmp_path / "looks"
    stubs = {
        "shutdown": f'echo "$@" >{mark}.part; mv {mark}.part {mark}; kill $PPID',
        "sleep": f"echo >>{looks}; read line <{ticks}",
    }
    for name, line in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o700)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    text = dead_man_switch.script(5.0, str(alive), look_every_s=1.0)
    subprocess.run(["sh"], input=text, text=True, check=True, env=env, timeout=60)
    while not looks.exists() or len(looks.read_text()) < 12:
        os.utime(alive)  # a head that renews
        tick(ticks)
    assert not mark.exists()
    while not mark.exists():
        tick(ticks)
    assert mark.read_text().split() == ["-h", "now"]


def tick(ticks: Path) -> None:
    """Ends the script's ``sleep``, if it sleeps."""
    with suppress(OSError):  # nobody reads
        pipe = os.open(ticks, os.O_WRONLY | os.O_NONBLOCK)
        with open(pipe, "w") as file:
            file.write("\n")
    time.sleep(0.01)


def with_switch(user_data: str, ours: str) -> str | None:
    encoded = base64.b64encode(user_data.encode()).decode()
    return dead_man_switch.user_data(encoded, f"#!/bin/sh\n{ours}\n")


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        ("#!/bin/sh\necho hi\n", "x-shellscript"),
        ("#cloud-config\npackages: [git]\n", "cloud-config"),
        ("#cloud-config-archive\n- type: text/cloud-config\n", "cloud-config-archive"),
        ("#cloud-boothook\n#!/bin/sh\n", "cloud-boothook"),
        ("#include-once\nhttp://127.0.0.1/x\n", "x-include-once-url"),
        ("#include\nhttp://127.0.0.1/x\n", "x-include-url"),
        ("## template: jinja\n#cloud-config\n", "jinja2"),
    ],
)
def test_the_switch_is_added_to_what_the_template_does_at_boot(theirs, kind):
    both = with_switch(theirs, "ours")
    again = with_switch(both or "", "more")
    whole = list(message_from_string(again or "").walk())
    parts = [part.get_payload(decode=True) for part in whole]
    assert whole[-1].get_content_type() == f"text/{kind}", "so that cloud-init reads it as before"
    assert parts[1:] == [b"#!/bin/sh\nmore\n", b"#!/bin/sh\nours\n", theirs.encode()]
    assert dead_man_switch.user_data(None, "ours") == "ours"
    assert dead_man_switch.user_data(base64.b64encode(b"\x1f\x8b zipped").decode(), "ours") is None


@pytest.mark.parametrize(("word", "why"), [("spot-notice", "terminate"), ("rebalance", "likely")])
def test_an_instance_s_end_is_told_by_its_metadata_service(tmp_path, word, why):
    [port] = free_ports(1)
    _serve_metadata(tmp_path, port)
    told, heard = [], threading.Event()

    def tell(words: str) -> None:
        told.append(words)
        heard.set()

    watch = MetadataWatch(f"http://127.0.0.1:{port}", tell, every_s=0.05)
    assert not heard.wait(0.3)
    watch._token = "old"  # as after its time is over
    (tmp_path / word).touch()
    assert heard.wait(30) and why in told[0]


def test_a_machine_rests_only_while_no_job_waits_and_is_wanted_when_one_does(monkeypatch):
    monkeypatch.setattr("hadar_cli.aws.demand._SHORT_S", 0.0)
    demand = Demand()
    demand.need(is_short=True)
    assert not demand.rest("a") and not demand.rests("a"), "a job waits for it"
    demand.need(is_short=False)
    assert demand.rest("a") and demand.rests("a") and not demand.rests("b")
    demand.need(is_short=True)
    assert demand.rests("a"), "between two rounds every job waits for a moment"
    time.sleep(0.001)
    demand.need(is_short=True)
    assert not demand.rests("a")


def test_the_guide_s_policy_allows_what_hadar_asks_aws_for_and_no_more():
    code = "".join(path.read_text() for path in Path(dead_man_switch.__file__).parent.glob("*.py"))
    verbs = r"\b(?:describe|run|create|delete|start|stop|terminate|get)"
    calls = re.findall(rf"\.({verbs}_(?!payload|paginator)[a-z_]+)\(", code)
    pages = re.findall(r'get_paginator\("(\w+)"\)', code)
    asked = {word.title().replace("_", "") for word in (*calls, *pages)}
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "aws.md").read_text()
    [policy] = re.findall(r"```json\n(.*?)```", guide, re.DOTALL)
    allowed = [one for part in json.loads(policy)["Statement"] for one in part["Action"]]
    assert {one.partition(":")[2] for one in allowed} == asked
