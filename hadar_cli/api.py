"""hadar from Python: the same mixes, machines, runs and reports as the commands, as objects.

    from hadar_cli import api

    run = api.run(api.mix("mixes/m3.yaml"), api.nodes("nodes.toml"))
    for event in run:                 # trains; leaving the loop, or Ctrl-C, stops in good order
        print(event)
    pandas.DataFrame(run.report().jobs)

Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import queue
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from hadar_cli import __version__
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from hadar_cli.core.events import Event
    from hadar_cli.core.model import Mix, Node
    from hadar_cli.runs.store import RunFacts, RunStore

__all__ = ["Report", "Run", "mix", "nodes", "report", "resume", "run", "simulate"]

Row: TypeAlias = dict[str, Any]
_RUNS = Path("runs")
_CODE = "<code>"  # what stands for the file in errors about what was built in Python
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


# -- mixes and inventories -----------------------------------------------------------------------


def mix(
    source: str | Path | Mapping[str, Any],
    *,
    folder: str | Path = ".",
    on: Sequence[Node] = (),
    data_dir: str | Path | None = None,
) -> Mix:
    """A mix from a YAML file, or from the same fields in a dict, just as strictly checked.

    ``folder`` is what a dict's paths are relative to. ``on`` are the machines it is meant for: real
    GPUs turn ``preset: auto`` into ``paper``.
    """
    from hadar_cli.config.mixes import Setting, mix_of, read_mix
    from hadar_cli.core.model import are_accelerators, devices_of

    accelerators = bool(on) and are_accelerators(devices_of(on))
    if not isinstance(source, str | Path | Mapping):
        raise _misfit("mix", source, "its file or its fields: api.mix({'jobs': [...]})")
    if not isinstance(source, Mapping):
        return read_mix(Path(source), accelerators=accelerators, data_dir=data_dir)
    setting = Setting(Path(folder), accelerators, str(data_dir) if data_dir else None)
    return replace(mix_of(_document(source), setting), source=None)


def nodes(source: str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """The enabled machines of an inventory file, of its fields in a dict, or of a list of nodes."""
    from hadar_cli.config.inventory import nodes_of, read_nodes
    from hadar_cli.visits.profile_cache import fill, load

    if isinstance(source, str | Path):
        found = tuple(node for node in read_nodes(Path(source)) if node.enabled)
        return fill(found, load(Path(source)))
    if not isinstance(source, Mapping | Sequence):
        raise _misfit("inventory", source, "its file or a list of nodes: api.nodes([{...}])")
    fields = source if isinstance(source, Mapping) else {"node": list(source)}
    return tuple(node for node in nodes_of(_document(fields)) if node.enabled)


def _document(fields: Mapping[str, Any]) -> Any:
    from hadar_cli.config.fields import Document

    return Document(_CODE, _plain(fields), {})


def _plain(value: Any) -> Any:
    """As a file would hold it: tuples and arrays are lists, paths are text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, torch's tensors
        return _plain(value.tolist())
    return str(value) if isinstance(value, Path) else value


def _misfit(what: str, given: object, fix: str) -> InputError:
    return InputError(f"no {what}: {str(given)[:80]!r}", field=_CODE, fix=f"give {fix}")


def _require(mix: object, nodes: object) -> None:
    """Raises where somebody gave the files' names, say, and not what they hold."""
    from hadar_cli.core.model import Mix, Node

    if not isinstance(mix, Mix):
        raise _misfit("mix", mix, "what api.mix(...) returns")
    if not isinstance(nodes, Sequence) or not all(isinstance(node, Node) for node in nodes):
        raise _misfit("inventory", nodes, "what api.nodes(...) returns")


# -- runs ----------------------------------------------------------------------------------------


class Run:
    """A run. Iterating drives it and gives its events; nothing trains before."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._asked_to_stop = threading.Event()

    @property
    def name(self) -> str:
        return self._store.directory.name

    @property
    def directory(self) -> Path:
        """Journal, checkpoints, ``models/`` and ``out/``."""
        return self._store.directory

    def __iter__(self) -> Iterator[Event]:
        """Trains, and gives events as they are written to the journal.

        Who leaves the loop early, by ``break``, an exception or Ctrl-C, stops the run: copies hand
        in what they have, and ``resume`` goes on from there.
        """
        told: queue.Queue[Event | BaseException | None] = queue.Queue()
        self._asked_to_stop.clear()
        driver = threading.Thread(target=self._drive, args=(told.put,), name=f"run {self.name}")
        driver.start()
        try:
            with _on_interrupt(self.stop):
                while (news := told.get()) is not None:
                    if isinstance(news, BaseException):
                        raise news
                    yield news
        finally:
            self.stop()
            driver.join()

    def stop(self) -> None:
        """From another thread: has the copies hand in, and ends the loop."""
        self._asked_to_stop.set()

    def wait(self, tell: Callable[[Event], None] = lambda event: None) -> Report:
        """Trains to the end; ``tell`` hears every event."""
        for event in self:
            tell(event)
        return self.report()

    def _drive(self, tell: Callable[[Event | BaseException | None], None]) -> None:
        from hadar_cli.assembly import Interrupted, drive
        from hadar_cli.engine.ports import Observer

        asked = self._asked_to_stop

        class Listener(Observer):
            has_left = False

            def happened(self, event: Event) -> None:
                tell(event)

            def tick(self) -> None:
                if asked.is_set() and not self.has_left:
                    self.has_left = True
                    raise Interrupted

        listener = Listener()
        try:
            drive(self._store, lambda state, rates, clock: listener)
        except Interrupted:
            pass
        except BaseException as error:  # raised where the events are read
            tell(error)
        tell(None)

    def report(self) -> Report:
        from hadar_cli.report.record import read_record

        record = read_record(self._store)
        told = asdict(record.told)
        return Report(
            run=self.name,
            summary={name: value for name, value in told.items() if not isinstance(value, tuple)},
            jobs=[dict(row) for row in told["jobs"]],
            devices=[dict(row) for row in told["devices"]],
            trials=[
                {"sweep": sweep.sweep, **trial.params, **_trial(trial)}
                for sweep in record.sweeps
                for trial in sweep.trials
            ],
            best={sweep.sweep: sweep.best for sweep in record.sweeps},
        )


@contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Has Ctrl-C act also where its traceback keeps the loop alive, as notebooks do."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def interrupted(signum: int, frame: FrameType | None) -> None:
        act()
        before(signum, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        with suppress(
            ValueError
        ):  # not on the main thread, where the loop was left to be collected
            signal.signal(signal.SIGINT, before)


def _trial(trial: Any) -> Row:
    names = ("name", "standing", "steps", "value")
    return {name: getattr(trial, name) for name in names}


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run, as rows of plain values: ``pandas.DataFrame(report.jobs)``."""

    run: str
    summary: Row  # ttd_s, cru, state and so on
    jobs: list[Row]
    devices: list[Row]
    trials: list[Row]  # of its sweeps, each with its parameters
    best: dict[str, str | None]  # by sweep: the trial to use


def run(
    mix: Mix,
    nodes: Sequence[Node],
    *,
    name: str | None = None,
    runs_dir: str | Path = _RUNS,
    waits_for_work: bool = False,
) -> Run:
    """Writes the run's directory and returns the run, ready to be driven."""
    from hadar_cli import policies
    from hadar_cli.assembly import check_nodes, priced
    from hadar_cli.core.estimates.suitability import require_room
    from hadar_cli.core.model import devices_of
    from hadar_cli.runs.store import RunStore
    from hadar_cli.simulation.fitting import slot_for
    from hadar_cli.simulation.forecast import gather

    _require(mix, nodes)
    inventory, runs = priced(nodes, lambda words: None), Path(runs_dir)
    chosen = policies.create(mix.policy, file=mix.source)
    require_room(mix.jobs, devices_of(inventory), mix.source or _CODE, gangs=not chosen.forks)
    check_nodes(inventory)
    if mix.chooses_slot:
        mix = replace(mix, slot_s=slot_for(gather(mix, inventory, runs).costs))
    facts = replace(facts_of(mix, inventory, runs, name), waits_for_work=waits_for_work)
    return Run(RunStore.create(runs, facts))


def resume(name: str, *, runs_dir: str | Path = _RUNS) -> Run:
    """A run that was stopped, ready to go on where it was."""
    from hadar_cli.runs.store import find_run

    return Run(find_run(Path(runs_dir), name))


def report(name: str, *, runs_dir: str | Path = _RUNS) -> Report:
    """Of a run that is over, stopped or under way."""
    return resume(name, runs_dir=runs_dir).report()


def simulate(mix: Mix, nodes: Sequence[Node], policies: str | Sequence[str] = ()) -> list[Row]:
    """One row for each policy (the mix's own by default): how long, how well used, how fair."""
    from hadar_cli import policies as registry
    from hadar_cli.core.model import PolicyChoice, are_accelerators, devices_of
    from hadar_cli.simulation.fitting import assumed_costs, slot_for
    from hadar_cli.simulation.scenario import Scenario
    from hadar_cli.simulation.scenario import simulate as simulate_one
    from hadar_cli.simulation.speeds import ModelledSpeeds

    _require(mix, nodes)
    devices = tuple(devices_of(tuple(nodes)))
    costs = assumed_costs(are_accelerators(devices))
    if mix.chooses_slot:
        mix = replace(mix, slot_s=slot_for(costs))
    names = [policies] if isinstance(policies, str) else policies
    choices = [PolicyChoice(name) for name in names] or [mix.policy]
    for choice in choices:
        registry.create(choice)
    scenario = Scenario(mix, devices, costs, lambda together: ModelledSpeeds(mix.jobs, devices))
    results = (simulate_one(scenario, choice, choice.name, lambda done: None) for choice in choices)
    return [dict(result.facts()) for result in results]


def facts_of(mix: Mix, inventory: tuple[Node, ...], runs: Path, name: str | None) -> RunFacts:
    """All that a new run's directory begins with."""
    from hadar_cli.runs.store import RunFacts
    from hadar_cli.simulation.forecast import forecast

    now = datetime.now().astimezone()
    return RunFacts(
        id=_run_id(runs, name, f"{mix.name}-{now:%m%d-%H%M}"),
        mix=mix,
        nodes=inventory,
        started_at=now.isoformat(timespec="seconds"),
        hadar_version=__version__,
        forecast=forecast(mix, inventory, runs),
        token=secrets.token_hex(8),
    )


def _run_id(runs: Path, name: str | None, stem: str) -> str:
    """The name asked for, or the stem with a number where it is taken."""
    if name is None:
        count, run_id = 1, stem
        while (runs / run_id).exists():
            count += 1
            run_id = f"{stem}-{count}"
        return run_id
    if not _RUN_NAME.fullmatch(name):
        fix = "use letters, digits, dots, dashes and underscores"
        raise InputError(f"{name!r} cannot name a run", field="--name", fix=fix)
    from hadar_cli.runs.store import is_taken

    if is_taken(runs / name):
        raise InputError(
            f"there is already a run {name!r} in {runs}/",
            field="--name",
            fix=f"choose another name, or go on with it: hadar resume {name}",
        )
    return name
