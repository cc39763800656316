"""`hadar report` as a user meets it: on terminals of any width, as JSON, and on broken runs."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hadar_cli.cli.runs.report import report
from hadar_cli.core.measures.forecast import Forecast
from hadar_cli.core.measures.metrics import summarise
from hadar_cli.errors import InputError, StorageError
from hadar_cli.report import format
from hadar_cli.report.record import RunRecord, read_record
from hadar_cli.report.terminal import runs as compare
from hadar_cli.report.terminal.summary import show
from hadar_cli.runs.store import RunFacts, RunStore
from tests.support.runs import (
    HOSTILE,
    devices_of,
    m5_world,
    stored,
    trained_world,
    unlucky_world,
)
from tests.support.worlds import World


def rendered(world: World, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    happened, devices = world.journal.events, devices_of(world)
    summary = summarise("run-1", world.mix, devices, happened)
    facts = RunFacts("run-1", world.mix, world.nodes, "", "")
    show(RunRecord(RunStore(Path("run-1")), facts, happened, summary), console)
    return console.file.getvalue()


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
        report(["run-1"], tmp_path)
        assert "running" in (text := capsys.readouterr().out)
        assert "hadar resume" not in text
    report(["run-1"], tmp_path)
    assert "hadar resume run-1" in capsys.readouterr().out


def test_mistakes_are_named(tmp_path):
    with pytest.raises(InputError, match="no run in"):
        report(None, tmp_path)
    store = stored(trained_world(), tmp_path)
    with pytest.raises(InputError, match="did you mean 'run-1'"):
        report(["run-2"], tmp_path)
    with pytest.raises(InputError, match="--list"):
        report(["run-1"], tmp_path, every=True)
    lines = store.journal_path.read_bytes().splitlines(keepends=True)
    store.journal_path.write_bytes(b"".join([*lines, *lines[1:]]))  # everything happens twice
    with pytest.raises(StorageError, match="contradict"):
        report(["run-1"], tmp_path)


def test_a_forecast_is_held_against_what_happened(tmp_path, capsys):
    world = trained_world()
    ttd_s = world.journal.events[-1].t
    forecast = Forecast(1.5 * ttd_s, {"job-0": 1.0}, None, "the formula")
    stored(world, tmp_path, forecast=forecast)
    report(None, tmp_path)
    assert "50.0 % too long" in capsys.readouterr().out
    report(None, tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)["forecast"]
    assert told["ttd_error"] == pytest.approx(0.5)
    assert told["forecast"]["basis"] == "the formula"
    assert set(told["jct_errors"]) == {"job-0"}


# -- several runs ------------------------------------------------------------------------------


def test_runs_are_compared_and_the_best_is_marked(tmp_path, capsys):
    stored(m5_world(), tmp_path, "forked")
    stored(m5_world("yarn-cs"), tmp_path, "queued")
    report(["queued", "forked"], tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in told["runs"]] == ["queued", "forked"]
    assert [run["policy"] for run in told["runs"]] == ["yarn-cs", "hadare"]
    assert told["best"]["ttd_s"] == "forked"
    assert [len(job["outcomes"]) for job in told["jobs"]] == [2] * 5
    assert told["caveats"] == []
    report(["queued", "forked"], tmp_path)
    lines = capsys.readouterr().out.splitlines()
    (queued,) = [line for line in lines if line.startswith("queued ")]
    (forked,) = [line for line in lines if line.startswith("forked ")]
    best_s = format.duration(min(run["ttd_s"] for run in told["runs"]))
    assert f"{best_s}*" in forked and f"{best_s}*" not in queued
    assert max(map(len, lines)) <= 120


def test_what_cannot_be_compared_is_said(tmp_path, capsys):
    stored(trained_world(), tmp_path, "whole")
    stored(unlucky_world(), tmp_path, "broken")
    stored(m5_world(), tmp_path, "other")
    report(["whole", "broken", "other"], tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    words = " ".join(told["caveats"])
    assert "other trained other jobs than whole" in words
    assert "broken is stopped" in words
    assert "broken trained other jobs" not in words
    assert "ttd_s" not in told["best"] or told["best"]["ttd_s"] != "broken"
    with pytest.raises(InputError, match="with itself"):
        report(["whole", "whole"], tmp_path)


@pytest.mark.parametrize("width", [80, 120])
def test_a_comparison_fits_the_terminal_with_its_names_whole(tmp_path, width):
    records = [
        read_record(stored(m5_world(policy), tmp_path, f"m5-1116-0342-{policy}"))
        for policy in ("hadare", "gavel")
    ]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    compare.show(compare.compare(records), console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("m5-1116-0342-gavel ") for line in lines)


# -- tables ------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_directory_of_tables_adds_up_to_the_summary(tmp_path, capsys):
    stored(m5_world(), tmp_path / "runs", "m5")
    report(None, tmp_path / "runs", tables=tmp_path / "tables")
    report(None, tmp_path / "runs", as_json=True)
    told = json.loads(capsys.readouterr().out)
    found = {path.stem: rows_of(path) for path in (tmp_path / "tables").glob("*.csv")}
    assert set(found) >= {"run", "jobs", "devices", "rates", "commits", "quality", "attempts"}
    trained_s = sum(float(row["train_s"]) for row in found["attempts"])
    assert trained_s == pytest.approx(told["busy_s"])
    steps = {row["job"]: int(row["steps"]) for row in found["commits"]}  # the last one counts
    assert steps == {job["name"]: job["steps_done"] for job in told["jobs"]}
    assert {row["accuracy"] for row in found["quality"]} == {"0.1", "0.9"}
    assert {(row["run"], row["policy"]) for rows in found.values() for row in rows} == {
        ("m5", "hadare")
    }


def test_one_file_holds_a_row_for_each_value(tmp_path):
    stored(m5_world(), tmp_path, "one")
    stored(m5_world("gavel"), tmp_path, "two")
    report(["one", "two"], tmp_path, tables=tmp_path / "all.csv")
    rows = rows_of(tmp_path / "all.csv")
    assert list(rows[0]) == ["run", "policy", "table", "job", "device", "t_s", "measure", "value"]
    ttds = {row["run"]: float(row["value"]) for row in rows if row["measure"] == "ttd_s"}
    assert set(ttds) == {"one", "two"} and min(ttds.values()) > 0
    assert all(row["measure"] and row["value"] for row in rows)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    stored(trained_world(), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        report(None, tmp_path, tables=tmp_path / "file" / "x.csv")
    with pytest.raises(InputError, match="directory"):
        report(None, tmp_path, page=tmp_path)


def test_a_finished_run_is_reported_without_heavy_imports(tmp_path):
    stored(trained_world(), tmp_path)
    code = (
        "import sys; from pathlib import Path; from hadar_cli.cli.runs.report import report\n"
        "report(None, Path(sys.argv[1]), True)\n"
        "print(*{'torch', 'highspy', 'numpy', 'safetensors'} & set(sys.modules), file=sys.stderr)"
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
