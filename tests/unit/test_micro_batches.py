"""Batches that do not fit a card whole: split, and their gradients put together exactly."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from hadar_cli.node.log_phrases import say_once
from hadar_cli.node.training.splitting import split
from hadar_cli.node.training.updates import CannotSplit
from tests.unit.test_training import Script, order, result_of  # noqa: F401

Pair = namedtuple("Pair", ["x", "y"])
X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


class Precise(Script):
    """Of a model whose rounding errors do not count."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model.double()
        self.losses: list[float] = []

    def run(self) -> None:
        from hadar_cli import training

        with training(self.model, self.optimizer, self.scheduler, **self.options) as t:
            for x, index in t.loader(self.data, batch_size=4):
                self.batches.append(index.tolist())
                t.step(self.model(x.double() / 20).square().mean(), clip_norm=0.5)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
@pytest.mark.parametrize("pieces", [2, 3, 4, 64])
def test_a_step_of_micro_batches_is_the_step_of_the_whole_batch(order, pieces, options):  # noqa: F811
    order(1)
    whole = Precise(**options)
    whole.run()
    placed = order(2, MICRO_BATCHES=pieces)
    parts = Precise(**options)
    parts.run()
    assert len(parts.batches) == len(whole.batches) * min(pieces, 4)
    assert [i for b in parts.batches for i in b] == [i for b in whole.batches for i in b]
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert result_of(placed)["steps"] == 5
    assert parts.scheduler.last_epoch == whole.scheduler.last_epoch


def test_the_loss_told_is_that_of_whole_batches(order):  # noqa: F811
    first = order(1)
    Precise(samples=18).run()  # the last batch has two samples
    second = order(2, MICRO_BATCHES=3)
    Precise(samples=18).run()
    whole, parts = (result_of(placed)["metrics"]["loss"] for placed in (first, second))
    assert parts == pytest.approx(whole, rel=1e-5)


class Own(Script):
    """Does backward and update itself."""

    def run(self) -> None:
        from hadar_cli import training

        with training(self.model, self.optimizer) as t:
            for x, _ in t.loader(self.data, batch_size=4):
                self.optimizer.zero_grad()
                self.model(x).square().mean().backward()
                self.optimizer.step()


class Clears(Script):
    """Clears gradients before every batch, as many a script does without need."""

    def __init__(self, set_to_none: bool) -> None:
        super().__init__()
        self.set_to_none = set_to_none

    def run(self) -> None:
        from hadar_cli import training

        with training(self.model, self.optimizer) as t:
            for x, _ in t.loader(self.data, batch_size=4):
                self.optimizer.zero_grad(set_to_none=self.set_to_none)
                t.step(self.model(x).square().mean())


class Adds(Script):
    """Its loss is a sum."""

    def run(self) -> None:
        from hadar_cli import training

        with training(self.model, self.optimizer) as t:
            for x, _ in t.loader(self.data, batch_size=4):
                t.step(self.model(x).square().sum())


class Chooses(Script):
    """Its loss is a mean over some of the samples."""

    def run(self) -> None:
        from hadar_cli import training

        with training(self.model, self.optimizer) as t:
            for x, i in t.loader(self.data, batch_size=4, shuffle=False):
                t.step(self.model(x)[i % 4 != 3].square().mean())


def test_pieces_that_are_means_over_unlike_numbers_are_told(order, capsys):  # noqa: F811
    say_once.cache_clear()
    order(1, MICRO_BATCHES=2)
    Script().run()
    assert "unlike numbers" not in capsys.readouterr().out
    order(2, MICRO_BATCHES=2)
    Chooses().run()
    assert "means over unlike numbers" in capsys.readouterr().out


@pytest.mark.parametrize("script", [Own(), Clears(True), Clears(False), Adds()])
def test_a_script_that_would_train_wrongly_on_pieces_says_so(order, script):  # noqa: F811
    order(1, MICRO_BATCHES=2)
    with pytest.raises(CannotSplit):
        script.run()


@pytest.mark.parametrize("script", [Own(), Clears(True), Clears(False), Adds()])
def test_the_same_script_trains_on_whole_batches(order, script):  # noqa: F811
    placed = order(1)
    script.run()
    assert result_of(placed)["steps"] == 5


@pytest.mark.parametrize(
    "batch",
    [
        X,
        (X, Y),
        [X, Y],
        {"x": X, "y": Y},
        Pair(X, Y),
        {"x": X, "more": (Y, [f"name {i}" for i in range(5)])},
        (X, torch.tensor(3.0), None, "train"),
    ],
    ids=repr,
)
def test_every_sample_is_in_one_piece(batch):
    pieces = split(batch, 3)
    assert len(pieces) == 3
    assert sum(share for _, share in pieces) == pytest.approx(1.0)
    assert all(type(piece) is type(batch) for piece, _ in pieces)

    def first_tensor(value: Any) -> torch.Tensor:
        while not isinstance(value, torch.Tensor):
            value = value["x"] if isinstance(value, dict) else value[0]
        return value

    assert torch.equal(torch.cat([first_tensor(piece) for piece, _ in pieces]), X)


def test_lists_with_an_entry_a_sample_are_cut_and_columns_are_not():
    two = torch.ones(2, 3)
    (one, _), (other, _) = split((two, [{"box": two[0]}, {"box": two[1]}]), 2)
    assert [len(part[1]) for part in (one, other)] == [1, 1]
    (one, _), _ = split((two, (two, two)), 2)  # two columns of two samples
    assert [len(column) for column in one[1]] == [1, 1]


@pytest.mark.parametrize(
    "batch", ["text", (X, torch.ones(3)), (X, object())], ids=["text", "odd", "object"]
)
def test_what_nobody_can_split_is_refused(batch):
    with pytest.raises(TypeError, match="cannot be split"):
        split(batch, 2)
