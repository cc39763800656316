"""Runs copies on real nodes, each through its agent. Local and SSH nodes differ only in their
connection, so this file knows neither."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from hadar_cli.adapters.agent_link import AgentError, AgentLink, Message
from hadar_cli.app.ports import (
    CopyOrder,
    CopyResult,
    Failed,
    HandedIn,
    NodeGone,
    Progressed,
    Report,
)
from hadar_cli.core.model import Device, Job, Node
from hadar_cli.errors import HadarError
from hadar_cli.node.order import format_slices

LEASE_S = 20.0
_RENEW_EVERY_S = 3.0
_LATE_S = 150.0  # past its deadline: longer than the supervisor waits before it ends the copy


class Connection(Protocol):
    """How to reach one node."""

    node: Node
    directory: str

    def open_agent(
        self, on_event: Callable[[Message], None], on_end: Callable[[], None]
    ) -> AgentLink: ...

    def push(self, digest: str) -> str: ...

    def pull(self, path: str) -> str: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Attempt:
    order: CopyOrder
    late_at: float
    warm: bool = False


class NodeExecutor:
    """Devices of several nodes behind the executor port; no node waits for another."""

    def __init__(
        self, connections: Sequence[Connection], epoch: int, clock_starts_at: float
    ) -> None:
        self._clock_zero = time.monotonic() - clock_starts_at
        self._reports: queue.Queue[Report] = queue.Queue()
        self._nodes = [_NodeHand(c, epoch, self._reports.put) for c in connections]
        self._by_device = {d.name: node for node in self._nodes for d in node.devices}
        self._closing = threading.Event()
        threading.Thread(target=self._renew_leases, daemon=True).start()

    def now(self) -> float:
        return time.monotonic() - self._clock_zero

    def start(self, order: CopyOrder) -> None:
        self._by_device[order.device].start(order)

    def wait(self, until: float) -> list[Report]:
        for node in self._nodes:
            node.report_late_copies()
        try:
            reports = [self._reports.get(timeout=max(0.0, until - self.now()))]
        except queue.Empty:
            return []
        while not self._reports.empty():
            reports.append(self._reports.get())
        return reports

    def recall(self) -> None:
        for node in self._nodes:
            node.recall()

    def stop(self, grace_s: float) -> None:
        self._closing.set()
        with ThreadPoolExecutor(max(1, len(self._nodes))) as pool:
            list(pool.map(lambda node: node.stop(grace_s), self._nodes))

    def _renew_leases(self) -> None:
        while not self._closing.wait(_RENEW_EVERY_S):
            for node in self._nodes:
                node.renew_lease()


class _NodeHand:
    """All that the head does with one node, in order, on a thread of its own."""

    def __init__(
        self, connection: Connection, epoch: int, report: Callable[[Report], None]
    ) -> None:
        self._connection, self._epoch, self._report = connection, epoch, report
        self.devices = connection.node.devices
        self._device = {d.name: d for d in self.devices}
        self._attempts: dict[str, _Attempt] = {}
        self._workers: dict[str, tuple[int, str]] = {}  # device -> job, worker
        self._hired = 0
        self._link: AgentLink | None = None
        self._gone = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=connection.node.name)
        self._do(self._open)

    def start(self, order: CopyOrder) -> None:
        self._attempts[order.attempt] = _Attempt(order, time.monotonic() + order.seconds + _LATE_S)
        self._do(self._send_order, order)

    def report_late_copies(self) -> None:
        now = time.monotonic()
        for attempt in [a for a, held in self._attempts.items() if now > held.late_at]:
            self._fail(attempt, "nothing was heard of it past its deadline")

    def renew_lease(self) -> None:
        if self._link and not self._gone:
            try:
                self._link.tell("renew")
            except AgentError as error:
                self._lost(str(error))

    def recall(self) -> None:
        """Asks every copy under way to hand in now; its result arrives like any other."""
        for attempt in list(self._attempts.values()):
            self._do(self._release, attempt.order.device)

    def stop(self, grace_s: float) -> None:
        self._do(self._stop, grace_s)
        self._thread.shutdown(wait=True)

    # -- on the node's thread ----------------------------------------------------------------

    def _do(self, action: Callable[..., None], *arguments: Any) -> None:
        """Queues an action; whatever goes wrong there costs this node only."""

        def guarded() -> None:
            try:
                action(*arguments)
            except (HadarError, OSError) as error:
                self._lost(str(error))

        self._thread.submit(guarded)

    def _open(self) -> None:
        self._link = self._connection.open_agent(self._on_event, self._on_end)
        self._link.ask(
            "open", directory=self._connection.directory, epoch=self._epoch, lease_s=LEASE_S
        )

    def _send_order(self, order: CopyOrder) -> None:
        if self._gone or not self._link:
            self._fail(order.attempt, "its node is gone")
            return
        weights = self._connection.push(order.weights) if order.weights else ""
        node, device = self._connection.node, self._device[order.device]
        answer = self._link.ask(
            "order",
            worker=self._worker_for(order),
            attempt=order.attempt,
            weights=order.hand_in,
            argv=_command(order.job, node),
            env=_environment(order.job, node, device),
            cwd=order.job.launch.sync,
            variables=_variables(order, device, weights),
        )
        if held := self._attempts.get(order.attempt):
            held.warm = bool(answer["warm"])

    def _worker_for(self, order: CopyOrder) -> str:
        """The worker that already holds this job on the device, or a new one in its place."""
        job, worker = self._workers.get(order.device, (None, ""))
        if job == order.job.id:
            return worker
        self._release(order.device)
        self._hired += 1
        worker = f"{self._device[order.device].index}-{order.job.id}-{self._hired}-e{self._epoch}"
        self._workers[order.device] = (order.job.id, worker)
        return worker

    def _release(self, device: str) -> None:
        if self._link and device in self._workers:
            self._link.tell("release", worker=self._workers.pop(device)[1])

    def _collect(self, attempt: str, message: Message) -> None:
        held = self._attempts.get(attempt)
        if not held or not self._link:
            return
        try:
            result = _read_result(message["result"], held.order)
        except (msgspec.ValidationError, TypeError, KeyError, ValueError) as error:
            self._fail(attempt, f"its result cannot be read: {error}")
            return
        path = message.get("weights")
        weights = self._connection.pull(path) if path and result.steps else None
        self._link.tell("forget", attempt=attempt)
        if self._attempts.pop(attempt, None):
            self._report(HandedIn(attempt, result, weights, held.warm))

    def _stop(self, grace_s: float) -> None:
        if self._link and not self._gone:
            self._gone = True
            self._link.ask("stop", timeout_s=grace_s + 15.0, grace_s=grace_s)
            self._link.close()
            self._connection.close()

    # -- on the link's thread ----------------------------------------------------------------

    def _on_event(self, message: Message) -> None:
        attempt = str(message.get("attempt"))
        if attempt not in self._attempts:
            return
        match message["event"]:
            case "progress":
                self._report(
                    Progressed(
                        attempt,
                        int(message["steps"]),
                        float(message["seconds"]),
                        message.get("loss"),
                    )
                )
            case "finished":
                self._do(self._collect, attempt, message)
            case "exited":
                code, why = message.get("code"), message.get("why")
                self._dismiss(attempt)
                reason = f"it exited with code {code}" if why == "exited" else f"{why}"
                self._fail(attempt, reason, str(message.get("log", "")))

    def _on_end(self) -> None:
        if not self._gone:
            self._lost("its agent ended")

    def _dismiss(self, attempt: str) -> None:
        """The worker is gone: the device's next copy starts anew."""
        self._workers.pop(self._attempts[attempt].order.device, None)

    def _fail(self, attempt: str, why: str, log: str = "") -> None:
        if self._attempts.pop(attempt, None):
            self._report(Failed(attempt, why, log))

    def _lost(self, why: str) -> None:
        if self._gone:
            return
        self._gone = True
        for attempt in list(self._attempts):
            self._fail(attempt, why)
        self._report(NodeGone(tuple(self._device), why))


def _command(job: Job, node: Node) -> list[str | None]:
    """The copy's command line; None stands for the agent's own interpreter."""
    launch = job.launch
    if launch.script:
        return [node.python, launch.script, *launch.args]
    words = ["-m", f"hadar_cli.workloads.{launch.workload}", "--preset", launch.preset]
    words += ["--batch-size", str(job.batch_size)]
    if launch.data_dir:
        words += ["--data-dir", launch.data_dir]
    return [node.python, *words, *launch.args]


def _environment(job: Job, node: Node, device: Device) -> dict[str, str]:
    env = {**node.env, **job.launch.env}
    if device.emulated_speed:
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    elif device.gpu:
        env |= {"CUDA_VISIBLE_DEVICES": str(device.index)}
    return env


def _variables(order: CopyOrder, device: Device, weights: str) -> dict[str, str]:
    """The contract's variables that the head knows; the agent adds paths on the node."""
    speed = device.emulated_speed
    return {
        "HADAR_CKPT_IN": weights,
        "HADAR_STEPS": str(len(order.steps)),
        "HADAR_SLICES": format_slices(order.steps.ranges),
        "HADAR_SECONDS_LEFT": f"{order.seconds:.3f}",
        "HADAR_GLOBAL_STEP": str(order.global_step),
        "HADAR_TOTAL_STEPS": str(order.job.target_steps),
        "HADAR_ROUND": str(order.round),
        "HADAR_COPY": str(order.copy),
        "HADAR_NUM_COPIES": str(order.num_copies),
        "HADAR_JOB_SEED": str(order.job_seed),
        "HADAR_SEED": str(order.seed),
        "HADAR_LR_SCALE": repr(order.lr_scale),
        "HADAR_EVALUATE": "1" if order.evaluate else "",
        "HADAR_EMULATE_SPEED": repr(speed) if speed else "",
    }


def _read_result(raw: Message, order: CopyOrder) -> CopyResult:
    """A worker's JSON as a result, types checked; only ``steps`` must be there."""
    if "slices" not in raw:
        raw = {**raw, "slices": order.steps.first(raw["steps"]).ranges}
    seconds = raw.get("seconds", {})
    fields = {
        "steps": raw["steps"],
        "slices": raw["slices"],
        "start_s": seconds.get("start", 0.0),
        "train_s": seconds.get("train", 0.0),
        "save_s": seconds.get("save", 0.0),
        "stopped": raw.get("stopped", "end"),
        "loss": raw.get("metrics", {}).get("loss"),
        "quality": raw.get("evaluation"),
        "missed_paces": raw.get("missed_paces", 0),
    }
    return msgspec.convert(fields, CopyResult)
