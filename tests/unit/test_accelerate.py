"""A loop with accelerate, without a Trainer: on one device exactly as the unchanged loop."""

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_cosine_schedule_with_warmup

from hadar_cli import training
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Loop:
    """Ten mini-batches an epoch, accumulated by three: four updates, the last one of a single."""

    def __init__(self, precision: str, is_seedable: bool) -> None:
        torch.manual_seed(2)
        rng = torch.Generator().manual_seed(0)
        data = TensorDataset(torch.randn(38, 3, generator=rng), torch.randn(38, 1, generator=rng))
        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=3,
            mixed_precision=precision,
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=is_seedable),
        )
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        schedule = get_cosine_schedule_with_warmup(optimizer, 2, 8)
        loader = DataLoader(data, batch_size=4, shuffle=True)
        self.model, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(
            model, optimizer, loader, schedule
        )
        self.losses: list[float] = []

    def train_on(self, batch) -> None:
        with self.accelerator.accumulate(self.model):
            loss = (self.model(batch[0]) - batch[1]).square().mean()
            self.losses.append(loss.item())
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()

    def unchanged(self) -> None:
        for _ in range(2):
            for batch in self.loader:
                self.train_on(batch)

    def adapted(self) -> None:
        t = training(self.model, self.optimizer, self.schedule)
        for _ in t.epochs(2):
            for batch in t.loader(self.loader):
                self.train_on(batch)


def close(mine: dict, theirs: dict) -> None:
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    ("precision", "is_seedable"), [("no", True), ("bf16", True), ("no", False)]
)
def test_on_one_device_it_trains_as_by_hand(precision, is_seedable, tmp_path, monkeypatch):
    def loop() -> Loop:
        return Loop(precision, is_seedable)

    by_hand = loop()
    by_hand.adapted()
    if is_seedable:  # else its order comes from torch's global numbers, which hadar's cannot
        unchanged = loop()
        unchanged.unchanged()
        assert [round(x, 5) for x in by_hand.losses] == [round(x, 5) for x in unchanged.losses]

    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((0, 3), (3, 5))
    first = loop()
    first.adapted()
    orders.process((5, 8))
    second = loop()
    second.adapted()
    assert [r["steps"] for r in orders.results()] == [3, 2, 3]
    assert first.losses + second.losses == pytest.approx(by_hand.losses, rel=1e-5)
    close(orders.weights(), by_hand.model.state_dict())
    rates = [r["lr"] for r in orders.results()]
    assert rates[0][0] == 0.0 and rates[-1][1] < rates[-1][0] < rates[1][0]
