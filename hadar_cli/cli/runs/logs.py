"""``hadar logs [RUN] JOB``: what a job's copies printed, read from the machines they ran on."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli import completion
from hadar_cli.cli.options import (
    DEFAULT_RUNS,
    AsJson,
    RunsDir,
    flag,
    print_json,
    stderr,
    stdout,
)
from hadar_cli.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hadar_cli.cli.records import JobLogs
    from hadar_cli.core.model import Job, Node
    from hadar_cli.runs.store import RunFacts, RunStore
    from hadar_cli.visits.visit import Visit

_LIMIT_BYTES = 16_000  # of one worker's log at a time
_LOOK_EVERY_S = 1.0
_DEADLINE_S = 15.0


def logs(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] JOB",
            help="The job's name in the mix, after the run's if that is not the newest.",
            autocompletion=completion.jobs_of_run,
        ),
    ],
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="The run, by its name or directory; the newest by default.",
            autocompletion=completion.runs,
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="Only what ran on this machine.",
            autocompletion=completion.nodes_of_run,
        ),
    ] = None,
    tail: Annotated[
        int, typer.Option(metavar="K", min=1, help="How many lines of each copy.")
    ] = 20,
    follow: Annotated[bool, flag("-f", "Follow: also print what comes from now on.")] = False,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Show what a job's copies printed on their machines."""
    from hadar_cli.runs.store import find_run

    if follow and as_json:
        raise InputError("-f cannot stand beside --json", fix="keep one of the two")
    *runs, job = names
    if len(runs) + (run is not None) > 1:
        raise InputError("a run and a job are enough", fix="write it like: hadar logs RUN JOB")
    store = find_run(runs_dir, runs[0] if runs else run)
    facts = store.facts
    wanted, nodes = _find_job(facts, job), _find_nodes(facts, node)
    if follow:
        _follow(store, wanted, nodes, _Printer(tail))
        return
    answer = _read_all(store, wanted, nodes, tail)
    for name, why in answer.unread.items():
        stderr().print(f"{name}: {why}")
    if as_json:
        print_json(dataclasses.asdict(answer))
    else:
        _show(answer, _Printer(tail))


def _show(answer: JobLogs, printer: _Printer) -> None:
    for log in answer.logs:
        printer.show(log.node, log.worker, log.lines)
    if not answer.logs:
        job = answer.job
        stderr().print(f"no copy of {job} has left a log; hadar report tells what became of it")


def _read_all(store: RunStore, job: Job, nodes: Sequence[Node], tail: int) -> JobLogs:
    """The last lines of every copy, from all machines at once."""
    from hadar_cli.cli.records import CopyLog, JobLogs
    from hadar_cli.visits.visit import on_all, visiting

    def read(node: Node) -> list[tuple[str, str]]:
        with visiting(node, store.directory.parent, _DEADLINE_S, store.directory.name) as visit:
            return _Reader(visit, store.directory.name, job.id).read()

    logs: list[CopyLog] = []
    unread: dict[str, str] = {}
    for node, found in on_all(nodes, read, _DEADLINE_S):
        if isinstance(found, Exception):
            unread[node.name] = _harmless(str(found))
            continue
        for worker, text in found:
            logs.append(CopyLog(node.name, _harmless(worker), tuple(_lines(text))[-tail:]))
    return JobLogs(store.directory.name, job.name, tuple(logs), unread)


@dataclass(frozen=True, slots=True)
class _Log:
    worker: str
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class _Logs:
    logs: tuple[_Log, ...]


class _Reader:
    """Reads on where it stopped, worker by worker."""

    def __init__(self, visit: Visit, run: str, job: int) -> None:
        self._visit, self._run, self._job = visit, run, job
        self._offsets: dict[str, int] = {}

    def read(self) -> list[tuple[str, str]]:
        """Each worker's name and what it printed since the last time."""
        from hadar_cli.nodes.wire import read_as

        answer = self._visit.ask(
            "logs", run=self._run, job=self._job, offsets=self._offsets, limit=_LIMIT_BYTES
        )
        found = read_as(answer, _Logs).logs
        self._offsets |= {log.worker: log.offset for log in found}
        return [(log.worker.rpartition("/")[2], log.text) for log in found if log.text]


class _Printer:
    """Prints logs under headings; the first time only their last lines."""

    def __init__(self, tail: int) -> None:
        self._tail, self._last = tail, ""
        self.shown: set[str] = set()

    def show(self, node: str, worker: str, lines: Sequence[str]) -> None:
        heading = f"── {node} · {worker} "
        if heading not in self.shown:
            lines = lines[-self._tail :]
        self.shown.add(heading)
        console = stdout()
        if heading != self._last:
            console.print(heading, style="bold")
        self._last = heading
        for line in lines:
            console.print(line, soft_wrap=True)


def _harmless(words: str) -> str:
    from hadar_cli.report.format import plain

    return plain(words, 300)


def _lines(text: str) -> Iterator[str]:
    """Lines without what a terminal obeys; of a bar that redraws itself, its last state."""
    from hadar_cli.report.format import plain

    for line in text.rstrip("\n").split("\n"):
        line = line.rstrip("\r").rpartition("\r")[2].expandtabs()
        indent = " " * min(40, len(line) - len(line.lstrip(" ")))
        yield indent + plain(line, 2000)


def _follow(store: RunStore, job: Job, nodes: Sequence[Node], printer: _Printer) -> None:
    """Prints as it comes, until Ctrl-C or until nobody drives the run any more."""
    import queue
    import threading

    said: queue.Queue[tuple[str, str, list[str]]] = queue.Queue()

    def read(node: Node, runs: Path) -> None:
        from hadar_cli.errors import HadarError
        from hadar_cli.visits.visit import visiting

        try:
            with visiting(node, runs, _DEADLINE_S, store.directory.name) as visit:
                reader = _Reader(visit, store.directory.name, job.id)
                while True:
                    for worker, text in reader.read():
                        said.put((node.name, _harmless(worker), list(_lines(text))))
                    time.sleep(_LOOK_EVERY_S)
        except HadarError as error:
            stderr().print(f"{node.name}: {_harmless(str(error))}")

    for node in nodes:
        threading.Thread(target=read, args=(node, store.directory.parent), daemon=True).start()
    idle_since = time.monotonic()
    while store.holder() or time.monotonic() < idle_since + 3 * _LOOK_EVERY_S:
        try:
            printer.show(*said.get(timeout=_LOOK_EVERY_S))
            idle_since = time.monotonic()
        except queue.Empty:
            continue


def _find_job(facts: RunFacts, name: str) -> Job:
    by_name = {job.name: job for job in facts.mix.jobs}
    if name not in by_name:
        raise unknown(f"run {facts.id} has no job {name!r}", name, by_name)
    return by_name[name]


def _find_nodes(facts: RunFacts, name: str | None) -> list[Node]:
    by_name = {node.name: node for node in facts.nodes if node.enabled}
    if name is not None and name not in by_name:
        raise unknown(f"run {facts.id} has no node {name!r}", name, by_name, field="--node")
    return [node for node in by_name.values() if name in (None, node.name)]
