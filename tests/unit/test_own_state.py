"""What a script counts and keeps by itself: given to training it goes on in the next process, and
what was not given is named, or refused where the model's weights are in it."""

from __future__ import annotations

import copy
from collections import deque

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from hadar_cli import training
from hadar_cli.node.log_phrases import OWN_STATE, say_once
from hadar_cli.node.training.attempt import unfinished
from hadar_cli.node.training.misuse.refused import Refused
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)
DATA = torch.arange(32.0)[:, None]  # 8 mini-batches of 4


@pytest.fixture(autouse=True)
def _ended():
    say_once.cache_clear()
    yield
    unfinished.clear()


@pytest.fixture
def orders(tmp_path, monkeypatch) -> Orders:
    return Orders(tmp_path, monkeypatch, 16)


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(1, 1)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 1e-4)


class Stopper:
    """Early stopping as most write it."""

    def __init__(self, patience: int) -> None:
        self.patience, self.counter, self.best = patience, 0, None
        self.say = print  # which no checkpoint can hold

    def __call__(self, loss: float) -> bool:
        if self.best is None or loss < self.best:
            self.best, self.counter = np.float64(loss), 0
        else:
            self.counter += 1
        return self.counter >= self.patience


# -- given to training -----------------------------------------------------------------------


def stops_early(stopper: Stopper, progress: dict) -> None:
    """Validation gets worse from the second epoch on."""
    model = net()
    t = training(model, optimizer := sgd(model), state={"stopper": stopper, "progress": progress})
    for epoch in t.epochs(8):
        for x in t.loader(DataLoader(DATA, 16)):
            progress["seen"] += len(x)
            progress["last"].append(float(x[0]))
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        progress["by epoch"][epoch] = float(epoch)
        if stopper(1.0 + epoch):
            t.stop()


def test_a_patience_is_that_of_the_job_and_not_of_a_process(orders):
    """By hand it stops after the fifth epoch: four that were no better than the first."""
    hand, by_hand = Stopper(4), {"seen": 0, "last": deque(maxlen=3), "by epoch": {}}
    stops_early(hand, by_hand)
    assert (hand.counter, by_hand["seen"]) == (4, 160)

    def process(*slices: tuple[int, int]) -> tuple[Stopper, dict]:
        orders.process(*slices)
        stopper, progress = Stopper(4), {"seen": 0, "last": deque(maxlen=3), "by epoch": {}}
        stops_early(stopper, progress)
        return stopper, progress

    process((0, 3))
    process((3, 5), (5, 7))
    stopper, progress = process((7, 16))
    assert orders.results()[-1]["stopped"] == "script"
    assert (stopper.best, stopper.patience, stopper.say) == (hand.best, 4, print)
    assert progress == by_hand
    assert progress["last"].maxlen == 3


def test_what_is_put_back_is_what_the_script_holds(orders):
    """Others may hold the same dict, list, tensor or array; each is of the type it was."""
    ema = {"weight": torch.ones(2, dtype=torch.float64)}
    counts, where = np.zeros(3, dtype=np.int32), ([], (1, 2))

    class Kept:
        def __init__(self) -> None:
            self.ema, self.counts, self.where = ema, counts, where

    def script(kept: Kept, grows: bool) -> None:
        model = net()
        with training(model, sgd(model), state={"kept": kept}) as t:
            for x in t.loader(DATA, batch_size=4):
                t.step(model(x).mean())
                if grows:
                    kept.ema["weight"] += 1
                    kept.counts = kept.counts + 1
                    kept.where = ([*kept.where[0], 7], (3, 4))

    orders.process((0, 2))
    script(Kept(), True)
    ema["weight"] = held = torch.zeros(2, dtype=torch.float64)
    orders.process((2, 4))
    script(kept := Kept(), False)
    assert kept.ema["weight"] is held
    assert held.tolist() == [3.0, 3.0]
    assert (kept.counts.tolist(), kept.counts.dtype) == ([2, 2, 2], np.int32)
    assert kept.where == ([7, 7], (3, 4))


@pytest.mark.parametrize("value", [0.5, "name", print, [1]])
def test_a_value_that_nothing_can_be_put_back_into_is_refused(value):
    model = net()
    with pytest.raises(TypeError, match=r"give a dict, or an object"):
        training(model, sgd(model), state={"best": value})


def test_a_dict_with_more_than_a_checkpoint_holds_is_refused_by_its_key(orders):
    orders.process((0, 8))
    model, progress = net(), {"best": 0.0, "file": object()}
    t = training(model, sgd(model), state={"progress": progress})
    with pytest.raises(TypeError, match=r"state=\{'progress': ...\} holds a object"):
        for x in t.loader(DATA, batch_size=4):
            t.step(model(x).mean())


# -- named -----------------------------------------------------------------------------------

best_of_module = 0.0


def scores(value: float) -> None:
    global best_of_module
    best_of_module = max(best_of_module, value)


def told(capsys) -> list[str]:
    lines = [line for line in capsys.readouterr().out.splitlines() if OWN_STATE in line]
    return lines[0].removeprefix(f"{OWN_STATE}: ").split(", ") if lines else []


def test_what_a_loop_carries_from_turn_to_turn_is_named(orders, capsys):
    orders.process((0, 16))
    model, best, patience, rate, names = net(), None, 0, 0.1, ("a", "b")
    losses, stopper, kept, steps = [], Stopper(3), {"best": 1.0}, 0
    t = training(model, optimizer := sgd(model), state={"kept": kept})
    for epoch in t.epochs(2):
        running = 0.0
        rate = 0.1 / (epoch + 1)
        for x in t.loader(DataLoader(DATA, 4)):
            steps = t.position
            optimizer.zero_grad()
            (loss := model(x).mean()).backward()
            optimizer.step()
            running += loss.item() * rate * len(names)
        if epoch % 2:
            loss = running
        else:
            loss = running
            loss *= 2
        losses.append(loss)
        if best is None or loss < best:
            best = loss
        else:
            patience += 1
        kept["best"] = best
        stopper(loss + steps)
        scores(loss)
    assert sorted(told(capsys)) == sorted(
        ["best", "patience", "losses", "best_of_module", "stopper.counter", "stopper.best"]
    )


class Trainer:
    """A loop that lives in a class, its epochs in a method of their own."""

    def __init__(self) -> None:
        self.model, self.steps, self.lr, self.stopper = net(), 0, 0.1, Stopper(3)
        self.optimizer = sgd(self.model)

    def fit(self) -> None:
        self.t = training(self.model, self.optimizer)
        for _ in self.t.epochs(2):
            self.train_epoch()
            self.stopper(1.0)

    def train_epoch(self) -> None:
        running = 0.0
        for x in self.t.loader(DataLoader(DATA, 4)):
            self.optimizer.zero_grad()
            (loss := self.model(x).mean()).backward()
            self.optimizer.step()
            running += loss.item()
            self.steps += 1


def test_what_a_trainer_of_its_own_carries_is_named(orders, capsys):
    orders.process((0, 16))
    Trainer().fit()
    assert sorted(told(capsys)) == ["self.steps", "self.stopper.best", "self.stopper.counter"]


def test_a_loop_that_keeps_nothing_is_told_nothing(orders, capsys):
    orders.process((0, 16))
    model, total = net(), 0.0
    with training(model, sgd(model)) as t:
        for x in t.loader(DATA, batch_size=4):
            total = model(x).mean()
            t.step(total)
    assert told(capsys) == []


def test_by_hand_nothing_is_told(capsys):
    Trainer().fit()
    assert told(capsys) == []


# -- refused ---------------------------------------------------------------------------------


class ByNames:
    """A running mean as many write it, by the names of the parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    def update(self, model: torch.nn.Module) -> None:
        for name, p in model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * p.detach()


class ByPlace:
    """The same in a list, in place."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.means = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        for mean, p in zip(self.means, model.parameters(), strict=True):
            mean.lerp_(p, 0.1)


class Twin:
    """A copy of the model, as a target network is."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.twin = copy.deepcopy(model)

    def update(self, model: torch.nn.Module) -> None:
        self.twin.load_state_dict(model.state_dict())


class Swa:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = AveragedModel(model)

    def update(self, model: torch.nn.Module) -> None:
        self.model.update_parameters(model)


class OfALibrary(ByPlace):
    """As torch_ema's and diffusers' are, from site-packages."""

    __module__ = "ema_of_a_library"


class WithinAModel(Twin):
    """As timm's tasks have the model and its mean for parts."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.task = torch.nn.Module()
        self.task.parts = torch.nn.ModuleDict({"model": model, "mean": copy.deepcopy(model)})

    @property
    def twin(self) -> torch.nn.Module:
        return self.task.parts["mean"]


class InAList(Twin):
    def __init__(self, model: torch.nn.Module) -> None:
        self.all = [{"name": "mean", "model": copy.deepcopy(model)}]

    @property
    def twin(self) -> torch.nn.Module:
        return self.all[0]["model"]


SHADOWS = {
    "within a model": WithinAModel,
    "in a list": InAList,
    "of a library": OfALibrary,
    "by names": ByNames,
    "by place": ByPlace,
    "twin": Twin,
    "swa": Swa,
}


def averages(kind: str, is_given: bool) -> object:
    model = net()
    ema = SHADOWS[kind](model)
    inner = getattr(ema, "twin", None) or getattr(ema, "model", None) or ema
    with training(model, sgd(model), state={"ema": inner} if is_given else None) as t:
        for x in t.loader(DATA, batch_size=4):
            t.step(model(x).mean())
            ema.update(model)
    return ema


def weights_of(ema: object) -> list[list[float]]:
    held = getattr(ema, "twin", None) or next(iter(vars(ema).values()))
    tensors = held.parameters() if isinstance(held, torch.nn.Module) else held
    tensors = tensors.values() if isinstance(tensors, dict) else tensors
    return [tensor.reshape(-1).tolist() for tensor in tensors]


@pytest.mark.parametrize("kind", SHADOWS)
def test_weights_beside_the_models_that_training_was_not_given(kind, orders):
    orders.process((0, 8))
    with pytest.raises(Refused, match=r"ema.* holds weights of the shapes of the model's"):
        averages(kind, False)


def test_a_job_that_has_come_far_is_not_lost_for_weights_beside_the_models(orders, capsys):
    """Such as the best so far, which a script may copy for the first time after hours."""
    orders.process((0, 2))
    model = net()
    with training(model, sgd(model)) as t:
        for x in t.loader(DATA, batch_size=4):
            t.step(model(x).mean())
    orders.process((2, 8))
    averages("twin", False)
    assert [result["steps"] for result in orders.results()] == [2, 6]
    assert f"{OWN_STATE}: ema.twin" in capsys.readouterr().out


@pytest.mark.parametrize("kind", SHADOWS)
def test_weights_beside_the_models_go_on_in_the_next_process(kind, orders):
    orders.process((0, 3))
    averages(kind, True)
    orders.process((3, 8))
    resumed = weights_of(averages(kind, True))
    orders.by_hand()
    by_hand = weights_of(averages(kind, True))
    for one, other in zip(resumed, by_hand, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_copies_that_do_not_change_are_nobodys_business(orders):
    """A teacher, the best weights so far, the model's own parameters in a list."""
    orders.process((0, 8))
    model = net()
    teacher, parameters = copy.deepcopy(model), list(model.parameters())
    best = copy.deepcopy(model.state_dict())
    with training(model, sgd(model)) as t:
        for x in t.loader(DATA, batch_size=4):
            t.step((model(x) - teacher(x)).pow(2).mean() + 0 * parameters[0].sum())
            best = copy.deepcopy(model.state_dict())
    assert orders.results()[0]["steps"] == 8
    assert best
