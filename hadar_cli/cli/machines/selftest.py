"""``hadar selftest``: tries on the user's own machines what a run relies on."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hadar_cli.cli.options import (
    DEFAULT_NODES,
    AsJson,
    NodesFile,
    Timeout,
    print_json,
    read_inventory,
    stderr,
    stdout,
)
from hadar_cli.errors import InputError, StorageError, UnfinishedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from hadar_cli.selftest.findings import Finding, Selftest

_LONGEST = 300  # of a machine's own words
_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "dim")}


def selftest(
    nodes: NodesFile = DEFAULT_NODES,
    timeout_s: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Try what a run relies on: cards, transfers, training, a killed and resumed run.

    Takes ten minutes at the most. Cards that others use are left alone; no run stays there.
    Writes a file to send to the maintainers. Ends with 0 if nothing fails, 3 if something does.
    """
    from hadar_cli.assembly import check_nodes
    from hadar_cli.selftest.findings import record
    from hadar_cli.selftest.selftest import try_all

    inventory = read_inventory(nodes)
    check_nodes(inventory)
    path = _place_of_file()
    began = time.monotonic()
    seen, findings = try_all(inventory, timeout_s, lambda now: stderr().print(f"{now} …"))
    at = datetime.now().astimezone().isoformat(timespec="seconds")
    told = record(seen, findings, at, time.monotonic() - began)
    if as_json:
        print_json(_as_json(told))
    else:
        _show(findings)
    _write(path, told)
    stderr().print(f"written: {path}, to send to the maintainers; read it before you do")
    raise typer.Exit(0 if told.ok else UnfinishedError.exit_code)


def _place_of_file() -> Path:
    if not os.access(Path.cwd(), os.W_OK):
        fix = "go to a folder where you may write: the result is left there"
        raise InputError("the current folder cannot be written to", file=str(Path.cwd()), fix=fix)
    return Path(f"selftest-{datetime.now():%Y%m%d-%H%M%S}.json")


def _write(path: Path, told: Selftest) -> None:
    import json

    try:
        path.write_text(json.dumps(_as_json(told), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", "see whether the disk is full") from error


def _as_json(told: Selftest) -> object:
    """The record, with nothing in it that a terminal obeys."""
    import msgspec

    return _harmless(msgspec.to_builtins(told))


def _harmless(value: object) -> object:
    from hadar_cli.report.format import plain

    if isinstance(value, str):
        return plain(value, _LONGEST)
    if isinstance(value, dict):
        return {key: _harmless(item) for key, item in value.items()}
    return [_harmless(item) for item in value] if isinstance(value, list | tuple) else value


def _show(findings: Sequence[Finding]) -> None:
    console = stdout()
    console.print(_table(findings))
    for line in _fixes(findings):
        console.print(line)
    held, broken, untried = (
        sum(finding.holds is answer for finding in findings) for answer in (True, False, None)
    )
    console.print(f"\n{held} checks hold, {broken} do not, {untried} could not be tried.")


def _table(findings: Sequence[Finding]) -> Table:
    from rich.text import Text

    from hadar_cli.report.format import plain
    from hadar_cli.report.terminal.tables import name, table

    rows = table("", "where", "check", "~what was found")
    for finding in findings:
        mark = Text(*_MARKS[finding.holds])
        what = Text(plain(finding.what, _LONGEST), "dim" if finding.holds is None else "")
        rows.add_row(mark, name(finding.where), finding.check, what)
    return rows


def _fixes(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    from rich.text import Text

    from hadar_cli.report.format import plain

    for finding in findings:
        if finding.holds is False:
            where = f"{finding.where}, {finding.check}"
            yield Text.assemble(("\n✗ ", "red"), (where, "bold"))
            yield Text.assemble(("  fix: ", "green"), plain(finding.fix, _LONGEST))
