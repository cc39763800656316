"""The README's example runs as it is printed, before and after, by hand and under an order."""

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)
README = Path(__file__).parents[2] / "README.md"


def example(sign: str) -> str:
    """The printed difference's new side (+) or old side (-)."""
    section = README.read_text().split("## Your own script in five lines")[1]
    difference = re.search(r"```diff\n(.*?)```", section, re.S)
    assert difference
    lines = difference[1].splitlines()
    return "\n".join(line[1:] for line in lines if line[:1] in (sign, " ", ""))


def run(source: str) -> torch.nn.Module:
    """With what a reader has: torch, a model, a data set, a loss."""
    torch.manual_seed(0)
    x = torch.randn(640, 4)
    names = {
        "torch": torch,
        "DataLoader": DataLoader,
        "Net": lambda: torch.nn.Linear(4, 1),
        "dataset": TensorDataset(x, x @ torch.ones(4, 1)),
        "criterion": torch.nn.MSELoss(),
    }
    exec(source, names)
    return names["model"]


@pytest.mark.parametrize("sign", ["-", "+"])
def test_it_runs_by_hand(sign):
    untrained = run("model = Net()").weight.detach().clone()
    assert not torch.equal(run(example(sign)).weight, untrained)


def test_it_runs_under_hadar(tmp_path, monkeypatch):
    by_hand = run(example("+"))
    orders = Orders(tmp_path, monkeypatch, 100)
    orders.process((0, 60), (60, 100))
    run(example("+"))
    assert [r["steps"] for r in orders.results()] == [60, 40]
    torch.testing.assert_close(orders.weights()["weight"], by_hand.weight.detach())


def test_no_more_lines_change_than_it_says():
    new = set(example("+").splitlines()) - set(example("-").splitlines())
    assert len([line for line in new if line.strip()]) <= 5
