"""Mini-batches joined to one: which samples, how many steps, at which rate, and how much noise."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import training
from hadar_cli.node.training.gangs.noise import NoiseScale
from tests.unit.test_training import Script, order, result_of  # noqa: F401


def test_an_update_takes_its_own_steps_batches_and_others_of_the_same_epoch(order):  # noqa: F811
    """Ten mini-batches of four in an epoch; five of them make an update that counts for three."""
    order(1, STEPS=12, SLICES="0:12")
    plain = Script(samples=40)
    plain.run()
    own = plain.batches
    placed = order(2, STEPS=12, SLICES="0:12", UPDATE="5:3")
    wide = Script(samples=40)
    wide.run()
    first = [sample for batch in own[:3] for sample in batch]
    assert wide.batches[0][:12] == first
    assert wide.batches[0][12:] == [*own[8], *own[9]]  # half an epoch from steps 3 and 4
    assert len(set(wide.batches[0])) == 20
    # Step 9 is an update of its own, for 10 is of the next epoch: two batches for one step. The
    # second update comes in halves, which tell the noise of its gradient.
    assert [len(batch) for batch in wide.batches] == [20, 10, 10, 20, 8, 16]
    assert result_of(placed)["steps"] == 12
    assert result_of(placed)["update"] == [5, 3]


def test_an_update_for_three_steps_has_three_times_the_rate_and_ticks_as_often(order):  # noqa: F811
    order(1, STEPS=3, SLICES="0:3", UPDATE="4:3")
    wide = Script(samples=40)
    wide.optimizer = torch.optim.SGD(wide.model.parameters(), lr=0.01)
    wide.scheduler = torch.optim.lr_scheduler.StepLR(wide.optimizer, 1, gamma=0.5)
    before = [p.detach().clone() for p in wide.model.parameters()]
    wide.run()
    x = torch.tensor(wide.batches[0], dtype=torch.float32)[:, None] / 20
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        for p, old in zip(model.parameters(), before, strict=True):
            p.copy_(old)
    model(x).square().mean().backward()
    for p, found in zip(model.parameters(), wide.model.parameters(), strict=True):
        torch.testing.assert_close(found.detach(), p.detach() - 3 * 0.01 * p.grad)
    assert wide.scheduler.last_epoch == 3
    assert wide.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 8)


@pytest.mark.parametrize("own_step", [False, True])
def test_a_script_s_own_schedule_keeps_pace(order, own_step):  # noqa: F811
    order(1, STEPS=9, SLICES="0:9", UPDATE="4:3")
    script = Script(samples=40)
    t = training(script.model, script.optimizer, script.scheduler)
    for _epoch in t.epochs(2):
        for x, _ in t.loader(DataLoader(script.data, 4, shuffle=True)):
            loss = script.model(x / 20).square().mean()
            if own_step:
                script.optimizer.zero_grad()
                loss.backward()
                script.optimizer.step()
                script.scheduler.step()
            else:
                t.step(loss)
    assert script.scheduler.last_epoch == 9


class Mean:
    """A model whose gradient is the mean of its samples: its noise is known."""

    DIMENSIONS, SHIFT, BATCH = 64, 0.5, 8

    def __init__(self, samples: int = 6400) -> None:
        drawn = torch.randn(samples, self.DIMENSIONS, generator=torch.Generator().manual_seed(3))
        self.data = TensorDataset(drawn + self.SHIFT)
        self.weights = torch.nn.Linear(self.DIMENSIONS, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.weights.parameters(), lr=0.01)

    @property
    def noise(self) -> float:
        """Variance over square, of a mini-batch."""
        return 1 / self.SHIFT**2 / self.BATCH

    def run(self) -> None:
        with training(self.weights, self.optimizer) as t:
            for (x,) in t.loader(self.data, batch_size=self.BATCH):
                t.step(self.weights(x).mean())


@pytest.mark.parametrize(("update", "steps"), [("1:1", 800), ("4:2", 400)])
def test_one_device_tells_the_noise_by_halves(order, update, steps):  # noqa: F811
    placed = order(1, STEPS=steps, SLICES=f"0:{steps}", UPDATE=update)
    script = Mean()
    script.run()
    assert result_of(placed)["noise"] == pytest.approx(script.noise, rel=0.2)
    assert result_of(placed)["steps"] == steps


def test_nobody_measures_who_is_not_asked(order):  # noqa: F811
    placed = order(1, STEPS=64, SLICES="0:64")
    Mean().run()
    assert result_of(placed)["noise"] is None


def test_data_that_cannot_be_joined_tells_no_noise_and_says_so(order, capsys):  # noqa: F811
    """So that nobody asks for joined batches."""
    placed = order(1, STEPS=40, SLICES="0:40", UPDATE="1:1")
    script = Mean()
    with training(script.weights, script.optimizer) as t:
        batches = [(script.data[8 * i : 8 * i + 8][0],) for i in range(50)]
        for (x,) in t.loader(batches, batch_size=None):
            t.step(script.weights(x).mean())
    assert result_of(placed)["noise"] is None
    assert "batch_size stays as it is" in capsys.readouterr().out


def test_a_gang_s_parts_tell_the_same_as_its_halves():
    """Of unequal parts: Σ |u|²/w and |Σ u|², with u = w times the mean over the part."""
    generator = torch.Generator().manual_seed(0)
    noise, shares = NoiseScale(), (0.5, 0.3, 0.2)
    for _ in range(2000):
        samples = torch.randn(20, 16, generator=generator) + 0.5
        parts = torch.split(samples, [10, 6, 4])
        u = [w * part.mean(dim=0) for w, part in zip(shares, parts, strict=True)]
        squares = sum(part.square().sum() / w for w, part in zip(shares, u, strict=True))
        noise.note(sum(u).square().sum(), squares, 3)
    assert noise.read() == pytest.approx(16 / 20 / (16 * 0.25), rel=0.1)


def test_few_steps_tell_no_noise():
    noise = NoiseScale()
    for _ in range(3):
        noise.note(1.0, 2.0, 2)
    assert noise.read() is None
    noise.note(float("nan"), 1.0, 2)
    assert noise.read() is None
