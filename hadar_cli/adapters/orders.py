"""Orders in the agent's words, and what it brings back in ours."""

from __future__ import annotations

from typing import Any

import msgspec

from hadar_cli.adapters.wire import Message
from hadar_cli.app.ports import CopyOrder, CopyResult
from hadar_cli.core.model import Device, Job, Launch, Node
from hadar_cli.node.order import format_slices


def order_request(
    order: CopyOrder, node: Node, device: Device, launch: Launch, weights: str
) -> dict[str, Any]:
    """The fields of an ``order``; ``launch`` and ``weights`` say where things lie on the node."""
    return {
        "attempt": order.attempt,
        "weights": order.hand_in,
        "argv": _command(order.job, launch),
        "env": _environment(order.job, node, device),
        "cwd": launch.sync,
        "job": order.job.id,
        "setup": launch.setup,
        "variables": _variables(order, device, weights),
    }


def _command(job: Job, launch: Launch) -> list[str | None]:
    """The copy's command line; None stands for the agent's own interpreter."""
    if launch.script:
        return [None, launch.script, *launch.args]
    words = ["-m", f"hadar_cli.workloads.{launch.workload}", "--preset", launch.preset]
    words += ["--batch-size", str(job.batch_size)]
    if launch.data_dir:
        words += ["--data-dir", launch.data_dir]
    return [None, *words, *launch.args]


def _environment(job: Job, node: Node, device: Device) -> dict[str, str]:
    env = {**node.env, **job.launch.env}
    if device.emulated_speed:
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    elif device.gpu:
        # Numbered as nvidia-smi does, by which `hadar check` tells who uses which.
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(device.index)}
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


def read_result(raw: Message, order: CopyOrder) -> CopyResult:
    """A worker's JSON as a result; only ``steps`` must be there. Raises ValueError on nonsense."""
    try:
        return _convert(raw, order)
    except (msgspec.ValidationError, AttributeError, TypeError, KeyError) as error:
        raise ValueError(str(error)) from error


def _convert(raw: Message, order: CopyOrder) -> CopyResult:
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
        "lr": raw.get("lr"),
        "data": raw.get("data", ()),
    }
    return msgspec.convert(fields, CopyResult)
