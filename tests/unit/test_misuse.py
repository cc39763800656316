"""What would train something else under hadar than by hand is refused, with what to change."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import SWALR
from torch.utils.data import DataLoader

from hadar_cli import training
from hadar_cli.node.training.attempt import unfinished
from hadar_cli.node.training.misuse.refused import Refused
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)


@pytest.fixture(autouse=True)
def _ended():
    """A script that was refused is over, as its process would be."""
    yield
    unfinished.clear()


DATA = torch.arange(32.0)[:, None]


@pytest.fixture(params=["by hand", "under orders"])
def place(request, tmp_path, monkeypatch) -> str:
    """By hand none of this is refused: there it does what the script says."""
    if request.param == "under orders":
        Orders(tmp_path, monkeypatch, 16).process((0, 8), (8, 16))
    return request.param


def refuses(place: str, words: str):
    is_by_hand = place == "by hand"
    return pytest.raises(Passed if is_by_hand else Refused, match=None if is_by_hand else words)


class Passed(Exception):
    """A script came to its end, as by hand it may."""


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(1, 1)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 1e-4)


def batches(shift: float = 0.0) -> DataLoader:
    return DataLoader(DATA + shift, 4)


def train(t, model, optimizer, after=lambda: None, epochs: int = 2, loader=None) -> None:
    loader = loader or batches()
    for _ in t.epochs(epochs):
        for x in t.loader(loader):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        after()


def told(error) -> str:
    return str(error.value)


# -- schedulers and optimizers that training was not given ----------------------------------


SCHEDULERS = {
    "by epochs": lambda o: StepLR(o, 1, 0.7),
    "plateau": lambda o: ReduceLROnPlateau(o),
    "of others": lambda o: SequentialLR(o, [LinearLR(o), StepLR(o, 3)], [4]),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_that_training_was_not_given(kind, tmp_path, monkeypatch):
    """Before the first step: an epoch may take hours."""
    Orders(tmp_path, monkeypatch, 16).process((0, 8))
    model = net()
    optimizer = sgd(model)
    scheduler = SCHEDULERS[kind](optimizer)
    with pytest.raises(Refused, match="moves the learning rate and was not given") as error:
        train(training(model, optimizer), model, optimizer, scheduler.step)
    assert "training(model, optimizer, scheduler)" in told(error)


def test_one_of_two_schedulers_was_not_given(tmp_path, monkeypatch):
    Orders(tmp_path, monkeypatch, 16).process((0, 8))
    model = net()
    optimizer = sgd(model)
    scheduler, averaging = StepLR(optimizer, 1), SWALR(optimizer, 1e-5)
    with pytest.raises(Refused, match="SWALR moves the learning rate"):
        train(training(model, optimizer, scheduler), model, optimizer, averaging.step)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_that_was_given_is_none_that_was_left_out(kind, tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 16)
    orders.process((0, 8))
    model = net()
    optimizer = sgd(model)
    scheduler = SCHEDULERS[kind](optimizer)
    tick = (lambda: scheduler.step(1.0)) if kind == "plateau" else scheduler.step
    train(training(model, optimizer, scheduler), model, optimizer, tick)
    assert orders.results()[0]["steps"] == 8


def test_an_optimizer_that_training_was_not_given(tmp_path, monkeypatch):
    Orders(tmp_path, monkeypatch, 16).process((0, 8))
    model = torch.nn.Sequential(net(), net())
    one, other = sgd(model[0]), sgd(model[1])
    with pytest.raises(Refused, match="SGD made an update and was not given") as error:
        train(training(model, one), model, one, loader=batches(), after=other.step)
    assert "[one, other]" in told(error)


def test_a_model_and_its_optimizer_that_training_was_not_given(tmp_path, monkeypatch):
    """Half a GAN."""
    Orders(tmp_path, monkeypatch, 16).process((0, 8))
    model, judge = net(), net()
    optimizer, other = sgd(model), sgd(judge)
    t = training(model, optimizer)
    with pytest.raises(Refused, match="was not given to training"):
        for x in t.loader(batches()):
            judge(model(x)).mean().backward()
            optimizer.step()
            other.step()


def test_an_optimizer_made_anew_after_training(tmp_path, monkeypatch):
    Orders(tmp_path, monkeypatch, 16).process((0, 8))
    model = net()
    t = training(model, sgd(model))
    with pytest.raises(Refused, match=r"was not given to training.*made before it"):
        train(t, model, sgd(model))


def test_a_model_made_anew_after_training(tmp_path, monkeypatch):
    """Its gradients go to weights that nobody updates; the ones that training has stay as they
    were."""
    Orders(tmp_path, monkeypatch, 16).process((0, 8))
    model = net()
    optimizer = sgd(model)
    t = training(model, optimizer)
    model = net()
    with (
        pytest.raises(Refused, match=r"no gradient came to any weight.*not anew after it"),
        t,
    ):
        for x in t.loader(batches()):
            model(x).mean().backward()
            optimizer.step()


class Around(torch.optim.Optimizer):
    """An optimizer around another one, as SAM is."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


@pytest.mark.parametrize("given", ["inner", "outer"])
def test_an_optimizer_around_another_one(given, tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 16)
    orders.process((0, 8))
    model = net()
    outer = Around(inner := sgd(model))
    train(training(model, inner if given == "inner" else outer), model, outer)
    assert orders.results()[0]["steps"] == 8


def test_an_optimizer_of_the_moment(tmp_path, monkeypatch):
    """As in the inner loop of MAML."""
    orders = Orders(tmp_path, monkeypatch, 16)
    orders.process((0, 8))
    model = net()
    optimizer = sgd(model)
    t = training(model, optimizer)
    for x in t.loader(batches()):
        learner = copy.deepcopy(model)
        inner = sgd(learner)
        for _ in range(2):
            learner(x).mean().backward()
            inner.step()
        t.step(model(x).mean())
    assert orders.results()[0]["steps"] == 8


@pytest.mark.parametrize("kind", ["by steps and epochs", "one after the other"])
def test_schedulers_that_do_not_tick_together(kind, place):
    """All would be moved to the job's place alike."""
    model = net()
    optimizer = sgd(model)
    one, other = LinearLR(optimizer, 0.1, total_iters=8), StepLR(optimizer, 1, 0.5)
    t = training(model, optimizer, [one, other])
    by_steps = kind == "by steps and epochs"
    with refuses(place, "LinearLR ticks where StepLR does not"):
        for epoch in t.epochs(2):
            for x in t.loader(batches()):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
                if by_steps:
                    one.step()
            if not by_steps:
                (other if epoch else one).step()
        raise Passed


def test_a_parameter_group_that_comes_later(place):
    model = torch.nn.Sequential(net(), net())
    optimizer = sgd(model[1])
    t = training(model, optimizer)
    with refuses(place, r"parameter group.*requires_grad_\(True\)"):
        for epoch in t.epochs(2):
            if epoch:
                optimizer.add_param_group({"params": list(model[0].parameters())})
            for x in t.loader(batches()):
                t.step(model(x).mean())
        raise Passed


@pytest.mark.parametrize("is_right", [True, False])
def test_what_is_left_of_an_epoch_where_a_process_begins_within_it(is_right, tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 6)
    model = net()
    for part in ((0, 1), (1, 3)):
        orders.process(part)
        optimizer = sgd(model)
        t = training(model, optimizer, accumulate=3)
        loader = batches()
        refused = pytest.raises(Refused, match=r"t\.ends_epoch")
        with refused if part == (1, 3) and not is_right else nullcontext(), t:
            for i, x in enumerate(t.loader(loader)):
                model(x).mean().backward()
                if (i + 1) % 3 == 0 or (t.ends_epoch if is_right else i + 1 == len(loader)):
                    optimizer.step()
                    optimizer.zero_grad()


# -- loops that do not train -----------------------------------------------------------------


def evaluate(model, loader) -> float:
    return sum(float(model(x).detach().mean()) for x in loader)


@pytest.mark.parametrize("wrapped", ["both", "evaluation"])
@pytest.mark.parametrize("is_careful", [True, False])
def test_a_loop_that_evaluates(wrapped, is_careful, place):
    model = net()
    optimizer = sgd(model)
    t = training(model, optimizer)
    words = "gradients are off" if is_careful else "no gradient came to any weight"
    if wrapped == "evaluation":
        words = "outside of the loop over t.loader"
    with refuses(place, words):
        for _ in t.epochs(2):
            loader = t.loader(batches()) if wrapped == "both" else batches()
            for x in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            with torch.set_grad_enabled(not is_careful):
                evaluate(model, t.loader(batches(100.0)))
        raise Passed


def test_an_evaluation_before_all_training(tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 16)
    orders.process((0, 8))
    model = net()
    with (
        pytest.raises(Refused, match=r"made 8 steps, and no gradient.*evaluate=") as error,
        training(model, sgd(model)) as t,
    ):
        evaluate(model, t.loader(batches()))
    assert "the training data alone" in told(error)
    assert not (tmp_path / "order-1" / "result").exists()


def test_a_first_step_may_be_left_out(tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 16)
    orders.process((0, 8))
    model = net()
    with training(model, sgd(model)) as t:
        for i, x in enumerate(t.loader(batches())):
            if i > 2:
                t.step(model(x).mean())
    assert orders.results()[0]["steps"] == 8


def test_gradients_that_wait_for_a_later_order_are_no_evaluation(tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 16)
    orders.process((0, 2), (2, 4))
    model = net()
    optimizer = sgd(model)
    with training(model, optimizer) as t:
        for i, x in enumerate(t.loader(batches())):
            model(x).mean().backward()
            if i % 4 == 3:
                optimizer.step()
    assert [r["steps"] for r in orders.results()] == [2, 2]


def test_an_update_after_the_loop(place):
    """Of the gradients that an epoch leaves."""
    model = net()
    optimizer = sgd(model)
    with refuses(place, "outside of the loop over t.loader"):
        t = training(model, optimizer)
        for _ in t.epochs(2):
            for i, x in enumerate(t.loader(batches())):
                model(x).mean().backward()
                if i % 3 == 2:
                    optimizer.step()
            optimizer.step()
        raise Passed


@pytest.mark.parametrize("is_leaving", [True, False])
def test_data_sets_of_other_lengths(is_leaving, tmp_path, monkeypatch):
    """Seen where the second one is given, also where a process has come to its end: so `hadar try`
    need not train an epoch to see it."""
    orders = [(0, 4)] if is_leaving else [(0, 8), (8, 16)]
    Orders(tmp_path, monkeypatch, 16).process(*orders)
    model = net()
    optimizer = sgd(model)
    t = training(model, optimizer)
    with pytest.raises(Refused, match="one data set of 8 steps an epoch and another of 4 steps"):
        train(t, model, optimizer, lambda: evaluate(model, t.loader(DataLoader(DATA, 8))))


# -- training itself -------------------------------------------------------------------------


def test_training_inside_the_loop_over_epochs(place):
    model = net()
    optimizer = sgd(model)
    with refuses(place, "called a second time.*before the loop over epochs"):
        for _ in range(2):
            t = training(model, optimizer)
            for x in t.loader(batches()):
                t.step(model(x).mean())
        raise Passed


def test_t_step_after_a_backward_of_its_own(place):
    model = net()
    with (
        pytest.raises(Refused, match=r"t\.step\(loss\) stands for loss\.backward\(\)"),
        training(model, sgd(model)) as t,
    ):
        for x in t.loader(batches()):
            loss = model(x).mean()
            loss.backward()
            t.step(loss)
