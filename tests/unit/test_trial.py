"""A trial's words, and how it compares checkpoints."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hadar_cli.core.model import Job
from hadar_cli.core.reasons import Loss, Unfit
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder, CopyResult, Failed, HandedIn, Progressed
from hadar_cli.trial import words
from hadar_cli.trial.trial import goes_on
from hadar_cli.trial.trial_run import Ended, TrialRun
from hadar_cli.trial.weights import alter, describe, distances, has_optimizer_state

ORDER = CopyOrder("a", Job(0, "j", 10, 1), "one", StepSet.of([(0, 8)]), 60, None, 1, 1, 2, 0, 1, 1)


def handed_in(steps: int, stopped: str = "steps") -> Ended:
    result = CopyResult(steps, ((0, steps),), 0.0, 0.0, 0.0, stopped)
    return Ended(ORDER, handed_in=HandedIn("a", result, "digest"))


def lost(reason: Loss, why: str = "", log: str = "") -> Ended:
    return Ended(ORDER, lost=Failed("a", reason, why or reason.text, log))


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (Ended(ORDER), "neither did its steps nor stopped"),
        (lost(Loss.NO_RESULT), "without leaving a result"),
        (lost(Loss.EXITED, "it exited with code 1", "Traceback\n\nValueError: no"), "crashed"),
        (lost(Loss.TERMINATED), "SIGTERM ends it"),
        (lost(Loss.BAD_RESULT, "its result cannot be taken: steps"), "cannot be taken"),
        (handed_in(0), "without having done a step"),
        (handed_in(3, "deadline"), "3 of 8 steps"),
    ],
)
def test_every_way_to_end_badly_has_its_words(end, told):
    fault = words.explain_end(end, None, 8)
    assert fault
    assert told in fault.what
    assert fault.fix


class Slow:
    """An executor on a machine where an order is heard of once in 50 s."""

    def __init__(self, words: int) -> None:
        self._left, self._now = words, 0.0

    def now(self) -> float:
        return self._now

    def wait(self, until: float) -> list:
        before, self._now = self._now, until
        if until // 50 == before // 50 or not self._left:
            return []
        self._left -= 1
        steps = int(until // 50)
        return [Progressed("a", steps, until), *([handed_in(8).handed_in] if steps == 8 else [])]


def test_patience_is_with_silence_not_with_slowness():
    trial_run = TrialRun.__new__(TrialRun)
    trial_run.executor = Slow(words=8)
    (end,) = trial_run.await_all([ORDER], 60.0)
    assert end.handed_in and (end.steps, end.told) == (8, 8)
    assert end.after_s == pytest.approx(400, abs=1)

    trial_run.executor = Slow(words=3)
    (end,) = trial_run.await_all([ORDER], 60.0)
    assert not end.is_over and end.steps == 3
    assert trial_run.executor.now() == pytest.approx(210, abs=1)


def test_a_copy_goes_on_where_it_tells_of_more_steps_again_and_again():
    then: dict[str, int] = {}
    assert not goes_on(Ended(ORDER, progressed=True, told=7), then)
    assert not goes_on(Ended(ORDER, progressed=True, told=10), then), "it comes to its end"
    assert goes_on(Ended(ORDER, progressed=True, told=11), then)
    assert goes_on(Ended(ORDER), {}), "of one that never tells, its time is all there is"


def test_a_whole_order_is_no_fault():
    assert words.explain_end(handed_in(8), None, 8) is None


def test_a_failure_beyond_the_scripts_own_end_is_told_as_one():
    end = lost(Loss.EXITED, "it exited with code 1", "RuntimeError: left")
    fault = words.explain_end(end, None, 8)
    assert fault
    assert words.explain_length(fault, end, 8) is fault, "the order is as long as the script"
    assert words.explain_length(fault, end, 0) is fault
    told = words.explain_length(fault, end, 6)
    assert "beyond the script's own 6 steps, and there it crashed" in told.what
    assert told.fix.startswith("try it with fewer: --steps 1.")
    assert "RuntimeError: left" in told.fix


def test_the_end_of_the_log_is_in_the_fix():
    fault = words.explain_end(lost(Loss.EXITED, log="one\n\nValueError: no"), None, 8)
    assert fault
    assert fault.fix.splitlines()[1:] == ["one", "ValueError: no"]


@pytest.mark.parametrize(
    ("reason", "why", "told"),
    [
        (Unfit.NOT_FINITE, "NaN or Inf in 'w'", "not finite"),
        (Unfit.UNREADABLE, "unreadable: too short", "no safetensors file"),
        (Unfit.UNLIKE, "it lacks 'w'", "do not match"),
        (Unfit.UNLIKE, "'w' has shape [3], not [4]", "do not match"),
        (Unfit.OUTLYING, "its update is far longer than the others'", "far longer"),
    ],
)
def test_every_refusal_of_the_merge_has_its_words(reason, why, told):
    fault = words.explain_refusal(reason, why)
    assert told in fault.what
    assert why in fault.what


def save(path: Path, **tensors: torch.Tensor) -> Path:
    save_file({name.replace("__", "/"): tensor for name, tensor in tensors.items()}, path)
    return path


def test_altering_changes_the_weights_or_the_optimizer_and_nothing_else(tmp_path):
    given = save(
        tmp_path / "given",
        model__0__w=torch.ones(3, dtype=torch.bfloat16),
        model__0__n=torch.tensor([7]),
        optimizer__0__0__m=torch.ones(2),
        optimizer__0__0__step=torch.tensor(5.0),
    )
    alter(given, tmp_path / "weights", optimizer=False)
    alter(given, tmp_path / "optimizer", optimizer=True)
    before = load_file(given)
    changed = {
        kind: {n for n, t in load_file(tmp_path / kind).items() if not torch.equal(t, before[n])}
        for kind in ("weights", "optimizer")
    }
    assert changed == {"weights": {"model/0/w"}, "optimizer": {"optimizer/0/0/m"}}


def test_distances_are_of_weights_by_model(tmp_path):
    one = save(
        tmp_path / "1", model__0__a=torch.zeros(2), model__0__b=torch.zeros(1), x=torch.zeros(1)
    )
    two = save(
        tmp_path / "2",
        model__0__a=torch.tensor([3.0, 0.0]),
        model__0__b=torch.tensor([4.0]),
        x=torch.tensor([2.0]),
    )
    assert distances(one, two) == {"model/0": pytest.approx(5.0), "x": pytest.approx(2.0)}
    assert not has_optimizer_state(one)
    assert describe(one).startswith("3 tensors")
