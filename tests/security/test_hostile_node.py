"""A node that means harm costs the head that node and nothing else: no time, memory or files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hadar_cli.assembly import connect
from hadar_cli.core.model import Job, Launch, Mix
from hadar_cli.engine.ports import Failed, HandedIn, NodeGone, Report
from hadar_cli.node.agent.bootstrap import MARK
from hadar_cli.nodes import remote
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.session import decisions, returning
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.ssh import channel, link
from hadar_cli.visits.inspection import inspect
from tests.contract.test_executor import order
from tests.e2e.test_commands import SCRIPT, hadar, steps_of
from tests.security.hostile import Behaviour, Message, Visitor, hostile
from tests.support.runs import HOSTILE, MARKUP

MEGABYTE = 1 << 20
MEMORY = 120 * MEGABYTE  # that a hostile node may cost the head and, here, itself
JOB = Job(0, "plain", 100, 8, launch=Launch(workload="weather"))
CONTENT = b"weights of a kind"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a minute in life takes seconds here."""
    monkeypatch.setattr(decisions, "LEASE_S", 2.0)
    monkeypatch.setattr(returning, "RETURN_EVERY_S", 1000.0)
    monkeypatch.setattr(decisions, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(remote, "_FILES_S", 5.0)
    monkeypatch.setattr(channel, "PATIENCE_S", 5.0)
    monkeypatch.setattr(link, "_CHANNEL_S", 5.0)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "runs", RunFacts("r", Mix("m", ()), (), "", ""))


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        yield
        return
    before = _status_kb("VmRSS")
    yield
    assert 1024 * (_status_kb("VmHWM") - before) < MEMORY


def _status_kb(name: str) -> int:
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name)]
    return int(line.split()[1])


def honest_files(head: Visitor) -> None:
    for request in head.requests():
        if request["do"] == "get":
            head.say({"bytes": len(CONTENT)})
            head.write(CONTENT)
            head.say({"sha256": DIGEST})
        else:
            head.say({"have": True, "path": "/there"})


def agent(evil: Callable[[Visitor, Message], None], serve: Behaviour = honest_files) -> Behaviour:
    """An agent that is honest until it gets an order; ``serve`` is what its files are like."""

    def behave(head: Visitor) -> None:
        head.bootstrap()
        if head.become == "transfer":
            serve(head)
            return
        for request in head.requests():
            reply = {"answer": request["id"], "attempts": {}, "worker": "w", "number": 1}
            head.say(reply)
            if request["do"] == "order":
                evil(head, request)

    return behave


def finished(**fields: object) -> Message:
    result = {"steps": 10, "slices": [[0, 10]]}
    return {"event": "finished", "attempt": "a", "result": result, "bytes": 17, **fields}


def suffer(behaviour: Behaviour, store: RunStore, folder: Path) -> list[Report]:
    """Sends the node an order; what was reported until the copy's end was known."""
    with hostile(folder / "evil", behaviour) as evil:
        executor = NodeExecutor(connect([evil.node], store), 1, 0.0)
        executor.adopt([])
        executor.start(order("a", (0, 10), device="evil", job=JOB))
        reports: list[Report] = []
        deadline = time.monotonic() + 100
        while not any(isinstance(r, Failed | HandedIn) for r in reports):
            assert time.monotonic() < deadline, "the head still waits"
            reports += executor.wait(executor.now() + 0.5)
        executor.stop(0.0)
    for report in reports:
        if isinstance(report, Failed | NodeGone):
            assert report.why.isprintable() and len(report.why) < 1500
    return reports


# -- whatever it sends, the copy is lost and the head goes on ------------------------------------


def endless_line(head: Visitor) -> None:
    head.flood(b"x" * 65536)


def endless_noise(head: Visitor) -> None:
    head.flood(b"Welcome! \x1b[2J\n" * 4096)


def endless_complaints(head: Visitor) -> None:
    head.complain(b"no \x1b[31mpython\x07 here\n" * 100)
    time.sleep(6)
    while True:
        head.complain(b"x" * 65536)


def nothing_but_nonsense(head: Visitor) -> None:
    head.write(f"{MARK}[[[\n".encode())
    head.take(1 << 20)


def numbers_for_answers(head: Visitor) -> None:
    head.bootstrap()
    for _ in head.requests():
        head.say(7, [], "x", None)


def strange_answers(head: Visitor) -> None:
    head.bootstrap()
    for request in head.requests():
        head.say({"answer": request["id"], "attempts": [1], "worker": {}})


def deep_json(head: Visitor, _: Message) -> None:
    head.write(f"{MARK}{'[' * 500_000}\n".encode())


def endless_frames(head: Visitor, _: Message) -> None:
    frame = f'{MARK}{{"event": "progress", "attempt": "a", "steps": 1, "seconds": 1}}\n'
    head.flood(frame.encode() * 500)


def endless_answers(head: Visitor, request: Message) -> None:
    head.flood(f'{MARK}{{"answer": {request["id"]}}}\n'.encode() * 500)


def huge_numbers(head: Visitor, _: Message) -> None:
    lies = {"steps": 10**300, "slices": [[0, 10**300]], "missed_paces": 10**300}
    head.say(finished(result=lies, bytes=10**300))


def no_result(head: Visitor, _: Message) -> None:
    head.say({"event": "finished", "attempt": "a"})


def escapes(head: Visitor, _: Message) -> None:
    head.say({"event": "exited", "attempt": "a", "code": HOSTILE, "end": HOSTILE, "log": HOSTILE})


def a_long_log(head: Visitor, _: Message) -> None:
    log = "x" * 900_000
    head.say({"event": "exited", "attempt": "a", "code": 1, "end": "exited", "log": log})


ATTACKS = {
    attack.__name__: attack
    for attack in (
        endless_line,
        endless_noise,
        endless_complaints,
        nothing_but_nonsense,
        numbers_for_answers,
        strange_answers,
    )
} | {
    attack.__name__: agent(attack)
    for attack in (
        deep_json,
        endless_frames,
        endless_answers,
        huge_numbers,
        no_result,
        escapes,
        a_long_log,
    )
}


EXPECTED = {
    "endless_line": "lines without end",
    "endless_noise": "noise without end",
    "endless_complaints": "nothing was heard|here|xxx",
    "nothing_but_nonsense": "no valid JSON",
    "numbers_for_answers": "no JSON object",
    "strange_answers": "makes no sense",
    # Cut off and asked again, it claims never to have heard of the copy.
    "deep_json": "its node knows nothing of it",
    "endless_frames": "its node knows nothing of it",
    "endless_answers": "its node knows nothing of it",
    "huge_numbers": "cannot be",
    "no_result": "cannot be taken",
    "escapes": "boom",
    "a_long_log": "exited with code 1",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_copy_is_lost_and_the_head_goes_on(name: str, store: RunStore, tmp_path: Path) -> None:
    reports = suffer(ATTACKS[name], store, tmp_path)
    [lost] = [report for report in reports if isinstance(report, Failed)]
    assert re.search(EXPECTED[name], lost.why), lost.why
    assert len(lost.log) <= 4000
    assert not list((store.directory / "objects").iterdir())


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../../../../victim",
        "/etc/passwd",
        "a\0b",
        "x" * 100_000,
        "\u202e/..",
        "objects/../../x",
        "",
    ],
)
def test_a_name_that_a_node_sends_names_nothing_here(
    path: str, store: RunStore, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")

    def evil(head: Visitor, _: Message) -> None:
        head.say(finished(checkpoint=path))

    before = {p for p in tmp_path.rglob("*") if "evil" not in p.parts}
    reports = suffer(agent(evil), store, tmp_path)
    after = {p for p in tmp_path.rglob("*") if "evil" not in p.parts}
    assert victim.read_text() == "mine"
    # At most what it handed in, under its hash and nothing else.
    assert after - before <= {store.object_path(DIGEST), store.directory / "code"}
    if path:
        assert isinstance(reports[-1], HandedIn) and reports[-1].weights == DIGEST


def endless_file(head: Visitor) -> None:
    for request in head.requests():
        if request["do"] == "get":
            head.say({"bytes": 1 << 62})
            head.flood(b"x" * 65536)


def a_longer_file(head: Visitor) -> None:
    for _ in head.requests():
        head.say({"bytes": len(CONTENT)})
        head.write(CONTENT)
        head.flood(b"x" * 65536)


def another_file(head: Visitor) -> None:
    for _ in head.requests():
        head.say({"bytes": len(CONTENT)})
        head.write(CONTENT[::-1])
        head.say({"sha256": DIGEST})


def a_shorter_file(head: Visitor) -> None:
    for _ in head.requests():
        head.say({"bytes": len(CONTENT)})
        head.write(CONTENT[:5])
        return


def a_file_of_a_strange_size(head: Visitor) -> None:
    for _ in head.requests():
        head.say({"bytes": -1})


@pytest.mark.parametrize(
    "serve",
    [endless_file, a_longer_file, another_file, a_shorter_file, a_file_of_a_strange_size],
    ids=lambda serve: serve.__name__,
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    serve: Behaviour, store: RunStore, tmp_path: Path
) -> None:
    def evil(head: Visitor, _: Message) -> None:
        head.say(finished(checkpoint="/w"))

    reports = suffer(agent(evil, serve), store, tmp_path)
    assert isinstance(reports[-1], Failed | NodeGone)
    assert not any(isinstance(report, HandedIn) for report in reports)
    left = list((store.directory / "objects").iterdir())
    assert all(path.name.endswith(".part") for path in left)  # to go on from, after a cut
    assert sum(path.stat().st_size for path in left) <= len(CONTENT)


# -- what people see -----------------------------------------------------------------------------


def test_check_survives_a_node_that_answers_nonsense(store: RunStore, tmp_path: Path) -> None:
    def behave(head: Visitor) -> None:
        head.bootstrap()
        for request in head.requests():
            if request["do"] == "take":
                head.take(request["bytes"])
                head.say({})
            elif request["do"] == "give":
                head.say({})
                head.write(bytes(request["bytes"]))
            else:
                head.say({"hostname": HOSTILE, "gpus": HOSTILE, "now": 10**300})

    with hostile(tmp_path / "evil", behave) as evil:
        [seen], complete = inspect([evil.node], tmp_path / "runs", 60.0)
        list(complete)
    assert not seen.is_usable
    [problem] = seen.problems
    assert "makes no sense" in problem.what and problem.what.isprintable() and problem.fix


def test_no_agent_is_forwarded_and_commands_are_one_constant(
    store: RunStore, tmp_path: Path
) -> None:
    with hostile(tmp_path / "evil", agent(no_result)) as evil:
        executor = NodeExecutor(connect([evil.node], store), 1, 0.0)
        executor.adopt([])
        executor.start(order("a", (0, 10), device="evil", job=JOB))
        while not any(isinstance(r, Failed) for r in executor.wait(executor.now() + 1.0)):
            pass
        executor.stop(0.0)
        assert evil.forwards == []
        assert len(set(evil.commands)) == 1 and evil.commands[0].startswith("python3 -I -c ")


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def test_a_run_beside_it_ends_well_and_shows_nothing_of_its_tricks(tmp_path: Path) -> None:
    """The installed command, an honest node and a hostile one, on one job."""

    def evil(head: Visitor, request: Message) -> None:
        words = {"end": HOSTILE + MARKUP, "log": HOSTILE + "\n" + MARKUP, "code": MARKUP}
        progress = {"steps": 3, "seconds": 1e9, "loss": 1e308}
        head.say({"event": "progress", "attempt": request["attempt"], **progress})
        head.say({"event": "exited", "attempt": request["attempt"], **words})
        if sum(asked["do"] == "order" for asked in head.node.asked) > 2:
            head.node.close()  # enough: a node that fails for ever is given work for ever

    shutil.copy(SCRIPT, tmp_path)
    jobs = [f"{{script: plain_script.py, name: {n}, steps: 80, retry: 1000}}" for n in ("a", "b")]
    listed = "".join(f"  - {job}\n" for job in jobs)
    (tmp_path / "mix.yaml").write_text(f"name: m\nslot_s: 2\njobs:\n{listed}")
    with hostile(tmp_path / "evil", agent(evil)) as node:
        good = '[[node]]\nname = "good"\nhost = "local"\n'
        (tmp_path / "nodes.toml").write_text(good + node.inventory_row())
        done = hadar("run", "mix.yaml", "--no-live", cwd=tmp_path, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        assert any(request["do"] == "order" for request in node.asked)
    [run] = (tmp_path / "runs").iterdir()
    assert steps_of(tmp_path, run.name) == {"a": (80, 80), "b": (80, 80)}
    assert "Traceback" not in done.stderr
    told = hadar("report", run.name, "--html", "page.html", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    for text in (done.stdout, done.stderr, told.stdout, told.stderr):
        assert not CONTROL.search(text), CONTROL.search(text)
    page = (tmp_path / "page.html").read_text()
    assert "boom" in page  # the failure is told
    assert MARKUP not in page and "<img" not in page
    assert not CONTROL.search(re.sub(r"<script.*?</script>", "", page, flags=re.S))
    journal = (run / "journal.jsonl").read_text()
    assert not CONTROL.search(journal)
    assert all(json.loads(line.partition(" ")[2]) for line in journal.splitlines())
