"""What scripts left on the nodes comes home, and nodes that were allotted are given back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from hadar_cli.core import events
from hadar_cli.core.model import Job, Node
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Observer
from hadar_cli.errors import HadarError
from hadar_cli.nodes.connection import Connection
from hadar_cli.nodes.supply.early_outputs import EarlyOutputs
from hadar_cli.nodes.supply.outputs import bring_home
from hadar_cli.runs.finished_models import add_beside
from hadar_cli.runs.output_devices import OutputDevices
from hadar_cli.runs.store import RunStore, read_journal


class OutputCollector(Observer):
    """Brings home what scripts left in HADAR_OUT, from the copy that led each job: when a job ends,
    and all of it once more when the run does. Problems go to a file."""

    def __init__(
        self,
        store: RunStore,
        state: RunState,
        connections: Sequence[Connection],
        visit: Callable[[Node], Connection],
    ) -> None:
        """``visit`` makes another connection, which starts nothing, to a node."""
        self._state, self._connections, self._visit = state, connections, visit
        self._folder = store.directory / "out"
        self._output_devices = OutputDevices(read_journal(store.journal_path))
        self._node_of = {d.name: c.node for c in connections for d in c.node.devices}
        nodes = {node.name: node for node in self._node_of.values()}
        self._store = store
        self.early = EarlyOutputs(lambda name: self._visit(nodes[name]), self._folder)

    def happened(self, event: events.Event) -> None:
        self._output_devices.take(event)
        if isinstance(event, events.WeightsMerged | events.JobCutShort | events.JobFailed):
            job, node = self._state.jobs[event.job], self._place(event.job)
            is_over = job.is_over
            if node and is_over and self._state.unfinished:  # else the run's end comes at once
                self.early.fetch(job.job, node)

    def _place(self, number: int) -> str | None:
        """The node that has what the job left, if it can have left anything."""
        node = self._node_of.get(self._output_devices.by_job.get(number, ""))
        return node.name if node and self._state.jobs[number].job.launch.code else None

    def end(self, brings_all: bool, keeps: Collection[str] = ()) -> None:
        """What is allotted to the run, but for what it ``keeps``, is given back in any case."""
        left = [one for one in self._connections if one.node.name not in keeps]
        run = self._store.directory.name
        problems = [*(self._bring_all() if brings_all else ()), *_give_back(left, run)]
        note = self._folder / "problems.txt"
        note.unlink(missing_ok=True)  # of an earlier end
        if problems:
            self._folder.mkdir(exist_ok=True)
            note.write_text("\n".join(problems) + "\n")

    def _bring_all(self) -> Sequence[str]:
        wanted: dict[str, list[Job]] = {}
        for number in self._output_devices.by_job:
            if node := self._place(number):
                wanted.setdefault(node, []).append(self._state.jobs[number].job)
        # A machine that is gone took what was left there along: no other is rented to look for it.
        ways = [self._visit(one.node) if one.node.aws else one for one in self._connections]
        problems = bring_home(ways, wanted, self._folder)
        for job in (job for jobs in wanted.values() for job in jobs):
            add_beside(self._folder / job.name, self._store.directory / "models" / job.name)
        return problems


def _give_back(connections: Sequence[Connection], run: str) -> list[str]:
    """Machines that were allotted to the run, to whoever allots them; what went wrong."""

    def give_back(connection: Connection) -> str:
        try:
            connection.give_back()
        except HadarError as error:
            name = connection.node.name
            fix = f"{error.fix}; then " if error.fix else ""
            told = f"{name}: {error}; what is held or asked for there goes on"
            return f"{told}: {fix}hadar clean {run}"
        return ""

    lent = [connection for connection in connections if connection.node.is_allotted]
    with ThreadPoolExecutor(max(1, len(lent))) as pool:
        return [problem for problem in pool.map(give_back, lent) if problem]
