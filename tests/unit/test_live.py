"""The live view and the plain lines, shown real runs of the simulator."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.cells import cell_len
from rich.console import Console

from hadar_cli.app.ports import Progressed
from hadar_cli.core import events
from hadar_cli.core.model import Mix, Node
from hadar_cli.core.state import RunState
from hadar_cli.core.throughput import RateModel
from hadar_cli.report.lines import STOPPING, Lines, tell
from hadar_cli.report.live import LiveView, clock_time
from tests.support.worlds import make_mix, make_nodes, make_world

SIZES = [(80, 24), (100, 30), (160, 50)]


class Screen:
    """A live view on a console of a given size, fed by hand."""

    def __init__(self, mix: Mix, nodes: tuple[Node, ...], width: int, height: int) -> None:
        devices = [device for node in nodes for device in node.devices]
        self.out = io.StringIO()
        self.console = Console(file=self.out, width=width, height=height, force_terminal=True)
        self.state = RunState(mix.jobs)
        self.now = 0.0
        self.view = LiveView("run-1", mix, devices, self.console)
        self.view.watch(self.state, RateModel(mix.jobs, devices), lambda: self.now)

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


def simulated(mix: Mix, nodes: tuple[Node, ...]) -> list[events.Event]:
    world = make_world(mix, nodes)
    world.loop.run()
    return list(world.journal.events)


@pytest.mark.parametrize(("jobs", "devices"), [(5, 5), (1, 1), (16, 3), (3, 16)])
def test_every_frame_of_a_run_fits_the_terminal(
    screens: list[Screen], jobs: int, devices: int
) -> None:
    mix = make_mix([40 + 10 * i for i in range(jobs)])
    nodes = make_nodes({f"a-device-with-a-long-name-{i}": 0.2 + i / 10 for i in range(devices)})
    screens += [Screen(mix, nodes, width, height) for width, height in SIZES]
    for event in simulated(mix, nodes):
        for screen in screens:
            screen.take(event)
            if isinstance(event, events.CopyStarted):
                screen.view.progressed(Progressed(event.attempt, 1, 0.5, 1e-7))
            frame, (width, height) = screen.frame(), screen.console.size
            assert len(frame) < height
            assert max(map(cell_len, frame)) <= width


def test_what_does_not_fit_is_counted(screens: list[Screen]) -> None:
    mix, nodes = make_mix([100] * 30), make_nodes({f"d{i}": 1.0 for i in range(30)})
    screens.append(Screen(mix, nodes, 80, 24))
    frame = screens[0].frame()
    assert [line for line in frame if line.startswith("…")] == [
        "… 25 more",
        "… 25 more, 0 of them done",
    ]


def a_stint(screen: Screen) -> events.CopyStarted:
    """One copy of the first job at work on the first device: 100 steps."""
    screen.take(events.HeadStarted(0.0, 1))
    screen.take(events.RoundPlanned(0.0, 1, ((0, "rtx3090", 100),)))
    started = events.CopyStarted(0.0, "a1", 0, 7, "rtx3090", 1, 0, ((0, 100),))
    screen.take(started)
    return started


def row(frame: list[str], name: str) -> str:
    return next(line for line in frame if line.startswith(name))


@pytest.fixture
def screen(screens: list[Screen]) -> Screen:
    mix = make_mix([200, 1000])
    screens.append(Screen(mix, make_nodes(), 80, 24))
    return screens[0]


def test_steps_under_way_show_before_they_are_merged(screen: Screen) -> None:
    a_stint(screen)
    assert "starting" in row(screen.frame(), "rtx3090")
    screen.now = 5.0
    screen.view.progressed(Progressed("a1", 50, 5.0, 0.25))
    frame = screen.frame()
    assert row(frame, "rtx3090").split()[2:] == ["job-0", "████▌····", "50/100", "10.0", "0:05"]
    # 150 steps are left at 10 a second.
    assert row(frame, "job-0").split()[2:] == ["50/200", "1", "0.250", "0", "0:15"]
    assert "idle" in row(frame, "t400")
    assert "round 1, 5 s left" in frame[1]
    assert " 4 % of 1,200 steps" in frame[2]


def test_a_finished_copy_frees_its_device_and_keeps_its_steps(screen: Screen) -> None:
    a_stint(screen)
    screen.take(events.CopyFinished(9.0, "a1", 100, ((0, 100),), 1.0, 8.0, 0.1, "steps", "hash"))
    frame = screen.frame()
    assert "idle" in row(frame, "rtx3090")
    assert "100/200" in row(frame, "job-0")


def test_lost_devices_and_copies_are_told_and_marked(screen: Screen) -> None:
    a_stint(screen)
    log = "Traceback ...\n\x1b[31m[bold]No space left"
    screen.take(events.CopyLost(2.0, "a1", "it exited with code 1", log))
    screen.take(events.DeviceLost(3.0, "rtx3090", "its agent ended"))
    history = screen.out.getvalue()
    told = "job-0 on rtx3090 failed: it exited with code 1 ([bold]No space left)"
    assert told in history.replace("\n", " ")
    assert "its 100 steps go back to the pool" in history.replace("\n", " ")
    assert "rtx3090 lost: its agent ended" in history
    assert "\x1b[31m[bold]" not in history
    assert "lost" in row(screen.frame(), "rtx3090")


def test_a_tiny_terminal_crops_the_view(screens: list[Screen]) -> None:
    screen = Screen(make_mix([200, 1000]), make_nodes(), 30, 5)
    screens.append(screen)
    a_stint(screen)
    screen.now = 5.0
    screen.view.tick()
    assert len(screen.frame()) > 5


def test_stopping_is_said_at_once_and_stays_on_the_screen(screen: Screen) -> None:
    a_stint(screen)
    screen.view.interrupted()
    assert STOPPING in screen.out.getvalue()
    assert "stopping" in screen.frame()[1]


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


def test_plain_lines_tell_a_run_from_its_rounds_to_its_end() -> None:
    mix, nodes = make_mix([200, 100]), make_nodes()
    devices = [device for node in nodes for device in node.devices]
    out, state = io.StringIO(), RunState(mix.jobs)
    lines = Lines([device.name for device in devices], out)
    lines.watch(state, RateModel(mix.jobs, devices), lambda: state.now)
    for event in simulated(mix, nodes):
        state.apply(event)
        lines.happened(event)
    told = out.getvalue().splitlines()
    assert "round 1: 2 jobs, 0 % of all steps done" in told[0]
    assert sum("job-0 done in" in line and "200 steps" in line for line in told) == 1
    assert told[-1].endswith("done: 2 jobs trained")


def test_quality_is_told_against_the_untrained_model() -> None:
    state = RunState(make_mix([10]).jobs)
    for event in (
        events.CopyStarted(0.0, "a", 0, 1, "d", 1, 0, ((0, 10),)),
        events.CopyFinished(
            1.0, "a", 10, ((0, 10),), 0.0, 1.0, 0.0, "steps", "w", None, {"mse": 2.0}
        ),
        events.WeightsMerged(2.0, 0, 1, "w", ("a",)),
        events.CopyStarted(2.0, "b", 0, 1, "d", 1, 1, (), 1.0, "evaluate"),
    ):
        state.apply(event)
    measured = events.CopyFinished(
        3.0, "b", 0, (), 0.0, 0.0, 0.0, "steps", None, None, {"mse": 0.5}
    )
    state.apply(measured)
    assert tell(measured, state) == "job-0 trained: mse 0.500 (untrained: mse 2.00)"


def test_clock_time() -> None:
    assert [clock_time(s) for s in (0, 7.4, 125, 11_220)] == ["0:00", "0:07", "2:05", "3:07:00"]
