"""`hadar report` as a user meets it: on terminals of any width, as JSON, and on broken runs."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hadar_cli.adapters.simulated import Costs
from hadar_cli.adapters.store import FileJournal, RunFacts, RunStore
from hadar_cli.cli.report import report
from hadar_cli.core import events as e
from hadar_cli.core.metrics import lower_bound, summarise
from hadar_cli.core.timeline import trace
from hadar_cli.errors import InputError, StorageError
from hadar_cli.report import format
from hadar_cli.report.terminal import show
from tests.support.worlds import World, make_mix, make_world

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]boom[/] \u202enrut\r\nsecond line " + "x" * 5000


def devices_of(world: World):
    return [device for node in world.nodes for device in node.devices]


def trained_world(targets=(300, 200, 100)) -> World:
    world = make_world(make_mix(targets), costs=Costs(start_s=2.0, sync_s=0.3))
    world.loop.run(lambda: lower_bound(world.mix, devices_of(world), world.journal.events))
    return world


def unlucky_world() -> World:
    """Loses a copy, a device and weights, is killed, goes on and is interrupted."""
    world = trained_world()
    happened = world.journal.events
    cut = next(i for i, event in enumerate(happened) if isinstance(event, e.WeightsMerged))
    begun = [event for event in happened[:cut] if isinstance(event, e.CopyStarted)]
    closed = {x.attempt for x in happened[:cut] if isinstance(x, e.CopyFinished)}
    (lost, *_) = [copy for copy in begun if copy.attempt not in closed]
    merged, t = happened[cut], happened[cut].t
    world.journal.events[cut:] = [
        e.WeightsMerged(t, merged.job, 1, "", (), tuple((a, HOSTILE) for a in merged.accepted)),
        e.CopyLost(t + 1, lost.attempt, HOSTILE),
        e.DeviceLost(t + 2, lost.device, HOSTILE),
        e.HeadStarted(t + 3, 2),
        e.RunStopped(t + 4, HOSTILE),
    ]
    return world


def rendered(world: World, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    happened, devices = world.journal.events, devices_of(world)
    summary = summarise("run-1", world.mix, devices, happened)
    timeline = trace([device.name for device in devices], happened)
    show(summary, timeline, [job.id for job in world.mix.jobs], console)
    return console.file.getvalue()


def stored(world: World, runs: Path, name: str = "run-1") -> RunStore:
    store = RunStore.create(runs, RunFacts(name, world.mix, world.nodes, "now", "0"))
    journal = FileJournal(store.journal_path)
    for event in world.journal.events:
        journal.append(event)
    journal.close()
    return store


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("make", [trained_world, unlucky_world])
def test_no_line_is_wider_than_the_terminal_and_none_wraps(make, width):
    world = make()
    text = rendered(world, width)
    assert max(map(len, text.splitlines())) <= width
    for name in ("rtx3090", "titan-rtx", "a2000", "t4", "t400"):
        rows = [line for line in text.splitlines() if line.startswith(f" {name} ")]
        assert len(rows) == 2, name  # in the table and in the chart
        assert rows[1].endswith("▏")
    for letter, job in zip("ABC", world.mix.jobs, strict=True):
        assert re.search(rf"^ {letter} +{job.name} ", text, re.MULTILINE)


def test_a_mix_of_very_long_names_still_fits():
    world = trained_world()
    usual = rendered(world, 80).splitlines()
    jobs = (replace(job, name=f"{job.name} with words " * 9) for job in world.mix.jobs)
    world.mix = replace(world.mix, name="m " * 99, jobs=tuple(jobs))
    lines = rendered(world, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == len(usual)


def test_the_report_says_what_was_reached():
    text = rendered(trained_world(), 120)
    assert "finished" in text
    assert "3 of 3 jobs and 600 of 600 steps done" in text
    assert "300/300" in text and "200/200" in text
    assert "lower bound" in text
    assert "resume" not in text
    chart = [line for line in text.splitlines() if "▕" in line]
    assert {"A", "B", "C"} <= set("".join(chart))


def test_misfortunes_are_told_in_harmless_words():
    text = rendered(unlucky_world(), 100)
    for what in ("weights refused", "copy lost", "device lost", "resumed", "stopped"):
        assert what in text
    assert "[bold red]boom[/]" in text  # as words, not as markup
    assert not any(c in text for c in "\x1b\x07\r\u202e")
    assert "hadar resume run-1" in text
    assert "did not count" in text


def test_json_has_the_promised_names(tmp_path, capsys):
    stored(trained_world(), tmp_path)
    report(None, tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {"run", "policy", "ttd_s", "mean_jct_s", "cru", "lower_bound_s"} <= set(told)
    assert {"jobs", "devices", "overhead"} <= set(told)
    assert {"start_s", "transfer_s", "merge_s", "idle_s"} <= set(told["overhead"])
    for job in told["jobs"]:
        assert {"name", "workload", "steps_done", "steps_target", "jct_s"} <= set(job)
        assert {"metric", "value", "untrained_value"} <= set(job)
        assert job["steps_done"] == job["steps_target"]
    assert {"name", "busy_s"} <= set(told["devices"][0])
    busy_s = sum(device["busy_s"] for device in told["devices"])
    assert busy_s + sum(told["overhead"].values()) == pytest.approx(5 * told["ttd_s"])
    assert 0 < told["lower_bound_s"] <= told["ttd_s"]
    assert (told["run"], told["policy"], told["state"]) == ("run-1", "hadare", "finished")


def test_all_runs_are_listed(tmp_path, capsys):
    stored(trained_world(), tmp_path, "one")
    stored(unlucky_world(), tmp_path, "two")
    damaged = stored(trained_world(), tmp_path, "zzz")
    damaged.journal_path.write_bytes(b"junk\n" + damaged.journal_path.read_bytes())
    report(None, tmp_path, every=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["one", "two", "zzz"]
    assert "finished" in lines[1] and "3/3" in lines[1] and "600/600" in lines[1]
    assert "unfinished" in lines[2] and "damaged" in lines[3]
    report(None, tmp_path, as_json=True, every=True)
    assert [run["state"] for run in json.loads(capsys.readouterr().out)] == [
        "finished",
        "unfinished",
        "damaged",
    ]


def test_a_run_under_way_is_not_offered_for_resuming(tmp_path, capsys):
    world = trained_world()
    del world.journal.events[len(world.journal.events) // 2 :]
    store = stored(world, tmp_path)
    with store.locked():
        report("run-1", tmp_path)
        assert "running" in (text := capsys.readouterr().out)
        assert "hadar resume" not in text
    report("run-1", tmp_path)
    assert "hadar resume run-1" in capsys.readouterr().out


def test_mistakes_are_named(tmp_path):
    with pytest.raises(InputError, match="no run in"):
        report(None, tmp_path)
    store = stored(trained_world(), tmp_path)
    with pytest.raises(InputError, match="did you mean 'run-1'"):
        report("run-2", tmp_path)
    with pytest.raises(InputError, match="--list"):
        report("run-1", tmp_path, every=True)
    lines = store.journal_path.read_bytes().splitlines(keepends=True)
    store.journal_path.write_bytes(b"".join([*lines, *lines[1:]]))  # everything happens twice
    with pytest.raises(StorageError, match="contradict"):
        report("run-1", tmp_path)


def test_a_finished_run_is_reported_without_heavy_imports(tmp_path):
    stored(trained_world(), tmp_path)
    code = (
        "import sys; from pathlib import Path; from hadar_cli.cli.report import report\n"
        "report(None, Path(sys.argv[1]), True)\n"
        "print(*{'torch', 'scipy', 'numpy', 'safetensors'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["lower_bound_s"]
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (125.4, "2 m 05 s"),
        (3599.7, "1 h 00 m"),
        (11_220, "3 h 07 m"),
        (90_000, "1 d 01 h"),
        (-5, "-5.0 s"),
    ],
)
def test_durations(seconds, text):
    assert format.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00"), (9.996, "10.0"), (0.27123, "0.271"), (12_345.6, "12,346"), (1e-7, "1.00e-07")],
)
def test_figures(value, text):
    assert format.figures(value) == text


def test_other_formats():
    assert [format.percent(x) for x in (0.8734, 1.0, None)] == ["87.3 %", "100 %", "–"]
    assert [format.bytes(x) for x in (999, 7_742_808, 123_456_789)] == ["999 B", "7.7 MB", "123 MB"]
    assert format.rate(34.56) == "34.6/s"
    assert [format.bar(x, 4) for x in (0, 0.5, 2)] == ["    ", "██  ", "████"]


def test_plain_text_is_one_bounded_harmless_line():
    text = format.plain(HOSTILE, 40)
    assert len(text) <= 40 and text.isprintable() and text.endswith("…")
    assert text.startswith("[bold red]boom[/] nrut second")
    assert format.plain("\x1b[31mred\x1b[0m\n\ttape", 40) == "red tape"
