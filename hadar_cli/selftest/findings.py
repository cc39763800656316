"""What a self-test found, and the record of it that may be sent to strangers."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hadar_cli import __version__
from hadar_cli.core.model import Node
from hadar_cli.visits.inspection import Inspection, Torch

ALL = "all"  # where: what concerns no single machine


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a run relies on, and whether it holds; None: it could not be tried."""

    where: str  # a node, a device, or all
    check: str
    holds: bool | None
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    index: int
    model: str
    memory_mb: float
    used_by_others_mb: float | None


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as far as maintainers need to know it: neither its address nor its users."""

    node: str
    local: bool
    emulated: bool
    system: str | None
    python: str | None
    cores: int | None
    torch: Torch | None
    cards: tuple[Card, ...]
    round_trip_s: float | None


@dataclass(frozen=True, slots=True)
class Selftest:
    """The answer of `hadar selftest`, and what is in the file that it writes."""

    ok: bool
    hadar: str
    python: str
    system: str
    at: str
    seconds: float
    machines: tuple[Machine, ...]
    findings: tuple[Finding, ...]


def record(
    seen: Sequence[Inspection], findings: Sequence[Finding], at: str, seconds: float
) -> Selftest:
    """All that was found, without addresses, users, paths and settings of the machines."""
    private = _Private(seen)
    return Selftest(
        ok=all(finding.holds is not False for finding in findings),
        hadar=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        at=at,
        seconds=round(seconds, 1),
        machines=tuple(_machine(one, private) for one in seen),
        findings=tuple(
            replace(one, what=private.hide(one.what), fix=private.hide(one.fix)) for one in findings
        ),
    )


def _machine(one: Inspection, private: _Private) -> Machine:
    facts, torch = one.facts, one.torch
    if torch and torch.problem:
        torch = replace(torch, problem=private.hide(torch.problem))
    cards = facts.gpus if facts else ()
    return Machine(
        node=one.node.name,
        local=one.node.is_local,
        emulated=one.node.emulated_speed is not None,
        system=facts.system if facts else None,
        python=facts.python if facts else None,
        cores=facts.cores if facts else None,
        torch=torch,
        cards=tuple(Card(c.index, c.model, c.memory_mb, c.others_mb) for c in cards),
        round_trip_s=one.round_trip_s,
    )


class _Private:
    """Hides the words by which machines and people could be found."""

    def __init__(self, seen: Sequence[Inspection]) -> None:
        words = {str(Path.home()), platform.node()}
        for one in seen:
            words |= set(_words_of(one.node))
            if one.facts:
                words |= {one.facts.hostname, one.facts.executable, one.facts.disk.path}
                words |= {user for gpu in one.facts.gpus for user in gpu.others}
        public = {one.node.name for one in seen} | {"local", "localhost", "/", ""}
        longest_first = sorted(words - public, key=len, reverse=True)
        self._words = re.compile(
            "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in longest_first) or "(?!)"
        )

    def hide(self, text: str) -> str:
        """The text without such words, and without any path or address that is left."""
        text = self._words.sub("…", text)
        text = re.sub(r"(?<![\w/])~?/[\w.@+-]+(/[\w.@+-]*)*", "…", text)
        return re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b|\b[\w.-]+@[\w.-]+", "…", text)


def _words_of(node: Node) -> Iterator[str]:
    fields = (node.host, node.user, node.identity_file, node.proxy_jump, node.host_key)
    yield from filter(None, (*fields, node.known_hosts, node.python, node.workdir))
    yield from node.host.split("@")
    yield from (value for value in node.env.values() if len(value) > 3)  # not every 1 and no
