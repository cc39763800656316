"""What a trial finds, in plain words: what is wrong with the script, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hadar_cli.adapters.trial_stage import Ended

_LOG_LINES = 6


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
    "take the batches from t.loader(...), or stop after HADAR_STEPS steps and before "
    "HADAR_SECONDS_LEFT seconds are over",
)
PAST_DEADLINE = Fault(
    "it goes on past its deadline",
    "take the batches from t.loader(...), which watches the time; a plain script must stop, save "
    "and report within HADAR_SECONDS_LEFT seconds of its start. Long work between batches, such "
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
    "t.loader(...); a plain script writes JSON to HADAR_RESULT before it exits",
)
NO_CHECKPOINT = Fault(
    "it reports steps but left no checkpoint",
    "write the weights to HADAR_CKPT_OUT, as safetensors, before the result",
)
OVERCLAIMS = Fault(
    "it reports more steps than it was given, or others",
    "do at most HADAR_STEPS steps, those that HADAR_SLICES names, and report just what was done",
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
    "write HADAR_CKPT_OUT with safetensors' save_file, not with torch.save",
)
UNLIKE = Fault(
    "the two copies' checkpoints do not match",
    "every copy must build the same model: no sizes that depend on the data, the copy or chance",
)
WEIGHTS = Fault(
    "it does not start from the checkpoint it is given",
    "load HADAR_CKPT_IN before training; training(model, ...) loads every model it is given, so "
    "give it all of them, and build nothing anew after it",
)
OPTIMIZER = Fault(
    "it saves its optimizer's state but starts without it",
    "load the optimizer's state from HADAR_CKPT_IN too; training(model, optimizer) does so for "
    "every optimizer it is given",
)
BEGINNINGS = Fault(
    "two copies of it begin with different weights",
    "seed before the model is built: torch.manual_seed(0), or with HADAR_JOB_SEED",
)
SAME_DATA = Fault(
    "two copies that were given different steps trained on the same data",
    "take the batches from t.loader(...); a plain script must use the mini-batches that "
    "HADAR_SLICES names: step k is mini-batch k mod φ of epoch k div φ",
)
SCHEDULE = Fault(
    "its learning-rate schedule starts anew in every process",
    "give the scheduler to training(model, optimizer, scheduler); a plain script takes the rate at "
    "HADAR_GLOBAL_STEP",
)


def explain_end(end: Ended, objection: str | None, asked: int) -> Fault | None:
    """What is wrong with how an order ended, or None if it was done in full."""
    if end.lost:
        return _explain_loss(end.lost.why, end.lost.log)
    if not end.handed_in:
        return NOT_IN_TIME
    steps = end.handed_in.result.steps
    if objection == "it reports steps but left no weights":
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


def _explain_loss(why: str, log: str) -> Fault:
    if why == "it exited with code 0":
        return Fault(NO_RESULT.what, NO_RESULT.fix + _tail(log))
    if why in ("it exited with code -15", "released"):
        return DIES
    if why.startswith("its result cannot be taken"):
        return Fault(why, "HADAR_RESULT holds one JSON object; only `steps` must be in it")
    return Fault(f"it crashed: {why}", "see the end of what it printed" + _tail(log))


def _tail(log: str) -> str:
    lines = [line for line in log.strip().splitlines() if line.strip()][-_LOG_LINES:]
    return "".join(f"\n{line}" for line in lines)


def explain_refusal(why: str) -> Fault:
    """What is wrong with a checkpoint that the merge refused."""
    if why.startswith("NaN"):
        return Fault(f"{NAN.what} ({why})", NAN.fix)
    if why.startswith("unreadable"):
        return Fault(f"{UNREADABLE.what} ({why})", UNREADABLE.fix)
    if "longer than" in why:
        return Fault(why, "copies must start from HADAR_CKPT_IN and train alike")
    return Fault(f"{UNLIKE.what}: {why}", UNLIKE.fix)
