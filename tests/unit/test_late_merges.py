"""Copies that miss their merge join a later one: by what they did, less the older they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hadar_cli.core.estimates.merging import late_share
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.reasons import Loss
from hadar_cli.engine.ports import CopyOrder, Failed
from hadar_cli.weights.merging import Lateness
from tests.support.checkpoints import Folder, W, noise, with_state
from tests.support.worlds import World
from tests.unit.test_moving_files import FAR, FAST, hand_in, orders, pass_to, world

__all__ = ["orders", "world"]  # fixtures
SIZE = 300_000  # more than a block


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def late(folder: Folder, base: Path, merges: int = 1, lr_scale: float = 2.0) -> None:
    """The copy that was added last is late, and began with this."""
    last = folder.contributions.pop()
    folder.contributions.append(replace(last, late=Lateness(base, merges, lr_scale)))


def test_the_share_of_a_late_update_falls_with_its_age_and_where_it_goes_back():
    assert late_share(4.0, 1, 0.5) == late_share(4.0, 1, 0.0) == 1 / 8
    assert late_share(4.0, 3, 0.5) == 1 / 16
    assert late_share(4.0, 1, -0.5) == 1 / 16
    assert late_share(4.0, 1, -1.0) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_share_of_its_update_is_added_to_what_those_in_time_make(folder, dtype):
    old, update = noise(1, SIZE), noise(2, SIZE)
    base = old + 0.5 * update
    folder.base = folder.save("base", {W: base.to(dtype)})
    began = folder.save("began", {W: old.to(dtype)})
    folder.add({W: (base + 1.0).to(dtype)}, steps=30)
    folder.add({W: (base + 4.0).to(dtype)}, steps=10)
    folder.add({W: (old + update).to(dtype)}, steps=7)
    late(folder, began, merges=1, lr_scale=2.0)
    made = folder.merge(rule="mean")
    assert (made.accepted, made.refused, made.late) == ((1, 2, 3), (), ((3, 0.25),))
    given, mine, ones, fours = (
        tensor.to(dtype).double() for tensor in (old, old + update, base + 1.0, base + 4.0)
    )
    found, expected = folder.load()[W].double(), 0.75 * ones + 0.25 * fours + 0.25 * (mine - given)
    rounding = 0.01 if dtype == torch.bfloat16 else 1e-6
    assert torch.allclose(found, expected, rtol=rounding, atol=1e-5)


def test_where_nobody_is_in_time_the_late_join_the_latest_weights(folder):
    """And the optimizer's state, buffers and all else stay as they were."""
    buffers = {"buffers": ["model/0/mean"]}
    content = {**with_state(1.0, 50.0), "model/0/mean": torch.tensor([5.0])}
    folder.base = folder.save("base", content, buffers)
    began = folder.save("began", {**with_state(0.0, 40.0), "model/0/mean": torch.zeros(1)}, buffers)
    folder.add({**with_state(3.0, 44.0), "model/0/mean": torch.tensor([9.0])}, notes=buffers)
    late(folder, began, merges=2, lr_scale=1.0)
    made = folder.merge()
    assert (made.accepted, made.has_optimizer) == ((1,), True)
    found = folder.load()
    assert found.pop(W).item() == pytest.approx(1.0 + 3.0 / 3)
    content.pop(W)
    assert {name: value.item() for name, value in found.items()} == {
        name: value.item() for name, value in content.items()
    }


def test_a_late_copy_that_leads_back_is_damped(folder):
    folder.base = folder.save("base", {W: torch.tensor([1.0, 1.0])})
    began = folder.save("began", {W: torch.tensor([0.0, 0.0])})
    folder.add({W: torch.tensor([-1.0, -1.0])})
    late(folder, began, lr_scale=1.0)
    assert folder.merge().late == ((1, pytest.approx(0.0)),)
    assert torch.allclose(folder.load()[W], torch.ones(2))


def test_late_copies_in_any_order_make_the_same_bytes(folder):
    folder.base = folder.save("base", {W: noise(1, 1000)})
    began = folder.save("began", {W: noise(2, 1000)})
    folder.add({W: noise(3, 1000)})
    for seed in (4, 5):
        folder.add({W: noise(seed, 1000)})
        late(folder, began, merges=seed)
    first = folder.merge().digest
    folder.contributions.reverse()
    assert folder.merge().digest == first


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({W: torch.tensor([float("nan"), 1.0])}, "NaN or Inf"),
        ({W: torch.tensor([float("inf"), 1.0])}, "NaN or Inf"),
        ({W: torch.tensor([1.0])}, "has shape"),
        ({"model/0/other": torch.tensor([1.0, 1.0])}, "lacks"),
    ],
)
def test_a_late_copy_that_is_unfit_is_refused_and_the_others_merged(folder, content, why):
    folder.base = folder.save("base", {W: torch.zeros(2)})
    folder.add({W: torch.ones(2)})
    folder.add(content)
    late(folder, folder.save("began", {W: torch.zeros(2)}))
    made = folder.merge()
    assert made.accepted == (1,)
    assert [(copy, why in one.why) for copy, one in made.refused] == [(2, True)]
    assert torch.equal(folder.load()[W], torch.ones(2))


def test_a_late_copy_whose_base_is_lost_is_refused(folder):
    folder.base = folder.save("base", {W: torch.zeros(2)})
    folder.add({W: torch.ones(2)})
    late(folder, folder.path / "nowhere")
    made = folder.merge()
    assert (made.accepted, len(made.refused), made.digest) == ((), 1, "")


def test_a_late_update_far_longer_than_the_others_is_refused(folder):
    folder.base = folder.save("base", {W: torch.zeros(4)})
    for _ in range(3):
        folder.add({W: torch.ones(4)})
    folder.add({W: torch.full((4,), 1e6)})
    late(folder, folder.save("began", {W: torch.zeros(4)}))
    made = folder.merge()
    assert made.accepted == (1, 2, 3)
    assert dict(made.refused)[4].reason == "outlying"


def test_infinities_that_a_late_copy_was_given_stay_what_they_are(folder):
    mask = float("-inf")
    folder.base = folder.save("base", {W: torch.tensor([1.0, mask])})
    folder.add({W: torch.tensor([2.0, mask])})
    folder.add({W: torch.tensor([3.0, mask])})
    late(folder, folder.save("began", {W: torch.tensor([0.0, mask])}), lr_scale=1.0)
    made = folder.merge()
    assert made.accepted == (1, 2)
    assert folder.load()[W].tolist() == [2.0 + 3.0 / 2, mask]


# -- the loop ----------------------------------------------------------------------------------


def more_orders(world: World, *devices: str) -> dict[str, CopyOrder]:
    now = world.executor.now()
    world.loop.meetings.call(0, now, now + 100.0, slowest=20.0, copies=2)
    stints = [Stint(0, device, 750) for device in devices or (FAST, FAR)]
    found = {s.device: world.tracker.hand_out(s, 25.0, [1, 1]) for s in stints}
    for order in found.values():
        world.loop._held.hold(order)
    return found


def test_what_comes_too_late_waits_for_the_next_meeting_and_counts(world, orders):
    """The job had weights before; both copies began with them."""
    job = world.state.jobs[0]
    assert job.generation == 0
    world.executor._now = 25.0
    for order in orders.values():
        hand_in(world, order, 500)
    assert (job.generation, len(job.done)) == (1, 1000)
    again = more_orders(world)
    world.executor._now = 50.0
    hand_in(world, again[FAST], 400)
    assert pass_to(world, 90.0)
    assert (job.generation, len(job.done), len(job.in_hand)) == (2, 1400, 750)
    third = more_orders(world, FAST)
    hand_in(world, again[FAR], 700)
    assert (job.generation, len(job.done), len(job.in_hand)) == (2, 1400, 1450)
    hand_in(world, third[FAST], 100)
    assert (job.generation, len(job.done), len(job.in_hand)) == (3, 2200, 0)
    world.loop.validate()


def test_who_is_late_and_then_dies_returns_its_steps(world, orders):
    world.executor._now = 25.0
    for order in orders.values():
        hand_in(world, order, 500)
    again = more_orders(world)
    world.executor._now = 50.0
    hand_in(world, again[FAST], 400)
    assert pass_to(world, 90.0)
    world.loop._report_handler.take(Failed(again[FAR].attempt, Loss.NODE_GONE, "gone"))
    job = world.state.jobs[0]
    assert (len(job.done), len(job.in_hand), len(job.free)) == (1400, 0, 8600)
