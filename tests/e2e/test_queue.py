"""A run to which people add and of which they take, with a head that is killed at every stage."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.runs.store import read_journal
from tests.e2e.test_kill import ENVIRONMENT, HADAR, NODES, TRAIN, start, wait_for
from tests.support.strays import all_gone, living

MIX = """
name: first
slot_s: 1.5
jobs:
  - {script: train.py, name: long, steps: 500, batch_size: 8}
  - {script: train.py, name: bad, steps: 100000, batch_size: 8}
"""
MORE = "jobs:\n  - {script: train.py, name: more, steps: 400, batch_size: 8, priority: 3}\n"
SPARE = '[[node]]\nname = "three"\nhost = "local"\n'
PATIENCE_S = 240.0


@pytest.fixture
def lab(tmp_path):
    for name, text in {
        "nodes.toml": NODES,
        "mix.yaml": MIX,
        "more.yaml": MORE,
        "spare.toml": SPARE,
        "train.py": TRAIN,
    }.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    assert all_gone(tmp_path, within_s=30.0), living(tmp_path)


def ask(lab: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [*HADAR, *arguments],
        cwd=lab,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def happened(lab: Path) -> list[events.Event]:
    return read_journal(lab / "runs" / "queue" / "journal.jsonl")


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_jobs_and_nodes_come_and_go_while_heads_are_killed(lab):
    process = start(lab, "run", "mix.yaml", "--name", "queue", "--wait-for-work")
    wait_for(lab, process, events.WeightsMerged, 2)
    asked = [
        ("add", "queue", "more.yaml"),
        ("nodes", "add", "queue", "spare.toml"),
        ("cancel", "queue", "bad"),
        ("nodes", "drain", "queue", "one"),
    ]
    for number, arguments in enumerate(asked):
        if number % 2:  # somebody asks while no head is there
            kill(process)
            assert "takes it up" in ask(lab, *arguments)
        else:
            ask(lab, *arguments)
            kill(process)
        heads = sum(isinstance(event, events.HeadStarted) for event in happened(lab))
        process = start(lab, "resume", "queue")
        wait_for(lab, process, events.HeadStarted, heads + 1)
    assert "already" in ask(lab, "add", "queue", "more.yaml", code=2)
    ask(lab, "close", "queue")
    assert process.wait(timeout=PATIENCE_S) == 0, process.stderr.read()

    report = json.loads(ask(lab, "report", "queue", "--json"))
    assert report["forecast"] is None, "it was of other jobs"
    done = {job["name"]: (job["steps_done"], job["steps_target"]) for job in report["jobs"]}
    assert done["long"] == (500, 500) and done["more"] == (400, 400)
    assert done["bad"][0] < done["bad"][1]
    told = happened(lab)
    granted = [e for e in told if getattr(e, "request", "")]
    assert len({event.request for event in granted}) == len(granted) == len(asked) + 1
    drained = next(n for n, e in enumerate(told) if isinstance(e, events.NodeDrained))
    later = {e.device for e in told[drained:] if isinstance(e, events.CopyStarted)}
    assert "one" not in later and later <= {"two", "three"}
    assert "is over" in ask(lab, "add", "queue", "more.yaml", code=2)
    assert (lab / "runs" / "queue" / "models" / "more.safetensors").exists()


def test_a_paused_job_waits_and_goes_on_exactly_where_it_was(lab):
    # Long enough to be paused by a command that starts on a busy machine.
    (lab / "mix.yaml").write_text(MIX.replace("500", "1500").replace("100000", "150"))
    process = start(lab, "run", "mix.yaml", "--name", "queue")
    wait_for(lab, process, events.WeightsMerged, 1)
    ask(lab, "pause", "queue", "long")
    assert process.wait(timeout=PATIENCE_S) == 3
    assert "hadar continue queue long, then" in (told := process.stderr.read()), told
    told = happened(lab)
    paused = next(n for n, e in enumerate(told) if isinstance(e, events.JobsPaused))
    assert not [e for e in told[paused:] if isinstance(e, events.CopyStarted) and e.job == 0]
    ask(lab, "continue", "queue", "long")
    ask(lab, "resume", "queue")
    report = json.loads(ask(lab, "report", "queue", "--json"))
    assert [job["steps_done"] for job in report["jobs"]] == [1500, 150]
