"""Only what trains travels: the rest is named by its hash, checked, and never sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from bench import adapter
from hadar_cli.node.training.checkpoints import checkpoint
from hadar_cli.node.training.checkpoints.checkpoint import Parts
from hadar_cli.runs.finished_models import export_model
from hadar_cli.weights.merging import Contribution
from tests.support.checkpoints import Folder, Tensors, W, noise

HIDDEN = 64


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


class Adapted(nn.Module):
    """A frozen layer, a small one that trains, statistics that move and a mask that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(HIDDEN, HIDDEN).requires_grad_(False)
        self.norm = nn.BatchNorm1d(HIDDEN, affine=False)
        self.head = nn.Linear(HIDDEN, 1)
        self.register_buffer("mask", torch.full((HIDDEN,), float("-inf")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.base(x)).masked_fill(torch.isfinite(self.mask), 0.0)
        found: torch.Tensor = self.head(hidden)
        return found


def built(seed: int = 0) -> Parts:
    torch.manual_seed(seed)
    model = Adapted()
    return Parts([model], [torch.optim.Adam(model.parameters(), 0.01)])


def train(parts: Parts, seed: int, steps: int = 3) -> None:
    (model,), (optimizer,) = parts.models, parts.optimizers
    for step in range(steps):
        optimizer.zero_grad()
        model(noise(100 * seed + step, 8, HIDDEN)).square().mean().backward()
        optimizer.step()


def hand_in(folder: Folder, number: int, parts: Parts, base: Path | None = None) -> Path:
    path = folder.path / f"copy{number}"
    checkpoint.save(path, parts, base=base)
    folder.contributions.append(Contribution(number, path, 3, 8))
    return path


def started(folder: Folder, base: Path | None = None, seed: int = 0) -> Parts:
    parts = built(seed)
    if base:
        checkpoint.load(base, parts)
    else:
        checkpoint.begin(parts)
    return parts


def trained(folder: Folder, number: int, base: Path | None = None) -> Path:
    parts = started(folder, base)
    train(parts, number)
    return hand_in(folder, number, parts)


def merged(folder: Folder, name: str = "merged") -> Path:
    assert folder.merge().refused == ()
    folder.contributions.clear()
    return folder.out.rename(folder.path / name)


def names(path: Path) -> set[str]:
    return {n for n in safetensors.torch.load_file(path) if n.startswith("model/")}


def frozen_in(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        found: dict[str, str] = json.loads(file.metadata()["hadar"])["frozen"]
    return found


MOVING = {"model/0/norm.running_mean", "model/0/norm.running_var"} | {
    "model/0/norm.num_batches_tracked",
    "model/0/head.weight",
    "model/0/head.bias",
}
STILL = {"model/0/base.weight", "model/0/base.bias", "model/0/mask"}


def test_what_does_not_train_is_named_and_not_sent(folder: Folder) -> None:
    for number in (1, 2):
        path = trained(folder, number)
        assert names(path) == MOVING
        assert frozen_in(path).keys() == STILL
    base = folder.base = merged(folder)
    assert names(base) == MOVING
    assert frozen_in(base).keys() == STILL
    for number in (1, 2):
        assert names(trained(folder, number, base)) == MOVING
    assert names(merged(folder, "second")) == MOVING


def test_a_merge_of_some_is_the_merge_of_all(folder: Folder) -> None:
    """Bit for bit what it would be if everything travelled."""
    for number in (1, 2):
        parts = started(folder)
        train(parts, number)
        path = hand_in(folder, number, parts)
        everything = safetensors.torch.load_file(path) | {
            f"model/0/{name}": tensor for name, tensor in parts.models[0].state_dict().items()
        }
        finite = {n: t for n, t in everything.items() if torch.isfinite(t).all()}
        folder.save(f"whole{number}", {n: t.clone() for n, t in finite.items()})
    some = safetensors.torch.load_file(merged(folder, "some"))
    for number in (1, 2):
        folder.contributions.append(Contribution(number, folder.path / f"whole{number}", 3, 8))
    everything = safetensors.torch.load_file(merged(folder, "all"))
    assert all(torch.equal(tensor, everything[name]) for name, tensor in some.items())


@pytest.mark.parametrize("where", ["load", "merge"])
def test_another_frozen_part_is_refused(folder: Folder, where: str) -> None:
    if where == "load":
        base = trained(folder, 1)
        with pytest.raises(RuntimeError, match=r"base\.weight does not train.*manual_seed"):
            checkpoint.load(base, built(seed=7))
        return
    for number in (1, 2):
        trained(folder, number)
    parts = started(folder, seed=7)
    train(parts, 3)
    hand_in(folder, 3, parts)
    assert folder.refusals() == {
        3: "'model/0/base.bias' does not train, but is another than the job's: an unseeded model "
        "or another base model"
    }


def test_small_constants_travel_once_so_that_models_are_complete(folder: Folder) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 40)
            self.register_buffer("mask", torch.full((40,), float("-inf")))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(x)
            return found

    def parts() -> Parts:
        torch.manual_seed(0)
        model = Masked()
        return Parts([model], [torch.optim.Adam(model.parameters())])

    def hand_ins(base: Path | None) -> list[Path]:
        paths = []
        for number in (1, 2):
            one = parts()
            checkpoint.load(base, one) if base else checkpoint.begin(one)
            one.models[0](noise(number, 8, 40)).square().mean().backward()
            one.optimizers[0].step()
            paths.append(hand_in(folder, number, one))
        return paths

    assert all("model/0/mask" in names(path) for path in hand_ins(None))
    folder.base = merged(folder, "first")
    assert all("model/0/mask" not in names(path) for path in hand_ins(folder.base))
    second = merged(folder, "second")
    export_model(second, folder.path / "model")
    model = Masked()
    model.load_state_dict(safetensors.torch.load_file(folder.path / "model"))
    assert torch.equal(model.mask, torch.full((40,), float("-inf")))


def test_a_finished_model_names_what_it_lacks(folder: Folder) -> None:
    path = trained(folder, 1)
    export_model(path, folder.path / "model")
    with safe_open(folder.path / "model", "pt") as file:
        needs = json.loads(file.metadata()["hadar.frozen"])
    assert needs.keys() == {name.removeprefix("model/0/") for name in STILL}
    model = Adapted()
    found = model.load_state_dict(safetensors.torch.load_file(folder.path / "model"), strict=False)
    assert set(found.missing_keys) == needs.keys()


def test_a_teacher_that_follows_its_student_travels(folder: Folder) -> None:
    """It asks for no gradients, but changes, and not through its optimizer."""
    parts = started(folder)
    train(parts, 1)
    parts.models[0].base.weight.data.mul_(0.9)
    path = hand_in(folder, 1, parts)
    assert names(path) >= MOVING | {"model/0/base.weight"}
    assert "model/0/base.weight" not in frozen_in(path)


def thaw(parts: Parts) -> None:
    parts.models[0].base.requires_grad_(True)


def test_a_layer_that_thaws_is_merged_of_those_that_train_it(folder: Folder) -> None:
    for number in (1, 2):
        trained(folder, number)
    base = folder.base = merged(folder, "base")
    values = []
    for number in (1, 2, 3):
        parts = started(folder, base)
        if number > 1:
            thaw(parts)
        train(parts, number)
        hand_in(folder, number, parts)
        values.append(parts.models[0].base.weight.detach().clone())
    both = merged(folder, "thawed")
    assert names(both) == MOVING | {"model/0/base.weight", "model/0/base.bias"}
    assert frozen_in(both).keys() == {"model/0/mask"}
    found = safetensors.torch.load_file(both)["model/0/base.weight"]
    torch.testing.assert_close(found, (values[1] + values[2]) / 2)

    # Whoever has not thawed it yet goes on from it, and says that it left it alone.
    folder.base = both
    late, early = started(folder, both), started(folder, both)
    assert torch.equal(late.models[0].base.weight, found)
    thaw(early)
    for number, parts in ((1, late), (2, early)):
        train(parts, number)
        hand_in(folder, number, parts)
    assert "model/0/base.weight" not in names(folder.contributions[0].path)
    last = safetensors.torch.load_file(merged(folder, "last"))["model/0/base.weight"]
    torch.testing.assert_close(last, (found + early.models[0].base.weight.detach()) / 2)


def test_a_frozen_name_that_nobody_knows_is_refused(folder: Folder) -> None:
    folder.base = folder.save("base", {W: torch.ones(4)})
    folder.add({W: torch.ones(4)})
    folder.add({W: torch.ones(4)}, notes={"frozen": {"model/0/x": "0" * 64}})
    folder.add({W: torch.ones(4)}, notes={"frozen": {"model/0/x": "no hash"}})
    folder.add({W: torch.ones(4)}, notes={"frozen": [["model/0/x"]]})
    unreadable = "unreadable: its notes are not as hadar writes them"
    reason = "it has 'model/0/x', which does not belong"
    assert folder.refusals() == {2: reason, 3: unreadable, 4: unreadable}


def test_what_is_sent_under_a_hash_must_have_it(folder: Folder) -> None:
    content: Tensors = {W: torch.ones(4), "model/0/mask": torch.full((3,), float("nan"))}
    for _ in range(2):
        folder.add(content, notes={"frozen": {"model/0/mask": "0" * 64}})
    reason = "'model/0/mask' is not what its hash says"
    assert folder.refusals() == {1: reason, 2: reason}


@pytest.mark.parametrize("rule", ["mean", "progress"])
@pytest.mark.parametrize("copies", [1, 2])
def test_infinities_of_the_base_stay(folder: Folder, rule: str, copies: int) -> None:
    """Whoever wrote the file: plain scripts name nothing as frozen."""
    odd = torch.tensor([1.0, float("-inf"), 2.0, float("inf")])
    folder.base = folder.save("base", {W: odd})
    for number in range(copies):
        folder.add({W: odd + number + 1}, steps=10 * (number + 1))
    assert folder.refusals(rule=rule, warmup=0.0) == {}
    found = folder.load()[W]
    assert found[1] == float("-inf")
    assert found[3] == float("inf")
    assert found[0] - 1 == found[2] - 2 > 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("copies", [1, 2])
def test_new_infinities_beside_the_bases_are_refused(
    folder: Folder, poison: float, copies: int
) -> None:
    folder.base = folder.save("base", {W: torch.tensor([1.0, float("-inf"), 2.0])})
    for _ in range(copies):
        folder.add({W: torch.tensor([poison, float("-inf"), 3.0])})
    refused = dict.fromkeys(range(1, copies + 1), f"NaN or Inf in {W!r}")
    assert folder.refusals() == refused


class Spectral(nn.Module):
    """Complex weights and a complex constant, as in Fourier operators and rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, dtype=torch.complex64))
        self.register_buffer("turns", torch.polar(torch.ones(8), torch.arange(8.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).abs()


def test_complex_numbers_travel(folder: Folder) -> None:
    def parts() -> Parts:
        torch.manual_seed(0)
        model = Spectral()
        return Parts([model], [torch.optim.Adam(model.parameters(), 0.01)])

    made = []
    for number in (1, 2):
        one = parts()
        checkpoint.begin(one)
        one.models[0](noise(number, 32)).sum().backward()
        one.optimizers[0].step()
        hand_in(folder, number, one)
        made.append(one)
    path = merged(folder)
    again = parts()
    checkpoint.load(path, again)
    weights = [one.models[0].weight.detach() for one in made]
    torch.testing.assert_close(again.models[0].weight.detach(), (weights[0] + weights[1]) / 2)
    states: list[Any] = [one.optimizers[0].state_dict()["state"][0]["exp_avg"] for one in made]
    found = again.optimizers[0].state_dict()["state"][0]["exp_avg"]
    torch.testing.assert_close(found, (states[0] + states[1]) / 2)
    export_model(path, folder.path / "model")
    model = Spectral()
    model.load_state_dict(safetensors.torch.load_file(folder.path / "model"))
    assert torch.equal(model.weight, again.models[0].weight)


def test_loading_keeps_one_optimizer_state_in_memory(folder: Folder) -> None:
    base = trained(folder, 1)
    parts = started(folder, base)
    train(parts, 2)
    before = {
        id(value): value for state in parts.optimizers[0].state.values() for value in state.values()
    }
    checkpoint.load(base, parts)
    after = [value for state in parts.optimizers[0].state.values() for value in state.values()]
    assert {id(value) for value in after} == before.keys()
    saved = safetensors.torch.load_file(base)
    assert any(torch.equal(saved["optimizer/0/2/exp_avg"], value) for value in after)


def test_a_lora_hands_in_its_adapter_and_its_optimizer_state(folder: Folder) -> None:
    """PEFT's own model: what is sent, up and down, is at most a tenth more than what trains."""
    parts = adapter.adapted(width=256, layers=2)
    assert adapter.frozen(parts) > 10 * adapter.least(parts) / 4
    sent = list(adapter.hand_ins(parts, folder.path))
    assert [what for what, _, _ in sent] == ["hand-in 1", "merge 1", "hand-in 2", "merge 2"]
    assert all(size <= 1.1 * least for _, size, least in sent)
