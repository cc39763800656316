"""The instances of one run: started, found again by their tags, ended, and paid for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadar_cli.aws.account import Account, link_errors
from hadar_cli.aws.budget import FIRST_S, HAND_IN_S, LAST_S, Budget
from hadar_cli.aws.discovery import address_of
from hadar_cli.aws.launching import (
    FOR_OTHERS,
    NODE,
    NOT_OURS,
    RUN,
    TOKEN,
    has_switch,
    launch,
    tags_of,
)
from hadar_cli.core.measures.costs import Rental
from hadar_cli.core.model import AwsRequest, Node
from hadar_cli.nodes.wire import NoMoreError, NotYetError
from hadar_cli.runs.rentals import RentalBook

_LIST_EVERY_S = 2.0
_UNLISTED_S = 120.0  # a new instance may be missing from lists
_SHORT_S = 30.0  # jobs wait for so long before instances are started for them again
_STARTING, _UP, _ENDED = "pending", "running", ("shutting-down", "terminated", "stopped")
NO_SWITCH = "if the head dies, nothing ends it but `hadar clean` or `hadar cancel`"


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance that carries a run's tags."""

    id: str
    node: str
    state: str
    host: str  # its public address
    private_host: str
    launched_at: float

    @property
    def is_up(self) -> bool:
        return self.state == _UP

    @property
    def is_over(self) -> bool:
        return self.state in (*_ENDED, "stopping")


class Fleet:
    """For all of the run's nodes in this process, and all their threads."""

    def __init__(self, account: Account, run: str, token: str, directory: Path) -> None:
        self._account, self._run, self._token = account, run, token
        self.book = RentalBook(directory)
        self.starting = threading.RLock()  # held by who looks whether there is one to start
        self._listing = threading.Lock()
        self._machines: list[Machine] = []
        self._listed_at = 0.0
        self._fresh: dict[str, tuple[float, Machine]] = {}
        self._is_out_of_money = False
        self._resting: set[str] = set()  # nodes whose instances were ended for want of work
        # When jobs began to wait for machines; they do until somebody tells otherwise.
        self._short_since: float | None = time.monotonic()

    @classmethod
    def of(cls, request: AwsRequest, run: str, token: str, directory: Path) -> Fleet:
        key = (directory.resolve(), token, request.region, request.profile, request.config)
        with _OPENING:
            if key not in _FLEETS:
                _FLEETS[key] = cls(Account.of(request), run, token, directory)
            return _FLEETS[key]

    # -- who is there --------------------------------------------------------------------------

    def machines(self, node: str, every_s: float = _LIST_EVERY_S) -> list[Machine]:
        """Those of the node that are there or coming, as they were ``every_s`` ago at the most."""
        with self._listing:
            if time.monotonic() > self._listed_at + every_s:
                self._list()
            return [one for one in self._machines if one.node == node and not one.is_over]

    def _list(self) -> None:
        filters = [{"Name": f"tag:{TOKEN}", "Values": [self._token]}]
        with link_errors():
            pages = self._account.ec2.get_paginator("describe_instances").paginate(Filters=filters)
            found = [_read(raw) for raw in _instances(pages)]
        now = time.monotonic()
        seen = {machine.id for machine in found}
        for machine in found:
            if machine.is_over:  # by whomever
                self.book.end(machine.id, time.time())
        young = (one for at, one in self._fresh.values() if now < at + _UNLISTED_S)
        self._machines = [*found, *(one for one in young if one.id not in seen)]
        self._listed_at = now

    # -- started and ended ---------------------------------------------------------------------

    def start(self, node: Node) -> Machine:
        """Asks for one; it is in the book before anybody uses it."""
        request = node.aws
        assert request
        self._require_money(node)
        tags = tags_of(request, self._run, self._token, node.name)
        since, client = time.time(), self._account.ec2
        with link_errors():
            if request.instance:
                raw = self._start_own(client, request, tags)
            else:
                raw = launch(client, request, tags)["Instances"][0]
        machine = Machine(raw["InstanceId"], node.name, _STARTING, "", "", time.time())
        self.book.begin(
            Rental(
                machine.id,
                node.name,
                raw.get("InstanceType", request.type or ""),
                node.price_per_hour or 0.0,
                since,
                is_spot=request.spot,
            )
        )
        with self._listing:
            self._fresh[machine.id] = time.monotonic(), machine
            self._listed_at = 0.0
        if request.is_ours:
            with link_errors():
                if not has_switch(client, request):
                    self.book.note(machine.id, NO_SWITCH)
        return machine

    def _start_own(self, client: Any, request: AwsRequest, tags: list[dict[str, str]]) -> Any:
        told = client.describe_instances(InstanceIds=[request.instance])["Reservations"]
        raw = told[0]["Instances"][0]
        theirs = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
        if theirs.get(TOKEN, self._token) != self._token and raw["State"]["Name"] == _UP:
            raise NotYetError(f"{request.instance} is in use by run {theirs.get(RUN)}")
        if raw["State"]["Name"] == _UP:
            raise NoMoreError(f"{request.instance} {FOR_OTHERS}", fix=NOT_OURS)
        client.create_tags(Resources=[request.instance], Tags=tags)
        client.start_instances(InstanceIds=[request.instance])
        return raw

    def end(self, node: Node, machines: Iterable[Machine]) -> None:
        """Terminates what was launched, stops what is the user's own."""
        assert node.aws
        ids = [machine.id for machine in machines]
        if not ids:
            return
        client = self._account.ec2
        with link_errors():
            if node.aws.is_ours:
                client.terminate_instances(InstanceIds=ids)
            else:
                client.stop_instances(InstanceIds=ids)
                client.delete_tags(Resources=ids, Tags=[{"Key": k} for k in (RUN, TOKEN, NODE)])
        for instance in ids:
            self.book.end(instance, time.time())
        with self._listing:
            for instance in ids:
                self._fresh.pop(instance, None)
            self._listed_at = 0.0

    # -- work ----------------------------------------------------------------------------------

    def need(self, is_short: bool) -> None:
        """Whether jobs wait for machines; told again and again."""
        if not is_short:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = time.monotonic()
        elif time.monotonic() > self._short_since + _SHORT_S:
            self.wake()

    def wake(self) -> None:
        """There may be work for all."""
        self._resting.clear()
        self._short_since = time.monotonic()

    def rest(self, node: str) -> bool:
        """A node that has nothing to do may end its instance, unless jobs wait; whether it may."""
        if self._short_since is None:
            self._resting.add(node)
        return node in self._resting

    def rests(self, node: str) -> bool:
        return node in self._resting

    # -- money ---------------------------------------------------------------------------------

    def _require_money(self, node: Node) -> None:
        assert node.aws
        budget, rentals = Budget(node.aws.budget), self.book.rentals
        lasts_s = budget.lasts_s(rentals, node.price_per_hour or 0.0)
        if self._is_out_of_money or lasts_s < FIRST_S:
            fix = f"raise aws.budget and go on: hadar resume {self._run} -n nodes.toml"
            raise NoMoreError(budget.in_words(rentals), fix=fix)

    def runs_out(self, node: Node) -> str:
        """Why all instances are to hand in now, "" as long as there is money for more."""
        assert node.aws
        budget, rentals = Budget(node.aws.budget), self.book.rentals
        if not self._is_out_of_money and budget.lasts_s(rentals) > HAND_IN_S:
            return ""
        self._is_out_of_money = True
        return budget.in_words(rentals)

    def is_broke(self, node: Node) -> bool:
        """Whether not even handing in can be paid for any more."""
        assert node.aws
        return Budget(node.aws.budget).lasts_s(self.book.rentals) <= LAST_S


_OPENING = threading.Lock()
_FLEETS: dict[tuple[Any, ...], Fleet] = {}


def _instances(pages: Iterable[Any]) -> list[dict[str, Any]]:
    return [raw for page in pages for group in page["Reservations"] for raw in group["Instances"]]


def _read(raw: dict[str, Any]) -> Machine:
    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
    launched = raw.get("LaunchTime")
    return Machine(
        id=str(raw["InstanceId"]),
        node=tags.get(NODE, ""),
        state=str(raw["State"]["Name"]),
        host=address_of(raw),
        private_host=address_of(raw, private=True),
        launched_at=launched.timestamp() if launched else time.time(),
    )
