"""Fuzz targets: files that people write, and files of a run's directory."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from hadar_cli import policies
from hadar_cli.config.fields import Document
from hadar_cli.config.inventory import nodes_of, read_nodes
from hadar_cli.config.mixes import Setting, mix_of, read_mix
from hadar_cli.config.strict_toml import parse_toml
from hadar_cli.config.strict_yaml import parse_yaml
from hadar_cli.core import events
from hadar_cli.core.model import Job, Mix, Node
from hadar_cli.core.state import RunState
from hadar_cli.errors import InputError, StorageError
from hadar_cli.nodes.remote import command_of
from hadar_cli.report.log import RunLog
from hadar_cli.report.record import read_record
from hadar_cli.runs.store import RunFacts, RunStore, read_journal
from tests.faults.fuzz import REFUSED, TAKEN, UNREAD, Target
from tests.faults.fuzz_mutation import Mutator, break_bytes, to_json, to_toml

ROOT = Path(__file__).parents[2]


def targets(folder: Path) -> list[Target]:
    return [
        Target("nodes.toml", 20, NODES.make, InventoryFiles(folder).examine),
        Target("inventories", 140, NODES.make, examine_inventory),
        Target("mix files", 20, MIXES.make, MixFiles(folder).examine),
        Target("mixes", 150, MIXES.make, Mixes(folder).examine),
        Target("journals", 110, make_journal, Journals(folder / "j").examine),
        Target("run.json", 60, make_facts, Facts(folder / "f").examine),
    ]


def place_is_told(error: InputError, file: str, lines: int) -> str:
    """A refusal names its file, a line that is there, and what to do; and fits on a screen."""
    assert error.file == file and error.fix, error
    assert error.line is None or 1 <= error.line <= lines, error
    assert str(error)
    return REFUSED


# -- nodes.toml ----------------------------------------------------------------------------------

FULL_NODE = {
    "name": "gpu-box",
    "host": "me@gpu-box.lab",
    "port": 2222,
    "user": "me",
    "identity_file": "~/.ssh/id_lab",
    "proxy_jump": "gate",
    "host_key": "ssh-ed25519 AAAA",
    "known_hosts": "~/known",
    "python": "~/venv/bin/python",
    "workdir": "~/.hadar",
    "env": {"A": "1", "B": ""},
    "gpus": [{"model": "RTX 3090"}, {"model": "Own", "tflops": 9.5, "vram_gb": 12, "pcie": 4}],
    "max_gpu_mem": 0.5,
    "hours": "19:00-07:00",
    "price_per_hour": 1.25,
    "enabled": True,
}
NODES = Mutator(
    [
        {"node": [FULL_NODE, {"name": "b", "host": "local", "emulate": {"speed": 0.5}}]},
        {"defaults": {"host": "local", "port": 22, "env": {"A": "1"}}, "node": [{"name": "one"}]},
        {"node": [{"name": f"n{i}", "host": f"10.0.0.{i}"} for i in range(6)]},
    ]
)


def inventory_holds(nodes: tuple[Node, ...]) -> str:
    assert len({node.name for node in nodes}) == len(nodes) > 0
    assert survives_json(nodes, tuple[Node, ...])
    for node in nodes:
        assert re.fullmatch(r"[A-Za-z0-9][\w.-]*", node.name, re.ASCII)
        assert node.port is None or 0 < node.port < 65536
        assert len(node.devices) == max(1, len(node.gpus))
        try:
            assert command_of(node).isprintable()
        except InputError as error:
            assert error.fix
    return TAKEN


def examine_inventory(document: Any) -> str:
    """The checks of an inventory without the reading of TOML, which takes longer than they do."""
    try:
        nodes = nodes_of(Document("nodes.toml", document, {}))
    except InputError as error:
        return place_is_told(error, "nodes.toml", 0)
    return inventory_holds(nodes)


class InventoryFiles:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "nodes.toml"

    def examine(self, document: Any) -> str:
        text = to_toml(document)
        self._path.write_text(text, errors="surrogatepass")
        try:
            nodes = read_nodes(self._path)
        except InputError as error:
            told = place_is_told(error, str(self._path), text.count("\n") + 1)
            return told if parses(parse_toml, text) else UNREAD
        return inventory_holds(nodes)


def parses(parse: Callable[[str, str], object], text: str) -> bool:
    try:
        parse(text, "f")
    except InputError:
        return False
    return True


def survives_json(value: Any, form: Any) -> bool:
    return bool(msgspec.json.decode(msgspec.json.encode(value), type=form) == value)


# -- mixes ---------------------------------------------------------------------------------------

MIXES = Mutator(
    [
        {
            "name": "all",
            "slot_s": 30,
            "seed": 7,
            "policy": {"name": "hadare"},
            "merge": {
                "rule": "progress",
                "lr_scale": "sqrt",
                "warmup": 0.1,
                "solo": 0.2,
                "optimizer_state": "leader",
                "outer": {"lr": 0.7, "momentum": 0.9},
                "every_s": 5,
            },
            "jobs": [
                {"workload": "MM", "epochs": 2, "batch_size": 8, "samples": 100, "count": 3},
                {
                    "script": "x.py",
                    "steps": 5,
                    "name": "own",
                    "args": ["a", "--b=1"],
                    "env": {"A": "1"},
                    "sync": ".",
                    "setup": "pip list",
                    "retry": 2,
                    "fork": "auto",
                    "max_duration": "1h30m",
                    "model_size": "small",
                    "dataset_size": "XL",
                    "gpus": 2,
                    "elastic": True,
                    "arrives_s": 2.5,
                    "preset": "tiny",
                    "data_dir": "/data",
                },
            ],
        },
        {"jobs": [{"workload": "weather"}, {"workload": "weather", "name": "w2"}]},
        {"policy": {"name": "hadar", "objective": "makespan"}, "jobs": [{"workload": "IC"}]},
        {"policy": "gavel", "merge": "paper", "jobs": [{"script": "x.py", "steps": 9, "fork": 2}]},
    ]
)


def mix_holds(mix: Mix) -> str:
    assert [job.id for job in mix.jobs] == list(range(len(mix.jobs)))
    assert len({job.name for job in mix.jobs}) == len(mix.jobs) > 0
    assert all(type(job.target_steps) is int and job.target_steps > 0 for job in mix.jobs)
    assert 0 < mix.slot_s < math.inf
    if len(mix.jobs) < 50:
        assert survives_json(mix, Mix)
    try:
        assert policies.create(mix.policy, mix.source).name == mix.policy.name
    except InputError as error:
        assert error.file and error.fix
        return REFUSED
    return TAKEN


class Mixes:
    """The checks of a mix without the reading of YAML, which takes longer than they do."""

    def __init__(self, folder: Path) -> None:
        (folder / "x.py").touch()
        self._setting = Setting(folder, accelerators=False, data_dir=None)

    def examine(self, document: Any) -> str:
        try:
            mix = mix_of(Document("mix.yaml", document, {}), self._setting)
        except InputError as error:
            return place_is_told(error, "mix.yaml", 0)
        return mix_holds(mix)


class MixFiles:
    """JSON is YAML, near enough."""

    def __init__(self, folder: Path) -> None:
        (folder / "x.py").touch()
        self._path = folder / "mix.yaml"

    def examine(self, document: Any) -> str:
        text = json.dumps(document, indent=1)
        self._path.write_text(text)
        try:
            mix = read_mix(self._path)
        except InputError as error:
            told = place_is_told(error, str(self._path), text.count("\n") + 1)
            return told if parses(parse_yaml, text) else UNREAD
        return mix_holds(mix)


# -- a run's directory ---------------------------------------------------------------------------

JOBS = (Job(0, "a", 10, 4), Job(1, "b", 6, 4, arrives_s=1.0))
NODE_FACTS = (Node("n", "local"), Node("m", "local", emulated_speed=0.5))
FACTS = RunFacts("run", Mix("mix", JOBS), NODE_FACTS, "2026-01-01T00:00:00", "0.1.0")


def history() -> list[events.Event]:
    """One of each kind of event, in a run that happened."""
    return [
        events.HeadStarted(0.0, 1, {"hadar": "0.1.0", "python": "3.11"}),
        events.RoundPlanned(0.5, 1, ((0, "n", 6), (0, "m", 4), (1, "n", 6))),
        events.CopyStarted(1.0, "e1-1", 0, 1, "n", 1, 0, ((0, 6),), 1.0),
        events.CopyStarted(1.0, "e1-2", 0, 3, "m", 1, 0, ((6, 10),), 1.5),
        events.CopyFinished(
            4.0, "e1-1", 6, ((0, 6),), 0.1, 2.0, 0.2, "end", "ab" * 32, 0.5, {"acc": 0.1}, 1, True
        ),
        events.CopyLost(5.0, "e1-2", "it exited with code 1", "Traceback\nboom"),
        events.WeightsMerged(5.5, 0, 1, "cd" * 32, ("e1-1",), (), 0.1, 1000),
        events.DeviceLost(6.0, "m", "its node is gone"),
        events.DeviceReturned(7.0, "m"),
        events.CopyStarted(7.5, "e1-3", 1, 2, "n", 1, 0, ((0, 6),)),
        events.RunStopped(8.0, "interrupted"),
        events.HeadStarted(9.0, 2, {}),
        events.RoundPlanned(9.1, 2, ((0, "m", 4), (1, "n", 6))),
        events.CopyStarted(9.2, "e2-4", 0, 3, "m", 2, 1, ((6, 10),)),
        events.CopyStarted(9.2, "e2-5", 1, 2, "n", 2, 0, ((0, 3),)),
        events.CopyStarted(9.5, "e2-6", 1, 2, "n", 2, 1, ((3, 6),), 1.0, "train", (), "e2-5"),
        events.CopyFinished(11.0, "e2-5", 3, ((0, 3),), 0.1, 1.0, 0.1, "end", "ef" * 32),
        events.WeightsMerged(11.5, 1, 1, "ef" * 32, ("e2-5",)),
        events.CopyFinished(12.0, "e2-6", 3, ((3, 6),), 0.0, 1.0, 0.1, "end", "01" * 32),
        events.CopyFinished(12.5, "e2-4", 4, ((6, 10),), 0.1, 1.0, 0.1, "deadline", "23" * 32),
        events.WeightsMerged(13.0, 1, 2, "01" * 32, ("e2-6",)),
        events.WeightsMerged(13.0, 0, 2, "23" * 32, ("e2-4",)),
        events.CopyStarted(13.5, "e2-7", 0, 3, "m", 2, 2, (), 1.0, "evaluate"),
        events.CopyFinished(14.0, "e2-7", 0, (), 0.1, 0.0, 0.0, "end", None, None, {"acc": 0.9}),
        events.RunFinished(15.0, 9.5),
    ]


HISTORY = [[type(e).__name__, msgspec.to_builtins(e)] for e in history()]
JOURNALS = Mutator([HISTORY] * 5 + [HISTORY[:10], HISTORY[:19]], list(events.EVENTS))


def make_journal(dice: Random) -> bytes:
    lines = []
    records = JOURNALS.make(dice)
    for record in records if isinstance(records, list) else [records]:
        body = to_json(record)
        lines.append(b"%08x " % zlib.crc32(body) + body + b"\n")
    content = b"".join(lines)
    return break_bytes(content, dice) if dice.random() < 0.1 else content


def run_holds(store: RunStore) -> None:
    """All that reports tell of a run can be told, and adds up."""
    record = read_record(store)
    state = RunState(record.facts.mix.jobs)
    log = RunLog(state)
    for event in record.happened:
        state.apply(event)
        assert all(entry.words.isprintable() for entry in log.hear(event))
    for job in state.jobs.values():
        assert 0 <= len(job.done) == job.job.target_steps - job.remaining <= job.job.target_steps
        assert not job.done.ranges or job.done.ranges[-1][1] <= job.job.target_steps
    told = msgspec.json.encode(record.told)
    assert b"NaN" not in told
    assert record.timeline and record.histories is not None


class Journals:
    def __init__(self, folder: Path) -> None:
        self._store = RunStore.create(folder / "runs", FACTS)

    def examine(self, content: bytes) -> str:
        self._store.journal_path.write_bytes(content)
        try:
            read_journal(self._store.journal_path)
            run_holds(self._store)
        except StorageError as error:
            assert str(self._store.journal_path) in str(error)
            return REFUSED
        return TAKEN


RUN_FACTS = Mutator([msgspec.to_builtins(FACTS)])


def make_facts(dice: Random) -> bytes:
    return to_json(RUN_FACTS.make(dice))


class Facts:
    def __init__(self, folder: Path) -> None:
        self._store = RunStore.create(folder / "runs", FACTS)
        lines = [to_json(record) for record in HISTORY]
        journal = b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines)
        self._store.journal_path.write_bytes(journal)

    def examine(self, content: bytes) -> str:
        (self._store.directory / "run.json").write_bytes(content)
        try:
            run_holds(self._store)
        except StorageError as error:
            assert str(self._store.directory) in str(error)
            return REFUSED
        return TAKEN
