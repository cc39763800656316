"""Hand-ins as bfloat16 updates of what copies started from: half the bytes, the same merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from hadar_cli.core.model import MergeRules
from hadar_cli.core.policies.port import Stint
from hadar_cli.engine.ports import Consolidated, CopyResult, HandedIn
from hadar_cli.node.training.checkpoints.checkpoint import Parts, load, save
from hadar_cli.node.training.checkpoints.rounding import Rounding
from hadar_cli.weights.merge_arithmetic import CHUNK
from hadar_cli.weights.merging import Contribution
from hadar_cli.weights.safetensors_file import CheckpointError
from hadar_cli.weights.validation import Copy
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


def hand_in(folder: Folder, number: int, base: Path, *, rounded: bool, kind: str = "bf16") -> Path:
    parts = make_parts()
    load(base, parts)
    trained(parts, number)
    path = folder.path / f"copy{number}"
    save(path, parts, base=base if rounded else None, hand_in=kind)
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
    ("rule", "expected"),
    [(rule, ["full", "full", rule]) for rule in ("full", "bf16", "int8", "int4")],
)
def test_only_copies_that_are_merged_with_others_round(rule: str, expected: list[str]) -> None:
    world = make_world(make_mix([100], merge=MergeRules(hand_in=rule)))

    def order(*steps: int) -> str:
        given = world.tracker.hand_out(Stint(0, "t4", 10), 5.0, steps)
        first = given.steps.ranges[0][0]
        result = CopyResult(10, ((first, first + 10),), 0.1, 1.0, 0.1, "steps")
        world.tracker.handed_in(HandedIn(given.attempt, result, "w"))
        world.tracker.commit(world.state.jobs[0])
        return given.hand_in

    assert [order(10, 10), order(10), order(10, 10)] == expected


# -- whole numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "largest"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("copies", [1, 3])
def test_whole_numbers_merge_like_floats(
    folder: Folder, base: Path, kind: str, largest: int, copies: int
) -> None:
    whole = [hand_in(folder, i, base, rounded=False) for i in range(1, copies + 1)]
    folder.merge()
    exact = {name: tensor.clone() for name, tensor in folder.load().items()}
    made = [tensors(path) for path in whole]
    origin = tensors(base)
    folder.contributions.clear()
    paths = [hand_in(folder, i, base, rounded=True, kind=kind) for i in range(1, copies + 1)]
    assert folder.merge().refused == ()
    merged = folder.load()
    assert merged.keys() == exact.keys()
    for name, value in merged.items():
        change = max((one[name] - origin[name]).abs().max() for one in made)
        assert value.dtype == exact[name].dtype
        assert (value - exact[name]).abs().max() <= 0.51 * change / largest, name
    coded = [name for name in tensors(paths[0]) if name.startswith(f"{kind}/")]
    assert sorted(coded) == [
        f"{kind}/model/0/{name}"
        for name in ("norm.bias", "norm.weight", "one.bias", "one.weight", "tied.bias")
    ]


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_whole_numbers_larger_than_a_chunk_are_read_from_the_right_place(
    folder: Folder, kind: str
) -> None:
    size = CHUNK + 1001
    origin, change = noise(1, size), noise(2, size)
    folder.base = folder.save("base", {W: origin})
    coded = Rounding().updates({W: origin + change}, folder.base, kind, {W})
    path = folder.add(coded)
    safetensors.torch.save_file(coded, path, {"hadar.update_of": "base"})
    folder.merge()
    error = (folder.load()[W] - origin - change).abs()
    scales = coded[f"scale/{W}"].repeat_interleave(128)[:size]
    assert (error <= 0.51 * scales).all()


ONES = {f"int8/{W}": torch.ones(4, dtype=torch.int8), f"scale/{W}": torch.ones(1)}
BADLY_CODED: dict[str, dict[str, torch.Tensor]] = {
    "without scales": {f"int8/{W}": torch.ones(4, dtype=torch.int8)},
    "scales alone": {f"scale/{W}": torch.ones(1)},
    "too many scales": ONES | {f"scale/{W}": torch.ones(2)},
    "of another shape": ONES | {f"int8/{W}": torch.ones(5, dtype=torch.int8)},
    "of another type": ONES | {f"int8/{W}": torch.ones(4, dtype=torch.int16)},
    "twice": ONES | {f"int4/{W}": torch.ones(2, dtype=torch.uint8)},
    "beside the weights": ONES | {W: torch.ones(4)},
    "of what the base has not": {"int8/x": torch.ones(4, dtype=torch.int8)} | ONES,
}


@pytest.mark.parametrize("fault", BADLY_CODED)
def test_badly_coded_updates_are_refused(folder: Folder, fault: str) -> None:
    folder.base = folder.save("base", {W: torch.ones(4), "y": torch.ones(1)})
    for content in (BADLY_CODED[fault], ONES):
        path = folder.add(content)
        safetensors.torch.save_file(
            {**content, "y": torch.ones(1)}, path, {"hadar.update_of": "base"}
        )
    reason = folder.refusals()[1]
    assert reason.endswith(("is not coded as updates are", "is no update of the base"))
    assert torch.equal(folder.load()[W], torch.full((4,), 2.0))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers_are_found(folder: Folder, poison: float) -> None:
    folder.base = folder.save("base", {W: torch.ones(4)})
    for scale in (poison, 1.0):
        content = ONES | {f"scale/{W}": torch.tensor([scale])}
        safetensors.torch.save_file(content, folder.add(content), {"hadar.update_of": "base"})
    assert folder.refusals() == {1: f"NaN or Inf in {W!r}"}


@pytest.mark.parametrize("was_merged", [True, False])
def test_what_rounding_took_is_owed_until_it_is_merged(folder: Folder, was_merged: bool) -> None:
    """A hand-in that was lost takes nothing with it; one that was merged leaves its rest."""
    origin = torch.zeros(128)
    folder.base = folder.save("base", {W: origin})
    rounding = Rounding()

    def sent(update: torch.Tensor) -> torch.Tensor:
        assert folder.base
        coded = rounding.updates({W: origin + update}, folder.base, "int4", {W})
        path = folder.add(coded)
        safetensors.torch.save_file(coded, path, {"hadar.update_of": "base"})
        folder.contributions[:] = folder.contributions[-1:]
        folder.merge(rule="mean")
        return folder.load()[W]

    first, second = noise(1, 128), noise(2, 128)
    left = first - sent(first)
    assert left.any()
    rounding.settle(was_merged)
    owed = left if was_merged else torch.zeros(128)
    other = Rounding()
    assert folder.base
    wanted = other.updates({W: second + owed}, folder.base, "int4", {W})
    found = rounding.updates({W: second}, folder.base, "int4", {W})
    for name, tensor in wanted.items():
        assert torch.equal(tensor, found[name])


def test_what_is_owed_outlives_hand_ins_that_do_not_round(folder: Folder, base: Path) -> None:
    parts = make_parts()
    load(base, parts)
    trained(parts, 1)
    save(folder.path / "rounded", parts, base=base, hand_in="int4")
    load(base, parts, was_merged=True)
    before = dict(parts.rounding._owed)
    assert before
    trained(parts, 2)
    save(folder.path / "whole", parts)
    load(base, parts, was_merged=True)
    assert parts.rounding._owed == before


# -- the optimizer's state, more rarely ------------------------------------------------------------


def state_of(parts: Parts) -> torch.Tensor:
    found: torch.Tensor = parts.optimizers[0].state_dict()["state"][0]["exp_avg"].clone()
    return found


def without_state(folder: Folder, base: Path) -> Path:
    """Weights merged of copies that kept their optimizer's state."""
    for number in (1, 2):
        parts = make_parts()
        load(base, parts)
        trained(parts, number)
        path = folder.path / f"copy{number}"
        save(path, parts, with_optimizer=False)
        folder.contributions.append(Contribution(number, path, 3, 8))
    merged = folder.merge()
    assert merged.refused == ()
    assert not merged.has_optimizer
    assert not any(name.startswith("optimizer/") for name in folder.load())
    return folder.out


def test_a_copy_whose_hand_in_was_merged_keeps_its_own_state(folder: Folder, base: Path) -> None:
    parts = make_parts()
    load(base, parts)
    trained(parts, 1)
    own = state_of(parts)
    load(without_state(folder, base), parts, base, was_merged=True)
    assert torch.equal(state_of(parts), own)
    assert torch.equal(parts.models[0].one.weight, folder.load()["model/0/one.weight"])


@pytest.mark.parametrize("is_cold", [True, False])
def test_any_other_copy_starts_with_the_last_state(
    folder: Folder, base: Path, is_cold: bool
) -> None:
    """One that starts, and one that was refused: what it has may be NaN."""
    parts = make_parts()
    if not is_cold:
        load(base, parts)
        trained(parts, 1)
    load(without_state(folder, base), parts, base, was_merged=False)
    assert torch.equal(state_of(parts), tensors(base)["optimizer/0/0/exp_avg"])


def test_copies_with_and_without_state_meet(folder: Folder, base: Path) -> None:
    """One that began alone could not know that it would be joined."""
    hand_in(folder, 1, base, rounded=False)
    parts = make_parts()
    load(base, parts)
    trained(parts, 2)
    save(folder.path / "copy2", parts, with_optimizer=False)
    folder.contributions.append(Contribution(2, folder.path / "copy2", 300, 8))
    for rule in ("average", "leader"):
        merged = folder.merge(optimizer_state=rule)
        assert merged.accepted == (1, 2)
        assert merged.has_optimizer
        theirs = tensors(folder.path / "copy1")["optimizer/0/0/exp_avg"]
        assert torch.equal(folder.load()["optimizer/0/0/exp_avg"], theirs)


def test_state_that_is_missing_without_a_word_is_refused(folder: Folder, base: Path) -> None:
    for number in (1, 2):
        hand_in(folder, number, base, rounded=False)
    weights = {n: t for n, t in tensors(base).items() if n.startswith("model/")}
    with safe_open(base, "pt") as file:
        folder.add(weights, notes=json.loads(file.metadata()["hadar"]))
    assert folder.refusals() == {3: "it lacks 'optimizer/0/0/exp_avg'"}


def test_orders_say_when_state_travels_and_where_the_last_is() -> None:
    world = make_world(make_mix([200], merge=MergeRules(optimizer_every=3)))
    given: list[tuple[object, ...]] = []
    merged_of: tuple[str, ...] = ()
    for number in range(6):
        order = world.tracker.hand_out(Stint(0, "t4", 10), 5.0, (10, 10) if number else (10,))
        first = order.steps.ranges[0][0]
        result = CopyResult(10, ((first, first + 10),), 0.1, 1.0, 0.1, "steps")
        world.tracker.handed_in(HandedIn(order.attempt, result, f"w{number}"))
        job = world.state.jobs[0]
        made = Consolidated(f"m{number}", 1, (order.attempt,), (), 1, not order.keeps_optimizer)
        world.tracker._consolidator = _Fixed(made)
        world.tracker.commit(job)
        given.append((order.keeps_optimizer, order.weights, order.optimizer))
        assert order.merged_of == merged_of
        merged_of = (order.attempt,)
    assert given == [
        (False, None, None),
        (True, "m0", None),
        (True, "m1", "m0"),
        (False, "m2", "m0"),
        (True, "m3", None),
        (True, "m4", "m3"),
    ]


class _Fixed:
    """A consolidator whose result is known."""

    def __init__(self, made: Consolidated) -> None:
        self._made = made

    def consolidate(self, *_: object) -> Consolidated:
        return self._made
