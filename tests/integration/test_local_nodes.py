"""Real agents, supervisors and workers on this machine, with real misfortune."""

import fcntl
import json
import os
import signal
import sys
import threading
import time
import venv
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hadar_cli.core.model import Gpu, Job, Launch, MergeRules, Mix, Node
from hadar_cli.core.reasons import Loss
from hadar_cli.engine.ports import (
    Consolidated,
    Contribution,
    Failed,
    HandedIn,
    Merged,
    NodeBack,
    NodeGone,
    Report,
)
from hadar_cli.node.agent import processes
from hadar_cli.nodes.agent_client import AgentLink
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.local import LocalAccess, LocalConnection
from hadar_cli.project.packing import CodePacker
from hadar_cli.runs.consolidation import StoreConsolidator
from hadar_cli.runs.store import RunFacts, RunStore
from tests.contract.test_executor import collect, order

TRAINS = """
import torch
from hadar_cli import training
model = torch.nn.Linear(2, 1)
data = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.randn(64, 1))
with training(model, torch.optim.SGD(model.parameters(), 0.1)) as t:
    for x, y in t.loader(data, batch_size=8):
        t.step(((model(x) - y) ** 2).mean())
"""
SLOW = TRAINS.replace("        t.step", "        time.sleep(0.1)\n        t.step").replace(
    "import torch", "import time, torch", 1
)
HANGS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
SCATTERS = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""
LINKS = """
import json, os
os.symlink("/etc/passwd", os.environ["HADAR_CKPT_OUT"])
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({"steps": 1}, file)
os.rename(file.name, os.environ["HADAR_RESULT"])
"""
# Takes its time to leave; where it finds another of its kind on the device, it says so.
LINGERS = """
import json, os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.7), os._exit(0)))
for name in os.listdir(PLACE):
    if os.path.exists(f"/proc/{name}"):
        raise SystemExit(f"{name} is still on the device")
open(os.path.join(PLACE, str(os.getpid())), "w").close()
open(os.environ["HADAR_CKPT_OUT"], "wb").close()
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({"steps": 10}, file)
os.rename(file.name, os.environ["HADAR_RESULT"])
time.sleep(600)
"""
PLAIN = (Path(__file__).parents[1] / "support" / "plain_script.py").read_text()
CRASHES = "import sys; print('about to fail'); sys.exit('no data set here')"


class Lab:
    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.node = Node("one", "local")
        facts = RunFacts("r", Mix("m", ()), (self.node,), "", "")
        self.store = RunStore.create(tmp_path / "runs", facts)
        self.directory = self.store.directory / "nodes" / "one"
        self.executors: list[NodeExecutor] = []

    def open(self, epoch: int = 1) -> NodeExecutor:
        connection = LocalConnection(
            LocalAccess(self.node), self.store, CodePacker(self.store.directory / "code")
        )
        self.executors.append(NodeExecutor([connection], epoch, 0.0))
        return self.executors[-1]

    def job(self, source: str) -> Job:
        script = self.tmp_path / "script.py"
        script.write_text(source)
        return Job(0, "script", 10_000, 8, launch=Launch(script=str(script)))

    def worker(self) -> tuple[int, int]:
        """Pids of the only worker and its supervisor, once it runs."""
        for _ in range(600):
            for path in (self.directory / "workers").glob("*/worker.json"):
                known = json.loads(path.read_text())
                return known["worker"][0], known["supervisor"][0]
            time.sleep(0.05)
        raise AssertionError("no worker came up")

    def strays(self) -> list[int]:
        """Workers and supervisors that live, and whatever they started elsewhere."""
        prefix = f"HADAR_WORKER={self.directory.resolve()}/".encode()
        found = []
        for path in (self.directory / "workers").glob("*/worker.json"):
            known = json.loads(path.read_text()).values()
            found += [pid for pid, started in known if processes.is_alive(pid, started)]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if prefix in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def gone(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.strays():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def nursery_of(directory: Path) -> int:
    """The pid that holds the nursery's log."""
    log = str(directory / "nursery.log")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "fd" / "2") == log:
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("no nursery runs")


def agent_of(directory: Path) -> int:
    """The agent is the nursery's parent."""
    stat = Path(f"/proc/{nursery_of(directory)}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def kill_nursery(directory: Path) -> None:
    """Returns when it is gone: it takes a while, with the memory that torch holds."""
    pid = nursery_of(directory)
    started = processes.start_time(pid)
    os.kill(pid, signal.SIGKILL)
    assert started is None or processes.wait_gone([(pid, started)], 30.0)


def wait_for_path(directory: Path, pattern: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not list(directory.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.02)


def reports_of(executor: NodeExecutor, within_s: float = 60.0) -> list[Report]:
    """The first reports that come."""
    reports, deadline = [], executor.now() + within_s
    while not reports and executor.now() < deadline:
        reports = executor.wait(executor.now() + 0.5)
    return reports


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    yield lab
    for executor in lab.executors:
        executor.stop(0.0)
    assert lab.gone(10.0)


def test_a_worker_stays_warm_between_orders(lab):
    executor = lab.open()
    job = lab.job(TRAINS)
    executor.start(order("a", (0, 20), job=job))
    [first] = collect(executor, 1)
    pids = lab.worker()
    executor.start(order("b", (20, 60), job=job, weights=first.weights, global_step=20))
    [second] = collect(executor, 1)
    assert (first.warm, second.warm) == (False, True)
    assert lab.worker() == pids
    assert second.result.steps == 40


def test_results_of_a_node_s_devices_are_fetched_side_by_side(lab, monkeypatch):
    """Each fetch waits until the others have begun, too."""
    lab.node = replace(lab.node, gpus=(Gpu("A", 1.0, 1.0),) * 3, emulated_speed=0.5)
    all_move, pull = threading.Barrier(3, timeout=30.0), LocalConnection.pull

    def pull_together(connection: LocalConnection, *words: object) -> str:
        all_move.wait()
        return pull(connection, *words)

    monkeypatch.setattr(LocalConnection, "pull", pull_together)
    executor, job = lab.open(), lab.job(PLAIN)
    for number, device in enumerate(lab.node.devices):
        steps = (10 * number, 10 * number + 10)
        executor.start(order(device.name, steps, job=job, device=device.name))
    assert {type(report) for report in collect(executor, 3)} == {HandedIn}


def test_a_merge_holds_up_nothing_that_is_heard_meanwhile(lab):
    executor, is_heard = lab.open(), threading.Event()

    def merge() -> Merged:
        assert is_heard.wait(30.0), "nothing was heard while it was merged"
        return Merged(0, Consolidated("", 0, (), ()), 0.0)

    executor.aside(merge)
    executor.start(order("a", (0, 10), job=lab.job(PLAIN)))
    [copy] = collect(executor, 1)
    is_heard.set()
    [merged] = reports_of(executor)
    assert copy.attempt == "a" and isinstance(merged, Merged)


def test_an_order_sent_ahead_goes_on_from_the_copys_own_weights(lab):
    executor, job = lab.open(), lab.job(TRAINS.replace("SGD", "AdamW"))
    executor.start(order("a", (0, 20), job=job))
    [first] = collect(executor, 1)
    pids = lab.worker()
    executor.start(order("b", (20, 10**7), seconds=1.5, job=job, weights=first.weights))
    executor.start(order("c", (10**7, 10**7 + 30), seconds=1.5, job=job, follows="b"))
    before, after = collect(executor, 2)
    assert (before.attempt, before.result.stopped) == ("b", "deadline")
    assert (after.attempt, after.warm) == ("c", True) and after.result.steps
    left_at = 20 + before.result.steps  # it begins with what the one before it left undone
    assert after.result.slices == ((left_at, left_at + after.result.steps),)
    assert lab.worker() == pids
    updates = [_updates(lab.store, report.weights) for report in (first, before, after)]
    assert updates == [20, left_at, left_at + after.result.steps]


def test_a_copy_that_may_round_hands_in_an_update_of_what_it_was_given(lab):
    executor, job = lab.open(), lab.job(TRAINS)
    executor.start(order("a", (0, 20), job=job))
    [first] = collect(executor, 1)
    fields = {"job": job, "weights": first.weights, "global_step": 20, "hand_in": "bf16"}
    executor.start(order("b", (20, 40), **fields))
    [second] = collect(executor, 1)

    whole, update = (lab.store.object_path(report.weights) for report in (first, second))
    assert {tensor.dtype for tensor in load_file(update).values()} == {torch.bfloat16}
    handed_in = [Contribution("b", 1, second.weights, 20, 8)]
    merged = StoreConsolidator(lab.store).consolidate(handed_in, first.weights, MergeRules(), 1.0)
    before, after = load_file(whole), load_file(lab.store.object_path(merged.weights))
    for name, difference in load_file(update).items():
        assert difference.any()
        assert torch.equal(after[name], before[name] + difference.float())


def _updates(store: RunStore, weights: str) -> int:
    """How often the optimizer of a checkpoint has stepped."""
    tensors = load_file(store.object_path(weights))
    return int(next(value for name, value in tensors.items() if name.endswith("/step")).item())


def test_an_order_without_weights_starts_from_scratch(lab):
    executor, job = lab.open(), lab.job(TRAINS.replace("SGD", "AdamW"))
    for attempt in ("a", "b"):  # the merge of what "a" brought was refused
        executor.start(order(attempt, (0, 20), job=job))
        [report] = collect(executor, 1)
        assert _updates(lab.store, report.weights) == 20


def test_a_worker_may_wait_for_long(lab):
    executor = lab.open()
    job = lab.job(TRAINS)
    weights = None
    for attempt in ("a", "b"):
        executor.start(order(attempt, (0, 20), job=job, seconds=1.0, weights=weights))
        [handed_in] = collect(executor, 1)
        weights = handed_in.weights
    assert executor.wait(executor.now() + 8.0) == []  # past the last order's deadline and grace
    executor.start(order("c", (20, 40), job=job, weights=weights))
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn)
    assert report.warm


def test_a_killed_worker_is_reported_with_its_signal(lab):
    executor = lab.open()
    executor.start(order("a", (0, 10_000_000), job=lab.job(TRAINS), seconds=300))
    worker, _ = lab.worker()
    os.kill(worker, signal.SIGKILL)
    [report] = collect(executor, 1)
    assert report == Failed("a", Loss.EXITED, "it exited with code -9", report.log)
    executor.start(order("b", (0, 20), job=lab.job(TRAINS)))
    [again] = collect(executor, 1)
    assert isinstance(again, HandedIn)


def test_a_worker_starts_when_the_one_before_has_left_the_device(lab):
    place = lab.tmp_path / "place"
    place.mkdir()
    first = lab.job(LINGERS.replace("PLACE", repr(str(place))))
    executor, second = lab.open(), replace(first, id=1)
    for attempt, job in (("a", first), ("b", second)):
        executor.start(order(attempt, (0, 10), job=job))
        [report] = collect(executor, 1)
        assert isinstance(report, HandedIn), report


def test_a_worker_dies_with_its_supervisor(lab):
    executor = lab.open()
    executor.start(order("a", (0, 10_000_000), job=lab.job(TRAINS), seconds=300))
    worker, supervisor = lab.worker()
    os.kill(supervisor, signal.SIGKILL)
    [report] = collect(executor, 1)
    assert isinstance(report, Failed)
    assert processes.start_time(worker) is None


def test_a_killed_nursery_is_replaced_and_no_job_is_blamed(lab):
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(PLAIN)))
    [first] = collect(executor, 1)
    assert isinstance(first, HandedIn)
    kill_nursery(lab.directory)
    executor.start(order("b", (10, 20), job=lab.job(PLAIN), weights=first.weights))
    [again] = collect(executor, 1)
    assert isinstance(again, HandedIn)
    os.kill(nursery_of(lab.directory), signal.SIGSTOP)  # the order reaches it, and nobody is born
    executor.start(order("c", (20, 30), job=lab.job(PLAIN), weights=again.weights))
    wait_for_path(lab.directory, "attempts/c/order.json")
    os.kill(nursery_of(lab.directory), signal.SIGKILL)
    [report] = collect(executor, 1)
    assert isinstance(report, Failed)
    assert (report.why, report.reason) == ("it never started", Loss.NO_NURSERY)


def test_a_copy_that_died_unborn_with_its_nursery_is_not_waited_for(lab):
    old, job = lab.open(epoch=1), lab.job(PLAIN)
    old.start(order("a", (0, 10), job=job))
    [first] = collect(old, 1)
    nursery, asked = nursery_of(lab.directory), order("b", (10, 20), job=job, weights=first.weights)
    os.kill(nursery, signal.SIGSTOP)  # the order reaches it, and nobody is born
    old.start(asked)
    wait_for_path(lab.directory, "attempts/b/order.json")
    os.kill(agent_of(lab.directory), signal.SIGKILL)
    os.kill(nursery, signal.SIGKILL)
    new = lab.open(epoch=2)
    new.adopt([asked])
    [report] = collect(new, 1, within=40.0)  # not the minute that a slow start is given
    assert (report.attempt, report.reason) == ("b", Loss.NO_NURSERY)


def test_another_run_of_the_same_name_is_kept_apart(lab):
    """Two heads in different places, one name, one node: whoever comes second is turned away."""
    executor = lab.open()
    executor.start(order("a", (0, 10_000_000), job=lab.job(TRAINS), seconds=300))
    lab.worker()
    facts = RunFacts("r", Mix("m", ()), (lab.node,), "", "", token="another")
    store = RunStore.create(lab.tmp_path / "elsewhere", facts)
    other = LocalConnection(LocalAccess(lab.node), store, CodePacker(store.directory / "code"))
    other.directory = str(lab.directory)
    stranger = NodeExecutor([other], 7, 0.0)
    lab.executors.append(stranger)
    stranger.adopt([])
    [refused] = [r for r in reports_of(stranger) if isinstance(r, NodeGone)]
    assert "another run of this name" in refused.why
    executor.recall()
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn | Failed)


def test_a_worker_that_ignores_its_deadline_is_ended(lab, monkeypatch):
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(TRAINS)))
    [first] = collect(executor, 1)
    assert isinstance(first, HandedIn)
    # The warm worker is stopped dead, so that its next order passes its deadline unanswered.
    worker, _ = lab.worker()
    os.kill(worker, signal.SIGSTOP)
    executor.start(order("b", (10, 20), job=lab.job(TRAINS), seconds=1.0, weights=first.weights))
    [report] = collect(executor, 1)
    assert isinstance(report, Failed)
    assert report.why == "did not stop at its deadline"
    assert lab.gone(15.0)


def test_everything_a_worker_started_dies_with_it(lab):
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(SCATTERS), seconds=300))
    lab.worker()
    for _ in range(200):
        if len(lab.strays()) == 3:
            break
        time.sleep(0.05)
    assert len(lab.strays()) == 3  # supervisor, worker, and the child in a session of its own
    executor.stop(0.0)
    assert lab.gone(5.0)


def test_a_crash_brings_the_last_words(lab):
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(CRASHES)))
    [report] = collect(executor, 1)
    assert report.why == "it exited with code 1"
    assert "no data set here" in report.log


def test_a_new_head_ends_what_the_old_one_left(lab):
    old = lab.open(epoch=1)
    old.start(order("a", (0, 10), job=lab.job(HANGS), seconds=300))
    worker, _ = lab.worker()
    new = lab.open(epoch=2)
    new.start(order("b", (0, 20), job=lab.job(TRAINS)))
    [report] = collect(new, 1)
    assert isinstance(report, HandedIn)
    assert processes.start_time(worker) is None
    [stale] = collect(old, 1)
    assert isinstance(stale, Failed)


def test_a_new_head_takes_over_running_copies(lab):
    old = lab.open(epoch=1)
    job = lab.job(TRAINS)
    running = order("a", (0, 10_000_000), job=job, seconds=12)
    old.start(running)
    worker, _ = lab.worker()
    new = lab.open(epoch=2)
    new.adopt([running, order("b", (0, 10), job=job)])
    reports = {report.attempt: report for report in collect(new, 2)}
    assert isinstance(reports["a"], HandedIn)
    assert reports["a"].result.steps > 0
    assert reports["b"] == Failed("b", Loss.NODE_FORGOT, "its node knows nothing of it")
    new.start(order("c", (0, 10), job=job, weights=reports["a"].weights))
    [third] = collect(new, 1)
    assert (third.warm, lab.worker()[0]) == (True, worker)
    [stale] = collect(old, 1)
    assert isinstance(stale, Failed)


def test_an_agent_that_dies_takes_no_copy_with_it(lab):
    executor = lab.open()
    executor.start(order("a", (0, 10_000_000), job=lab.job(TRAINS), seconds=8))
    lab.worker()
    os.kill(agent_of(lab.directory), signal.SIGKILL)
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn)
    assert report.result.steps > 0
    assert collect(executor, 1, within=1.0) == []


def test_a_run_that_ends_as_an_agent_dies_leaves_nothing_behind(lab):
    """The worker waits, warm, for a next order: another agent has to be asked to end it."""
    executor = lab.open()
    executor.start(order("a", (0, 20), job=lab.job(TRAINS)))
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn) and lab.strays()
    os.kill(agent_of(lab.directory), signal.SIGKILL)
    executor.stop(0.0)
    assert lab.gone(3.0)


def test_a_result_that_is_a_link_is_refused(lab):
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(LINKS)))
    [report] = collect(executor, 1)
    assert isinstance(report, Failed)
    assert "no plain file" in report.why


def test_workers_end_when_the_heads_lease_runs_out(lab, monkeypatch):
    monkeypatch.setattr("hadar_cli.nodes.session.decisions.LEASE_S", 2.0)
    monkeypatch.setattr("hadar_cli.nodes.session.decisions.LOOK_EVERY_S", 1000.0)
    executor = lab.open()
    executor.start(order("a", (0, 10_000_000), job=lab.job(TRAINS), seconds=300))
    lab.worker()
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn) or report.why == "the head's lease ran out"
    assert lab.gone(15.0)


def test_a_script_may_use_another_interpreter(lab):
    lab.node = Node("one", "local", python=sys.executable)
    executor = lab.open()
    executor.start(order("a", (0, 20), job=lab.job(TRAINS)))
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn)


# -- a node that lacks something -----------------------------------------------------------------


def test_a_node_without_torch_is_unfit_and_its_job_is_not_blamed(lab: Lab, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    lab.node = replace(lab.node, python=str(tmp_path / "bare/bin/python"))
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(TRAINS)))
    [failed] = collect(executor, 1)
    assert isinstance(failed, Failed) and failed.reason is Loss.NO_TORCH
    assert failed.why == "its python has no torch: pip install torch safetensors there"


def test_a_script_that_lacks_a_module_of_its_own_is_to_blame_itself(lab: Lab) -> None:
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job("import torch_of_my_own")))
    [failed] = collect(executor, 1)
    assert isinstance(failed, Failed) and failed.reason is Loss.EXITED


def test_a_node_that_takes_no_orders_is_left_with_no_process_until_it_is_mended(
    lab: Lab,
) -> None:
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(HANGS)))
    lab.worker()
    attempts = lab.directory / "attempts"
    attempts.rename(lab.directory / "away")
    attempts.touch()  # nothing can be made below it, as on a disk that has turned read-only
    for attempt in ("b", "c", "d"):
        executor.start(order(attempt, (10, 20), job=lab.job(HANGS)))
    reports = reports_until(NodeGone, executor)
    [gone] = [report for report in reports if isinstance(report, NodeGone)]
    assert gone.why.startswith("it takes no orders: /") and "Not a directory" in gone.why
    failed = [report for report in reports if isinstance(report, Failed)]
    assert {report.attempt for report in failed if report.reason.is_node_fault} == {
        "a",
        "b",
        "c",
        "d",
    }
    assert lab.gone(5.0)
    attempts.unlink()
    assert reports_until(NodeBack, executor)


def reports_until(kind: type, executor: NodeExecutor, within_s: float = 60.0) -> list[Report]:
    """All reports to the first of that kind; none within the time is a failure."""
    reports: list[Report] = []
    while not any(isinstance(report, kind) for report in reports):
        new = reports_of(executor, within_s)
        assert new, f"no {kind.__name__} among {reports}"
        reports += new
    return reports


def test_workers_are_stopped_though_no_lease_can_be_written(lab: Lab) -> None:
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(HANGS)))
    lab.worker()
    while not (lab.directory / "lease.part").is_dir():
        with suppress(FileExistsError):  # the agent is just writing it
            (lab.directory / "lease.part").mkdir()
    executor.stop(0.0)
    assert lab.gone(3.0)  # not with the lease, which lasts for 20 s


def shorten_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hadar_cli.nodes.session.decisions.LEASE_S", 2.0)
    monkeypatch.setattr("hadar_cli.nodes.session.decisions.LOOK_EVERY_S", 0.5)


def test_a_copy_outlives_a_disk_that_takes_no_lease(lab: Lab, monkeypatch) -> None:
    shorten_lease(monkeypatch)
    executor = lab.open()
    executor.start(order("a", (0, 50), job=lab.job(SLOW)))  # for more than two leases
    lab.worker()
    while not (lab.directory / "lease.part").is_dir():
        with suppress(FileExistsError):  # the agent is just writing it
            (lab.directory / "lease.part").mkdir()
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn) and report.result.steps == 50


def test_a_copy_outlives_an_agent_that_waits_for_its_disk(lab: Lab, monkeypatch) -> None:
    """A lock that it waits for stands in for the disk; the head hears of it all the while."""
    shorten_lease(monkeypatch)
    executor = lab.open()
    executor.start(order("a", (0, 100), job=lab.job(SLOW)))
    lab.worker()
    with (lab.directory / "fence.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stalled = executor.wait(executor.now() + 0.5)
        while executor.now() < 10.0:  # more than 12 looks, after which a silent node is given up
            stalled += executor.wait(executor.now() + 0.5)
    assert not [report for report in stalled if isinstance(report, Failed | NodeGone)]
    [report] = [r for r in stalled if isinstance(r, HandedIn)] or collect(executor, 1)
    assert report.result.steps == 100


def test_a_supervisor_that_could_leave_no_word_is_its_disks_fault(lab: Lab) -> None:
    executor = lab.open()
    executor.start(order("a", (0, 10), job=lab.job(HANGS)))
    _, supervisor = lab.worker()
    [directory] = (lab.directory / "workers").iterdir()
    (directory / "probe").mkdir()  # in the way of whatever would be written there
    os.kill(supervisor, signal.SIGKILL)
    [failed] = collect(executor, 1)
    assert isinstance(failed, Failed) and failed.reason is Loss.NO_DISK
    assert failed.why == "nothing can be written there: Is a directory"


def test_the_end_of_a_run_does_not_wait_for_a_node_that_never_answers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = lab.tmp_path / "python"
    mute.write_text("#!/bin/sh\nexec sleep 3600\n")
    mute.chmod(0o700)
    lab.node = replace(lab.node, python=str(mute))
    ask = AgentLink.ask
    monkeypatch.setattr(
        AgentLink, "ask", lambda link, do, _=None, **rest: ask(link, do, 600, **rest)
    )
    executor = lab.open()
    executor.start(order("a1", (0, 10), job=lab.job(TRAINS)))
    ending = threading.Thread(target=executor.stop, args=(0.0,), daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
