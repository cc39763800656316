"""The instances of one run: started, found again by their tags, ended, and paid for."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hadar_cli.aws.account import Account, link_errors
from hadar_cli.aws.budget import FIRST_S, HAND_IN_S, LAST_S, Budget, Guard, PaidClock
from hadar_cli.aws.demand import Demand, Tries
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
from hadar_cli.aws.machines import STARTING, UP, Machine, read_machines
from hadar_cli.aws.reconciliation import NO_SWITCH, UNLISTED_S, Reconciliation
from hadar_cli.core.measures.costs import Rental
from hadar_cli.core.model import AwsRequest, Node
from hadar_cli.errors import HadarError
from hadar_cli.nodes.wire import NoMoreError, NotYetError
from hadar_cli.runs.rentals import RentalLog

_LIST_EVERY_S = 2.0
_LOOK_EVERY_S = 30.0  # whether what is paid for is still there


class Fleet:
    """For all of the run's nodes in this process, and all their threads."""

    def __init__(self, account: Account, run: str, token: str, directory: Path) -> None:
        self._account, self._run, self._token = account, run, token
        self.rental_log, self._clock = RentalLog(directory), PaidClock()
        self.demand, self.tries = Demand(), Tries()
        self.guard = Guard(lambda: bool(self.rental_log.going), self._count)
        self.starting = threading.RLock()  # held by who looks whether there is one to start
        self._listing = threading.RLock()
        self._machines: list[Machine] = []
        self._listed_at = 0.0
        self._looked_at = self.rental_log.kept_at  # when a head last saw what there is
        self._fresh: dict[str, tuple[float, Machine]] = {}
        self._untried: dict[str, str] = {}  # started here, never reached: instance -> node
        self._let_go: set[str] = set()  # ended here: a list may still show them as running
        self._nodes: dict[str, Node] = {}
        self.knows_all = False  # nodes of the run
        self._is_out_of_money = False

    @classmethod
    def of(cls, request: AwsRequest, run: str, token: str, directory: Path) -> Fleet:
        key = (directory.resolve(), token, request.region, request.profile, request.config)
        with _OPENING:
            if key not in _FLEETS:
                _FLEETS[key] = cls(Account.of(request), run, token, directory)
            return _FLEETS[key]

    def know(self, node: Node) -> None:
        """Its price, and how it ends, are the node's."""
        self._nodes[node.name] = node

    # -- who is there --------------------------------------------------------------------------

    def machines(self, node: str, every_s: float = _LIST_EVERY_S) -> list[Machine]:
        """Those of the node that are there or coming, as they were ``every_s`` ago at the most."""
        with self._listing:
            if time.monotonic() > self._listed_at + every_s:
                self._list()
            return [one for one in self._machines if one.node == node and not one.is_over]

    def awaits(self, node: str) -> bool:
        """Whether one was asked for so lately that no list may show it yet."""
        asked = (one for one in self.rental_log.going if one.node == node and not one.instance)
        return any(self._clock.now() < one.since + UNLISTED_S for one in asked)

    def _list(self) -> None:
        asked_at = time.monotonic()
        found = self._described("tag:" + TOKEN, [self._token])
        unseen = {one.instance for one in self.rental_log.going} - {"", *(one.id for one in found)}
        if unseen:  # whose tags somebody removed
            found += self._described("instance-id", sorted(unseen))
        found = [one for one in found if one.token in ("", self._token)]
        young = [one for at, one in self._fresh.values() if asked_at < at + UNLISTED_S]
        unlisted = {*self._let_go, *(one.id for one in young)}
        now, before = self._clock.now(), self._looked_at
        Reconciliation(self.rental_log, self._nodes, now, before).reconcile(found, unlisted)
        for machine in found:
            if machine.is_over and (node := self._untried.pop(machine.id, None)):
                why = machine.why or machine.state
                self.tries.fail(node, f"{machine.id} ended before it was reached: {why}")
        seen = {machine.id for machine in found}
        self._machines = [*found, *(one for one in young if one.id not in seen)]
        self._listed_at, self._looked_at = time.monotonic(), now

    def _described(self, name: str, values: list[str]) -> list[Machine]:
        filters, now = [{"Name": name, "Values": values}], self._clock.now()
        with link_errors():
            pages = self._account.ec2.get_paginator("describe_instances").paginate(Filters=filters)
            return list(read_machines(pages, now))

    # -- started and ended ---------------------------------------------------------------------

    def start(self, node: Node) -> Machine:
        """Asks for one; it is in the log before it can cost anything."""
        request = node.aws
        assert request
        self._require_money(node)
        self.tries.require(node.name)
        tags = tags_of(request, self._run, self._token, node.name)
        ask, client = uuid.uuid4().hex, self._account.ec2
        price, kind = node.price_per_hour or 0.0, request.type or ""
        own, now = request.instance or "", self._clock.now()
        asked = Rental(own, node.name, kind, price, now, is_spot=request.spot, ask=ask)
        self.rental_log.begin(asked)
        try:
            with link_errors():
                if request.instance:
                    raw = self._start_own(client, request, tags)
                else:
                    raw = launch(client, request, tags, ClientToken=ask)["Instances"][0]
        except (NotYetError, NoMoreError) as error:  # AWS has said no; else nobody knows
            self.rental_log.refuse(ask)
            self.tries.put_off(node.name, str(error))
            raise
        self.rental_log.grant(ask, raw["InstanceId"], raw.get("InstanceType", ""))
        machine = Machine(raw["InstanceId"], node.name, STARTING, "", "", self._clock.now())
        with self._listing:
            self._fresh[machine.id] = time.monotonic(), machine
            self._untried[machine.id] = node.name
            self._let_go.discard(machine.id)
            self._listed_at = 0.0
        self.guard.begin()
        if request.is_ours:
            with link_errors():
                if not has_switch(client, request):
                    self.rental_log.note(machine.id, NO_SWITCH)
        return machine

    def _start_own(self, client: Any, request: AwsRequest, tags: list[dict[str, str]]) -> Any:
        told = client.describe_instances(InstanceIds=[request.instance])["Reservations"]
        raw = told[0]["Instances"][0]
        theirs = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
        if theirs.get(TOKEN, self._token) != self._token and raw["State"]["Name"] == UP:
            raise NotYetError(f"{request.instance} is in use by run {theirs.get(RUN)}")
        if raw["State"]["Name"] == UP:
            raise NoMoreError(f"{request.instance} {FOR_OTHERS}", fix=NOT_OURS)
        client.create_tags(Resources=[request.instance], Tags=tags)
        client.start_instances(InstanceIds=[request.instance])
        return raw

    def end(self, node: Node, machines: Iterable[Machine]) -> None:
        """Terminates what was launched, stops what is the user's own."""
        assert node.aws
        self._end([machine.id for machine in machines], node.aws.is_ours)

    def end_orphans(self) -> None:
        """Those of nodes that the run had, and that its inventory has no longer."""
        asks = {rental.ask for rental in self.rental_log.rentals}
        for machine in self._machines:
            if self.knows_all and machine.node not in self._nodes and not machine.is_over:
                self._end([machine.id], is_ours=bool(machine.ask) and machine.ask in asks)

    def _end(self, ids: list[str], is_ours: bool) -> None:
        if not ids:
            return
        client = self._account.ec2
        with self._listing, link_errors():
            if is_ours:
                client.terminate_instances(InstanceIds=ids)
            else:
                client.stop_instances(InstanceIds=ids)
                client.delete_tags(Resources=ids, Tags=[{"Key": k} for k in (RUN, TOKEN, NODE)])
            for instance in ids:
                self.rental_log.end_instance(instance, self._clock.now())
                self._fresh.pop(instance, None)
                self._untried.pop(instance, None)
            self._let_go.update(ids)
            self._listed_at = 0.0

    def age_s(self, machine: Machine) -> float:
        """Since it was started last."""
        since = [one.since for one in self.rental_log.going if one.instance == machine.id]
        return self._clock.now() - max(machine.launched_at, *since, 0.0)

    def is_tried(self, machine: Machine) -> bool:
        """Whether anybody could train there, or another head may have."""
        return machine.id not in self._untried

    def reached(self, machine: Machine) -> None:
        """Somebody can train there."""
        self._untried.pop(machine.id, None)
        self.tries.succeed(machine.node)

    # -- money ---------------------------------------------------------------------------------

    def _require_money(self, node: Node) -> None:
        assert node.aws
        budget, rentals, now = Budget(node.aws.budget), self.rental_log.rentals, self._clock.now()
        lasts_s = budget.lasts_s(rentals, now, node.price_per_hour or 0.0)
        if self._is_out_of_money or lasts_s < FIRST_S:
            fix = f"raise aws.budget and go on: hadar resume {self._run} -n nodes.toml"
            raise NoMoreError(budget.in_words(rentals, now), fix=fix)

    def runs_out(self, node: Node) -> str:
        """Why all instances are to hand in now, "" as long as there is money for more."""
        assert node.aws
        budget, rentals, now = Budget(node.aws.budget), self.rental_log.rentals, self._clock.now()
        if not self._is_out_of_money and budget.lasts_s(rentals, now) > HAND_IN_S:
            return ""
        self._is_out_of_money = True
        return budget.in_words(rentals, now)

    def _count(self) -> None:
        """Looks from time to time what there is; ends it all before the money is gone."""
        with suppress(HadarError), self._listing:  # what is noted is counted, whoever answers
            if time.monotonic() > self._listed_at + _LOOK_EVERY_S:
                self._list()
                self.rental_log.keep()
                self.end_orphans()
        limits = [node.aws.budget for node in self._nodes.values() if node.aws]
        limit = next((one for one in limits if one is not None), None)
        if Budget(limit).lasts_s(self.rental_log.rentals, self._clock.now()) > LAST_S:
            return
        self._is_out_of_money = True
        for node in list(self._nodes.values()):
            with suppress(HadarError):  # once more in a second
                assert node.aws
                self._end(self._known(node.name), node.aws.is_ours)

    def _known(self, node: str) -> list[str]:
        """Its instances as AWS lists them or, where it lists none now, as they are noted."""
        with suppress(HadarError):
            return [one.id for one in self.machines(node)]
        return [one.instance for one in self.rental_log.going if one.node == node and one.instance]


_OPENING = threading.Lock()
_FLEETS: dict[tuple[Any, ...], Fleet] = {}
