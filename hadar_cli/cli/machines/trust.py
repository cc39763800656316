"""``hadar nodes trust``: shows machines' host keys and records those that the user takes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.options import DEFAULT_NODES, NodesFile, complain, flag, read_inventory, stdout
from hadar_cli.errors import InputError, RefusedError, UnfinishedError, unknown

if TYPE_CHECKING:
    from hadar_cli.core.model import Node
    from hadar_cli.ssh.trust import ShownKey

_DEADLINE_S = 20.0
_LONGEST_CHAIN = 8  # of jump hosts


def trust(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE",
            help="A node's name; all nodes by default.",
            autocompletion=completion.nodes,
        ),
    ] = None,
    nodes: NodesFile = DEFAULT_NODES,
    yes: Annotated[
        bool,
        flag("--yes", "Record them without asking; the fingerprints are printed all the same."),
    ] = False,
) -> None:
    """Show the host keys of machines that are not known yet, and record them if you agree.

    Compare each fingerprint with what the machine says on its own console:
    ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub

    A key that has changed is never recorded: it ends with 4.
    """
    from hadar_cli.ssh.trust import record

    machines = _choose(read_inventory(nodes), names or [])
    for _ in range(_LONGEST_CHAIN):  # behind a jump host just trusted, there are more to see
        new, failed = _look_at(machines)
        if not new:
            break
        _show(new)
        if not _agrees(new, yes):
            stdout().print("Nothing was recorded.")
            break
        for key in new:
            record(key)
            stdout().print(f"recorded {key.name} in {key.file}")
    else:
        raise RefusedError("keys that were recorded are still not known")
    if not new and not failed:
        stdout().print("All host keys are known.")
    _raise(failed)


def _choose(inventory: tuple[Node, ...], names: list[str]) -> list[Node]:
    known = {node.name: node for node in inventory if node.is_over_ssh}
    for name in names:
        if name not in known:
            fix = "hadar nodes list shows all nodes"
            raise unknown(f"there is no SSH node {name!r}", name, known, fix=fix)
    return [known[name] for name in names] if names else list(known.values())


def _look_at(machines: list[Node]) -> tuple[list[ShownKey], list[tuple[Node, Exception]]]:
    """Keys to decide on, each once, and what went wrong with other machines."""
    from hadar_cli.ssh.trust import shown_keys
    from hadar_cli.visits.visit import on_all

    found: dict[str, ShownKey] = {}
    failed = []
    for node, result in on_all(machines, lambda node: list(shown_keys(node)), _DEADLINE_S):
        if isinstance(result, Exception):
            failed.append((node, result))
        else:
            found |= {key.line: key for key in result if not key.is_known}
    return sorted(found.values(), key=lambda key: key.name), failed


def _show(keys: list[ShownKey]) -> None:
    from hadar_cli.report.terminal.tables import table

    shown = table("machine", "key", "fingerprint")
    for key in keys:
        shown.add_row(key.name, key.kind, key.fingerprint)
    stdout().print(shown)


def _agrees(keys: list[ShownKey], yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        fix = "compare the fingerprints above with the machines' own, then add --yes"
        raise InputError(
            "somebody has to confirm these keys, and there is no terminal to ask on", fix=fix
        )
    question = "Is this the right key?" if len(keys) == 1 else "Are all of these the right keys?"
    return typer.confirm(question)


def _raise(failed: list[tuple[Node, Exception]]) -> None:
    """Explains each machine that could not be judged, and ends with the gravest."""
    for node, error in failed:
        complain(node, error)
    if any(isinstance(error, RefusedError) for _, error in failed):
        raise RefusedError("a host key has changed", fix="do as it says above")
    if failed:
        raise UnfinishedError("not every machine could be reached", fix="hadar check tells more")
