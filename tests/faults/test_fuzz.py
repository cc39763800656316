"""A part of the fuzzers and of the bit flips, and proof that the fuzzers bite."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from hadar_cli import policies
from hadar_cli.core import events
from hadar_cli.core.events import EVENTS
from hadar_cli.core.model import PolicyChoice
from hadar_cli.errors import InputError, StorageError
from hadar_cli.node.agent import watch
from hadar_cli.nodes import orders, wire
from hadar_cli.report.record import read_record
from hadar_cli.runs import store
from hadar_cli.runs.store import FileJournal, RunStore, read_journal
from hadar_cli.simulation import traces
from hadar_cli.simulation.traces import read_throughputs, read_trace
from hadar_cli.weights import safetensors_file
from tests.faults import fuzz_files
from tests.faults.flips import damage_all
from tests.faults.fuzz import REFUSED, TAKEN, UNREAD, run_chunk, targets
from tests.faults.fuzz_nodes import WEIGHTS, Rig, heard

NAMES = [
    "nodes.toml",
    "inventories",
    "mix files",
    "mixes",
    "journals",
    "run.json",
    "traces",
    "throughputs",
    "results",
    "agent messages",
    "frames",
    "visits",
    "checkpoint headers",
]


def test_all_targets_are_run(tmp_path: Path) -> None:
    assert list(targets(tmp_path)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_taken_or_refused(name: str) -> None:
    tally = run_chunk((name, 1000, 250))
    assert not tally.violations
    assert tally.outcomes[TAKEN] and tally.outcomes[REFUSED] and tally.outcomes.total() == 250
    assert tally.outcomes[UNREAD] < 125


def test_the_same_seed_makes_the_same_inputs() -> None:
    assert run_chunk(("results", 7, 100)).outcomes == run_chunk(("results", 7, 100)).outcomes


# -- that the fuzzers bite -----------------------------------------------------------------------


def decode_trustingly(line: bytes) -> object:
    name, fields = msgspec.json.decode(line.partition(b" ")[2])
    return msgspec.convert(fields, EVENTS[name])


def parse_trustingly(line: bytes) -> wire.Message:
    message: wire.Message = json.loads(line)
    return message


BUGS = {
    "journals": (store, "decode", decode_trustingly),
    "frames": (wire, "_parse", parse_trustingly),
    "agent messages": (wire, "_parse", parse_trustingly),
    "throughputs": (traces, "_rate", float),
    "checkpoint headers": (safetensors_file, "quote", str),
    "visits": (wire, "said", str),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_noticed(name: str) -> None:
    owner, attribute, bug = BUGS[name]
    with patch.object(owner, attribute, bug):
        found = run_chunk((name, 1, 3000))
    assert found.violations


def test_numbers_without_bound_are_noticed() -> None:
    with patch.object(orders, "_check_size", lambda _: None):
        assert run_chunk(("results", 1, 6000)).violations


# -- what was found once -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"true", b"[1, 2]", b'[{"a": 1}, {}]', b'["HeadStarted"]', b"[" * 5000]
)
def test_a_journal_line_that_is_no_record(tmp_path: Path, body: bytes) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body) * 2)
    with pytest.raises(StorageError, match=r"journal.jsonl:1: damaged record"):
        read_journal(journal)


def test_words_of_a_strange_journal_are_harmless(tmp_path: Path) -> None:
    run = RunStore.create(tmp_path, fuzz_files.FACTS)
    body = json.dumps(["DeviceReturned", {"t": 1.0, "device": "\x1b[31m\u202e"}]).encode()
    run.journal_path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    fuzz_files.run_holds(run)


@pytest.mark.parametrize("rate", ["NaN", "Infinity", "1" + "0" * 400])
def test_rates_that_are_no_numbers(tmp_path: Path, rate: str) -> None:
    table = tmp_path / "table.json"
    table.write_text('{"v100": {"(\'LM\', 1)": {"null": %s}}}' % rate)  # noqa: UP031
    with pytest.raises(InputError, match="is not a table of throughputs"):
        read_throughputs(table)


@pytest.mark.parametrize("model", ["0", "²", "LM (batch size ²)", "LM (batch size 0)", "7"])
def test_a_batch_size_that_is_none_is_not_made_one(tmp_path: Path, model: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"job_id,arrival_s,model,num_gpus,total_steps\n0,0,{model},1,10\n")
    [job] = read_trace(trace).jobs
    assert (job.name, job.batch_size) == (model, 1)


def test_times_too_long_to_add_up_are_refused(tmp_path: Path) -> None:
    run = RunStore.create(tmp_path, fuzz_files.FACTS)
    journal = FileJournal(run.journal_path)
    for device, attempt in (("n", "a"), ("m", "b")):
        steps = ((0, 1),) if device == "n" else ((1, 2),)
        journal.append(events.CopyStarted(0.0, attempt, 0, 1, device, 1, 0, steps))
        journal.append(
            events.CopyFinished(1e308, attempt, 1, steps, 1.7e308, 1.7e308, 1.7e308, "end", "w")
        )
    with pytest.raises(StorageError, match="contradict"):
        read_record(run)


def test_a_policy_field_out_of_place_names_its_file() -> None:
    for fields in ({"objective": "MAKESPAN"}, {"objective": 1}):
        with pytest.raises(InputError) as raised:
            policies.create(PolicyChoice("hadar", fields, line=3), "mix.yaml")
        assert (raised.value.file, raised.value.line) == ("mix.yaml", 3)
        assert raised.value.fix


@pytest.mark.parametrize(
    "lie",
    [
        {"steps": 20, "slices": [[0, 10**30]]},
        {"steps": 10**30},
        {"steps": 5, "missed_paces": 2**70},
        {"steps": 5, "evaluation": {f"m{i}": 0.1 for i in range(2000)}},
        {"steps": 5, "seconds": 3},
        {"steps": 5, "seconds": {"train": 10**400}},
        {"steps": True},
        ["steps"],
        7,
    ],
)
def test_a_result_that_cannot_be_is_a_lost_copy(lie: object) -> None:
    rig = Rig()
    message = {"event": "finished", "attempt": rig.order.attempt, "result": lie}
    rig.hear({**message, "weights": WEIGHTS, "bytes": 9})
    assert rig.outcome() == REFUSED
    assert [type(event).__name__ for event in rig.journal.events].count("CopyLost") == 1


@pytest.mark.parametrize("line", [b"7", b"[]", b"null", b'{"a": "\\ud800"}', b"[" * 10_000, b"{"])
def test_a_line_that_is_no_message_costs_the_link(line: bytes) -> None:
    assert heard(line) is None


def test_halves_of_characters_that_make_a_whole_one_are_text() -> None:
    assert heard(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize("content", ["[1]", "{", "[" * 5000, json.dumps({"x": "y" * 300_000})])
def test_a_result_file_that_is_none_is_told_with_the_reason(tmp_path: Path, content: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    results = watch.Results()
    assert results.read(path, 10.0) is None  # it may be half written
    assert results.read(path, 11.0) is None
    assert (results.read(path, 12.1) or {})["problem"]


@pytest.mark.parametrize("days", [-9, 9])
def test_a_wall_clock_that_was_set_changes_nothing_about_a_half_written_result(
    tmp_path: Path, days: int
) -> None:
    path = tmp_path / "result.json"
    path.write_text("{")
    os.utime(path, (time.time() + days * 86400,) * 2)
    results = watch.Results()
    assert results.read(path, 10.0) is None
    assert (results.read(path, 12.1) or {})["problem"]
    path.write_text("{}")
    assert results.read(path, 12.2) == {}


# -- checkpoints ---------------------------------------------------------------------------------


def test_every_flipped_bit_and_every_truncation_is_refused() -> None:
    damage = damage_all(seed=1, flips=1000)
    assert damage.tried == Counter(flips=1000, truncations=len(damage.true))
    for kind in damage.tried:
        assert not damage.accepted[f"{kind} taken by pull"]
        assert not damage.accepted[f"{kind} taken by resume"]
    assert damage.accepted["flips taken by our parser alone"] > 500  # so it is the hash that does
