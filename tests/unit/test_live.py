"""The live view and the plain lines, shown real runs of the simulator."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hadar_cli.core import events
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.model import Job, Mix, Node, devices_of
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Progressed
from hadar_cli.report.live.lines import STOPPING, Lines
from hadar_cli.report.live.live import LiveView
from hadar_cli.report.live.live_state import LiveState
from hadar_cli.report.live.screen import frame
from hadar_cli.runs.store import RunFacts
from tests.support.worlds import make_mix, make_nodes, make_world


class Screen:
    """A live view on a console of a given size, fed by hand."""

    def __init__(
        self,
        mix: Mix,
        nodes: tuple[Node, ...],
        width: int,
        height: int,
        color: str = "standard",
        past: Sequence[events.Event] = (),
    ) -> None:
        self.mix, self.nodes = mix, nodes
        devices = [device for node in nodes for device in node.devices]
        self.out = io.StringIO()
        self.console = Console(
            file=self.out,
            width=width,
            height=height,
            force_terminal=True,
            no_color=not color,
            _environ={},
        )
        self.state = RunState(mix.jobs, past)
        self.rates = RateModel(mix.jobs, devices)
        self.now = 0.0
        self.view = LiveView(RunFacts("run-1", mix, nodes, "", ""), self.console, past)
        self.view.watch(self.state, self.rates, lambda: self.now)

    def take(self, event: events.Event) -> None:
        self.now = event.t
        self.state.apply(event)
        self.view.happened(event)

    def frame(self) -> list[str]:
        """What the view shows now, line by line, before the terminal would crop it."""
        segments = self.console.render(self.view, self.console.options)
        return "".join(segment.text for segment in segments).split("\n")


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    """Closes the views that a test appends."""
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.view.__exit__()


@pytest.fixture
def screen(screens: list[Screen]) -> Screen:
    mix = make_mix([200, 1000])
    screens.append(Screen(mix, make_nodes(), 80, 24))
    return screens[0]


def simulated(mix: Mix, nodes: tuple[Node, ...], lost: str | None = None) -> list[events.Event]:
    world = make_world(mix, nodes)
    if lost:
        world.executor.lose_device(lost, at=8.0)
    world.loop.run()
    return list(world.journal.events)


# -- every size ------------------------------------------------------------------------------------

NAMES = ("a-device-with-a-long-name", "短い名前の装置", "b", "gpu\x1b[31m:0", "c" * 80)


@cache
def story(jobs: int, devices: int) -> tuple[Mix, tuple[Node, ...], list[events.Event]]:
    mix = make_mix([40 + 10 * i for i in range(jobs)])
    names = [f"{NAMES[i % len(NAMES)]}-{i}" for i in range(devices)]
    nodes = make_nodes({name: 0.2 + i / 10 for i, name in enumerate(names)})
    return mix, nodes, simulated(mix, nodes, names[0] if devices > 1 else None)


@settings(max_examples=80, deadline=None)
@given(
    cluster=st.sampled_from([(5, 5), (1, 1), (16, 3), (3, 16)]),
    moment=st.floats(0, 1),
    width=st.integers(60, 200),
    height=st.integers(15, 60),
    footer=st.integers(0, 2),
)
def test_no_frame_is_larger_than_the_terminal(
    cluster: tuple[int, int], moment: float, width: int, height: int, footer: int
) -> None:
    mix, nodes, happened = story(*cluster)
    devices = [device for node in nodes for device in node.devices]
    state, rates = RunState(mix.jobs), RateModel(mix.jobs, devices)
    live_state = LiveState(RunFacts("run-1", mix, nodes, "", ""), state, rates, lambda: state.now)
    for event in happened[: 1 + int(moment * len(happened))]:
        state.apply(event)
        live_state.happened(event)
        if isinstance(event, events.CopyStarted):
            live_state.progressed(Progressed(event.attempt, 1, 0.5, 1e-7))
    lines = frame(live_state, "a run", "running", ["what to press"] * footer, width, height)
    assert len(lines) <= height
    drawn = ["".join(segment.text for segment in line) for line in lines]
    assert max(map(cell_len, drawn)) <= width
    assert all(text.isprintable() for text in drawn)
    assert not footer or drawn[-1] == "what to press"


def test_what_does_not_fit_is_counted(screens: list[Screen]) -> None:
    mix, nodes = make_mix([100] * 30), make_nodes({f"d{i}": 1.0 for i in range(30)})
    screens.append(Screen(mix, nodes, 80, 24))
    assert [line for line in screens[0].frame() if line.startswith("…")] == [
        "… 25 more devices, 25 of them idle",
        "… 24 more jobs, 0 of them done",
    ]


def test_a_painted_screen_has_no_wrapped_rows(screens: list[Screen]) -> None:
    """What the terminal gets is the whole screen, each row exactly as wide as it."""
    screen = Screen(make_mix([200, 1000]), make_nodes(), 80, 24)
    screens.append(screen)
    a_stint(screen)
    screen.out.truncate(0)
    screen.view.paint()
    painted = screen.out.getvalue().rpartition("\x1b[H")[2]
    rows = Console(file=io.StringIO(), width=80).render_str(painted).plain.split("\n")
    assert len(rows) == 24


def test_without_colour_the_same_is_told(screens: list[Screen]) -> None:
    """Every state has a word; colours only repeat it."""
    for color in ("standard", ""):
        screen = Screen(make_mix([200]), make_nodes(), 80, 24, color)
        screens.append(screen)
        a_stint(screen)
        screen.take(events.DeviceLost(3.0, "t400", "its agent ended"))
        screen.out.truncate(0)
        screen.view.paint()
    coloured, plain = screens
    assert "\x1b[31m" in coloured.out.getvalue() or "\x1b[1;31m" in coloured.out.getvalue()
    assert "31m" not in plain.out.getvalue()
    assert row(coloured.frame(), "t400") == row(plain.frame(), "t400")
    assert "lost" in row(plain.frame(), "t400")


# -- what it shows -----------------------------------------------------------------------------


def a_stint(screen: Screen) -> events.CopyStarted:
    """One copy of the first job at work on the first device: 100 steps."""
    screen.take(events.HeadStarted(0.0, 1))
    screen.take(events.RoundPlanned(0.0, 1, ((0, "rtx3090", 100),)))
    started = events.CopyStarted(0.0, "a1", 0, 7, "rtx3090", 1, 0, ((0, 100),))
    screen.take(started)
    return started


def row(frame: list[str], name: str) -> str:
    return next(line for line in frame if line.startswith(name))


def test_steps_under_way_show_before_they_are_merged(screen: Screen) -> None:
    a_stint(screen)
    assert "starting" in row(screen.frame(), "rtx3090")
    screen.now = 5.0
    screen.view.progressed(Progressed("a1", 50, 5.0, 0.25))
    frame = screen.frame()
    assert row(frame, "rtx3090").split()[1:2] == ["job-0"]
    assert " 50/100 " in row(frame, "rtx3090") and " 10.0 " in row(frame, "rtx3090")
    assert "25 %" in row(frame, "job-0") and " 50/200 " in row(frame, "job-0")
    assert "0.250" in row(frame, "job-0")
    assert "idle" in row(frame, "t400")
    assert "round 1, 5s left" in frame[0]
    assert " 4 % of 1,200 steps" in frame[1]


def test_progress_is_by_round_not_by_order(screen: Screen) -> None:
    """A round's work comes in short pieces; the bar goes on from one to the next."""
    a_stint(screen)
    screen.take(events.CopyFinished(4.0, "a1", 40, ((0, 40),), 0.0, 4.0, 0.0, "steps", "h"))
    screen.take(events.WeightsMerged(4.0, 0, 1, "m", ("a1",)))
    screen.take(events.CopyStarted(4.0, "a2", 0, 7, "rtx3090", 1, 1, ((40, 100),)))
    screen.now = 6.0
    screen.view.progressed(Progressed("a2", 20, 2.0))
    assert " 60/100 " in row(screen.frame(), "rtx3090")


def test_a_finished_copy_frees_its_device_and_keeps_its_steps(screen: Screen) -> None:
    a_stint(screen)
    screen.take(events.CopyFinished(9.0, "a1", 100, ((0, 100),), 1.0, 8.0, 0.1, "steps", "hash"))
    frame = screen.frame()
    assert "idle" in row(frame, "rtx3090") and "89 %" in row(frame, "rtx3090")  # 8 s of 9
    assert "100/200" in row(frame, "job-0")


def test_jobs_and_devices_come_and_go_and_what_was_seen_stays(screen: Screen) -> None:
    """As a head does that is put together anew: another state, other jobs and nodes."""
    happened = [events.HeadStarted(0.0, 1), *two_steps(screen)]
    screen.view.progressed(Progressed("a1", 1, 1.0, 0.125))
    late = Job(7, "late", 10, 16)
    happened.append(events.JobsAdded(3.0, (late,), "r1"))
    screen.take(happened[-1])
    mix = replace(screen.mix, jobs=(*screen.mix.jobs, late))
    nodes = tuple(node for node in screen.nodes if node.name != "rtx3090")
    screen.view.take_facts(RunFacts("run-1", mix, nodes, "", ""))
    rates = RateModel(mix.jobs, devices_of(nodes))
    screen.view.watch(RunState(mix.jobs, happened), rates, lambda: screen.now)
    frame = screen.frame()
    assert "0.125" in row(frame, "job-0") and row(frame, "late")
    assert not [line for line in frame if line.startswith("rtx3090")]
    assert any("0:03  added late: 10 steps" in line for line in frame)


def test_a_resumed_run_shows_what_happened_before(screens: list[Screen], screen: Screen) -> None:
    happened = [events.HeadStarted(0.0, 1), *two_steps(screen)]
    happened.append(events.DeviceLost(2.5, "t400", "its agent ended"))
    resumed = Screen(screen.mix, screen.nodes, 80, 24, past=happened)
    screens.append(resumed)
    assert any("0:02  t400 lost" in line for line in resumed.frame())
    assert any("merged 1 copy of job-0: 2 steps counted" in line for line in resumed.frame())


def test_a_job_that_does_not_train_says_why(screen: Screen) -> None:
    a_stint(screen)
    screen.take(events.NodeDrained(1.0, "t400", ("t400",), "r0"))
    assert row(screen.frame(), "t400").split()[1] == "drained"
    screen.take(events.JobsPaused(1.0, (1,), "r1"))
    assert row(screen.frame(), "job-1").endswith("paused")
    screen.take(events.JobsCancelled(2.0, (1,), "r2"))
    screen.take(events.JobCutShort(2.0, 1, "cancelled"))
    assert row(screen.frame(), "job-1").endswith("cancelled")
    screen.take(events.CopyLost(2.0, "a1", "recalled"))
    screen.take(events.JobCutShort(2.0, 0, "its max_duration is over"))
    assert row(screen.frame(), "job-0").endswith("cut 0:02")


def test_a_run_that_waits_for_work_says_so_and_what_to_do(screen: Screen) -> None:
    screen.view.take_facts(RunFacts("run-1", screen.mix, screen.nodes, "", "", waits_for_work=True))
    a_stint(screen)
    assert "to go" in screen.frame()[0] and "Ctrl-C" in screen.frame()[-1]
    screen.take(events.CopyLost(1.0, "a1", "recalled"))
    screen.take(events.JobsPaused(1.0, (0, 1), "r1"))
    frame = screen.frame()
    assert frame[0].endswith("waits for work, 2 jobs paused")
    assert frame[-1] == "hadar add run-1 MIX brings work; hadar close run-1 ends the run"


def two_steps(screen: Screen) -> list[events.Event]:
    started = a_stint(screen)
    done = events.CopyFinished(2.0, "a1", 2, ((0, 2),), 0.0, 2.0, 0.0, "deadline", "h")
    merged = events.WeightsMerged(2.0, 0, 1, "m", ("a1",))
    screen.take(done)
    screen.take(merged)
    return [events.RoundPlanned(0.0, 1, ((0, "rtx3090", 100),)), started, done, merged]


def test_a_rate_is_told_against_the_formula(screen: Screen) -> None:
    a_stint(screen)
    steps = 90
    took_s = 2 * steps / screen.rates.estimated(0, "rtx3090")
    screen.now = took_s
    screen.view.progressed(Progressed("a1", steps, took_s))
    assert "50 %" in row(screen.frame(), "rtx3090")


def test_the_log_marks_lost_devices(screen: Screen) -> None:
    a_stint(screen)
    screen.take(events.CopyLost(3.0, "a1", "its node is gone", node_fault=True))
    screen.take(events.DeviceLost(3.0, "rtx3090", "its agent ended"))
    frame = screen.frame()
    assert "lost" in row(frame, "rtx3090")
    told = "0:03  rtx3090 lost; its 100 steps of job-0 go back to the pool (its agent"
    assert any(told in line for line in frame)


def test_rounds_do_not_push_news_off_the_screen(screen: Screen) -> None:
    a_stint(screen)
    screen.take(events.DeviceLost(1.0, "t400", "its agent ended"))
    for number in range(50):
        one_round(screen, number, 2.0 + number)
    frame = screen.frame()
    assert any("t400 lost" in line for line in frame)
    assert any("round 50: merged 1 copy of job-0: 1 step counted" in line for line in frame)


def one_round(screen: Screen, number: int, t: float) -> None:
    """The copy does one step of what it was given and is merged; the next one takes the rest."""
    attempt, following = f"a{number + 1}", f"a{number + 2}"
    done, rest = ((number, number + 1),), ((number + 1, 100),)
    screen.take(events.CopyFinished(t, attempt, 1, done, 0.0, 1.0, 0.0, "deadline", "h"))
    screen.take(events.WeightsMerged(t, 0, number + 1, "m", (attempt,)))
    screen.take(events.RoundPlanned(t, number + 2, ()))
    screen.take(events.CopyStarted(t, following, 0, 7, "rtx3090", number + 2, number + 1, rest))


def test_a_tiny_terminal_crops_the_view(screens: list[Screen]) -> None:
    screen = Screen(make_mix([200, 1000]), make_nodes(), 20, 5)
    screens.append(screen)
    a_stint(screen)
    assert len(screen.frame()) <= 5


def test_stopping_explains_both_choices_and_what_the_second_costs(screen: Screen) -> None:
    a_stint(screen)
    assert "hadar resume" in screen.frame()[-1]
    screen.now = 5.0
    screen.view.progressed(Progressed("a1", 50, 5.0))
    screen.view.interrupted()
    frame = screen.frame()
    assert "stopping" in frame[0]
    assert frame[-2].startswith("Stopping: copies hand in") and "hadar resume" in frame[-2]
    assert frame[-1] == "Ctrl-C again stops at once, without 50 steps not merged yet"


def test_the_screen_is_painted_only_now_and_then(screen: Screen) -> None:
    a_stint(screen)
    screen.now = 5.0
    screen.view.tick()
    painted = len(screen.out.getvalue())
    screen.now = 5.1
    screen.view.tick()
    assert len(screen.out.getvalue()) == painted
    screen.now = 6.0
    screen.view.tick()
    assert len(screen.out.getvalue()) > painted


def test_the_log_stays_when_the_view_closes(screen: Screen) -> None:
    a_stint(screen)
    screen.take(events.DeviceLost(3.0, "t400", "its agent ended"))
    screen.view.__exit__()
    left = screen.out.getvalue().rpartition("\x1b[?1049l")[2]
    assert "   0:03  t400 lost; the others take its work (its agent ended)" in left


# -- plain lines -------------------------------------------------------------------------------


def lines_of(mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]) -> list[str]:
    devices = [device for node in nodes for device in node.devices]
    out, state = io.StringIO(), RunState(mix.jobs)
    lines = Lines(RunFacts("run-1", mix, nodes, "", ""), out)
    lines.watch(state, RateModel(mix.jobs, devices), lambda: state.now)
    for event in happened:
        state.apply(event)
        lines.happened(event)
    lines.interrupted()
    return out.getvalue().splitlines()


def test_plain_lines_tell_a_run_from_its_rounds_to_its_end() -> None:
    mix, nodes = make_mix([200, 100]), make_nodes()
    *told, stopping = lines_of(mix, nodes, simulated(mix, nodes))
    assert "round 1: 2 jobs on" in told[0] and "0 % of all steps done" in told[0]
    assert sum("job-0 done in" in line and "200 steps" in line for line in told) == 1
    assert "done: 2 jobs trained" in told[-1]
    assert stopping.endswith(STOPPING)


def test_a_rounds_merges_are_one_line() -> None:
    mix, nodes = make_mix([900, 900, 900]), make_nodes()
    happened = simulated(mix, nodes)
    told = lines_of(mix, nodes, happened)
    rounds = sum(isinstance(event, events.RoundPlanned) for event in happened)
    merges = sum(isinstance(event, events.WeightsMerged) for event in happened)
    assert sum("counted" in line for line in told) <= rounds < merges


def test_random_orders_of_reports_break_nothing(screens: list[Screen]) -> None:
    """Late progress of copies that ended meanwhile must neither crash nor count."""
    mix, nodes = make_mix([300, 200]), make_nodes()
    screen = Screen(mix, nodes, 100, 30)
    screens.append(screen)
    chance, attempts = random.Random(1), []
    for event in simulated(mix, nodes):
        screen.take(event)
        if isinstance(event, events.CopyStarted):
            attempts.append(event.attempt)
        if attempts:
            screen.view.progressed(Progressed(chance.choice(attempts), 10**6, 1.0))
        screen.frame()
    assert "100 % of 500 steps" in screen.frame()[1]
