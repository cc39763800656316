"""TensorBoard, W&B and MLflow read back, by their own readers, what a run's journal says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.core.measures.points import DEVICES, Points
from hadar_cli.observers import writing
from hadar_cli.observers.catalog import parse
from hadar_cli.observers.writing import ObserverFiles, follow, write_once
from hadar_cli.report.record import read_record
from hadar_cli.runs.store import RunStore, read_journal
from tests.e2e.test_kill import ENVIRONMENT, HADAR, NODES, TRAIN, start, wait_for
from tests.integration.test_adoption import wait_until
from tests.support.runs import m5_world, stored

pytestmark = pytest.mark.timeout(600)
Curves = dict[tuple[str, str], list[tuple[int, float]]]  # by series and tag
SECRET = "T0KEN-that-nobody-should-read"
NAMES = ("tensorboard", "wandb", "mlflow")


def told(store: RunStore) -> Curves:
    """What the journal says."""
    curves: Curves = defaultdict(list)
    points = Points(store.facts.mix.jobs)
    for event in read_journal(store.journal_path):
        for point in points.take(event):
            for tag, value in point.values.items():
                curves[point.series, tag].append((point.step, value))
    return dict(curves)


def from_tensorboard(store: RunStore) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves: Curves = {}
    for folder in (store.directory / "tensorboard").iterdir():
        read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        for tag in read.Tags()["scalars"]:
            curves[folder.name, tag] = [(one.step, one.value) for one in read.Scalars(tag)]
    return curves


def from_wandb(store: RunStore) -> Curves:
    from wandb.util import get_core_path

    rows: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for path in store.directory.glob("wandb/offline-run-*/*.wandb"):
        words = ["leet", "inspect", "--no-observability", "--json", "--run-file", str(path)]
        command = [get_core_path(), *words, str(path.parent)]
        listed = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
        records = [json.loads(line) for line in listed]
        (series,) = {r["run"]["display_name"].split("/")[1] for r in records if r["type"] == "run"}
        for item in (r["history"]["item"] for r in records if r["type"] == "history"):
            assert item["_step"] not in rows[series], "a row came twice"
            rows[series][item["_step"]] = item
    curves: Curves = defaultdict(list)
    for series, items in rows.items():
        assert sorted(items) == list(range(len(items))), "a row is missing"
        for _, item in sorted(items.items()):
            for tag in item.keys() - {"_step", "_runtime", "_timestamp", "steps", "seconds"}:
                curves[series, tag].append((item["steps"], item[tag]))
    return dict(curves)


def from_mlflow(store: RunStore) -> Curves:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient((store.directory.parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name(store.facts.mix.name)
    curves: Curves = {}
    for run in client.search_runs([experiment.experiment_id]):
        series = run.info.run_name.split("/")[1]
        for tag in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, tag)
            curves[series, tag] = [(one.step, one.value) for one in history]
    return curves


READERS = {"tensorboard": from_tensorboard, "wandb": from_wandb, "mlflow": from_mlflow}


def assert_read_back(store: RunStore, name: str) -> None:
    expected, read = told(store), READERS[name](store)
    assert read.keys() == expected.keys()
    for curve, points in expected.items():
        assert [step for step, _ in read[curve]] == [step for step, _ in points], curve
        values = [value for _, value in points]
        assert [value for _, value in read[curve]] == pytest.approx(values, rel=1e-6), curve


def test_a_head_that_is_killed_and_resumed_leaves_whole_curves_everywhere(tmp_path: Path) -> None:
    mix = "{script: train.py, name: %s, steps: %d, batch_size: 8}"
    jobs = "".join(f"  - {mix % job}\n" for job in (("long", 600), ("short", 150)))
    (tmp_path / "mix.yaml").write_text(f"name: seen\nslot_s: 1.5\njobs:\n{jobs}")
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "train.py").write_text(TRAIN)
    observe = [word for name in NAMES for word in ("--observe", name)]
    process = start(tmp_path, "run", "mix.yaml", "--name", "seen", *observe)
    wait_for(tmp_path, process, events.WeightsMerged, 2)
    process.kill()
    process.wait()
    command = [*HADAR, "resume", "seen"]  # it goes on with the observers that the run had
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    store = RunStore(tmp_path / "runs" / "seen")
    for name in NAMES:
        if "fix: hadar report" in done.stderr:  # so busy a machine that the head did not wait
            write_once(store, parse([name], "--to")[0])
        assert_read_back(store, name)
    record = read_record(store)
    long = record.histories[0]
    losses = [(one.steps, one.loss) for one in long.commits]
    assert told(store)["long", "loss"] == losses
    assert told(store)["long", "quality/mse"][-1] == (600, long.measurements[-1].values["mse"])


@pytest.mark.parametrize("name", NAMES)
def test_a_run_written_late_and_in_pieces_has_every_value_once(tmp_path: Path, name: str) -> None:
    """The journal grows between two writings, and one of them was cut off in the middle."""
    store = stored(m5_world(), tmp_path / "runs")
    whole = store.journal_path.read_bytes().split(b"\n")
    (choice,) = parse([name], "--to")
    store.journal_path.write_bytes(b"\n".join(whole[: len(whole) // 2]) + b"\n0000")
    first, _ = write_once(store, choice)
    if name == "tensorboard":
        path = next((store.directory / "tensorboard").glob("weather/*"))
        path.write_bytes(path.read_bytes()[:-5])
    store.journal_path.write_bytes(b"\n".join(whole))
    second, _ = follow(store, choice)
    assert first > 0 and second > 0
    assert write_once(store, choice)[0] == 0
    assert_read_back(store, name)


def test_a_sink_that_comes_back_has_caught_up_before_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_TRY_AGAIN_S", (0.2,))
    monkeypatch.setattr(writing, "_LOOK_EVERY_S", 0.1)
    store = stored(m5_world(), tmp_path / "runs")
    whole = store.journal_path.read_bytes().split(b"\n")
    store.journal_path.write_bytes(b"\n".join(whole[: len(whole) // 2]) + b"\n")
    (choice,) = parse(["tensorboard"], "--to")
    in_the_way = store.directory / "tensorboard"
    in_the_way.write_text("a file where a folder should be")
    files = ObserverFiles(store, "tensorboard")
    with ThreadPoolExecutor() as pool:
        with store.locked():  # a head drives it
            following = pool.submit(follow, store, choice)
            wait_until(lambda: bool(files.problem), 60)
            assert "Not a directory" in files.problem
            in_the_way.unlink()
            wait_until(lambda: not files.problem, 60)
            assert_read_back(store, "tensorboard")
            store.journal_path.write_bytes(b"\n".join(whole))
        following.result(timeout=60)
    assert_read_back(store, "tensorboard")


def test_utilisation_adds_up_to_the_time_that_devices_trained(tmp_path: Path) -> None:
    store = stored(m5_world(), tmp_path)
    busy: dict[str, float] = defaultdict(float)
    until: dict[str, float] = defaultdict(float)
    points = Points(store.facts.mix.jobs)
    for event in read_journal(store.journal_path):
        for point in points.take(event):
            for tag, share in point.values.items() if point.series == DEVICES else ():
                assert 0.0 <= share <= 1.0
                busy[tag] += share * (point.t - until[tag])
                until[tag] = point.t
    summary = read_record(store).summary
    expected = {f"utilisation/{d.name}": pytest.approx(d.busy_s) for d in summary.devices}
    assert busy == expected


def make_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own folder, outside of what travels to nodes, with settings and a command."""
    home = tmp_path_factory.mktemp("home")
    (home / "hadar").mkdir()
    settings = home / "hadar" / "settings.toml"
    settings.write_text(f'[[notify]]\nwebhook = "http://127.0.0.1:9/{SECRET}"\n')
    settings.chmod(0o600)
    heard = f"open({str(home / 'heard.json')!r}, 'a')"
    (home / "note.py").write_text(f"import sys\n{heard}.write(sys.stdin.read())\n")
    return home


def test_a_sink_that_is_down_costs_a_warning_and_is_made_up_for(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = make_home(tmp_path_factory)
    (tmp_path / "mix.yaml").write_text(
        "name: down\nslot_s: 1.5\njobs:\n"
        "  - {script: train.py, name: only, steps: 300, batch_size: 8}\n"
    )
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "train.py").write_text(TRAIN)
    in_the_way = tmp_path / "boards"
    in_the_way.write_text("a file where a folder should be")
    words = ["run", "mix.yaml", "--name", "down", "--observe", f"tensorboard:dir={in_the_way}"]
    words += ["--notify", f"command:{sys.executable} {home / 'note.py'}"]
    environment = {**ENVIRONMENT, "XDG_CONFIG_HOME": str(home)}
    done = subprocess.run(
        [*HADAR, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((home / "heard.json").read_text())["event"] == "end"
    assert re.search("warning: the webhook of .* could not notify", done.stderr), done.stderr
    kept = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in path.read_bytes() for path in kept)
    assert SECRET not in done.stdout + done.stderr
    assert "warning: tensorboard: " in done.stderr
    assert f"fix: hadar report {Path('runs/down')} --to tensorboard" in done.stderr
    store = RunStore(tmp_path / "runs" / "down")
    assert read_record(store).summary.state == "finished"
    in_the_way.unlink()
    write_once(
        store, ObserverFiles(store, "tensorboard").kept() or parse(["tensorboard"], "--to")[0]
    )
    (in_the_way / "down").rename(store.directory / "tensorboard")
    assert_read_back(store, "tensorboard")
