"""The contract of orders and results: the one home of its types, names and files (contract.md).

    head     CopyOrder → Order ─┐                            Result → CopyResult
    wire                        variables, WorkerStart      ↑ JSON, in Finished
    node     environment, orders/2.json … → Order           result.json ← Result

The head makes an ``Order``; the agent adds the paths of the node. An order travels as its
variables all the way: on the wire, in the environment of a new worker, in the file that a waiting
worker looks for. A result is the JSON that the script leaves. Standard library only: nodes run it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hadar_cli.node.slices import Slices, format_slices, parse_slices, skip, take


def write_atomically(path: Path, content: Mapping[str, Any]) -> None:
    """A reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


# -- orders --------------------------------------------------------------------------------------

PREFIX = "HADAR_"  # of all these, and of nobody else's
CKPT_IN, CKPT_OUT = "HADAR_CKPT_IN", "HADAR_CKPT_OUT"
RESULT, PROGRESS = "HADAR_RESULT", "HADAR_PROGRESS"
STEPS, SLICES = "HADAR_STEPS", "HADAR_SLICES"
SECONDS_LEFT = "HADAR_SECONDS_LEFT"
GLOBAL_STEP = "HADAR_GLOBAL_STEP"
TOTAL_STEPS = "HADAR_TOTAL_STEPS"
ROUND, COPY, NUM_COPIES = "HADAR_ROUND", "HADAR_COPY", "HADAR_NUM_COPIES"
JOB_SEED, SEED = "HADAR_JOB_SEED", "HADAR_SEED"
LR_SCALE = "HADAR_LR_SCALE"
MICRO_BATCHES = "HADAR_MICRO_BATCHES"
UPDATE = "HADAR_UPDATE"
EVALUATE = "HADAR_EVALUATE"
HAND_IN = "HADAR_HAND_IN"
KEEP_OPTIMIZER = "HADAR_KEEP_OPTIMIZER"
OPTIMIZER_IN = "HADAR_OPTIMIZER_IN"
ATTEMPT = "HADAR_ATTEMPT"
MERGED_OF = "HADAR_MERGED_OF"
INHERITS = "HADAR_INHERITS"
EMULATE_SPEED = "HADAR_EMULATE_SPEED"
NEXT = "HADAR_NEXT"
DATA = "HADAR_DATA"  # of a worker, like the next: the same for all of its orders
OUT, BESIDE_MODEL = "HADAR_OUT", "pretrained"  # in OUT: what belongs beside the finished model
ISSUED_AT = "HADAR_ISSUED_AT"  # on the node's monotonic clock; not for scripts
WORKER = "HADAR_WORKER"  # marks all that a worker starts; not for scripts
GANG = "HADAR_GANG"
RANK, GANG_SIZE = "HADAR_RANK", "HADAR_GANG_SIZE"
MEETS_AT, SHARES = "HADAR_MEETS_AT", "HADAR_SHARES"
NOTICE = "HADAR_NOTICE"  # where whoever lent the machine says that it goes; not for scripts
# A cloud's service that tells the same, and the file whose age ends a machine without a head.
METADATA, ALIVE = "HADAR_METADATA", "HADAR_ALIVE"
SSH_CONFIG = "HADAR_SSH_CONFIG"  # of the head: a file in place of ssh's own configuration
TRACE = "HADAR_TRACE"  # the file that `hadar try` has a process record itself in; not for scripts


@dataclass(frozen=True, slots=True)
class Membership:
    """A process's place in a gang, whose members all train the same steps, and rank 0 hands in.

    Processes that have been in a gang of this name go on in it; else they meet anew.
    """

    gang: str
    rank: int
    size: int
    meets_at: str  # where its members find each other: file:///PATH or tcp://HOST:PORT, of rank 0
    shares: tuple[float, ...] = ()  # of a mini-batch, by rank, to begin with; empty: equal ones

    def variables(self) -> dict[str, str]:
        return {
            GANG: self.gang,
            RANK: str(self.rank),
            GANG_SIZE: str(self.size),
            MEETS_AT: self.meets_at,
            SHARES: ",".join(map(repr, self.shares)),
        }

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Membership | None:
        if not variables.get(GANG):
            return None
        rank, size = int(variables[RANK]), int(variables[GANG_SIZE])
        shares = tuple(map(float, filter(None, variables.get(SHARES, "").split(","))))
        return cls(variables[GANG], rank, size, variables[MEETS_AT], shares)


class Update(NamedTuple):
    """So many mini-batches, joined to one, make an update that counts for so many steps."""

    batches: int
    steps: int

    @staticmethod
    def parse(text: str) -> Update | None:
        batches, _, steps = text.partition(":")
        return Update(int(batches), int(steps)) if text else None


@dataclass(frozen=True, slots=True)
class Order:
    """What a copy is asked to do before it hands in its weights again.

    Paths are those of the node. The head knows only ``checkpoint_in``; see ``placed``.
    """

    steps: int
    slices: Slices
    seconds: float
    checkpoint_in: Path | None = None
    checkpoint_out: Path | None = None  # None: its weights are not wanted
    result: Path | None = None
    progress: Path | None = None
    next_order: Path | None = None
    issued_at: float = 0.0  # on the node's monotonic clock; 0: not yet
    global_step: int = 0
    total_steps: int = 0
    round: int = 0
    copy: int = 0
    num_copies: int = 1
    job_seed: int = 0
    seed: int = 0
    lr_scale: float = 1.0
    micro_batches: int = 1  # pieces that every batch is split into, as it does not fit whole
    update: Update | None = None  # None: one of each, and nobody asks for the gradient's noise
    evaluate: bool = False
    hand_in: str = "full"  # or how ``checkpoint_out`` may be an update of ``checkpoint_in``
    keeps_optimizer: bool = False  # ``checkpoint_out`` is wanted without the optimizer's state
    optimizer_in: Path | None = None  # holds the optimizer's state, if ``checkpoint_in`` does not
    attempt: str = ""
    merged_of: tuple[str, ...] = ()  # the attempts that are in ``checkpoint_in``
    inherits: bool = False  # it begins with the steps that the order before it leaves undone
    emulate_speed: float | None = None
    member: Membership | None = None  # None: it trains its steps alone

    @property
    def deadline(self) -> float:
        return self.issued_at + self.seconds

    @property
    def is_first_of_gang(self) -> bool:
        """Whether it evaluates and hands in: alone, it is all the gang there is."""
        return self.member is None or self.member.rank == 0

    @property
    def hands_in_as(self) -> str:  # the attempt by which its weights are known: in a gang, rank 0's
        return self.attempt if self.is_first_of_gang else self.attempt.rpartition(".")[0]

    @classmethod
    def by_hand(cls, steps: int) -> Order:
        """The order of a script started without hadar: everything, with nothing to hand in."""
        now, seed, inf = time.monotonic(), job_seed(), float("inf")
        return cls(steps, ((0, steps),), inf, issued_at=now, total_steps=steps, job_seed=seed)

    def placed(self, files: AttemptFiles, next_order: Path, returns_weights: bool) -> Order:
        """The order on its node, from now on: where to leave things, and where to look for more."""
        return replace(
            self,
            checkpoint_out=files.checkpoint if returns_weights else None,
            result=files.result,
            progress=files.progress,
            next_order=next_order,
            issued_at=time.monotonic(),
        )

    def left(self, done: int) -> Slices:
        """The steps still to do once ``done`` are."""
        return skip(take(self.slices, self.steps), done)

    def variables(self) -> dict[str, str]:
        """As text by name: on the wire, in the environment, in the next order's file."""
        return {
            CKPT_IN: str(self.checkpoint_in or ""),
            CKPT_OUT: str(self.checkpoint_out or ""),
            RESULT: str(self.result or ""),
            PROGRESS: str(self.progress or ""),
            STEPS: str(self.steps),
            SLICES: format_slices(self.slices),
            SECONDS_LEFT: f"{self.seconds:.3f}",
            GLOBAL_STEP: str(self.global_step),
            TOTAL_STEPS: str(self.total_steps),
            ROUND: str(self.round),
            COPY: str(self.copy),
            NUM_COPIES: str(self.num_copies),
            JOB_SEED: str(self.job_seed),
            SEED: str(self.seed),
            LR_SCALE: repr(self.lr_scale),
            MICRO_BATCHES: str(self.micro_batches),
            UPDATE: ":".join(map(str, self.update or ())),
            EVALUATE: "1" if self.evaluate else "",
            HAND_IN: self.hand_in if self.hand_in != "full" else "",
            KEEP_OPTIMIZER: "1" if self.keeps_optimizer else "",
            OPTIMIZER_IN: str(self.optimizer_in or ""),
            ATTEMPT: self.attempt,
            MERGED_OF: ",".join(self.merged_of),
            INHERITS: "1" if self.inherits else "",
            EMULATE_SPEED: repr(self.emulate_speed) if self.emulate_speed else "",
            NEXT: str(self.next_order or ""),
            ISSUED_AT: repr(self.issued_at) if self.issued_at else "",
            **(self.member.variables() if self.member else {}),
        }

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Order:
        """The order that these variables spell; only steps, slices and seconds must be there."""

        def path(name: str) -> Path | None:
            return Path(variables[name]) if variables.get(name) else None

        def number(name: str, otherwise: int = 0) -> int:
            return int(variables.get(name) or otherwise)

        return cls(
            steps=int(variables[STEPS]),
            slices=parse_slices(variables[SLICES]),
            seconds=float(variables[SECONDS_LEFT]),
            checkpoint_in=path(CKPT_IN),
            checkpoint_out=path(CKPT_OUT),
            result=path(RESULT),
            progress=path(PROGRESS),
            next_order=path(NEXT),
            issued_at=float(variables.get(ISSUED_AT) or time.monotonic()),
            global_step=number(GLOBAL_STEP),
            total_steps=number(TOTAL_STEPS),
            round=number(ROUND),
            copy=number(COPY),
            num_copies=number(NUM_COPIES, 1),
            job_seed=number(JOB_SEED),
            seed=number(SEED),
            lr_scale=float(variables.get(LR_SCALE) or 1.0),
            micro_batches=number(MICRO_BATCHES, 1),
            update=Update.parse(variables.get(UPDATE, "")),
            evaluate=variables.get(EVALUATE) == "1",
            hand_in=variables.get(HAND_IN) or "full",
            keeps_optimizer=variables.get(KEEP_OPTIMIZER) == "1",
            optimizer_in=path(OPTIMIZER_IN),
            attempt=variables.get(ATTEMPT, ""),
            merged_of=tuple(filter(None, variables.get(MERGED_OF, "").split(","))),
            inherits=variables.get(INHERITS) == "1",
            emulate_speed=float(variables.get(EMULATE_SPEED) or 0.0) or None,
            member=Membership.from_variables(variables),
        )


def is_under_orders() -> bool:
    return STEPS in os.environ  # or else somebody started the script by hand


def job_seed() -> int:
    return int(os.environ.get(JOB_SEED) or 0)  # by hand there is none


def total_steps() -> int:
    return int(os.environ.get(TOTAL_STEPS) or 0)  # of the whole job; 0 by hand


@dataclass(frozen=True, slots=True)
class Card:
    """The GPU that a worker trains on, by its number on the node or by its name."""

    index: int
    uuid: str | None
    sharers: int  # how many GPUs of the node train at once, and share its cores


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """How to start a worker, for an order that none waits for."""

    argv: list[str | None]  # None stands for the agent's own interpreter
    env: dict[str, str]
    cwd: str | None  # None: the run's directory
    job: int
    setup: str | None  # a shell command, once a job and node
    device: int = 0  # its number among the node's; one worker at a time
    card: Card | None = None  # None: it trains on the processor

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> WorkerStart:
        card = message.get("card")
        return cls(**{**message, "card": Card(**card) if card else None})


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What the head sends to have an order done by a worker, one that waits or a new one."""

    attempt: str
    worker: str
    returns_weights: bool
    order: Order
    start: WorkerStart

    def message(self) -> dict[str, Any]:
        return {**asdict(self), "order": self.order.variables()}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> OrderRequest:
        return cls(
            message["attempt"],
            message["worker"],
            message["returns_weights"],
            Order.from_variables(message["order"]),
            WorkerStart.from_message(message["start"]),
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which worker has an attempt: the agent's note of it, and its answer to the head."""

    worker: str
    number: int = 1  # of the worker's orders

    @property
    def is_warm(self) -> bool:
        """Whether the worker was there before."""
        return self.number > 1


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """What lies on the node of one attempt, below ``attempts/<attempt>/``."""

    directory: Path

    @property
    def assignment(self) -> Path:
        return self.directory / "order.json"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "weights.safetensors"

    @property
    def result(self) -> Path:
        return self.directory / "result.json"

    @property
    def progress(self) -> Path:
        return self.directory / "progress.json"


# -- results -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seconds:
    """What a copy's time went into; ``evaluate`` is a part of ``start``."""

    start: float = 0.0
    train: float = 0.0
    save: float = 0.0
    evaluate: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberSpeed:
    """What a member of a gang did of every step, on the average of an order."""

    rank: int
    share: float  # of a mini-batch, from the next one on; 0: the gang is no slower without it
    step_s: float = 0.0  # its own work on a step, without waiting; 0: not measured
    wait_s: float = 0.0  # for the others and the exchange of gradients


@dataclass(frozen=True, slots=True)
class Result:
    """What a script leaves as JSON; only ``steps`` is required of it."""

    steps: int
    slices: Slices | None = None  # None: the first of those it was given
    samples: object = 0  # for people; nothing counts them
    seconds: Seconds = field(default_factory=Seconds)
    metrics: dict[str, object] = field(default_factory=dict)
    evaluation: dict[str, float] | None = None
    higher_is_better: bool | None = None  # of the evaluation's first figure; None: by its name
    stopped: object = "end"  # "steps", "deadline", "signal"
    waiting: object = False  # True: the process stays, and looks for its next order
    missed_paces: int = 0
    lr: tuple[float, float] | None = None  # of its first and last update
    data: tuple[int, ...] = ()  # numbers of the samples it began with
    members: tuple[MemberSpeed, ...] = ()  # of a gang, by rank
    update: tuple[int, int] = (1, 1)  # mini-batches in an update, and steps that it counted for
    noise: float | None = None  # gradient noise scale, in mini-batches; None: not measured

    def write(self, path: Path) -> None:
        write_atomically(path, asdict(self))
