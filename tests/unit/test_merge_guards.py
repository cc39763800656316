"""Every guard of the merge, with its reason, and the rest merged without the culprit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hadar_cli.weights.merge_arithmetic import BLOCK
from hadar_cli.weights.merging import Contribution, validate
from hadar_cli.weights.safetensors_file import CheckpointError
from hadar_cli.weights.validation import Copy
from tests.support.checkpoints import FLOATS, Folder, Tensors, W, noise, with_state


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_no_steps(folder: Folder) -> None:
    folder.add({W: torch.zeros(1)}, steps=0)
    folder.add({W: torch.ones(1)})
    assert folder.refusals() == {1: "it did no steps"}
    assert folder.load()[W].item() == 1.0


def test_unreadable(folder: Folder) -> None:
    folder.add({W: torch.zeros(4)}).write_bytes(b"rubbish")
    folder.add({W: torch.ones(4)})
    folder.contributions.append(Contribution(3, folder.path / "absent", 5, 5))
    assert folder.refusals() == {
        1: "unreadable: it ends too early",
        3: "unreadable: cannot be opened: No such file or directory",
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("others", [1, 2])
def test_not_finite(folder: Folder, dtype: torch.dtype, poison: float, others: int) -> None:
    bad = torch.zeros(50, dtype=dtype)
    bad[17] = poison
    folder.add({W: bad})
    for _ in range(others):
        folder.add({W: torch.ones(50, dtype=dtype)})
    assert folder.refusals() == {1: f"NaN or Inf in '{W}'"}
    assert torch.equal(folder.load()[W], torch.ones(50, dtype=dtype))


def test_infinities_that_cancel_are_both_found(folder: Folder) -> None:
    for value in (float("inf"), float("-inf"), 1.0):
        folder.add({W: torch.tensor([value])})
    assert folder.refusals().keys() == {1, 2}


def test_not_finite_step_counter(folder: Folder) -> None:
    for step in (float("-inf"), 3.0):
        folder.add(with_state(1.0, step))
    assert folder.refusals() == {1: "NaN or Inf in 'optimizer/0/0/step'"}


def test_the_largest_float64_is_no_infinity(folder: Folder) -> None:
    largest = torch.full((100,), torch.finfo(torch.float64).max, dtype=torch.float64)
    for steps in (3, 7, 11):
        folder.add({W: largest}, steps)
    assert folder.refusals() == {}
    assert torch.equal(folder.load()[W], largest)


MISFITS: dict[str, tuple[Tensors, str]] = {
    "missing": ({"model/0/a": torch.ones(2)}, "it lacks 'model/0/b'"),
    "surplus": (
        {f"model/0/{n}": torch.ones(2) for n in "abc"},
        "it has 'model/0/c', which does not belong",
    ),
    "shape": (
        {"model/0/a": torch.ones(2), "model/0/b": torch.ones(1, 2)},
        "'model/0/b' has shape [1, 2], not [2]",
    ),
    "dtype": (
        {"model/0/a": torch.ones(2).half(), "model/0/b": torch.ones(2)},
        "'model/0/a' is F16, not F32",
    ),
    "none": ({"optimizer/0/0/step": torch.ones(1)}, "unreadable: it holds no weights"),
}
FITTING = {"model/0/a": torch.ones(2), "model/0/b": torch.ones(2)}


@pytest.mark.parametrize("misfit", MISFITS)
def test_misfit_against_the_base(folder: Folder, misfit: str) -> None:
    content, reason = MISFITS[misfit]
    folder.base = folder.save("base", FITTING)
    for _ in range(2):
        folder.add(content, steps=100)
    folder.add(FITTING)
    assert folder.refusals() == {1: reason, 2: reason}


@pytest.mark.parametrize("misfit", MISFITS)
def test_misfit_against_the_majority(folder: Folder, misfit: str) -> None:
    content, reason = MISFITS[misfit]
    folder.add(content, steps=100)
    for _ in range(2):
        folder.add(FITTING)
    assert folder.refusals() == {1: reason}


def test_of_two_that_differ_the_leader_stays(folder: Folder) -> None:
    folder.add(MISFITS["missing"][0], steps=9)
    folder.add(FITTING, steps=10)
    assert folder.refusals() == {1: "it lacks 'model/0/b'"}


def test_other_optimizer_state(folder: Folder) -> None:
    for _ in range(2):
        folder.add(with_state(1.0, 1.0))
    folder.add({W: torch.ones(1), "optimizer/0/0/momentum_buffer": torch.ones(1)})
    assert folder.refusals() == {3: "it lacks 'optimizer/0/0/exp_avg'"}
    assert folder.refusals(optimizer_state="leader") == {}


def test_other_state_of_the_scripts_own(folder: Folder) -> None:
    for i in range(3):
        folder.add({W: torch.ones(1), f"state/ema/{i // 2}": torch.ones(1)})
    assert folder.refusals(optimizer_state="leader") == {3: "it lacks 'state/ema/0'"}


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_not_finite_beside_a_base(folder: Folder, poison: float) -> None:
    folder.base = folder.save("base", {W: torch.ones(50)})
    for value in (1.0, poison, 2.0):
        folder.add({W: torch.full((50,), value)})
    assert folder.refusals() == {2: f"NaN or Inf in '{W}'"}


def test_updates_whose_square_overflows_are_no_infinity(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.ones(50)})
    for value in (3e38, -3e38):
        folder.add({W: torch.full((50,), value)})
    assert folder.refusals() == {}


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ({}, "its tied weights are others"),
        ({"tied": {"model/0/x": "model/0/y"}}, "unreadable: its tied weights are not stored once"),
        ({"tied": {W: W}}, "unreadable: its tied weights are not stored once"),
        ({"tied": [3]}, "unreadable: its notes are not as hadar writes them"),
        ({"buffers": 3}, "unreadable: its notes are not as hadar writes them"),
        ([], "unreadable: its notes are not as hadar writes them"),
    ],
)
def test_other_or_broken_notes(folder: Folder, notes: Any, reason: str) -> None:
    for _ in range(2):
        folder.add({W: torch.ones(1)}, notes={"tied": {"model/0/head": W}})
    folder.add({W: torch.ones(1)}, notes=notes)
    assert folder.refusals() == {3: reason}


def add_updates(folder: Folder, updates: list[tuple[int, float]]) -> None:
    folder.base = folder.save("base", {W: noise(0, 200)})
    for i, (steps, size) in enumerate(updates):
        folder.add({W: noise(0, 200) + size * noise(i + 1, 200)}, steps)


def test_outlying_update(folder: Folder) -> None:
    add_updates(folder, [(10, 0.1), (20, 0.1), (10, 30.0), (10, 0.1)])
    assert folder.refusals() == {3: "its update is far longer than the others'"}
    assert folder.load()[W].abs().max() < 5


@pytest.mark.parametrize(
    "updates",
    [
        [(10, 0.1), (10, 30.0)],  # two copies: which is wrong?
        [(10, 0.1), (10, 0.1), (1000, 10.0)],  # drift: as the steps
        [(100, 0.1), (100, 0.1), (1, 0.01)],  # noise: as the root of the steps
        [(10, 0.0), (10, 0.0), (10, 0.1)],  # the others have not moved: nothing to compare with
    ],
)
def test_updates_that_are_no_outliers(folder: Folder, updates: list[tuple[int, float]]) -> None:
    add_updates(folder, updates)
    assert folder.refusals() == {}


def test_two_faults_are_found_one_after_the_other(folder: Folder) -> None:
    add_updates(folder, [(10, 0.1), (10, 50.0), (10, float("nan")), (10, 0.1), (10, 0.1)])
    assert folder.refusals().keys() == {2, 3}


@pytest.mark.parametrize("others", [1, 2])
def test_a_file_cut_while_merging_is_refused(folder: Folder, others: int) -> None:
    path = folder.add({W: torch.zeros(1000)})
    for _ in range(others):
        folder.add({W: torch.ones(1000)})
    opened = Copy.__init__

    def open_then_cut(self: Any, contribution: Contribution, *rest: Any) -> None:
        opened(self, contribution, *rest)
        if contribution.path == path:
            with path.open("r+b") as file:
                file.truncate(200)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Copy, "__init__", open_then_cut)
        assert folder.refusals() == {1: "unreadable: it ends too early"}
    assert torch.equal(folder.load()[W], torch.ones(1000))


def test_a_bad_base_is_the_heads_own_fault(folder: Folder) -> None:
    for steps in (1, 5):
        folder.add({W: torch.ones(3)}, steps)
    folder.base = folder.save("base", {W: torch.tensor([1.0, float("inf"), 1.0])})
    with pytest.raises(CheckpointError, match="the base has NaN or Inf"):
        folder.merge(rule="progress")
    folder.base.write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match="ends too early"):
        folder.merge()


# --- validate


@pytest.mark.parametrize("misfit", MISFITS)
def test_validate_names_the_misfit(folder: Folder, misfit: str) -> None:
    content, reason = MISFITS[misfit]
    base, other = folder.save("base", FITTING), folder.save("other", content)
    assert validate(other, base) == reason
    if misfit != "none":
        assert validate(other, None) is None


def test_validate(folder: Folder) -> None:
    base = folder.save("base", {W: torch.ones(1)})
    assert validate(folder.save("good", with_state(1.0, 1.0)), base) is None
    bad = folder.save("bad", with_state(1.0, float("nan")))
    assert validate(bad, base) == "NaN or Inf in 'optimizer/0/0/step'"
    assert validate(folder.path / "absent", None) == (
        "unreadable: cannot be opened: No such file or directory"
    )


@pytest.mark.parametrize("bad", range(5))
def test_validate_names_the_one_of_many_neighbours_that_is_not_finite(
    folder: Folder, bad: int
) -> None:
    content = {f"model/0/{name}": torch.ones(3) for name in "abcde"}
    content["model/0/c"] = torch.ones(BLOCK)  # several blocks, and an empty tensor among them
    content["model/0/d"] = torch.ones(0)
    named = [name for name in content if name != "model/0/d"] + ["model/0/half"]
    content["model/0/half"] = torch.ones(4, dtype=torch.float16)
    content["model/0/count"] = torch.ones(4, dtype=torch.int64)
    content[named[bad]][-1] = float("nan")
    reason = validate(folder.save("own", content), None)
    assert reason == f"NaN or Inf in {named[bad]!r}"
