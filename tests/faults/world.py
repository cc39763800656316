"""A schedule: one run, driven by one head after another through all that its seed holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

from hadar_cli.adapters import head
from hadar_cli.adapters.store import FileJournal, RunFacts, RunStore, read_journal
from hadar_cli.app.ports import CopyOrder, Progressed
from hadar_cli.core import events
from hadar_cli.core.model import Gpu, Job, Launch, MergeRules, Mix, Node, PolicyChoice
from hadar_cli.core.policies import registry
from hadar_cli.errors import HadarError, RunLockedError, StorageError
from tests.faults import weights
from tests.faults.checker import (
    Count,
    Violation,
    check_end,
    check_journal,
    check_message,
    places_passed,
)
from tests.faults.disk import Disk
from tests.faults.executor import FaultyExecutor
from tests.faults.misfortune import HeadKilledError, Misfortune
from tests.faults.nodes import LEASE_S, Clock, SimulatedNode
from tests.faults.policy import Whims

_MOST_HEADS = 60
_MOST_EVENTS = 6_000


@dataclass
class Outcome:
    """What became of a schedule."""

    seed: int
    fired: dict[str, int]
    violation: str | None = None
    heads: int = 0
    events: int = 0
    steps: int = 0
    steps_redone: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    passed: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    checked: int = 0


class World:
    """Clock, nodes and disk of a run, and the truth about what was trained."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed, dice = seed, Random(f"world {seed}")
        self.misfortune, self.clock = Misfortune(seed), Clock()
        inventory = _inventory(dice)
        self.mix = _mix(dice, seed)
        facts = RunFacts("run", self.mix, inventory, "2026-01-01", "0")
        self.disk = Disk(directory / "run", self.misfortune)
        with self.disk.mounted():
            self.store = RunStore.create(directory, facts)
        speeds = {
            device.name: dice.choice((2.0, 8.0, 20.0)) for n in inventory for device in n.devices
        }
        self.nodes = [
            SimulatedNode(
                [device.name for device in node.devices],
                self.clock,
                self.misfortune,
                lambda job, device: speeds[device] / (1 + job % 3),
            )
            for node in inventory
        ]
        self.node_of = {device: node for node in self.nodes for device in node.devices}
        self.trained: dict[str, weights.Trained] = {}  # attempt -> what it truly did
        self.merged: dict[str, weights.Vector] = {}  # what commits were seen to hold
        self.acknowledged: list[events.Event] = []
        self.executor: FaultyExecutor | None = None
        self.recoveries_s: list[float] = []
        self._struck_at: float | None = None
        self._backup: tuple[Path, bytes] | None = None

    # -- heads -------------------------------------------------------------------------------

    def run(self) -> int:
        """Starts heads until the run is finished; how many it took."""
        for number in range(1, _MOST_HEADS + 1):
            if self._drive():
                check_end(self)
                return number
            check_journal(self)
            self._pause()
        raise Violation(f"not finished by {_MOST_HEADS} heads")

    def _drive(self) -> bool:
        """One head, to its end; whether it finished the run."""
        self.disk.is_watched = True
        try:
            with self._in_place():
                head.drive(self.store, lambda *_: self)
            return True
        except HeadKilledError:
            self._bury_head()
        except KeyboardInterrupt:
            pass
        except HadarError as error:
            check_message(error, self)
            self._restore(error)
        finally:
            self.disk.is_watched = False
        self._struck_at = self._struck_at or self.clock.now
        return False

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """The real head, with this world behind its ports."""
        with ExitStack() as stack:
            stack.enter_context(self.disk.mounted())
            registry.names()  # loads them all, or the patch would take them away again
            # Known here only: nobody else is to meet it among the policies.
            stack.enter_context(patch.dict(registry._POLICIES, {Whims.name: Whims}))
            for name, stand_in in {
                "NodeExecutor": lambda _, epoch, starts_at, *_imports: self._executor(
                    epoch, starts_at
                ),
                "connect": lambda *_: [],
                "find_objections": lambda *_: {},
                "lower_bound": lambda *_: None,
                "FileJournal": lambda path: _Journal(path, self),
            }.items():
                stack.enter_context(patch.object(head, name, stand_in))
            yield

    def _executor(self, epoch: int, starts_at: float) -> FaultyExecutor:
        self.executor = FaultyExecutor(self, epoch, starts_at)
        return self.executor

    def _bury_head(self) -> None:
        if self.executor:
            self.executor.is_dead = True
        self.disk.crash()
        for node in self.nodes:
            node.listener = None
            node.let_lease_run_out(LEASE_S)

    def _pause(self) -> None:
        """Until somebody types ``hadar resume``."""
        dice = self.misfortune.dice
        if self.executor:
            self.executor.is_dead = True
        for node in self.executor.refused if self.executor else ():
            node.is_cut = False
        self._damage_checkpoint()
        self.clock.pass_to(self.clock.now + dice.choice((0.5, 5.0, 60.0)))
        while all(node.is_cut for node in self.nodes):
            self.clock.pass_to(self.clock.now + 60.0)

    def _damage_checkpoint(self) -> None:
        journal = read_journal(self.store.journal_path)
        digests = sorted({e.weights for e in journal if isinstance(e, events.WeightsMerged)})
        paths = [path for d in digests if d and (path := self.store.object_path(d)).exists()]
        is_over = any(isinstance(event, events.RunFinished) for event in journal)
        if not paths or is_over or self._backup:
            return
        if self.misfortune.strikes("checkpoint damaged"):
            path = self.misfortune.dice.choice(paths)
            self._backup = (path, path.read_bytes())
            damaged = bytearray(self._backup[1])
            damaged[self.misfortune.dice.randrange(len(damaged))] ^= 4
            path.write_bytes(damaged)

    def _restore(self, error: HadarError) -> None:
        if self._backup and isinstance(error, StorageError) and self._backup[0].name in str(error):
            self._backup[0].write_bytes(self._backup[1])
            self._backup = None

    def mend(self, node: SimulatedNode) -> None:
        node.is_cut = False
        if self.executor:
            self.executor.reach_again(node)

    # -- the head's observer -----------------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        if len(self.acknowledged) > _MOST_EVENTS:
            raise Violation("livelock: the journal grows without end")
        if isinstance(event, events.WeightsMerged) and event.weights:
            for digest in filter(None, (event.weights, event.rival)):
                self.merged[digest] = weights.load(self.store.object_path(digest))
            if self._struck_at is not None:
                self.recoveries_s.append(self.clock.now - self._struck_at)
                self._struck_at = None
        if isinstance(event, events.CopyLost | events.DeviceLost) and self._struck_at is None:
            self._struck_at = self.clock.now

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None: ...

    # -- what must hold at every moment ------------------------------------------------------

    def check_device_is_free(self, order: CopyOrder, held: Iterable[CopyOrder]) -> None:
        for other in held:
            if set(other.devices) & set(order.devices) and other.attempt != order.follows:
                raise Violation(f"{order.attempt} was sent to the device of {other.attempt}")

    def check_second_head_is_refused(self) -> None:
        try:
            with self.store.locked():
                pass
        except RunLockedError as error:
            check_message(error, self)
            return
        raise Violation("two heads drive the run")


class _Journal(FileJournal):
    """The real journal; it tells what it acknowledged, and at times its disk is full."""

    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path)
        self._world = world

    def append(self, event: events.Event) -> None:
        if self._world.misfortune.strikes("disk full, write cut short"):
            full, self._file = self._file, _FullFile(self._file)  # type: ignore[assignment]
            try:
                super().append(event)
            finally:
                self._file = full
        else:
            super().append(event)
        self._world.acknowledged.append(event)


class _FullFile:
    """Takes a few bytes of what it is given, as a full disk does."""

    def __init__(self, file: object) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return int(self._file.write(data[: len(data) // 2]))  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def _inventory(dice: Random) -> tuple[Node, ...]:
    nodes = []
    for number in range(dice.randint(1, 4)):
        gpus = (Gpu("t4", 65.0, 16.0),) * dice.choice((1, 1, 2))
        nodes.append(Node(f"n{number}", "local", gpus=gpus))
    return tuple(nodes)


def _mix(dice: Random, seed: int) -> Mix:
    jobs, stays = [], dice.random() < 0.4
    for number in range(dice.choice((1, 1, 2, 3))):
        launch = Launch(workload="image_classification" if dice.random() < 0.8 else None)
        arrives = dice.choice((0.0, 0.0, 0.0, 7.0))
        target = dice.choice((60, 150, 300) if stays else (1, 10, 30, 60, 120))
        jobs.append(Job(number, f"job-{number}", target, 16, arrives_s=arrives, launch=launch))
    merge = MergeRules(
        rule=dice.choice(("mean", "progress")),
        solo=dice.choice((0.0, 0.02, 0.3)),
        every_s=dice.choice(("auto", "slot", 1.0, 3.0)),
        keep="better" if seed % 3 == 0 else "merged",
        hand_in="bf16" if seed % 3 == 1 else "full",
    )
    slot_s = dice.choice((4.0, 15.0) if stays else (4.0, 10.0, 30.0))
    policy = PolicyChoice("whims", {"seed": seed, "stays": stays})
    if seed % 200 == 0:  # its linear programs take their time
        policy = PolicyChoice("hadare")
    return Mix("faults", tuple(jobs), slot_s=slot_s, policy=policy, merge=merge, seed=seed)


def run_schedule(seed: int) -> Outcome:
    """Everything about it follows from the seed."""
    with tempfile.TemporaryDirectory(dir=_memory()) as directory:
        world = World(seed, Path(directory))
        outcome, checked = Outcome(seed, world.misfortune.fired), Count.checked
        try:
            outcome.heads = world.run()
        except Exception as error:  # whatever escapes the head is a violation too
            outcome.violation = f"{type(error).__name__}: {error}"
        outcome.checked = Count.checked - checked
        outcome.events = len(world.acknowledged)
        outcome.seconds = world.clock.now
        outcome.steps = sum(job.target_steps for job in world.mix.jobs)
        outcome.steps_redone = sum(node.steps_trained for node in world.nodes) - outcome.steps
        outcome.recoveries_s = world.recoveries_s
        outcome.passed = places_passed(world.acknowledged)
        return outcome


def _memory() -> Path | None:
    """Where files cost nothing, if there is such a place; the disk is a model anyway."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else None
