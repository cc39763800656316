"""Orders in the agent's words, and what it brings back in ours."""

from __future__ import annotations

from typing import Any

import msgspec

from hadar_cli.adapters.wire import Message, said
from hadar_cli.app.ports import CopyOrder, CopyResult, Progressed
from hadar_cli.core.model import Device, Job, Launch, Node
from hadar_cli.node.order import format_slices

_LARGEST = 1 << 53  # beyond it, a float no longer tells numbers apart
_MOST_FIGURES = 100
_LONGEST_WORD = 80


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
        "HADAR_HAND_IN": "bf16" if order.rounded else "",
        "HADAR_EMULATE_SPEED": repr(speed) if speed else "",
    }


def read_result(raw: Message, order: CopyOrder) -> CopyResult:
    """A worker's JSON as a result; only ``steps`` must be there. Raises ValueError on nonsense.

    Whether its claims are true is the tracker's to judge; here they become small enough to judge.
    """
    try:
        result = _convert(raw, order)
    except (ValueError, AttributeError, TypeError, LookupError, ArithmeticError) as error:
        raise ValueError(said(f"{type(error).__name__}: {error}")) from error
    numbers = (result.steps, result.missed_paces, *result.data)
    ends = [end for pair in result.slices for end in pair]
    if any(not -_LARGEST < number < _LARGEST for number in (*numbers, *ends)):
        raise ValueError("it holds numbers that cannot be")
    if len(result.quality or ()) > _MOST_FIGURES:
        raise ValueError(f"it holds more than {_MOST_FIGURES} figures of quality")
    return result


def read_progress(message: Message) -> Progressed | None:
    """How far a copy says it is; None for nonsense, which costs nothing but the view."""
    steps, seconds, loss = (message.get(name) for name in ("steps", "seconds", "loss"))
    if type(steps) is not int or not 0 <= steps < _LARGEST:
        return None
    if not _is_number(seconds) or (loss is not None and not _is_number(loss)):
        return None
    return Progressed(str(message["attempt"]), steps, float(seconds or 0.0), loss)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -_LARGEST < value < _LARGEST  # type: ignore[operator]


def _figures(found: Any) -> Any:
    """Of a model's quality, under names that can be shown."""
    if not isinstance(found, dict):
        return found
    return {said(name, _LONGEST_WORD): figure for name, figure in found.items()}


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
        "stopped": said(raw.get("stopped", "end"), _LONGEST_WORD),
        "loss": raw.get("metrics", {}).get("loss"),
        "quality": _figures(raw.get("evaluation")),
        "missed_paces": raw.get("missed_paces", 0),
        "lr": raw.get("lr"),
        "data": raw.get("data", ()),
    }
    return msgspec.convert(fields, CopyResult)
