"""A schedule: one run, driven by one head after another through all that its seed holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from hadar_cli import assembly as head
from hadar_cli import policies
from hadar_cli.core import events
from hadar_cli.core.model import (
    Gpu,
    Job,
    Launch,
    MergeRules,
    Mix,
    Node,
    Plateau,
    PolicyChoice,
    Promotion,
    Trial,
)
from hadar_cli.core.policies.port import REGISTERED
from hadar_cli.engine.ports import CopyOrder, Preparing, Progressed
from hadar_cli.engine.rounds import RoundLoop
from hadar_cli.errors import HadarError, RunLockedError, StorageError
from hadar_cli.nodes.session.decisions import LEASE_S
from hadar_cli.runs.store import FileJournal, RunFacts, RunStore, read_journal
from tests.faults import weights
from tests.faults.checker import (
    Count,
    Violation,
    check_end,
    check_fails_alone,
    check_journal,
    check_message,
    places_passed,
)
from tests.faults.disk import Disk
from tests.faults.executor import FaultyExecutor
from tests.faults.gangs import GangWhims, Rings
from tests.faults.misfortune import HeadKilledError, Misfortune
from tests.faults.nodes import Clock, SimulatedNode
from tests.faults.people import People, ask_in
from tests.faults.policy import Whims

_MOST_HEADS = 60
_MOST_EVENTS = 6_000
BROKEN_IN = 11  # of so many worlds, one has a job that fails everywhere until it is mended


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

    def __init__(self, seed: int, directory: Path, gangs: bool = False) -> None:
        self.seed, dice = seed, Random(f"world {seed}")
        self.misfortune, self.clock = Misfortune(seed), Clock()
        inventory = _inventory(dice)
        self.mix = _mix(dice, seed)
        self.first_jobs = self.mix.jobs
        self.asks = ask_in(seed) and not gangs
        self.spare = _spare(self.asks)  # nodes that somebody may add
        waits = self.waits = self.asks and seed % 2 == 0
        if gangs:
            inventory, self.mix = _for_gangs(dice, inventory, self.mix)
            self.first_jobs = self.mix.jobs
        facts = RunFacts("run", self.mix, inventory, "2026-01-01", "0", waits_for_work=waits)
        self.disk = Disk(directory / "run", self.misfortune)
        with self.disk.mounted():
            self.store = RunStore.create(directory, facts)
        speeds = {
            device.name: dice.choice((2.0, 8.0, 20.0))
            for n in (*inventory, *self.spare)
            for device in n.devices
        }
        # Where people take nodes away, that could be the only one with a card large enough.
        pieces = {}
        if not self.asks:
            pieces = _needed_pieces(Random(f"cards {seed}"), self.mix, list(speeds))
        rings = Rings(self.clock, self.misfortune.dice)
        self.nodes = [
            SimulatedNode(
                node,
                self.clock,
                self.misfortune,
                lambda job, device: speeds[device] / (1 + job % 3),
                lambda job, device: pieces.get((job, device), 1),
                rings,
                lambda job: job == self.broken,
            )
            for node in (*inventory, *self.spare)
        ]
        self.node_of = {device: node for node in self.nodes for device in node.devices}
        self.trained: dict[str, weights.Trained] = {}  # attempt -> what it truly did
        self.merged: dict[str, weights.Vector] = {}  # what commits were seen to hold
        self.states: dict[str, weights.Vector | None] = {}  # and of the optimizer's state
        self.spoiled: set[str] = set()  # attempts whose weights are not what was trained
        self.unfit: set[str] = set()  # attempts that no merge may accept
        self.acknowledged: list[events.Event] = []
        self.executor: FaultyExecutor | None = None
        self.recoveries_s: list[float] = []
        self.counted = 0  # steps, at the end: cancelled jobs and dropped trials have not all theirs
        self._struck_at: float | None = None
        self._backup: tuple[Path, bytes] | None = None
        self.people = People.of(self)
        self.broken = None if self.asks or gangs else _broken(seed, self.mix)  # fails everywhere

    @property
    def jobs(self) -> dict[int, Job]:
        """All that there are by now, as the journal says."""
        jobs = {job.id: job for job in self.first_jobs}
        if self.asks:
            for event in read_journal(self.store.journal_path):
                if isinstance(event, events.JobsAdded):
                    jobs |= {job.id: job for job in event.jobs}
        return jobs

    # -- heads -------------------------------------------------------------------------------

    def run(self) -> int:
        """Starts heads until the run is finished; how many it took."""
        for number in range(1, _MOST_HEADS + 1):
            if self._drive():
                self.counted = check_end(self)
                return number
            check_journal(self)
            self.people.let_it_end()
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
            self._mend_broken_job(error)
        finally:
            self.disk.is_watched = False
        self._struck_at = self._struck_at or self.clock.now
        return False

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """The real head, with this world behind its ports."""
        with ExitStack() as stack:
            stack.enter_context(self.disk.mounted())
            policies.names()  # loads them all, or the patch would take them away again
            # Known here only: nobody else is to meet it among the policies.
            ours = {Whims.name: Whims, GangWhims.name: GangWhims}
            stack.enter_context(patch.dict(REGISTERED, ours))
            for name, stand_in in {
                "NodeExecutor": lambda _, epoch, starts_at, *_imports: self._executor(
                    epoch, starts_at
                ),
                "connect": lambda *_: [],
                "find_objections": lambda *_: {},
                "lower_bound": lambda *_: None,
                "FileJournal": lambda path: _Journal(path, self),
                "RoundLoop": self._loop_of,
            }.items():
                stack.enter_context(patch.object(head, name, stand_in))
            yield

    def _loop_of(self, *collaborators: Any) -> RoundLoop:
        self.loop = RoundLoop(*collaborators)
        return self.loop

    def _executor(self, epoch: int, starts_at: float) -> FaultyExecutor:
        self.executor = FaultyExecutor(self, epoch, starts_at)
        return self.executor

    def _bury_head(self) -> None:
        if self.executor:
            self.executor.is_dead = True
        if self.disk.loses_power:
            self.people.after_power_loss()
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

    def _mend_broken_job(self, error: HadarError) -> None:
        """Somebody corrects its script, once it was said to have failed. A head that a full disk
        ended says nothing of jobs; the next one tries them all again."""
        if self.broken is None or isinstance(error, StorageError):
            return
        if check_fails_alone(self, self.broken):
            self.broken = None

    def mend(self, node: SimulatedNode) -> None:
        node.is_cut = False
        if self.executor and not self.executor.is_dead and node in self.executor.links:
            self.executor.links[node].reach_again()  # unless the node was taken out meanwhile

    # -- the head's observer -----------------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        if len(self.acknowledged) > _MOST_EVENTS:
            raise Violation("livelock: the journal grows without end")
        if isinstance(event, events.WeightsMerged) and event.weights:
            path = self.store.object_path(event.weights)
            self.merged[event.weights] = weights.load(path)
            self.states[event.weights] = weights.load_state(path)
            if self._struck_at is not None:
                self.recoveries_s.append(self.clock.now - self._struck_at)
                self._struck_at = None
        if isinstance(event, events.CopyLost | events.DeviceLost) and self._struck_at is None:
            self._struck_at = self.clock.now

    def progressed(self, report: Progressed) -> None: ...

    def preparing(self, report: Preparing) -> None: ...

    def winding_up(self, devices: Sequence[str], most_s: float) -> None: ...

    def tick(self) -> None:
        try:
            self.loop.validate()
        except (AssertionError, ValueError) as error:
            raise Violation(f"an invariant is broken: {error}") from error
        self.people.ask_sometimes()
        self.people.look_in()

    # -- what must hold at every moment ------------------------------------------------------

    def check_device_is_free(self, order: CopyOrder, held: Iterable[CopyOrder]) -> None:
        for other in held:
            if set(other.devices) & set(order.devices) and other.attempt != order.follows:
                raise Violation(f"{order.attempt} was sent to the device of {other.attempt}")

    def check_pair_is_not_avoided(self, order: CopyOrder) -> None:
        """Nor is a batch sent whole where the journal says that it goes in pieces."""
        noted = self.loop._state.started[order.attempt].micro_batches
        if order.micro_batches != noted:
            raise Violation(f"{order.attempt} has {order.micro_batches} pieces, noted: {noted}")
        for device in order.devices:
            if (order.job.id, device) in self.loop._state.avoided and not order.follows:
                raise Violation(f"{order.attempt} was sent to {device}, which its job avoids")

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


def _spare(asks: bool) -> tuple[Node, ...]:
    """Only where people ask for them."""
    gpu = Gpu("t4", 65.0, 16.0)
    return tuple(Node(f"s{n}", "local", gpus=(gpu,)) for n in range(2 if asks else 0))


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
        hand_in=("full", "bf16", "int8", "full", "bf16", "int4")[seed % 6],
        optimizer_every=(1, 1, 2, 2, 3)[seed % 5],
    )
    slot_s = dice.choice((4.0, 15.0) if stays else (4.0, 10.0, 30.0))
    policy = PolicyChoice("whims", {"seed": seed, "stays": stays})
    if seed % 200 == 0:  # its linear programs take their time
        policy = PolicyChoice("hadare")
    if seed % 7 == 5:
        jobs = _trials(Random(f"sweep {seed}"))
    return Mix("faults", tuple(jobs), slot_s=slot_s, policy=policy, merge=merge, seed=seed)


def _broken(seed: int, mix: Mix) -> int | None:
    """In one world of eleven a job's script ends with an error, on whichever device."""
    jobs = [job.id for job in mix.jobs if not job.trial]
    return Random(f"broken {seed}").choice(jobs) if jobs and seed % BROKEN_IN == 4 else None


def _trials(dice: Random) -> list[Job]:
    """A sweep, some of whose trials may also stop by themselves."""
    launch, count = Launch(workload="image_classification"), dice.randint(2, 7)
    promote = Promotion("loss", dice.choice((2, 3)), dice.choice(((10,), (5, 30), (1, 2, 3))))
    stop = Plateau("loss", 1, 20) if dice.random() < 0.3 else None
    return [
        Job(
            number,
            f"job-{number}",
            60,
            16,
            fork=1 if dice.random() < 0.7 else None,
            launch=launch,
            trial=Trial("sweep", number, {}),
            promote=promote,
            stop=stop,
        )
        for number in range(count)
    ]


def _needed_pieces(dice: Random, mix: Mix, devices: list[str]) -> dict[tuple[int, str], int]:
    """In some worlds cards are too small for some jobs: for whole batches, or at all. Each job has
    one card that is large enough."""
    if dice.random() < 0.6:
        return {}
    needed = {
        (job.id, device): dice.choice((1, 1, 2, 4, 999)) for job in mix.jobs for device in devices
    }
    return needed | {(job.id, dice.choice(devices)): 1 for job in mix.jobs}


def _for_gangs(dice: Random, nodes: tuple[Node, ...], mix: Mix) -> tuple[tuple[Node, ...], Mix]:
    """The same world for jobs that are not forked but have several devices at once; in some, the
    nodes are machines that meet by a network."""
    if dice.random() < 0.5:
        nodes = tuple(
            replace(node, host=f"10.0.0.{i}", network="n") for i, node in enumerate(nodes)
        )
    jobs = tuple(replace(job, gpus=dice.randint(1, 4), elastic=True) for job in mix.jobs)
    if mix.seed % 2:  # forked, and its copies shared: some devices merge what others made together
        fields = {**mix.policy.fields, "gangs": True}
        jobs = tuple(replace(job, shares="proportional") for job in jobs)
        merge = replace(mix.merge, solo=0.0)
        return nodes, replace(mix, jobs=jobs, policy=PolicyChoice("whims", fields), merge=merge)
    policy = PolicyChoice(GangWhims.name, {"seed": mix.seed})
    return nodes, replace(mix, jobs=jobs, policy=policy)


def run_schedule(seed: int, gangs: bool = False) -> Outcome:
    """Everything about it follows from the seed."""
    with tempfile.TemporaryDirectory(dir=_memory()) as directory:
        world = World(seed, Path(directory), gangs)
        outcome, checked = Outcome(seed, world.misfortune.fired), Count.checked
        try:
            outcome.heads = world.run()
        except Exception as error:  # whatever escapes the head is a violation too
            outcome.violation = f"{type(error).__name__}: {error}"
        outcome.checked = Count.checked - checked
        outcome.events = len(world.acknowledged)
        outcome.seconds = world.clock.now
        outcome.steps = world.counted
        outcome.steps_redone = sum(node.steps_trained for node in world.nodes) - outcome.steps
        outcome.recoveries_s = world.recoveries_s
        outcome.passed = places_passed(world.acknowledged)
        return outcome


def _memory() -> Path | None:
    """Where files cost nothing, if there is such a place; the disk is a model anyway."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else None
