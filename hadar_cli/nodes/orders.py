"""The head's end of the contract: a copy's order for its node, and what the node says of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hadar_cli.core.model import Device, Job, Launch, Node
from hadar_cli.engine.ports import CopyOrder, CopyResult, Progressed
from hadar_cli.node.agent_events import Exited, Finished
from hadar_cli.node.contract import DATA, Card, Order, OrderRequest, Result, Update, WorkerStart
from hadar_cli.node.phases import allowance_s
from hadar_cli.nodes.gangs import MemberOrder
from hadar_cli.nodes.wire import Message, said
from hadar_cli.typed import convert

_LARGEST = 1 << 53  # beyond it, a float no longer tells numbers apart
_MOST_FIGURES = 100
_MOST_MEMBERS = 1024
_LONGEST_WORD = 80
_LONGEST_LOG = 4000


def order_request(
    order: CopyOrder,
    worker: str,
    node: Node,
    launch: Launch,
    checkpoint: str,
    optimizer: str = "",
) -> OrderRequest:
    """What is sent for an order; ``launch`` and the two files say where things lie on the node."""
    device = next(device for device in node.devices if device.name == order.device)
    start = WorkerStart(
        argv=_command(order.job, launch),
        env=_environment(launch, node, device),
        cwd=launch.sync,
        job=order.job.id,
        setup=launch.setup,
        device=device.index,
        card=_card(node, device),
    )
    asked = _order(order, device.emulated_speed, checkpoint, optimizer)
    return OrderRequest(order.attempt, worker, order.returns_weights, asked, start)


def _order(order: CopyOrder, emulate_speed: float | None, checkpoint: str, optimizer: str) -> Order:
    return Order(
        steps=len(order.steps),
        slices=order.steps.ranges,
        seconds=order.seconds,
        checkpoint_in=Path(checkpoint) if checkpoint else None,
        global_step=order.global_step,
        total_steps=order.job.target_steps,
        round=order.round,
        copy=order.copy,
        num_copies=order.num_copies,
        job_seed=order.job_seed,
        seed=order.seed,
        lr_scale=order.lr_scale,
        micro_batches=order.micro_batches,
        update=Update(*order.update) if order.update else None,
        evaluate=order.evaluate,
        hand_in=order.hand_in,
        keeps_optimizer=order.keeps_optimizer,
        optimizer_in=Path(optimizer) if optimizer else None,
        attempt=order.attempt,
        merged_of=order.merged_of,
        inherits=bool(order.follows),
        emulate_speed=emulate_speed,
        member=order.member if isinstance(order, MemberOrder) else None,
    )


def _command(job: Job, launch: Launch) -> list[str | None]:
    """The copy's command line; None stands for the agent's own interpreter."""
    if launch.script:
        return [launch.python, launch.script, *launch.args]
    if launch.module:
        return [launch.python, "-m", launch.module, *launch.args]
    words = ["-m", f"hadar_cli.workloads.{launch.workload}", "--preset", launch.preset]
    words += ["--batch-size", str(job.batch_size)]
    if launch.data_dir:
        words += ["--data-dir", launch.data_dir]
    return [launch.python, *words, *launch.args]


def _environment(launch: Launch, node: Node, device: Device) -> dict[str, str]:
    env = {**node.env, **launch.env}
    if launch.data_dir:
        env.setdefault(DATA, launch.data_dir)
    if device.emulated_speed:
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return env


def _card(node: Node, device: Device) -> Card | None:
    if device.emulated_speed or not device.gpu:
        return None
    return Card(device.card, device.gpu.uuid, len(node.devices))


def read_finished(message: Message) -> Finished:
    """A copy's end with a result; what is in the result is not looked at yet."""
    path, size = message.get("checkpoint"), message.get("bytes")
    result = message.get("result")
    return Finished(
        result if isinstance(result, dict) else {},
        str(path) if path else None,
        size if isinstance(size, int) else 0,
    )


def read_exited(message: Message) -> Exited:
    """A copy's end without one; whatever is nonsense in it can be shown."""
    code, log = message.get("code"), str(message.get("log", ""))[-_LONGEST_LOG:]
    return Exited(
        code if type(code) is int and abs(code) < _LARGEST else -1,
        said(message.get("end")),
        said(message.get("detail", "")),
        log,
    )


def read_progress(message: Message) -> Progressed | None:
    """How far a copy says it is; None for nonsense, which costs nothing but the view."""
    steps, seconds, loss = (message.get(name) for name in ("steps", "seconds", "loss"))
    if type(steps) is not int or not 0 <= steps < _LARGEST:
        return None
    if not _is_number(seconds) or (loss is not None and not _is_number(loss)):
        return None
    may_last_s = allowance_s(message.get("phase"), message.get("longest_s"))
    return Progressed(str(message.get("attempt")), steps, float(seconds or 0.0), loss, may_last_s)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -_LARGEST < value < _LARGEST  # type: ignore[operator]


def read_result(raw: Message, order: CopyOrder) -> tuple[CopyResult, bool]:
    """A script's JSON as a result, and whether its process waits for more. Raises ValueError.

    Whether its claims are true is the tracker's to judge; here they become small enough to judge.
    """
    try:
        found = convert(raw, Result)
        result = _convert(found, order)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(said(f"{type(error).__name__}: {error}")) from error
    _check_size(result)
    return result, found.waiting is True


def _convert(found: Result, order: CopyOrder) -> CopyResult:
    slices = found.slices
    figures = found.evaluation
    return CopyResult(
        steps=found.steps,
        slices=order.steps.first(found.steps).ranges if slices is None else slices,
        start_s=found.seconds.start,
        train_s=found.seconds.train,
        save_s=found.seconds.save,
        evaluate_s=found.seconds.evaluate,
        stopped=said(found.stopped, _LONGEST_WORD),
        loss=msgspec.convert(found.metrics.get("loss"), float | None),
        quality=figures and {said(name, _LONGEST_WORD): figures[name] for name in figures},
        higher_is_better=found.higher_is_better,
        missed_paces=found.missed_paces,
        lr=found.lr,
        data=found.data,
        members=tuple((member.share, member.step_s) for member in found.members),
        update=found.update,
        noise=found.noise,
    )


def _check_size(result: CopyResult) -> None:
    numbers = (result.steps, result.missed_paces, *result.data, *result.update)
    ends = [end for pair in result.slices for end in pair]
    if any(not -_LARGEST < number < _LARGEST for number in (*numbers, *ends)):
        raise ValueError("it holds numbers that cannot be")
    if len(result.members) > _MOST_MEMBERS:
        raise ValueError("it tells of more members than a gang can have")
    if len(result.quality or ()) > _MOST_FIGURES:
        raise ValueError(f"it holds more than {_MOST_FIGURES} figures of quality")
