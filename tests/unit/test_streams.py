"""Data that can only be read one mini-batch after another, by processes of a loader."""

from __future__ import annotations

import os
import random
import signal

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hadar_cli import training
from hadar_cli.node.log_phrases import say_once
from hadar_cli.node.training.attempt import unfinished
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)


@pytest.fixture(autouse=True)
def _ended():
    say_once.cache_clear()
    yield
    unfinished.clear()


class Shards(IterableDataset):
    """Each process of the loader has a share of it, shuffles that, and augments."""

    def __init__(self, samples: int, length: int | None = None) -> None:
        self._samples = samples
        if length is not None:
            self.__class__ = Counted
            self.length = length

    def __iter__(self):
        info = get_worker_info()
        mine = list(range(info.id if info else 0, self._samples, info.num_workers if info else 1))
        random.shuffle(mine)
        for number in mine:
            yield torch.tensor([number + random.random() / 4 + float(torch.rand(())) / 4])


class Counted(Shards):
    def __len__(self) -> int:
        return self.length


def train(samples: int, length: int | None, epochs: int, leaves_at: int = -1) -> list[list[float]]:
    """The mini-batches that it trains on."""
    torch.manual_seed(0)
    model, seen = torch.nn.Linear(1, 1), []
    loader = DataLoader(Shards(samples, length), batch_size=2, num_workers=2)
    with training(model, torch.optim.SGD(model.parameters(), 1e-3), epochs=epochs) as t:
        for x in t.loader(loader):
            seen.append(x.flatten().tolist())
            t.step(model(torch.nn.functional.dropout(x, 0.1)).mean())
            if len(seen) == leaves_at:
                os.kill(os.getpid(), signal.SIGTERM)
    return seen


@pytest.mark.parametrize("length", [16, None])
def test_processes_that_go_on_read_what_one_reads_by_hand(length, tmp_path, monkeypatch):
    """Through orders, an interruption and new processes; an epoch is of eight mini-batches."""
    by_hand = train(16, length, 2)
    assert len(by_hand) == 16
    assert sorted(int(x) for batch in by_hand[:8] for x in batch) == list(range(16))
    orders = Orders(tmp_path, monkeypatch, 16)
    orders.process((0, 3), (3, 5))
    assert train(16, length, 2) == by_hand[:5]
    orders.process((5, 16))
    assert train(16, length, 2, leaves_at=2) == by_hand[5:7]
    assert [result["steps"] for result in orders.results()] == [3, 2, 2]
    assert orders.results()[-1]["stopped"] == "signal"
    orders.process((7, 12), (14, 16))
    assert train(16, length, 2) == [*by_hand[7:12], *by_hand[14:16]]


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (16, ""),
        (22, "the stream goes on after the 8 mini-batches of an epoch that its len says"),
        (12, "the stream ends 2 mini-batches before the 8 of an epoch that its len says"),
    ],
)
def test_a_len_that_is_not_true_is_told(samples, told, tmp_path, monkeypatch, capsys):
    Orders(tmp_path, monkeypatch, 16).process((0, 16))
    assert len(train(samples, 16, 2)) == 16
    said = [line for line in capsys.readouterr().out.splitlines() if "the stream" in line]
    assert (told in said[0]) if told else not said
