"""What every device did when: a run's events laid out in time, each moment in one place only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hadar_cli.core import events
from hadar_cli.core.model import Job
from hadar_cli.core.state import RunState

# Where a device's time goes; ``metrics`` says what each of them means.
PARTS = (
    *("busy_s", "start_s", "transfer_s", "merge_s", "evaluate_s", "lost_s"),
    *("no_work_s", "idle_s"),
)


# What a run may wait for that has nothing to train.
_ENDS_OF_REST = (events.JobsAdded, events.JobsContinued, events.QueueClosed)


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt on its device: it starts, trains, and its weights travel to the head.

    Of an attempt that was lost, or that a killed head left behind, only its length is known.
    """

    attempt: str
    device: str
    job: int
    begin: float
    end: float
    start_s: float = 0.0
    train_s: float = 0.0
    evaluates: bool = False
    lost: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def transfer_s(self) -> float:
        """The rest: saving, handing over, pulling, and waiting for the head to look."""
        return max(0.0, self.seconds - self.start_s - self.train_s)

    def stages(self) -> Iterator[tuple[float, float, str]]:
        """Its stages in order, each with begin and end; they are named like a summary's times."""
        if self.lost or self.evaluates:
            yield self.begin, self.end, "lost_s" if self.lost else "evaluate_s"
            return
        trains = self.begin + self.start_s
        yield self.begin, trains, "start_s"
        yield trains, trains + self.train_s, "busy_s"
        yield trains + self.train_s, self.end, "transfer_s"


class Stretches:
    """Disjoint stretches of time in order, and how much of them lies between two moments."""

    def __init__(self, stretches: Iterable[tuple[float, float]]) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = []  # seconds in all earlier stretches
        total = last = 0.0
        for begin, end in sorted(stretches):
            begin, last = max(begin, last), max(end, last)
            if begin < last:
                self._begins.append(begin)
                self._ends.append(last)
                self._before.append(total)
                total += last - begin

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self._begins, self._ends, strict=True)

    def between(self, begin: float, end: float) -> float:
        return max(0.0, self._until(end) - self._until(begin))

    def _until(self, t: float) -> float:
        i = bisect_right(self._begins, t) - 1
        return self._before[i] + min(t, self._ends[i]) - self._begins[i] if i >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of each device are in order and never overlap."""

    ends_at: float
    spans: Mapping[str, Sequence[Span]]
    merges: Stretches
    no_work: Stretches
    rounds: Sequence[tuple[float, float]]


@dataclass(slots=True)
class Tracing:
    """Lays events out in time one by one; only spans of the devices in ``spans`` are kept."""

    spans: dict[str, list[Span]]
    now: float = 0.0
    open: dict[str, events.CopyStarted] = field(default_factory=dict)
    merges: list[tuple[float, float]] = field(default_factory=list)
    rounds: list[tuple[float, float]] = field(default_factory=list)
    round_began: float | None = None
    #: nothing was under way, until somebody gave the run work or let it end
    no_work: list[tuple[float, float]] = field(default_factory=list)
    at_rest_since: float = 0.0

    def add(self, event: events.Event) -> None:
        self.now = max(self.now, event.t)
        match event:
            case events.CopyStarted():
                self.open[event.attempt] = event
            case events.CopyFinished():
                self._close(event.attempt, event)
            case events.CopyLost():
                self._close(event.attempt, None)
            case events.WeightsMerged():
                self.merges.append((event.t - max(0.0, event.seconds), event.t))
                self.at_rest_since = self.now
            case events.RoundPlanned():
                self._end_round()
                self.round_began = self.now
            case events.HeadStarted():
                self._end_round()  # its copies may live on, and be taken over
            case events.RunStopped() | events.RunFinished():
                self.leave()
            case events.NodesReplaced():
                gone = event.gone
                for attempt in [a for a, o in self.open.items() if not gone.isdisjoint(o.devices)]:
                    self._close(attempt, None)

    def had_no_work(self, until: float) -> None:
        if not self.open:
            self.no_work.append((self.at_rest_since, until))

    def leave(self) -> None:
        """The head is gone: whatever was under way is not heard of again."""
        for attempt in list(self.open):
            self._close(attempt, None)
        self._end_round()

    def suppose_training(self) -> None:
        """Nobody knows yet what copies under way have done."""
        for attempt, copy in list(self.open.items()):
            so_far_s = self.now - copy.t
            self._close(
                attempt, events.CopyFinished(self.now, attempt, 0, (), 0.0, so_far_s, 0.0, "")
            )

    def _close(self, attempt: str, finished: events.CopyFinished | None) -> None:
        if started := self.open.pop(attempt, None):
            self.at_rest_since = self.now
            for device in self.spans.keys() & set(started.devices):
                self._add_span(device, started, finished)

    def _add_span(
        self, device: str, started: events.CopyStarted, finished: events.CopyFinished | None
    ) -> None:
        spans = self.spans[device]
        begin = max(started.t, spans[-1].end if spans else 0.0)
        end = max(begin, self.now)
        trains = finished is not None and started.purpose == "train"
        train_s = _at_most(finished.train_s, end - begin) if finished and trains else 0.0
        spans.append(
            Span(
                started.attempt,
                device,
                started.job,
                begin,
                end,
                _at_most(finished.start_s, end - begin - train_s) if finished else 0.0,
                train_s,
                evaluates=started.purpose == "evaluate",
                lost=finished is None,
            )
        )

    def _end_round(self) -> None:
        if self.round_began is not None:
            self.rounds.append((self.round_began, self.now))
        self.round_began = None


def trace(
    devices: Iterable[str],
    happened: Sequence[events.Event],
    goes_on: bool = False,
    jobs: Sequence[Job] = (),
) -> Timeline:
    """Lays a journal out in time. Attempts still under way at its end count as lost; as training,
    so far, if the run ``goes_on``. ``jobs`` are all that it ever had."""
    tracing = Tracing({device: [] for device in devices})
    state = _state_before(happened, jobs)
    for event in happened:
        if state:
            if isinstance(event, _ENDS_OF_REST) and not state.unfinished:
                tracing.had_no_work(event.t)
            state.apply(event)
        tracing.add(event)
    if goes_on:
        tracing.suppose_training()
    tracing.leave()
    merges, no_work = Stretches(tracing.merges), Stretches(tracing.no_work)
    return Timeline(tracing.now, tracing.spans, merges, no_work, tracing.rounds)


def _state_before(happened: Iterable[events.Event], jobs: Iterable[Job]) -> RunState | None:
    """The run's state at its beginning, where it may ever have had no work."""
    asked = [event for event in happened if isinstance(event, _ENDS_OF_REST)]
    added = [event.jobs for event in asked if isinstance(event, events.JobsAdded)]
    later = {job.id for jobs in added for job in jobs}
    return RunState([job for job in jobs if job.id not in later]) if asked else None


def gaps(spans: Iterable[Span], ends_at: float) -> Iterator[tuple[float, float]]:
    """The time between a device's spans, before the first and after the last."""
    cursor = 0.0
    for span in spans:
        yield cursor, span.begin
        cursor = span.end
    yield cursor, ends_at


def split_over_time(timeline: Timeline, cells: int) -> dict[str, list[float]]:
    """Where device time went in each of ``cells`` equal parts of the run, as shares of it.

    The parts are those of ``metrics``, and add up to 1 in every cell.
    """
    width = timeline.ends_at / cells
    split = {part: [0.0] * cells for part in PARTS}
    stretches = {"merge_s": timeline.merges, "no_work_s": timeline.no_work}

    def add(part: str, begin: float, end: float) -> None:
        for cell in range(int(begin / width), min(cells, int(end / width) + 1)):
            first, last = max(begin, cell * width), min(end, (cell + 1) * width)
            if first < last:
                within = stretches.get(part)
                split[part][cell] += within.between(first, last) if within else last - first

    for spans in timeline.spans.values():
        for span in spans:
            for begin, end, part in span.stages():
                add(part, begin, end)
        for gap in gaps(spans, timeline.ends_at):
            for part in stretches:
                add(part, *gap)
    whole = len(timeline.spans) * width
    shares = {part: [seconds / whole for seconds in row] for part, row in split.items()}
    for cell in range(cells):
        known = sum(row[cell] for row in shares.values())
        shares["idle_s"][cell] = max(0.0, 1.0 - known)
    return shares


def _at_most(seconds: float, limit: float) -> float:
    """A node's claim, held to what the head's clock allows; a NaN becomes 0."""
    return min(limit, max(0.0, seconds))
