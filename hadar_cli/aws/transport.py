"""An instance of EC2 as a node: started when first needed, then reached as any SSH machine is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from hadar_cli.aws import dead_man_switch
from hadar_cli.aws.account import Account, link_errors
from hadar_cli.aws.fleet import Fleet
from hadar_cli.aws.machines import Machine, shown_host_key
from hadar_cli.aws.reconciliation import NO_SWITCH
from hadar_cli.core.model import AWS, Node
from hadar_cli.errors import HadarError, RefusedError
from hadar_cli.node import contract
from hadar_cli.nodes.connection import CommandStream, Transport
from hadar_cli.nodes.wire import LinkLostError, NotYetError, said

_PROMPT_S, _LOOK_EVERY_S = 8.0, 1.0
_BOOT_S = 300.0  # in which a new instance may still turn logins away
_KEY_S = 600.0  # for the console to show a host key, and for a first login
_ARM_S = 20.0
_MINUTE_S = 60.0
METADATA = "http://169.254.169.254"


class AwsTransport:
    """One node of a run. ``connect`` makes the transport to a machine whose address is known."""

    def __init__(
        self,
        node: Node,
        fleet: Fleet,
        connect: Callable[[Node], Transport],
        may_start: bool = True,
    ) -> None:
        assert node.aws
        self._may_start = may_start
        self._node, self._request, self._fleet, self._connect = node, node.aws, fleet, connect
        self._account = Account.of(node.aws)
        self._there: Transport | None = None  # of the machine that streams go to
        self._machine: Machine | None = None
        self._left: set[str] = set()  # machines that we have let go
        self._keys: dict[str, str] = {}
        self._armed: set[str] = set()
        self._aborted = threading.Event()
        fleet.know(node)

    def open(self, command: str) -> CommandStream:
        self._aborted.clear()
        there = self._there or self._reach()
        try:
            stream = there.open(command)
        except LinkLostError as error:
            if self._there is None and (machine := self._machine):
                self._await_boot(machine, error)
            raise
        self._there = there
        if self._machine:
            self._fleet.reached(self._machine)
        self._arm(there)
        return stream

    def open_bulk(self, command: str) -> CommandStream | None:
        return self._there.open_bulk(command) if self._there else None

    def heard_at(self) -> float:
        there = self._there
        return there.heard_at() if there else 0.0

    def abort(self) -> None:
        self._aborted.set()
        if there := self._there:
            there.abort()

    def close(self) -> None:
        there, self._there = self._there, None
        if there:
            there.close()

    def recalled(self, idle_s: float) -> str:
        if idle_s > _MINUTE_S * self._request.idle_minutes and self._fleet.demand.rest(
            self._node.name
        ):
            return f"it had no work for {self._request.idle_minutes:g} minutes"
        return self._fleet.runs_out(self._node) if self._machine else ""

    def move_on(self) -> None:
        if machine := self._machine:
            self._left.add(machine.id)
            self._fleet.end(self._node, [machine])

    def give_back(self) -> None:
        with self._fleet.starting:
            self._fleet.end(self._node, self._fleet.machines(self._node.name, 0.0))
            self._fleet.end_orphans()

    # -- machines --------------------------------------------------------------------------------

    def _reach(self) -> Transport:
        """The way to a machine that is up and whose host key is known, NotYetError before."""
        deadline = time.monotonic() + _PROMPT_S
        while True:
            try:
                machine = self._machine = self._find()
                return self._connect(self._located(machine))
            except NotYetError:
                if time.monotonic() > deadline or self._aborted.wait(_LOOK_EVERY_S):
                    raise

    def _find(self) -> Machine:
        with self._fleet.starting:  # nobody else may start the same meanwhile
            known = self._fleet.machines(self._node.name)
            # Once more, if AWS did not do it when they were left.
            self._fleet.end(self._node, [one for one in known if one.id in self._left])
            mine = [one for one in known if one.id not in self._left]
            machine = min(mine, key=lambda one: not one.is_up, default=None)
            if not machine and self._fleet.demand.rests(self._node.name):
                raise NotYetError("it had no work, and was ended until there is some")
            if not machine and not self._may_start:
                raise LinkLostError("no instance of it runs now")
            if not machine and self._fleet.awaits(self._node.name):
                raise NotYetError("an instance was asked for that no list shows yet")
            if not machine:
                machine = self._fleet.start(self._node)
                self._left.discard(machine.id)  # one's own is the same again
        if self._may_start:
            self._fleet.guard.begin()
        if not machine.is_up or not self._address(machine):
            raise NotYetError(f"{machine.id} is starting")
        return machine

    def _address(self, machine: Machine) -> str:
        if self._node.host != AWS:
            return self._node.host
        return machine.private_host if self._request.private else machine.host

    def _located(self, machine: Machine) -> Node:
        address, key = self._address(machine), self._host_key(machine)
        return replace(self._node, host=address, host_key=key, aws=None)

    def _host_key(self, machine: Machine) -> str | None:
        """What the inventory pins, or the console shows; one's own may also be in known_hosts."""
        if self._node.host_key:
            return self._node.host_key
        if machine.id not in self._keys:
            with link_errors():
                key = shown_host_key(self._account.ec2, machine.id)
            if not key:
                self._await_key(machine)
                return None
            self._keys[machine.id] = key
        return self._keys[machine.id]

    def _await_boot(self, machine: Machine, error: LinkLostError) -> None:
        """A new instance may turn logins away for a while, one that lets nobody in is ended."""
        age_s = self._fleet.age_s(machine)
        if age_s < _BOOT_S:
            raise NotYetError(f"{machine.id} boots: {error}") from error
        if self._may_start and age_s > _KEY_S and not self._fleet.is_tried(machine):
            self.move_on()
            why = f"{machine.id} let nobody in for {age_s / 60:.0f} minutes: {error}"
            self._fleet.tries.fail(self._node.name, why)

    def _await_key(self, machine: Machine) -> None:
        if not self._request.is_ours:
            return  # the console shows keys at the first boot only: known_hosts decides
        waits_s = min(_KEY_S, 48 * self._request.idle_minutes)
        if self._fleet.age_s(machine) < waits_s:
            raise NotYetError(f"{machine.id} boots: its console shows no host key yet")
        self.move_on()
        raise RefusedError(
            f"the console of {machine.id} has shown no host key in {waits_s / 60:.0f} minutes",
            fix="use an image with cloud-init, which prints them, or one whose key is always the "
            "same, and pin that: host_key",
        )

    # -- should the head die ---------------------------------------------------------------------

    def _arm(self, there: Transport) -> None:
        """On one's own instance, the login may start the switch if it may become root."""
        machine = self._machine
        if self._request.is_ours or not machine or machine.id in self._armed:
            return
        self._armed.add(machine.id)
        if not self._stops_when_shut_down(machine) or not self._start_switch(there):
            self._fleet.rental_log.note(machine.id, NO_SWITCH)

    def _stops_when_shut_down(self, machine: Machine) -> bool:
        """Nobody's own instance is to be terminated by us."""
        asked = "instanceInitiatedShutdownBehavior"
        with suppress(HadarError), link_errors():
            told = self._account.ec2.describe_instance_attribute(
                InstanceId=machine.id, Attribute=asked
            )
            return bool(told["InstanceInitiatedShutdownBehavior"].get("Value") == "stop")
        return False

    def _start_switch(self, there: Transport) -> bool:
        with suppress(HadarError):
            stream = there.open(dead_man_switch.command(60 * self._request.idle_minutes))
            stream.be_patient(_ARM_S)
            told = stream.read(1 << 10)
            stream.close()
            return b"armed" in told
        return False


def machine_env(node: Node) -> dict[str, str]:
    """What an agent on an instance has to know."""
    return {contract.ALIVE: dead_man_switch.ALIVE, contract.METADATA: METADATA}


def end_instances(node: Node, fleets: Sequence[Fleet]) -> tuple[list[str], list[str]]:
    """Ends the node's instances of these runs; which there were, and which are left."""
    before: list[str] = []
    after: list[str] = []
    for fleet in fleets:
        fleet.know(node)
        found = fleet.machines(node.name, 0.0)
        while not found and fleet.awaits(node.name):  # asked for by a head that died just now
            time.sleep(_LOOK_EVERY_S)
            found = fleet.machines(node.name, 0.0)
        before += [machine.id for machine in found]
        fleet.end(node, found)
        after += [machine.id for machine in fleet.machines(node.name, 0.0)]
    return [said(one) for one in before], [said(one) for one in after]
