"""Hand-ins as bfloat16 updates of what copies started from: half the bytes, the same merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from hadar_cli.adapters.blending import CHUNK
from hadar_cli.adapters.contributions import Copy
from hadar_cli.adapters.safetensors_file import CheckpointError
from hadar_cli.adapters.tensors import Contribution
from hadar_cli.app.ports import CopyResult, HandedIn
from hadar_cli.core.model import MergeRules
from hadar_cli.core.policies.registry import Stint
from hadar_cli.node.checkpoint import Parts, load, save
from tests.support.checkpoints import Folder, W, noise
from tests.support.worlds import make_mix, make_world


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


class Net(torch.nn.Module):
    """Tied weights, a float buffer and a counter beside an ordinary layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(40, 40)
        self.tied = torch.nn.Linear(40, 40)
        self.tied.weight = self.one.weight
        self.norm = torch.nn.BatchNorm1d(40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.tied(self.one(x)))


def trained(parts: Parts, seed: int) -> None:
    (model,), (optimizer,) = parts.models, parts.optimizers
    for step in range(3):
        optimizer.zero_grad()
        model(noise(100 * seed + step, 8, 40)).square().mean().backward()
        optimizer.step()


def make_parts() -> Parts:
    torch.manual_seed(0)
    model = Net()
    return Parts([model], [torch.optim.Adam(model.parameters(), 0.01)])


def hand_in(folder: Folder, number: int, base: Path, *, rounded: bool) -> Path:
    parts = make_parts()
    load(base, parts)
    trained(parts, number)
    path = folder.path / f"copy{number}"
    save(path, parts, base=base if rounded else None)
    folder.contributions.append(Contribution(number, path, 3, 8))
    return path


@pytest.fixture
def base(folder: Folder) -> Path:
    parts = make_parts()
    trained(parts, 0)
    folder.base = folder.path / "base"
    save(folder.base, parts)
    return folder.base


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path)


@pytest.mark.parametrize("copies", [1, 3])
def test_rounded_copies_merge_like_whole_ones(folder: Folder, base: Path, copies: int) -> None:
    whole = [hand_in(folder, i, base, rounded=False) for i in range(1, copies + 1)]
    folder.merge()
    exact = {name: tensor.clone() for name, tensor in folder.load().items()}
    origin = tensors(base)
    sizes = [path.stat().st_size for path in whole]
    folder.contributions.clear()
    rounded = [hand_in(folder, i, base, rounded=True) for i in range(1, copies + 1)]
    assert folder.merge().refused == ()

    merged = folder.load()
    assert merged.keys() == exact.keys()
    for name, value in merged.items():
        change = (exact[name] - origin[name]).abs().max()
        assert value.dtype == exact[name].dtype
        assert (value - exact[name]).abs().max() <= change / 2**8, name
    assert any(not torch.equal(value, exact[name]) for name, value in merged.items())
    for path, size in zip(rounded, sizes, strict=True):
        assert path.stat().st_size < 0.65 * size  # a header of names beside few numbers


def test_the_merged_checkpoint_is_a_whole_one_that_a_script_can_load(
    folder: Folder, base: Path
) -> None:
    for number in (1, 2):
        hand_in(folder, number, base, rounded=True)
    folder.merge()
    with safe_open(folder.out, "pt") as file:
        assert file.metadata().keys() == {"hadar"}
        assert json.loads(file.metadata()["hadar"])["tied"]
    parts = make_parts()
    load(folder.out, parts)
    model = parts.models[0]
    assert torch.equal(model.state_dict()["one.weight"], folder.load()["model/0/one.weight"])
    assert model.one.weight is model.tied.weight


def test_without_its_base_a_copy_hands_in_all_it_has(folder: Folder, base: Path) -> None:
    """A resumed head clears away what it did not push itself, while adopted copies still train."""
    parts = make_parts()
    load(base, parts)
    trained(parts, 1)
    kept = base.rename(folder.path / "kept")
    save(folder.path / "copy1", parts, base=base)
    handed_in = tensors(folder.path / "copy1")
    assert handed_in.keys() == tensors(kept).keys()
    assert torch.equal(handed_in["model/0/one.weight"], parts.models[0].one.weight)


def test_rounded_and_whole_ones_meet(folder: Folder, base: Path) -> None:
    hand_in(folder, 1, base, rounded=True)
    hand_in(folder, 2, base, rounded=False)
    assert folder.merge().accepted == (1, 2)


def test_an_update_larger_than_a_chunk_is_read_from_the_right_place(folder: Folder) -> None:
    origin, update = noise(1, CHUNK + 1000), noise(2, CHUNK + 1000).bfloat16()
    folder.base = folder.save("base", {W: origin})
    path = folder.add({W: update})
    safetensors.torch.save_file({W: update}, path, {"hadar.update_of": "base"})
    folder.merge()
    assert torch.equal(folder.load()[W], origin + update.float())


@pytest.mark.parametrize("has_base", [True, False])
def test_an_update_of_other_weights_is_refused(folder: Folder, has_base: bool) -> None:
    folder.base = folder.save("base", {W: torch.ones(4)}) if has_base else None
    path = folder.add({W: torch.ones(4)})
    safetensors.torch.save_file({W: torch.ones(4).bfloat16()}, path, {"hadar.update_of": "old"})
    folder.add({W: torch.ones(4)})
    assert folder.refusals() == {1: "unreadable: it is an update of other weights"}


def test_not_a_number_in_an_update_is_found(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.ones(4)})
    path = folder.add({W: torch.ones(4)})
    update = torch.tensor([0.0, float("nan"), 0.0, 0.0]).bfloat16()
    safetensors.torch.save_file({W: update}, path, {"hadar.update_of": "base"})
    folder.add({W: torch.ones(4)})
    assert folder.refusals() == {1: f"NaN or Inf in {W!r}"}


def test_a_base_cut_short_is_not_blamed_on_the_update(
    folder: Folder, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(folder, 1, base, rounded=True)
    hand_in(folder, 2, base, rounded=True)
    opened = Copy.__init__

    def open_then_cut(self: Copy, *args: object) -> None:
        opened(self, *args)  # type: ignore[arg-type]
        with base.open("r+b") as file:
            file.truncate(base.stat().st_size // 2)

    monkeypatch.setattr(Copy, "__init__", open_then_cut)
    with pytest.raises(CheckpointError, match="it ends too early"):
        folder.merge()


@pytest.mark.parametrize(
    ("rule", "expected"), [("bf16", [False, False, True]), ("full", [False] * 3)]
)
def test_only_copies_that_are_merged_with_others_round(rule: str, expected: list[bool]) -> None:
    world = make_world(make_mix([100], merge=MergeRules(hand_in=rule)))

    def order(*steps: int) -> bool:
        given = world.tracker.hand_out(Stint(0, "t4", 10), 5.0, steps)
        first = given.steps.ranges[0][0]
        result = CopyResult(10, ((first, first + 10),), 0.1, 1.0, 0.1, "steps")
        world.tracker.handed_in(HandedIn(given.attempt, result, "w"))
        world.tracker.commit(world.state.jobs[0])
        return given.rounded

    assert [order(10, 10), order(10), order(10, 10)] == expected
