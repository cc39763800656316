"""Merging against a plain float64 reference, and what the merged file looks like."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch

from hadar_cli.core.model import OuterStep
from hadar_cli.core.reasons import Unfit
from hadar_cli.errors import StorageError
from hadar_cli.weights import merge_arithmetic
from hadar_cli.weights.merging import Contribution, Merged
from hadar_cli.weights.safetensors_file import Checkpoint
from hadar_cli.weights.validation import Objection
from tests.support.checkpoints import FLOATS, Folder, W, noise, with_state


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def close(got: torch.Tensor, exact: torch.Tensor) -> bool:
    """Within the stored type's one rounding of the exact value."""
    # torch rounds float64 to half types by way of float32, which can cost the last bit.
    rtol = 0.5001 * torch.finfo(got.dtype).eps + 1e-15
    return torch.allclose(got.double(), exact, rtol=rtol, atol=1e-15)


# --- the rules


@pytest.mark.parametrize("dtype", FLOATS)
def test_mean_is_weighted_by_steps_and_batch_size(folder: Folder, dtype: torch.dtype) -> None:
    work = [(80, 4), (30, 8), (10, 2)]
    values = [noise(i, 5, 7, dtype=dtype) for i in range(3)]
    for value, (steps, batch_size) in zip(values, work, strict=True):
        folder.add({W: value}, steps, batch_size)
    merged = folder.merge()

    total = sum(s * b for s, b in work)
    exact = sum(v.double() * (s * b / total) for v, (s, b) in zip(values, work, strict=True))
    got = folder.load()[W]
    assert got.dtype == dtype and got.shape == (5, 7)
    assert close(got, torch.as_tensor(exact))
    assert merged.accepted == (1, 2, 3) and merged.refused == ()
    content = folder.out.read_bytes()
    assert (merged.digest, merged.bytes) == (hashlib.sha256(content).hexdigest(), len(content))


def test_tensors_larger_than_a_chunk(folder: Folder) -> None:
    size = 2 * merge_arithmetic.CHUNK + merge_arithmetic.BLOCK + 3
    values = [noise(i, size) for i in range(2)]
    folder.add({W: values[0], "model/0/b": values[0][:3].clone()}, steps=1)
    folder.add({W: values[1], "model/0/b": values[1][:3].clone()}, steps=3)
    folder.merge()
    exact = 0.25 * values[0].double() + 0.75 * values[1].double()
    assert torch.equal(folder.load()[W], exact.float())
    assert torch.equal(folder.load()["model/0/b"], exact[:3].float())


def test_reference_with_numpy(folder: Folder) -> None:
    """Bit for bit the same as the obvious float64 sum in the order of the copies."""
    values = [noise(i, 1000) for i in range(5)]
    steps = [80, 42, 12, 100, 45]
    for value, count in zip(values, steps, strict=True):
        folder.add({W: value}, count)
    folder.merge()
    total = np.zeros(1000)
    for value, count in zip(values, steps, strict=True):
        total += (count / sum(steps)) * value.numpy().astype(np.float64)
    assert folder.load()[W].numpy().tobytes() == total.astype(np.float32).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_progress_goes_as_far_as_the_fastest_copy(folder: Folder, dtype: torch.dtype) -> None:
    steps = [80, 30, 10]
    base = noise(9, 40, dtype=dtype)
    values = [base + 0.01 * noise(i, 40, dtype=dtype) for i in range(3)]
    folder.base = folder.save("base", {W: base})
    for value, count in zip(values, steps, strict=True):
        folder.add({W: value}, count)
    folder.merge(rule="progress")

    mean = torch.as_tensor(sum(v.double() * c for v, c in zip(values, steps, strict=True))) / 120
    alpha = 80 * 120 / (80**2 + 30**2 + 10**2)
    assert close(folder.load()[W], base.double() + alpha * (mean - base.double()))


def test_progress_without_a_base_is_the_mean(folder: Folder) -> None:
    folder.add({W: noise(1, 9)}, steps=5)
    folder.add({W: noise(2, 9)}, steps=50)
    assert folder.merge(rule="progress") == folder.merge(rule="mean")


def test_progress_never_leaves_the_range_of_the_type(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.zeros(2, dtype=torch.float16)})
    for steps in (1, 20):
        folder.add({W: torch.tensor([65504.0, -65504.0], dtype=torch.float16)}, steps)
    folder.merge(rule="progress")
    assert folder.load()[W].tolist() == [65504.0, -65504.0]


def test_zeros_keep_their_sign(folder: Folder) -> None:
    zeros = torch.tensor([0.0, -0.0])
    folder.base = folder.save("base", {W: zeros})
    for steps in (1, 5):
        folder.add({W: zeros}, steps)
    for rule in ("mean", "progress"):
        folder.merge(rule=rule)
        assert torch.signbit(folder.load()[W]).tolist() == [False, True]


def test_float_buffers_are_averaged_under_progress_too(folder: Folder) -> None:
    name = "model/0/bn.running_mean"
    notes = {"format": 1, "buffers": [name]}
    folder.base = folder.save("base", {W: torch.zeros(1), name: torch.zeros(1)}, notes)
    for value, steps in ((1.0, 10), (4.0, 30)):
        content = {W: torch.tensor([value]), name: torch.tensor([value])}
        folder.add(content, steps, notes=notes)
    folder.merge(rule="progress")
    merged = folder.load()
    assert merged[name].item() == 3.25
    assert merged[W].item() == pytest.approx(3.25 * 30 * 40 / 1000)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_counters_take_the_maximum(folder: Folder, dtype: torch.dtype) -> None:
    name = "model/0/bn.num_batches_tracked"
    for count in (7, 101, 12):
        folder.add({W: torch.ones(1), name: torch.tensor(count, dtype=dtype)})
    folder.merge(rule="progress")
    assert folder.load()[name].dtype == dtype
    assert folder.load()[name].item() == 101


def test_large_counters_stay_exact_and_flags_stay_flags(folder: Folder) -> None:
    for i in range(2):
        count = torch.tensor([2**62 + i, -(2**62) - i])
        folder.add({"model/0/count": count, "model/0/flag": torch.tensor([i == 0, False])})
    folder.merge()
    assert folder.load()["model/0/count"].tolist() == [2**62 + 1, -(2**62)]
    assert folder.load()["model/0/flag"].tolist() == [True, False]


def test_tied_weights_stay_tied_and_metadata_are_the_leaders(folder: Folder) -> None:
    tied = {"tied": {"model/0/head.weight": W}}
    folder.add({W: torch.zeros(2)}, 10, notes={**tied, "schedulers": [{"last_epoch": 10}]})
    folder.add({W: torch.ones(2)}, 30, notes={**tied, "schedulers": [{"last_epoch": 30}]})
    folder.merge()
    with safetensors.safe_open(folder.out, "pt") as merged:
        notes = json.loads(merged.metadata()["hadar"])
    assert notes == {**tied, "schedulers": [{"last_epoch": 30}]}
    assert folder.load().keys() == {W}


# --- optimizer state


@pytest.mark.parametrize(
    ("choice", "expected"), [("average", (3.25, 12.25, 9.0)), ("leader", (4.0, 16.0, 7.0))]
)
def test_optimizer_state(folder: Folder, choice: str, expected: tuple[float, ...]) -> None:
    folder.add(with_state(1.0, 9.0), 10)
    folder.add(with_state(4.0, 7.0), 30)
    folder.merge(optimizer_state=choice)
    merged = folder.load()
    state = tuple(merged[f"optimizer/0/0/{n}"].item() for n in ("exp_avg", "exp_avg_sq", "step"))
    assert state == expected
    assert merged[W].item() == 3.25


@pytest.mark.parametrize("copies", [1, 2])
def test_optimizer_state_reset_leaves_none(folder: Folder, copies: int) -> None:
    for _ in range(copies):
        folder.add(with_state(2.0, 5.0))
    assert folder.merge(optimizer_state="reset").accepted == tuple(range(1, copies + 1))
    assert folder.load() == {W: torch.tensor([2.0])}


def test_a_base_without_optimizer_state_is_no_hindrance(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.ones(1)})
    folder.add(with_state(1.0, 9.0))
    folder.add(with_state(2.0, 9.0))
    assert folder.merge().accepted == (1, 2)


def test_the_leader_is_the_first_of_those_with_most_steps(folder: Folder) -> None:
    for value in (1.0, 2.0, 3.0):
        folder.add(with_state(value, 1.0), steps=3 if value == 1.0 else 20)
    folder.merge(optimizer_state="leader")
    assert folder.load()["optimizer/0/0/exp_avg"].item() == 2.0


# --- what the script keeps besides


def test_other_state_is_averaged_and_never_strides(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.zeros(1)})
    for value, steps in ((1.0, 10), (4.0, 30)):
        content = {W: torch.tensor([value]), "state/ema/w": torch.tensor([value])}
        folder.add(content, steps)
    for optimizer_state in ("average", "leader", "reset"):
        folder.merge(rule="progress", optimizer_state=optimizer_state)
        assert folder.load()["state/ema/w"].item() == 3.25


# --- the outer step

OUTER = OuterStep(lr=0.5, momentum=0.8)


def test_the_outer_step_is_nesterovs_and_its_momentum_goes_with_the_weights(
    folder: Folder,
) -> None:
    """Two merges by hand: from 10 the copies' mean gets 2 further down each time."""
    folder.base = folder.save("base", {W: torch.tensor([10.0])})
    folder.add({W: torch.tensor([7.0])})
    folder.add({W: torch.tensor([9.0])})
    folder.merge(outer=OUTER)
    assert folder.load()["outer/" + W].item() == pytest.approx(2.0)
    first = folder.load()[W].item()
    assert first == pytest.approx(10 - 0.5 * (2 + 0.8 * 2))

    folder.base = folder.out.rename(folder.path / "first")
    folder.contributions.clear()
    folder.add({W: torch.tensor([first - 2.0])})
    folder.merge(outer=OUTER)
    momentum = 0.8 * 2 + 2
    assert folder.load()["outer/" + W].item() == pytest.approx(momentum)
    assert folder.load()[W].item() == pytest.approx(first - 0.5 * (2 + 0.8 * momentum))


def test_an_outer_step_of_one_without_momentum_is_the_mean(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.zeros(3)})
    for i in range(2):
        folder.add({W: torch.full((3,), float(i))})
    folder.merge(outer=OuterStep(lr=1.0, momentum=0.0))
    assert folder.load()[W].tolist() == [0.5] * 3


def test_the_first_merge_has_no_outer_step(folder: Folder) -> None:
    for i in range(2):
        folder.add({W: torch.full((3,), float(i))})
    folder.merge(outer=OUTER)
    assert folder.load().keys() == {W} and folder.load()[W].tolist() == [0.5] * 3


def test_buffers_and_counters_take_no_outer_step(folder: Folder) -> None:
    content = {W: torch.ones(1), "model/0/mean": torch.ones(1), "model/0/n": torch.ones(1).int()}
    notes = {"buffers": ["model/0/mean", "model/0/n"]}
    folder.base = folder.save("base", {n: 0 * t for n, t in content.items()}, notes)
    for _ in range(2):
        folder.add(content, notes=notes)
    folder.merge(outer=OUTER)
    assert folder.load()["model/0/mean"].item() == folder.load()["model/0/n"].item() == 1
    assert folder.load().keys() == {*content, "outer/" + W}


def test_the_momentum_of_half_floats_is_kept_in_float32(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.zeros(1, dtype=torch.bfloat16)})
    for _ in range(2):
        folder.add({W: torch.tensor([1.0], dtype=torch.bfloat16)})
    folder.merge(outer=OUTER)
    assert folder.load()["outer/" + W].dtype == torch.float32
    assert folder.load()[W].dtype == torch.bfloat16


def test_momentum_that_a_script_hands_back_counts_for_nothing(folder: Folder) -> None:
    """Plain scripts may save whatever they loaded; only the base's momentum is true."""
    name = "outer/" + W
    folder.base = folder.save("base", {W: torch.zeros(1), name: torch.tensor([1.0])})
    folder.add({W: torch.zeros(1), name: torch.tensor([float("nan")])})
    folder.add({W: torch.zeros(1)})
    assert folder.merge(outer=OUTER).refused == ()
    assert folder.load()[name].item() == pytest.approx(0.8)
    folder.merge()
    assert folder.load().keys() == {W}


# --- what comes out


def test_one_copy_is_handed_on_byte_for_byte(folder: Folder) -> None:
    folder.base = folder.save("base", {W: noise(5, 300), "model/0/b": noise(5, 3)})
    path = folder.add({W: noise(1, 300), "model/0/b": noise(1, 3)})
    folder.contributions.append(Contribution(2, path, 0, 4))
    merged = folder.merge(rule="progress")
    assert folder.out.read_bytes() == path.read_bytes()
    assert merged == Merged(
        hashlib.sha256(path.read_bytes()).hexdigest(),
        path.stat().st_size,
        True,
        (1,),
        ((2, Objection(Unfit.NO_STEPS, "it did no steps")),),
        bytes_in=2 * path.stat().st_size,
        has_optimizer=False,
    )


def test_one_copy_of_known_digest_is_not_written_once_more(folder: Folder) -> None:
    """Nor is anything left of an attempt to merge it with others."""
    folder.add({W: torch.tensor([float("nan")])}, steps=20)
    path = folder.add({W: torch.ones(1)}, steps=10)
    for number, contribution in enumerate(folder.contributions):
        folder.contributions[number] = replace(contribution, digest=f"known {number + 1}")
    merged = folder.merge()
    assert (merged.digest, merged.bytes, merged.is_written) == (
        "known 2",
        path.stat().st_size,
        False,
    )
    assert merged.accepted == (2,)
    assert not folder.out.exists()


def test_one_copy_whose_optimizer_state_is_dropped_is_written(folder: Folder) -> None:
    folder.add({W: torch.ones(1), "optimizer/0/0/exp_avg": torch.ones(1)})
    folder.contributions[0] = replace(folder.contributions[0], digest="known")
    merged = folder.merge(optimizer_state="reset")
    assert merged.is_written and merged.digest != "known"
    assert folder.load().keys() == {W}


@pytest.mark.parametrize("steps", [0, 5])
def test_none_accepted(folder: Folder, steps: int) -> None:
    for _ in range(2):
        folder.add({W: torch.tensor([float("nan")])}, steps=steps)
    merged = folder.merge()
    assert (merged.digest, merged.bytes, merged.accepted) == ("", 0, ())
    assert [copy for copy, _ in merged.refused] == [1, 2]
    assert not folder.out.exists()


def test_nothing_handed_in(folder: Folder) -> None:
    assert folder.merge() == Merged("", 0, False, (), (), 0, False)


def test_tensors_are_aligned_for_whoever_maps_the_file(folder: Folder) -> None:
    content = {"model/0/a": torch.ones(3, dtype=torch.int8), "model/0/b": torch.ones(3)}
    for _ in range(2):
        folder.add(content)
    folder.merge()
    with Checkpoint(folder.out) as checkpoint:
        assert [t.name for t in checkpoint.tensors.values()] == ["model/0/b", "model/0/a"]
        assert checkpoint.tensors["model/0/b"].begin % 8 == 0


def test_an_output_that_cannot_be_written_is_a_storage_error(folder: Folder) -> None:
    folder.add({W: torch.ones(3)})
    folder.out = folder.path / "absent" / "out"
    with pytest.raises(StorageError, match="cannot write"):
        folder.merge()


def test_memory_is_bounded_by_the_blocks(folder: Folder) -> None:
    """Numpy reports its buffers to tracemalloc, from every thread."""
    mb = 1 << 20
    folder.base = folder.save("base", {W: torch.zeros(64 * mb // 4)})
    for i in range(3):
        folder.add({W: torch.full((64 * mb // 4,), float(i))}, steps=i + 1)
    tracemalloc.start()
    folder.merge(rule="progress")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    per_thread = 3 * 2 * 8 * merge_arithmetic.CHUNK + 8 * 8 * merge_arithmetic.BLOCK
    assert peak < merge_arithmetic.THREADS * per_thread + 8 * mb
