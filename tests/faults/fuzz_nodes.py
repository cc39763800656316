"""Fuzz targets: whatever a node or a training script sends to the head."""

from __future__ import annotations

import math
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from hadar_cli.core import events
from hadar_cli.core.events import EVENTS, Event
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.state import RunState
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import (
    Consolidated,
    CopyOrder,
    Failed,
    HandedIn,
    NodeGone,
    Observers,
    Progressed,
)
from hadar_cli.engine.tracker import Tracker
from hadar_cli.node.agent import watch
from hadar_cli.node.agent.bootstrap import MARK
from hadar_cli.nodes.agent_client import AgentLink
from hadar_cli.nodes.connection import Connection, Listed
from hadar_cli.nodes.session.threads import SessionThreads
from hadar_cli.nodes.wire import LinkLostError, Message, Wire
from tests.faults.fuzz import REFUSED, TAKEN, Target
from tests.faults.fuzz_mutation import Mutator, to_json

NODE = Node("n", "local")
JOB = Job(0, "a", 40, 4, launch=Launch(script="/x.py"))


def targets(folder: Path) -> list[Target]:
    return [
        Target("results", 130, RESULTS.make, Results(folder).examine),
        Target("agent messages", 130, EVENT_LINES.make, examine_event),
    ]


# -- copies' results, all the way to the journal -------------------------------------------------

RESULT = {
    "steps": 20,
    "slices": [[0, 20]],
    "samples": 80,
    "seconds": {"start": 0.5, "train": 2.0, "save": 0.1},
    "stopped": "end",
    "metrics": {"loss": 0.5},
    "evaluation": {"accuracy": 0.5, "loss": 1.5},
    "higher_is_better": True,
    "missed_paces": 0,
    "lr": [0.1, 0.05],
    "data": [3, 1, 2],
    "waiting": True,
}
RESULTS = Mutator([RESULT, {"steps": 7}, {"steps": 0, "evaluation": {"mse": 0.1}}])
WEIGHTS = "/r/attempts/a/weights.safetensors"
FINISHED = {
    "event": "finished",
    "attempt": "A",
    "result": RESULT,
    "checkpoint": WEIGHTS,
    "bytes": 9,
}
EVENT_LINES = Mutator(
    [
        FINISHED,
        {"event": "progress", "attempt": "A", "steps": 3, "seconds": 1.5, "loss": 0.5},
        {"event": "exited", "attempt": "A", "code": 1, "end": "exited", "log": "Traceback\nboom"},
        {"answer": 1, "attempts": {}, "python": "3.11"},
        {"answer": 1, "attempts": {"A": {"worker": "0-0-1-e1", "number": 2}}},
    ],
    ["A", "superseded", "error"],
)


class MemoryJournal:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        content = msgspec.json.encode(event)
        assert msgspec.json.decode(content, type=EVENTS[type(event).__name__]) == event
        self.events.append(event)


class Takes:
    """Merges nothing: accepts all."""

    def consolidate(self, inputs: Any, *_: Any) -> Consolidated:
        return Consolidated("m" * 64, 9, tuple(i.attempt for i in inputs), ())


class Inline:
    """An executor of the calling thread."""

    def submit(self, action: Any, *arguments: Any) -> Future[None]:
        done: Future[None] = Future()
        action(*arguments)
        done.set_result(None)
        return done


def make_inline(threads: SessionThreads) -> None:
    for pool in (threads._work, threads._words, threads._files):
        pool.shutdown()
    threads._work = threads._words = threads._files = Inline()  # type: ignore[assignment]


class Silence:
    """A stream on which nothing is ever heard, nor waited for."""

    def __init__(self, content: bytes = b"") -> None:
        self._content = content

    def read(self, size: int) -> bytes:
        chunk, self._content = self._content[:size], self._content[size:]
        return chunk

    def write(self, content: bytes | memoryview) -> None: ...

    def close(self) -> None: ...


class Link(AgentLink):
    """A link that hears what it is told to, without a thread."""

    def __init__(self, answer: Message) -> None:
        self._wire, self._answer, self._why = Wire(Silence()), answer, ""
        self.heard_at = 0.0

    def ask(self, do: str, timeout_s: float = 30.0, **fields: Any) -> Message:
        return self._answer

    def tell(self, do: str, **fields: Any) -> None: ...


class Pulls(Connection):
    """A connection to a node whose every file is the same checkpoint."""

    def __init__(self, answer: Message) -> None:
        self.node, self.directory, self.token, self._answer = NODE, "/r", "t", answer
        self.nursery = self.door = ""

    def open_agent(self, *_: Any) -> AgentLink:
        return Link(self._answer)

    def prepare(self, *_: Any) -> None: ...

    def place(self, job: Job) -> Launch:
        return job.launch

    def push(self, digest: str, *_: Any, **__: Any) -> str:
        return digest

    def pull(self, path: str, size: int, *_: Any, **__: Any) -> str:
        assert isinstance(path, str) and isinstance(size, int)
        return "w" * 64

    def end_transfers(self) -> None: ...

    def list_out(self, job: int) -> tuple[list[Listed], int]:
        return [], 0

    def fetch_out(self, *_: Any) -> None: ...

    def give_back(self, *_: Any) -> None: ...

    def move_on(self, *_: Any) -> None: ...

    def recalled(self, idle_s: float) -> str:
        return ""

    def heard_at(self) -> float:
        return 0.0

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Rig:
    """A head's side of one copy: its node's session, and the tracker that takes what it reports."""

    def __init__(self, answer: Message | None = None) -> None:
        self.journal, self.reports = MemoryJournal(), list[Any]()
        state = RunState([JOB])
        mix = Mix("m", (JOB,))
        self.tracker = Tracker(mix, ["n"], state, self.journal, Takes(), lambda: 1.0, Observers())
        self.tracker.record(events.HeadStarted(0.0, 1))
        self.tracker.plan_round([Stint(0, "n", 20)])
        self.order: CopyOrder = self.tracker.hand_out(Stint(0, "n", 20), 5.0, [20])
        self.threads = SessionThreads(
            Pulls(answer or {"attempts": {}, "worker": "w", "number": 1}), 1, self.reports.append
        )
        make_inline(self.threads)
        self.threads._closing.set()  # it mends nothing here: nobody would wait for it
        self.threads._closing.is_set = lambda: False  # type: ignore[method-assign]
        self.threads.start(self.order)

    def hear(self, message: Message) -> None:
        self.threads._on_event(message)
        self.threads._session.validate()
        for report in self.reports:
            self._take(report)

    def _take(self, report: Any) -> None:
        match report:
            case HandedIn():
                if self.tracker.handed_in(report) and report.result.steps:
                    self.tracker.commit(self.tracker.state.jobs[0])
            case Failed():
                self.tracker.failed(report)
            case Progressed():
                assert type(report.steps) is int and report.steps >= 0
                assert math.isfinite(report.seconds)
                assert report.loss is None or math.isfinite(report.loss)
            case NodeGone():
                assert isinstance(report.why, str)
            case _:
                raise AssertionError(report)

    @property
    def is_settled(self) -> bool:
        """Whether the head knows what became of the copy."""
        return not self.tracker.is_under_way(self.order.attempt)

    def outcome(self) -> str:
        """Nothing counts that was not ordered, whatever was said."""
        job = self.tracker.state.jobs[0]
        assert job.done <= self.order.steps and len(job.done) <= 20
        lost = [event for event in self.journal.events if isinstance(event, events.CopyLost)]
        assert all(len(event.log) <= 4000 and len(event.why) <= 1100 for event in lost)
        assert all(event.why.isprintable() for event in lost)
        finished = [
            event for event in self.journal.events if isinstance(event, events.CopyFinished)
        ]
        assert len(lost) + len(finished) <= 1
        for event in finished:
            assert StepSet.of(event.slices) <= self.order.steps
            assert event.stopped.isprintable() and len(event.stopped) <= 80
            assert all(name.isprintable() for name in event.quality or ())
        return TAKEN if finished else REFUSED


def heard(line: bytes) -> Message | None:
    """A line of the agent's as the head's wire reads it, None where the link is lost over it."""
    try:
        return Wire(Silence(MARK.encode() + line + b"\n")).receive()
    except LinkLostError:
        return None


class Results:
    """result.json as a script leaves it, by way of the agent."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "result.json"

    def examine(self, document: Any) -> str:
        self._path.write_bytes(to_json(document))
        results = watch.Results()
        found = results.read(self._path, 0.0)
        if found is None:  # it might be half written; later, it is not
            found = results.read(self._path, 3.0)
        assert found is not None
        message = {"event": "finished", "attempt": "A", "result": found, "checkpoint": WEIGHTS}
        rig = Rig()
        told = heard(to_json({**message, "attempt": rig.order.attempt, "bytes": 9}))
        if told is None:
            return REFUSED
        rig.hear(told)
        outcome = rig.outcome()
        assert rig.is_settled
        return outcome


def examine_event(document: Any) -> str:
    """Anything an agent may say, as an event of the copy's or as the answer to all requests."""
    told = heard(to_json(document))
    if told is None:
        return REFUSED
    rig = Rig(told if "answer" in told else None)
    attempts = told.get("attempts")
    if isinstance(attempts, dict) and "A" in attempts:
        told = {**told, "attempts": {**attempts, rig.order.attempt: attempts["A"]}}
        rig = Rig(told)
    if told.get("attempt") == "A":
        told = {**told, "attempt": rig.order.attempt}
    if "event" in told:
        rig.hear(told)
        rig.hear(told)  # saying it again changes nothing
    else:
        rig.hear(FINISHED | {"attempt": rig.order.attempt})
    return rig.outcome()
