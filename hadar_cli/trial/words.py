"""What a trial finds, in plain words: what is wrong with the script, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hadar_cli.core.reasons import Loss, Unfit
from hadar_cli.engine.ports import Failed
from hadar_cli.node.contract import (
    CKPT_IN,
    CKPT_OUT,
    EVALUATE,
    GLOBAL_STEP,
    JOB_SEED,
    RESULT,
    SECONDS_LEFT,
    SLICES,
    STEPS,
    TOTAL_STEPS,
)
from hadar_cli.node.log_phrases import FIX, REFUSED
from hadar_cli.trial.trial_run import Ended

_LOG_LINES = 6
_CHANGED_WITHIN = "modified by an inplace operation"  # in an error of torch's


class Status(Enum):
    PASSED = "passed"
    WARNED = "warned"  # worth a look, and no reason not to run it
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a script must do, and whether it does."""

    name: str
    status: Status
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and how to mend it."""

    what: str
    fix: str

    def at(self, name: str) -> Check:
        return Check(name, Status.FAILED, self.what, self.fix)


NOT_IN_TIME = Fault(
    "it neither did its steps nor stopped at its deadline",
    f"take the batches from t.loader(...), or stop after {STEPS} steps and before "
    f"{SECONDS_LEFT} seconds are over",
)
PAST_DEADLINE = Fault(
    "it goes on past its deadline",
    "take the batches from t.loader(...), which watches the time; a plain script must stop, save "
    f"and report within {SECONDS_LEFT} seconds of its start. Long work between batches, such "
    "as a validation pass, belongs into training(..., evaluate=...)",
)
DEAF = Fault(
    "it ignores SIGTERM, and would be killed with its work lost",
    "handle SIGTERM: finish the step, save the checkpoint, write the result and exit, as "
    "t.loader(...) does; leave alone the handler that training sets",
)
DIES = Fault(
    "SIGTERM ends it without a result, and the steps it did are lost",
    "handle SIGTERM: finish the step, save the checkpoint, write the result and exit, as "
    "t.loader(...) does",
)
NO_RESULT = Fault(
    "it ended without leaving a result",
    "put the loop into `with training(model, optimizer) as t` and take its batches from "
    f"t.loader(...); a plain script writes JSON to {RESULT} before it exits",
)
NO_CHECKPOINT = Fault(
    "it reports steps but left no checkpoint",
    f"write the weights to {CKPT_OUT}, as safetensors, before the result",
)
OVERCLAIMS = Fault(
    "it reports more steps than it was given, or others",
    f"do at most {STEPS} steps, those that {SLICES} names, and report just what was done",
)
NO_STEPS = Fault(
    "it handed in without having done a step",
    "train on the batches of t.loader(...), not on a DataLoader of your own",
)
NAN = Fault(
    "its weights are not finite: NaN or Inf",
    "lower the learning rate, clip gradients (t.step(loss, clip_norm=1.0)), or look for a division "
    "by zero in the loss",
)
UNREADABLE = Fault(
    "its checkpoint is no safetensors file",
    f"write {CKPT_OUT} with safetensors' save_file, not with torch.save",
)
UNLIKE = Fault(
    "the two copies' checkpoints do not match",
    "every copy must build the same model: no sizes that depend on the data, the copy or chance",
)
WEIGHTS = Fault(
    "it does not start from the checkpoint it is given",
    f"load {CKPT_IN} before training; training(model, ...) loads every model it is given, so "
    "give it all of them, and build nothing anew after it",
)
OPTIMIZER = Fault(
    "it saves its optimizer's state but starts without it",
    f"load the optimizer's state from {CKPT_IN} too; training(model, optimizer) does so for "
    "every optimizer it is given",
)
BEGINNINGS = Fault(
    "two copies of it begin with different weights",
    f"seed before the model is built: torch.manual_seed(0), or with {JOB_SEED}",
)
SAME_DATA = Fault(
    "two copies that were given different steps trained on the same data",
    "take the batches from t.loader(...); a plain script must use the mini-batches that "
    f"{SLICES} names: step k is mini-batch k mod φ of epoch k div φ",
)
SCHEDULE = Fault(
    "its learning-rate schedule starts anew in every process",
    "give the scheduler to training(model, optimizer, scheduler); a plain script takes the rate at "
    f"{GLOBAL_STEP}",
)
BYPASSED = Fault(
    "its weights change without its optimizer: no optimizer that training was given made a step",
    "update by optimizer.step() or t.step(loss), and give training every optimizer, of one around "
    "another (SAM, Lookahead) the inner one, whose step is called. Copies that "
    "train at the same time need another learning rate, which hadar sets in the optimizer; an "
    "update rule of your own can be a torch.optim.Optimizer",
)
NO_UPDATE = Fault(
    "no update happened: its optimizer made no step",
    "call optimizer.step() or t.step(loss) for every batch. A GradScaler leaves updates out until "
    "its scale fits: try more steps (--steps 50), or a smaller init_scale",
)
NOT_SEEDED = Fault(
    "not seeded: it begins with other weights than by hand, so the two cannot be compared",
    "seed before the model is built: torch.manual_seed(0). By hand, "
    f"{JOB_SEED} is not set; in this trial it was 0",
)
OTHER_SIZE = Fault(
    "its model has {:,} weights under hadar and {:,} by hand",
    "build the same model everywhere: from files that travel, arguments and the data of the job, "
    "not from the environment",
)
OTHER_BEGINNING = Fault(
    "it begins with other weights than by hand",
    "seed before the model is built: torch.manual_seed(0)",
)
NOT_REPEATABLE = Fault(
    "not seeded: two runs by hand train differently too, so it cannot be compared",
    "seed all random numbers (torch, numpy, random) before the first is drawn, if runs are to be "
    "repeatable; hadar trains it either way",
)
BEYOND = Fault(
    "cannot tell: this trial goes beyond the script's own {} steps, where it ends by itself",
    "a schedule or a count that ends must be as long as the job: "
    f'int(os.environ.get("{TOTAL_STEPS}") or epochs * len(loader)). Where the mix has just as '
    "many steps as the script, it is right as it is",
)
ACCUMULATES = Fault(
    "some of its steps make no update: it accumulates gradients, or leaves updates out",
    "say training(..., accumulate=N) if N mini-batches make an update: a step is then one update, "
    "and no order ends within one",
)
RUNS_AHEAD = Fault(
    "it asks for the next mini-batch before it updates by the last one, as a prefetcher around "
    "t.loader does: what an order hands in lacks its last update",
    "prefetch within: t.loader(Prefetcher(loader)), not Prefetcher(t.loader(loader))",
)
ASKS_WITHIN = Fault(
    "its weights change between a forward pass and its backward: the next mini-batch is asked for "
    "in between, where an order may end and the next one brings merged weights",
    "ask for the next mini-batch when the update is made: for batch in t.loader(...), with the "
    "prefetching inside, t.loader(Prefetcher(loader))",
)
EARLY_UPDATE = Fault(
    "it updates before the last of a step's mini-batches: gradients after that wait for the next "
    "step, and are lost where that is another copy's, or after an interruption",
    "update when the last of them is in: (i + 1) % N == 0 in place of i % N == 0",
)
MISCOUNTED = Fault(
    "it tells its scheduler another number of updates than the job's: its learning rate is wrong "
    "where an order begins within an epoch",
    "scheduler.step_update(t.position + 1) in place of a count of its own",
)
OWN_STATE = Fault(
    "what the script counts by itself begins anew in every process, as on another device or after "
    "an interruption",
    "give it to training: state={'progress': progress}, where progress is a dict, or an object "
    "with the values as attributes; a count of steps is t.position. What only the log needs may "
    "stay as it is",
)
REPLACED = Fault(
    "cannot tell: {} draws from global random numbers, for which the job's seed stands under hadar",
    "draw from a generator of its own, an attribute of the sampler (self.generator = "
    "torch.Generator()): that is followed exactly, and can be compared",
)
_ELSEWHERE = (
    "look for what depends on how it was started: a file that does not travel, an "
    "environment variable, the working directory, random numbers that it draws while it trains"
)
DIFFERENCES = {
    "batch": "take the batches from t.loader(...), and none from an iterator of your own; of a "
    "framework, train by hadar_cli.huggingface.train or hadar_cli.lightning.fit",
    "learning rate": "give the scheduler to training(model, optimizer, scheduler), take epochs "
    "from t.epochs(...), and let nothing but the scheduler set the rate",
    "loss": _ELSEWHERE,
    "weights": _ELSEWHERE,
}
STAYS_BEHIND = Fault(
    "it read files here that no node will have",
    "name data under `data:` in the mix, or let it travel with the project: `!NAME` in "
    ".hadarignore. What nodes have anyway, at the same path, is no trouble",
)
EPOCHS = Fault(
    "its epochs are its own: all steps come in the first, and what it does between epochs (a "
    "validation, a print) only when all is trained",
    "write `for epoch in t.epochs(range(...)):` around t.loader(...)",
)
EPOCHS_TICK = Fault(
    "its epochs are its own: all steps come in the first, and its learning rate moves only when "
    "all is trained",
    "write `for epoch in t.epochs(range(...)):` around t.loader(...)",
)
LEFT_UNTRAINED = Fault(
    "its first loop over t.loader has all the steps, so what a later one trains is never trained: "
    "one of its optimizers makes no update",
    "make one loop of them, which tells by t.position whose turn it is",
)
NO_QUALITY = Fault(
    "it reported its quality at first, but not when asked to evaluate and nothing else",
    f"evaluate whenever {EVALUATE} is 1, also with no steps to do and no checkpoint to "
    "write, and report it as `evaluation`",
)
NEVER_ENDS = Fault(
    "it does not end by itself when all is trained, and was killed",
    "leave the loop when t.loader(...) has no more batches: not `while True` around it. What "
    "stands after the loop has ten seconds",
)
FAILS_AT_THE_END = Fault(
    "it fails after its loop, when all is trained",
    "what stands after the loop runs in every process, once no step is left",
)
NEVER_SEEN = (
    "how good it is when trained, alone or merged",
    "other machines: their packages, GPUs and memory",
    "files that compiled code opens, and what it writes outside of its folder",
)


def explain_end(
    end: Ended, objection: Loss | None, asked: int, is_side_task: bool = False
) -> Fault | None:
    """What is wrong with how an order ended, or None if it was done in full."""
    if end.lost:
        return _explain_loss(end.lost)
    if not end.handed_in:
        return NOT_IN_TIME
    if is_side_task:
        return None
    steps = end.handed_in.result.steps
    if objection is Loss.NO_WEIGHTS:
        return NO_CHECKPOINT
    if objection:
        return Fault(f"{OVERCLAIMS.what} ({steps} of {asked})", OVERCLAIMS.fix)
    if not steps:
        return NO_STEPS
    if end.handed_in.result.stopped == "deadline" and steps < asked:
        return Fault(
            f"{steps} of {asked} steps were all it did in {end.order.seconds:.0f} s",
            "try it with smaller data or a smaller model, or give it more time: --patience",
        )
    return None


def explain_length(fault: Fault, end: Ended, length: int) -> Fault:
    """The same, where the order went beyond the steps that the script has by itself."""
    if not 0 < length < end.order.steps.ranges[-1][1]:
        return fault
    what = f"this trial goes beyond the script's own {length} steps, and there {fault.what}"
    return Fault(what, f"try it with fewer: --steps {max(1, length // 4)}. {fault.fix}")


def _explain_loss(lost: Failed) -> Fault:
    if refused := refusal_in(lost.log):
        return refused
    if _CHANGED_WITHIN in lost.log:
        return Fault(ASKS_WITHIN.what, ASKS_WITHIN.fix + tail(lost.log))
    match lost.reason:
        case Loss.NO_RESULT:
            return Fault(NO_RESULT.what, NO_RESULT.fix + tail(lost.log))
        case Loss.TERMINATED:
            return DIES
        case Loss.BAD_RESULT:
            return Fault(lost.why, f"{RESULT} holds one JSON object; only `steps` must be in it")
    return Fault(f"it crashed: {lost.why}", "see the end of what it printed" + tail(lost.log))


def refusal_in(log: str) -> Fault | None:
    """What ``training`` found wrong with the script, in its own words."""
    for line in log.splitlines():
        _, is_one, told = line.partition(REFUSED)
        what, _, fix = told.partition(FIX)
        if is_one and fix:
            return Fault(what, fix)
    return None


def tail(log: str) -> str:
    """The end of what a process printed, as lines below a fix."""
    lines = [line for line in log.strip().splitlines() if line.strip()][-_LOG_LINES:]
    return "".join(f"\n{line}" for line in lines)


def explain_refusal(reason: Unfit, why: str) -> Fault:
    """What is wrong with a checkpoint that the merge refused."""
    match reason:
        case Unfit.NOT_FINITE:
            return Fault(f"{NAN.what} ({why})", NAN.fix)
        case Unfit.UNREADABLE:
            return Fault(f"{UNREADABLE.what} ({why})", UNREADABLE.fix)
        case Unfit.OUTLYING:
            return Fault(why, f"copies must start from {CKPT_IN} and train alike")
    return Fault(f"{UNLIKE.what}: {why}", UNLIKE.fix)
