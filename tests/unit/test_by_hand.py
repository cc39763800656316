"""By hand, ``t.loader`` is the script's own DataLoader; under orders its batches are the same."""

import random

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hadar_cli import training
from hadar_cli.node.training import batches
from hadar_cli.node.training.plans import Permutation
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)
COUNT, EPOCHS = 22, 2


class Noisy(Dataset):
    """With random transforms, as pictures have."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([float(i), random.random()]) + torch.rand(2)


class OddFirst(Sampler):
    def __iter__(self):
        return iter([*range(1, COUNT, 2), *range(0, COUNT, 2)])

    def __len__(self) -> int:
        return COUNT


LOADERS = {
    "in order": lambda: DataLoader(Noisy(), 4),
    "generator": lambda: DataLoader(
        Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "own sampler": lambda: DataLoader(Noisy(), 4, sampler=OddFirst(), drop_last=True),
    "own batches": lambda: DataLoader(
        Noisy(), batch_sampler=BatchSampler(OddFirst(), 3, False), collate_fn=torch.stack
    ),
    "workers": lambda: DataLoader(Noisy(), 4, num_workers=2),
    "workers and generator": lambda: DataLoader(
        Noisy(), 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(5)
    ),
}
# What draws from torch's global random numbers: by hand without hadar it is another shuffle.
SHUFFLES = {
    "shuffle": lambda: DataLoader(Noisy(), 4, shuffle=True),
    "replacement": lambda: DataLoader(
        Noisy(), 4, sampler=RandomSampler(range(COUNT), replacement=True, num_samples=15)
    ),
    "weighted": lambda: DataLoader(Noisy(), 4, sampler=WeightedRandomSampler(range(1, 23), 18)),
    "subset": lambda: DataLoader(Noisy(), 4, sampler=SubsetRandomSampler(range(3, 20))),
}


def train(loader, t=None, accumulate: int = 1) -> tuple[list, torch.Tensor]:
    """Batches and weights of an ordinary loop with dropout, which draws random numbers too."""
    torch.manual_seed(1)
    random.seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    seen = []
    if t is not None:
        t = training(model, optimizer, accumulate=accumulate)
    for _ in t.epochs(EPOCHS) if t is not None else range(EPOCHS):
        for i, x in enumerate(t.loader(loader) if t is not None else loader, start=1):
            seen.append(x.tolist())
            model(x).pow(2).mean().backward()
            if i % accumulate == 0 or i == len(loader):
                optimizer.step()
                optimizer.zero_grad()
    if t is not None:
        t.finish()
    return seen, model[0].weight.detach()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_without_hadar_and_by_hand_and_under_orders_alike(kind, accumulate, tmp_path, monkeypatch):
    plain, weights = train(LOADERS[kind](), None, accumulate)
    by_hand, same = train(LOADERS[kind](), True, accumulate)
    assert by_hand == plain
    assert torch.equal(same, weights)

    per_epoch = -(-len(LOADERS[kind]()) // accumulate)
    orders = Orders(tmp_path, monkeypatch, EPOCHS * per_epoch)
    # Workers of a loader by hand are new in every epoch; under hadar they stay.
    epochs = 1 if "workers" in kind else EPOCHS
    orders.process((0, epochs * per_epoch))
    under, trained = train(LOADERS[kind](), True, accumulate)
    assert under == plain[: epochs * len(LOADERS[kind]())]
    if epochs == EPOCHS:
        assert torch.equal(trained, weights)


@pytest.mark.parametrize("kind", SHUFFLES)
def test_torchs_own_shuffles_are_by_hand_what_they_are_under_orders(kind, tmp_path, monkeypatch):
    by_hand, weights = train(SHUFFLES[kind](), True)
    orders = Orders(tmp_path, monkeypatch, EPOCHS * len(SHUFFLES[kind]()))
    orders.process((0, 2), (2, len(by_hand)))
    under, trained = train(SHUFFLES[kind](), True)
    assert under == by_hand
    assert torch.equal(trained, weights)
    first, second = by_hand[: len(by_hand) // 2], by_hand[len(by_hand) // 2 :]
    assert [int(x[0][0]) for x in first] != [int(x[0][0]) for x in second]


def test_by_hand_hadar_does_not_read_the_loader_in_its_own_way(monkeypatch):
    """If it took a loader for another than it is, by hand and under hadar would both be wrong."""
    plain, _ = train(LOADERS["own batches"]())
    monkeypatch.setattr(batches, "plan_of", lambda loader, seed: Permutation(COUNT, 1, seed))
    by_hand, _ = train(LOADERS["own batches"](), True)
    assert by_hand == plain


def test_a_sampler_that_never_ends_is_drawn_batch_by_batch(tmp_path, monkeypatch):
    """As minGPT has it: by hand a count of iterations ends the loop."""

    def seen(steps: int) -> list:
        numbers = torch.arange(COUNT, dtype=torch.float)[:, None]
        sampler = RandomSampler(numbers, replacement=True, num_samples=int(1e10))
        model, found = torch.nn.Linear(1, 1), []
        with training(model, torch.optim.SGD(model.parameters(), 1e-5)) as t:
            for x in t.loader(DataLoader(numbers, 4, sampler=sampler)):
                found.append(x.flatten().tolist())
                t.step(model(x).mean())
                if len(found) == steps:
                    break
        return found

    by_hand = seen(6)
    orders = Orders(tmp_path, monkeypatch, 6)
    orders.process((0, 2), (4, 6), (2, 4))
    assert seen(7) == [*by_hand[:2], *by_hand[4:], *by_hand[2:4]]
    assert [r["samples"] for r in orders.results()] == [8, 8, 8]
