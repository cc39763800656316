"""Puts a run together and drives it: store, executor, tracker and loop."""

from __future__ import annotations

import platform
import resource
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from hadar_cli import __version__, policies
from hadar_cli.core import events
from hadar_cli.core.estimates.learning import learn
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.measures.metrics import lower_bound
from hadar_cli.core.model import Job, Mix, Node, devices_of
from hadar_cli.core.policies.port import Policy
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Observer, Observers
from hadar_cli.engine.rounds import RoundLoop
from hadar_cli.engine.tracker import Tracker
from hadar_cli.errors import RefusedError, UnfinishedError
from hadar_cli.nodes.connection import Connection
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.local import LocalAccess, LocalConnection
from hadar_cli.nodes.remote import RemoteAccess, RemoteConnection, command_of
from hadar_cli.nodes.supply.output_collector import OutputCollector
from hadar_cli.nodes.supply.preparation import prepare
from hadar_cli.project.packing import CodePacker
from hadar_cli.project.requirements import read_requirements
from hadar_cli.runs.consolidation import StoreConsolidator
from hadar_cli.runs.housekeeping import Housekeeper
from hadar_cli.runs.request_handler import RequestHandler, RunChanged
from hadar_cli.runs.store import (
    FileJournal,
    RunFacts,
    RunStore,
    contradictions_of,
    mend_journal,
    read_journal,
)
from hadar_cli.search import SweepSearch
from hadar_cli.transports import access_to, check_costs, check_request, renters, with_prices
from hadar_cli.visits.inspection import find_objections
from hadar_cli.visits.visit import DEADLINE_S, tidy

Watch: TypeAlias = Callable[[RunState, RateModel, Callable[[], float]], Observer]


_MOST_FILES = 1 << 16
_LAST_WORDS_S = 10.0  # for scripts to save what they leave, once all is trained


class Interrupted(KeyboardInterrupt):
    """The user asked to stop, and the loop stands where nothing is half done."""


class _Interrupts(Observer):
    """Ctrl-C and SIGTERM, heeded at the loop's ticks only: state and journal never part.

    A second one stops at once, leaving uncommitted steps to the next head. While processes are
    being ended, none is heard.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._count, self._heeded, self._deaf = 0, False, False

    @contextmanager
    def caught(self) -> Iterator[None]:
        # On another thread than the main one, signals are somebody else's to hear.
        is_ours = threading.current_thread() is threading.main_thread()
        heard = (signal.SIGINT, signal.SIGTERM) if is_ours else ()
        before = {s: signal.signal(s, self._catch) for s in heard}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _catch(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1 and not self._deaf:
            raise KeyboardInterrupt

    def ignore(self, is_deaf: bool = True) -> None:
        self._deaf = is_deaf

    def tick(self) -> None:
        if self._count and not self._heeded:
            self._heeded = True
            self._tell()
            raise Interrupted


def _nothing() -> None: ...


def drive(store: RunStore, watch: Watch, on_interrupt: Callable[[], None] = _nothing) -> RunState:
    """Runs or resumes the store's run to its end; ``watch`` makes the observer.

    Ctrl-C and SIGTERM call ``on_interrupt``, wind the run up and end in KeyboardInterrupt.
    """
    interrupts = _Interrupts(on_interrupt)
    _open_many_files()
    known: set[str] = set()  # checkpoints that are what they were
    with store.locked(), interrupts.caught():
        goes_on = False
        while True:
            with suppress(RunChanged):
                return _drive(store, watch, interrupts, goes_on, known)
            goes_on = True


def _open_many_files() -> None:
    """Every node takes a few; shells allow 1,024 by default, and the system far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # some systems have limits of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _drive(
    store: RunStore, watch: Watch, interrupts: _Interrupts, goes_on: bool, known: set[str]
) -> RunState:
    happened = mend_journal(store.journal_path)
    facts = _noted(store, happened)
    state = RunState(facts.mix.jobs)
    rates = RateModel(facts.mix.jobs, devices_of(facts.nodes))
    with contradictions_of(store):
        for event in state.following(happened):
            learn(rates, state.started, event)
    if state.finished:
        return state
    interrupts.ignore(False)
    head = _Head(store, facts, state, rates, watch, interrupts)
    staying: list[str] = []  # nodes that the run keeps although this head ends
    try:
        head.begin(goes_on)
        for digest in {digest for job in state.jobs.values() for digest in job.files} - known:
            store.verify(digest)  # while copies that live on are held: of 10 GB it takes a minute
            known.add(digest)
        head.train()
    except RunChanged:
        staying = head.leave_nodes()
        raise
    except (Interrupted, UnfinishedError, RefusedError) as reason:
        head.wind_up("interrupted" if isinstance(reason, Interrupted) else str(reason))
        raise
    finally:
        interrupts.ignore()
        head.end(staying)
    return state


class _Head:
    """All parts of a run, put together anew whenever jobs or nodes come or go."""

    def __init__(
        self,
        store: RunStore,
        facts: RunFacts,
        state: RunState,
        rates: RateModel,
        watch: Watch,
        interrupts: _Interrupts,
    ) -> None:
        self._store, self._facts, self._state = store, facts, state
        self._policy, devices = policies.create(facts.mix.policy), devices_of(facts.nodes)
        self._journal = FileJournal(store.journal_path)
        imports = ["torch"] if any(j.job.launch.workload for j in state.unfinished) else []
        self._connections = connect(facts.nodes, store)
        executor = NodeExecutor(self._connections, state.epoch + 1, state.now, imports)
        self._executor, now = executor, executor.now
        self._home = OutputCollector(store, state, self._connections, self._visit)
        needs = _Needs(state, now, renters(facts.nodes, store))
        told = watch(state, rates, now)
        self._housekeeper = Housekeeper(store, state)
        observer = Observers([told, self._housekeeper, self._home, needs, interrupts])
        jobs = state.jobs.values()
        doubted = [copy.weights for job in jobs for copy in job.handed_in.values() if copy.weights]
        doubted += [begun.weights for job in jobs for begun in job.generations.values()]
        merger = StoreConsolidator(store, doubted)
        names = [device.name for device in devices]
        tracker = Tracker(facts.mix, names, state, self._journal, merger, now, observer)
        self._requests = RequestHandler(store, tracker, now)
        self._search = SweepSearch(store, tracker, now)
        observer.add(self._search)
        observer.add(self._requests)
        self._observer, self._tracker, self._devices = observer, tracker, devices
        self._loop = RoundLoop(facts.mix, devices, self._policy, executor, tracker, rates, observer)

    def begin(self, goes_on: bool) -> None:
        now, epoch = self._executor.now(), self._state.epoch + 1
        self._tracker.record(events.HeadStarted(now, epoch, _versions(), goes_on))
        self._loop.adopt()  # first: what is left there lives no longer than a lease
        _look_around(self._facts, self._store, self._policy, self._tracker, self._loop)

    def train(self) -> None:
        """Trains all there is, and what comes while it does."""
        state, observer, facts = self._state, self._observer, self._facts
        self._housekeeper.put_out_trained()
        jobs = [job.job for job in (*state.unfinished, *state.resting)]
        unprepared = prepare(self._connections, jobs, observer.preparing, observer.tick)
        for device in self._devices:
            if device.node in unprepared:
                why = unprepared[device.node]
                self._tracker.lose_device(device.name, Absence.UNPREPARED, why)
        self._requests.look()  # first: nothing is started that a head put together anew would not
        self._requests.open(self._loop.heed)
        self._loop.train()
        if facts.waits_for_work and not state.is_closed:
            _await_work(self._executor, observer, state, self._home)
        self._search.look()
        self._requests.look()  # for the last time: what comes later is not taken up
        _require_rest(state)
        journal = self._store.journal_path
        self._loop.finish(lambda: lower_bound(facts.mix, self._devices, read_journal(journal)))

    def leave_nodes(self) -> list[str]:
        """Leaves what is under way to the next head; the nodes that it will have, too."""
        self._loop.settle()
        staying = [node.name for node in self._store.facts.nodes if node.enabled]
        self._executor.leave(staying)
        self._loop.settle()  # the nodes have forgotten what had arrived by then
        return staying

    def wind_up(self, why: str) -> None:
        self._requests.close()
        self._loop.wind_up(why)

    def _visit(self, node: Node) -> Connection:
        return connect([node], self._store, may_start=False)[0]

    def end(self, staying: list[str]) -> None:
        is_done = self._state.finished
        self._executor.stop(grace_s=_LAST_WORDS_S if is_done else 1.0)
        self._journal.close()
        self._home.early.stop()
        self._home.end(brings_all=is_done, keeps=staying)


def _look_around(
    facts: RunFacts, store: RunStore, policy: Policy, tracker: Tracker, loop: RoundLoop
) -> None:
    """Whom the devices belong to at the moment and, where there is a choice, how far they are."""
    links: dict[str, float] = {}  # by node
    is_choice = policy.forks and len(facts.nodes) > 1
    wanted = (DEADLINE_S, links) if is_choice else ()
    for device, one in find_objections(facts.nodes, store.directory.parent, *wanted).items():
        tracker.lose_device(device, one.reason, one.why)
    for there in devices_of(facts.nodes):
        if there.node in links:
            loop.meetings.links[there.name] = links[there.node]


class _Needs(Observer):
    """Tells who rents machines whether a job waits for one."""

    def __init__(
        self, state: RunState, now: Callable[[], float], tell: Callable[[bool], None]
    ) -> None:
        self._state, self._now, self._tell = state, now, tell

    def tick(self) -> None:
        now = self._now()
        there = (one for one in self._state.unfinished if one.job.arrives_s <= now)
        self._tell(any(not one.active and not one.handed_in for one in there))


def _noted(store: RunStore, happened: Sequence[events.Event]) -> RunFacts:
    """The run's facts, with jobs that its journal adds."""
    noted = store.facts
    facts = noted.with_added(happened)
    if facts != noted:
        store.write_facts(facts)
    return facts


def _await_work(
    executor: NodeExecutor, observer: Observer, state: RunState, home: OutputCollector
) -> None:
    """Leaves the machines to others until there is work, which raises, or nobody will bring any."""
    executor.stop(_LAST_WORDS_S)
    home.end(brings_all=True)
    while not state.is_closed:
        executor.wait(executor.now() + executor.tick_s)
        observer.tick()
        _require_rest(state)


def _require_rest(state: RunState) -> None:
    """Somebody may have gone on with what was paused."""
    if state.unfinished or state.unmeasured:
        raise RunChanged


@contextmanager
def short_run(
    name: str, jobs: Sequence[Job], nodes: Sequence[Node], grace_s: float
) -> Iterator[tuple[RunStore, NodeExecutor]]:
    """An executor for a few orders outside any run; no file or process of it stays behind."""
    with tempfile.TemporaryDirectory(prefix="hadar-") as directory:
        facts = RunFacts(name, Mix(name, tuple(jobs)), tuple(nodes), "", __version__)
        store = RunStore.create(Path(directory), facts)
        executor = NodeExecutor(connect(nodes, store), 1, 0.0)
        try:
            yield store, executor
        finally:
            executor.stop(grace_s)
            far = [node for node in nodes if not node.is_local]
            # What a node that is gone keeps, `hadar clean` finds.
            list(tidy(far, Path(directory), "remove", name, [name], DEADLINE_S))


def venv_here(file: Path, store: RunStore) -> str:
    """The Python of a job's ``venv`` on this computer, made unless it is there."""
    connection = LocalConnection(
        LocalAccess(Node("here", "local")), store, CodePacker(store.directory)
    )
    try:
        return connection.make_venv(read_requirements(file))
    finally:
        connection.close()


def priced(nodes: Sequence[Node], tell: Callable[[str], None]) -> tuple[Node, ...]:
    """The nodes, those to be rented with their prices; ``tell`` hears where these are from."""
    found, words = with_prices(nodes)
    for line in words:
        tell(line)
    return found


def check_nodes(nodes: Sequence[Node]) -> None:
    """Refuses nodes that cannot be reached as they are written, before a run is made for them."""
    for node in nodes:
        if node.enabled and not node.is_local:
            command_of(node)
            check_request(node)
    check_costs(nodes)  # at last: where nobody answers, prices are not known either


def connect(nodes: Sequence[Node], store: RunStore, may_start: bool = True) -> list[Connection]:
    """Connections to the enabled nodes, none of them opened yet."""
    packer = CodePacker(store.directory / "code")
    ways = [access_to(node, store, may_start) for node in nodes if node.enabled]
    are_here = sum(isinstance(access, LocalAccess) for access in ways)
    nursery = str((store.directory / "nursery").resolve()) if are_here > 1 else ""
    return [_connection(access, store, packer, nursery) for access in ways]


def _connection(
    access: LocalAccess | RemoteAccess, store: RunStore, packer: CodePacker, nursery: str
) -> Connection:
    if isinstance(access, LocalAccess):
        return LocalConnection(access, store, packer, nursery)
    return RemoteConnection(access, store, packer)


def _versions() -> dict[str, str]:
    return {"hadar": __version__, "python": platform.python_version(), "system": platform.system()}
