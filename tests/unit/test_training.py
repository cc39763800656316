"""The training context: by hand, under one order, and from order to order."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import cached_property

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hadar_cli import training
from hadar_cli.node.contract import Order
from hadar_cli.node.log_phrases import EARLY_UPDATE, MISCOUNTED, RUNS_AHEAD, say_once
from hadar_cli.node.slices import parse_slices, take
from hadar_cli.node.training.attempt import Attempt
from hadar_cli.node.training.checkpoints import checkpoint
from hadar_cli.node.training.misuse.refused import Refused
from hadar_cli.node.training.pacing import Pace
from tests.support.orders import Orders

torch.set_num_threads(1)


class Numbers(Dataset):
    """Sample i is the number i; what was seen is what was trained on."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError
        return torch.tensor([float(index)]), index


class Script:
    """A small training script that remembers its batches."""

    def __init__(self, samples: int = 20, **options) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data, self.options = Numbers(samples), options
        self.batches: list[list[int]] = []
        self.on_step = lambda: None

    @cached_property
    def scheduler(self) -> torch.optim.lr_scheduler.LambdaLR:
        """Made when it is asked for: one that training is not given is refused."""
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0 / (1 + step))

    def run(self) -> None:
        with training(self.model, self.optimizer, self.scheduler, **self.options) as t:
            for x, index in t.loader(self.data, batch_size=4):
                self.batches.append(index.tolist())
                t.step(self.model(x / 20).square().mean())
                self.on_step()


@pytest.fixture
def order(tmp_path, monkeypatch):
    """Sets the contract's variables for an order, and returns where its files go."""

    def place(number: int = 1, **variables) -> dict[str, str]:
        files = tmp_path / f"order-{number}"
        files.mkdir()
        return {
            "HADAR_STEPS": "5",
            "HADAR_SLICES": "0:5",
            "HADAR_SECONDS_LEFT": "60",
            "HADAR_ISSUED_AT": repr(time.monotonic()),
            "HADAR_CKPT_IN": "",
            "HADAR_CKPT_OUT": str(files / "weights"),
            "HADAR_RESULT": str(files / "result"),
            "HADAR_PROGRESS": str(files / "progress"),
            "HADAR_TOTAL_STEPS": "100",
            "HADAR_JOB_SEED": "7",
            **{f"HADAR_{name}": str(value) for name, value in variables.items()},
        }

    def install(number: int = 1, **variables) -> dict[str, str]:
        placed = place(number, **variables)
        for name, value in placed.items():
            monkeypatch.setenv(name, value)
        return placed

    install.place = place
    before = signal.getsignal(signal.SIGTERM)
    yield install
    signal.signal(signal.SIGTERM, before)


def result_of(order: dict[str, str]) -> dict:
    with open(order["HADAR_RESULT"]) as file:
        return json.load(file)


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def test_by_hand_it_is_an_ordinary_loop(capsys):
    script = Script(epochs=3, evaluate=lambda: {"accuracy": 0.5})
    script.run()
    assert len(script.batches) == 15
    for epoch in range(3):
        seen = flat(script.batches[5 * epoch : 5 * epoch + 5])
        assert sorted(seen) == list(range(20))
    assert script.batches[:5] != script.batches[5:10]
    assert "accuracy=0.5" in capsys.readouterr().out


def test_copies_with_disjoint_slices_see_every_sample_once(order):
    seen: list[int] = []
    for number, slices in enumerate(("0:2", "2:3,4:5", "3:4")):
        order(number, SLICES=slices, STEPS=sum(b - a for a, b in parse_slices(slices)))
        script = Script()
        script.run()
        seen += flat(script.batches)
    assert sorted(seen) == list(range(20))


def test_the_last_batch_of_an_epoch_may_be_short(order):
    placed = order(STEPS=5, SLICES="0:5")
    script = Script(samples=18)
    script.run()
    assert result_of(placed)["samples"] == 18
    assert [len(batch) for batch in script.batches] == [4, 4, 4, 4, 2]


def test_the_result_tells_what_was_done(order):
    placed = order(STEPS=3, SLICES="1:2,8:20")
    Script(evaluate=lambda: {"mse": 2.5}).run()
    result = result_of(placed)
    assert result["steps"] == 3
    assert result["slices"] == [[1, 2], [8, 10]]
    assert result["stopped"] == "steps"
    assert result["evaluation"] is None
    assert result["waiting"] is False
    assert result["metrics"]["loss"] > 0


def test_losses_in_half_precision_are_summed_in_full(order):
    placed = order(STEPS=1, SLICES="0:1")
    script = Script()
    with training(script.model, script.optimizer) as t:
        for x, _ in t.loader(script.data, batch_size=4):
            script.model(x).mean().backward()
            script.optimizer.step()
            for _ in range(2000):
                t.log(torch.tensor(2.3, dtype=torch.bfloat16))
    assert result_of(placed)["metrics"]["loss"] == pytest.approx(2.3, abs=0.01)


def test_evaluation_is_of_the_weights_it_was_given(order):
    placed = order(EVALUATE=1)
    script = Script()
    before = script.model.weight.item()
    script.options["evaluate"] = lambda: {"weight": script.model.weight.item()}
    script.run()
    assert result_of(placed)["evaluation"] == {"weight": before}
    assert result_of(placed)["higher_is_better"] is None
    assert script.model.weight.item() != before


@pytest.mark.parametrize("higher", [True, False])
def test_a_script_says_which_way_its_figure_goes(order, higher):
    placed = order(EVALUATE=1)
    Script(evaluate=lambda: {"score": 0.5}, higher_is_better=higher).run()
    assert result_of(placed)["higher_is_better"] is higher


def test_a_copy_goes_on_from_a_checkpoint_as_if_never_stopped(order):
    straight = Script()
    order(1, STEPS=10, SLICES="0:10")
    straight.run()

    first = order(2, STEPS=5, SLICES="0:5")
    Script().run()
    order(3, STEPS=5, SLICES="5:10", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=5)
    resumed = Script()
    resumed.run()
    assert torch.equal(resumed.model.weight, straight.model.weight)
    assert resumed.scheduler.last_epoch == 10
    state = resumed.optimizer.state_dict()["state"][0]
    assert torch.equal(state["exp_avg"], straight.optimizer.state_dict()["state"][0]["exp_avg"])


def test_a_waiting_copy_takes_the_next_order_in_the_same_process(order, tmp_path):
    second_path = tmp_path / "orders.json"
    first = order(1, STEPS=5, SLICES="0:5", NEXT=second_path)
    second = order.place(2, STEPS=5, SLICES="5:10", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=5)
    second_path.write_text(json.dumps(second))
    script = Script()
    script.run()
    straight = Script()
    order(3, STEPS=10, SLICES="0:10")
    straight.run()
    assert result_of(first)["waiting"] is True
    assert result_of(second)["steps"] == 5
    assert torch.equal(script.model.weight, straight.model.weight)


@pytest.fixture
def a_minute_later(monkeypatch):
    """Moves the clock on, so that an order's time is up after just the steps that a test wants."""
    clock, minutes = time.monotonic, [0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 60 * minutes[0])

    def later() -> None:
        minutes[0] += 1

    return later


def test_an_order_sent_ahead_begins_with_what_the_one_before_it_left_undone(
    order, tmp_path, a_minute_later
):
    """Steps in order, so an epoch is entered once, and its schedule ticks once."""
    ahead = tmp_path / "orders.json"
    first = order(1, STEPS=8, SLICES="0:8", SECONDS_LEFT=50, NEXT=ahead, TOTAL_STEPS=15)
    second = order.place(2, STEPS=7, SLICES="8:15", INHERITS=1, TOTAL_STEPS=15)
    ahead.write_text(json.dumps(second))
    script = Script()
    schedule = torch.optim.lr_scheduler.StepLR(script.optimizer, 1, 0.5)
    t = training(script.model, script.optimizer, schedule)
    epochs, rates = [], []
    for epoch in t.epochs(3):
        epochs.append(epoch)
        for x, index in t.loader(script.data, batch_size=4):
            script.batches.append(index.tolist())
            script.model(x / 20).square().mean().backward()
            script.optimizer.step()
            rates.append(schedule.get_last_lr()[0])
            if len(script.batches) == 3:
                a_minute_later()  # past its deadline: it was to do five more
        schedule.step()
    assert (result_of(first)["slices"], result_of(second)["slices"]) == ([[0, 3]], [[3, 15]])
    assert epochs == [0, 1, 2]
    assert rates == [1e-3] * 5 + [5e-4] * 5 + [25e-5] * 5


def test_an_epoch_that_ends_with_its_orders_time_draws_no_random_number_twice(
    order, tmp_path, a_minute_later
):
    """Its loader draws one when the epoch begins; the order that begins it may end before."""

    def trained() -> list[float]:
        script, drawn = Script(), []
        t = training(script.model, script.optimizer)
        for epoch in t.epochs(2):
            for x, _ in t.loader(DataLoader(script.data, batch_size=4)):
                drawn.append(torch.rand(()).item())
                script.model(x).mean().backward()
                script.optimizer.step()
            if epoch == 0:
                a_minute_later()
        return drawn

    by_hand = trained()
    following = tmp_path / "orders.json"
    first = order(1, STEPS=10, SLICES="0:10", SECONDS_LEFT=50, NEXT=following)
    out = first["HADAR_CKPT_OUT"]
    second = order.place(2, STEPS=5, SLICES="5:10", CKPT_IN=out, GLOBAL_STEP=5)
    following.write_text(json.dumps(second))
    assert trained() == by_hand
    assert result_of(first)["slices"] == [[0, 5]]


def test_the_deadline_ends_the_order_with_what_is_done(order):
    placed = order(STEPS=100_000, SLICES="0:100000", SECONDS_LEFT=0.5)
    script = Script()
    script.on_step = lambda: time.sleep(0.02)
    script.run()
    result = result_of(placed)
    assert result["stopped"] == "deadline"
    assert 0 < result["steps"] < 100_000
    assert result["slices"] == [[0, result["steps"]]]


def test_a_slow_start_still_trains(order):
    placed = order(
        STEPS=100_000, SLICES="0:100000", SECONDS_LEFT=1, ISSUED_AT=time.monotonic() - 50
    )
    Script().run()
    assert result_of(placed)["steps"] > 0


def test_sigterm_saves_and_leaves(order, tmp_path):
    placed = order(STEPS=100, SLICES="0:100", NEXT=tmp_path / "never")
    script = Script()
    script.on_step = lambda: len(script.batches) == 3 and os.kill(os.getpid(), signal.SIGTERM)
    script.run()
    result = result_of(placed)
    assert (result["steps"], result["stopped"], result["waiting"]) == (3, "signal", False)
    with safe_open(placed["HADAR_CKPT_OUT"], "pt") as file:
        assert torch.equal(file.get_tensor("model/0/weight"), script.model.weight.detach())


def test_sigterm_ends_reading_past_what_others_train(order):
    """A stream is read up to a copy's steps: with a slow one that takes long."""

    class Stream(IterableDataset):
        def __iter__(self):
            for number in range(1_000):
                if number == 10:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield torch.tensor([float(number)])
                assert number < 12, "it reads on"

    placed = order(STEPS=100, SLICES="400:500")
    model = torch.nn.Linear(1, 1)
    with training(model, torch.optim.SGD(model.parameters(), 0.1)) as t:
        for x in t.loader(Stream(), batch_size=2):
            t.step(model(x).mean())
    result = result_of(placed)
    assert (result["steps"], result["stopped"], result["waiting"]) == (0, "signal", False)


@pytest.mark.parametrize(("offset", "is_told"), [(0, True), (1, False)])
def test_an_update_before_a_steps_last_mini_batch_is_told(order, capsys, offset, is_told):
    """Gradients that come after it are not handed in."""
    order(STEPS=2, SLICES="0:2")
    say_once.cache_clear()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with training(model, optimizer, accumulate=2) as t:
        for i, (x, _) in enumerate(t.loader(Numbers(8), batch_size=2)):
            model(x).mean().backward()
            if (i + offset) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert (EARLY_UPDATE in capsys.readouterr().out) == is_told


def test_an_error_in_the_loop_leaves_no_result(order):
    placed = order()
    script = Script()

    def fail() -> None:
        raise RuntimeError("boom")

    script.on_step = fail
    with pytest.raises(RuntimeError, match="boom"):
        script.run()
    assert not os.path.exists(placed["HADAR_RESULT"])


def test_the_learning_rate_scale_is_around_the_update_only(order):
    seen = []
    for scale in (1.0, 2.5):
        order(int(scale), STEPS=1, SLICES="0:1", LR_SCALE=scale)
        script = Script()
        script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1)
        script.scheduler = None
        before = script.model.weight.item()
        script.run()
        seen.append(script.model.weight.item() - before)
        assert script.optimizer.param_groups[0]["lr"] == 0.1
    assert seen[1] == pytest.approx(2.5 * seen[0], rel=1e-5)


def test_the_schedule_follows_the_jobs_global_step(order):
    first = order(1, STEPS=2, SLICES="0:2")
    Script().run()
    order(2, STEPS=1, SLICES="50:51", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=50)
    script = Script()
    script.run()
    assert script.scheduler.last_epoch == 51
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 / 52)


def test_tied_weights_are_stored_once_and_stay_tied(order):
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(1, 1, bias=False)
            self.b = torch.nn.Linear(1, 1, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    placed = order(1, STEPS=2, SLICES="0:2")
    script = Script()
    script.model = Tied()
    script.optimizer, script.scheduler = torch.optim.SGD(script.model.parameters(), 0.1), None
    script.run()
    with safe_open(placed["HADAR_CKPT_OUT"], "pt") as file:
        assert list(file.keys()) == ["model/0/a.weight"]
    order(2, STEPS=1, SLICES="2:3", CKPT_IN=placed["HADAR_CKPT_OUT"])
    again = Script()
    again.model = Tied()
    again.optimizer, again.scheduler = torch.optim.SGD(again.model.parameters(), 0.1), None
    again.run()
    assert again.model.a.weight is again.model.b.weight


class Clocks:
    """A machine on which a step takes as long as it is told to."""

    def __init__(self) -> None:
        self.now = self.cpu = self.waited = 0.0

    def work(self, cpu_s: float, wall_s: float) -> None:
        """What is neither work nor sleep is waited for a processor."""
        self.cpu += cpu_s
        self.now += wall_s
        self.waited += wall_s - cpu_s

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pace(self, speed: float) -> Pace:
        cpu, waited = lambda: self.cpu, lambda: self.waited
        return Pace(speed, lambda: self.now, cpu, self.sleep, cpu, waited)


def test_an_emulated_step_takes_its_processor_time_over_the_speed():
    clocks = Clocks()
    pace = clocks.pace(0.25)
    clocks.work(cpu_s=0.5, wall_s=0.6)
    pace.step_done()  # the first one's is a start, the same for every device
    assert clocks.now == pytest.approx(0.6)
    clocks.now = 0.0
    pace.resume()
    for _ in range(40):
        clocks.work(cpu_s=0.01, wall_s=0.013)  # contended, yet within the pace
        pace.step_done()
    assert clocks.now == pytest.approx(40 * 0.01 / 0.25)
    assert pace.missed == 0


def test_paces_that_cannot_be_kept_are_reported():
    clocks = Clocks()
    pace = clocks.pace(0.5)
    for _ in range(5):
        clocks.work(cpu_s=0.1, wall_s=1.0)
        pace.step_done()
    assert pace.missed == 4
    assert clocks.now == pytest.approx(5.0)


def a_gangs_step(clocks: Clocks, pace: Pace, samples: int, *stages: float) -> float:
    """How long it takes, with stages of so much processor time, before members exchange."""
    pace.begin_step(samples)
    begins = clocks.now
    for cpu_s in stages:
        clocks.work(cpu_s, cpu_s)
        pace.catch_up()
    return clocks.now - begins


def test_a_gangs_step_takes_what_its_stages_mostly_do():
    clocks = Clocks()
    pace = clocks.pace(0.5)
    pace.go_on()
    for _ in range(8):
        assert a_gangs_step(clocks, pace, 10, 0.02, 0.05) == pytest.approx(0.14)
        pace.go_on()
    assert a_gangs_step(clocks, pace, 10, 0.04, 0.01) == pytest.approx(0.14), (
        "a mood of the machine"
    )
    pace.go_on()
    assert a_gangs_step(clocks, pace, 20, 0.04, 0.09) == pytest.approx(0.26), "another share"


def test_a_process_that_waited_for_a_processor_after_an_exchange_catches_up():
    clocks = Clocks()
    pace = clocks.pace(0.5)
    pace.go_on()
    a_gangs_step(clocks, pace, 10, 0.02)
    began = clocks.now
    clocks.work(cpu_s=0.001, wall_s=0.011)  # the exchange's work, and 10 ms behind others
    pace.go_on()
    a_gangs_step(clocks, pace, 10, 0.02)
    assert clocks.now - began == pytest.approx(0.001 + 0.04)
    clocks.sleep(0.5)  # until another member is there, which is no processor's fault
    pace.go_on()
    assert a_gangs_step(clocks, pace, 10, 0.02) == pytest.approx(0.04)


def test_slices_as_text():
    assert parse_slices("120:180,300:320") == ((120, 180), (300, 320))
    assert take(((0, 3), (10, 20)), 5) == ((0, 3), (10, 12))
    assert parse_slices("") == ()


# -- loops that keep their epochs, loaders and updates ----------------------------------------


class Plain(Script):
    """An ordinary script: its own epochs, ``DataLoader``, updates and schedule."""

    def __init__(self, schedule: str = "epoch", **options) -> None:
        super().__init__(**options)
        self.schedule = schedule
        self.loader = DataLoader(self.data, batch_size=4, shuffle=True)
        self.seen_epochs: list[int] = []

    def run(self) -> None:
        t = training(self.model, self.optimizer, self.scheduler, **self.options)
        for epoch in t.epochs(range(1, 4)):
            self.seen_epochs.append(epoch)
            for x, index in t.loader(self.loader):
                self.batches.append(index.tolist())
                self.optimizer.zero_grad()
                self.model(x / 20).square().mean().backward()
                self.optimizer.step()
                if self.schedule == "step":
                    self.scheduler.step()
                self.on_step()
            if self.schedule == "epoch":
                self.scheduler.step()


def test_epochs_by_hand_are_the_scripts_own():
    script = Plain()
    script.run()
    assert script.seen_epochs == [1, 2, 3]
    assert [sorted(flat(script.batches[i : i + 5])) for i in (0, 5, 10)] == [list(range(20))] * 3
    assert script.scheduler.last_epoch == 3


def test_an_order_across_epochs_lets_the_script_end_each(order):
    placed = order(STEPS=8, SLICES="3:11", TOTAL_STEPS=15)
    script = Plain()
    script.run()
    assert script.seen_epochs == [1, 2, 3]
    assert len(script.batches) == result_of(placed)["steps"] == 8
    assert result_of(placed)["stopped"] == "steps"


def test_a_side_task_comes_before_the_epoch_that_the_next_order_is_in(order, tmp_path):
    following = tmp_path / "next"
    side_task = order(1, STEPS=0, SLICES="", NEXT=following, TOTAL_STEPS=15)
    side_task["HADAR_CKPT_OUT"] = ""
    second = order.place(2, STEPS=2, SLICES="11:13", TOTAL_STEPS=15)
    following.write_text(json.dumps(second))
    script = Plain()
    script.run()
    assert script.seen_epochs == [3]
    assert (result_of(side_task)["steps"], result_of(side_task)["waiting"]) == (0, True)
    assert result_of(second)["slices"] == [[11, 13]]


def test_an_existing_loader_gives_the_same_steps_as_its_data_set(order):
    order(1, STEPS=5, SLICES="2:7")
    plain, short = Plain(), Script()
    plain.run()
    order(2, STEPS=5, SLICES="2:7")
    short.run()
    assert plain.batches == short.batches


@pytest.mark.parametrize(("unit", "ticks"), [("step", 53), ("epoch", 10)])
def test_a_schedule_that_the_script_ticks_moves_to_the_jobs_place(order, unit, ticks):
    first = order(1, STEPS=3, SLICES="0:3")
    Plain(unit).run()
    where = {"CKPT_IN": first["HADAR_CKPT_OUT"], "GLOBAL_STEP": 50}
    placed = order(2, STEPS=3, SLICES="50:53", **where)
    script = Plain(unit)
    script.on_step = lambda: ticked.append(script.scheduler.last_epoch)
    ticked: list[int] = []
    script.run()
    assert ticked[-1] == ticks
    at = 51 if unit == "step" else 11
    assert result_of(placed)["lr"][0] == pytest.approx(1e-3 / at)


MILESTONES = {
    "milestones": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.1),
    "milestones after others": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.ConstantLR(o, 0.5, 1),
            torch.optim.lr_scheduler.MultiStepLR(o, [1, 4], 0.1),
        ],
        [1],
    ),
}


@pytest.mark.parametrize("kind", MILESTONES)
def test_a_schedule_with_milestones_goes_on_in_a_new_process(kind, tmp_path, monkeypatch):
    def rates() -> list[float]:
        model, found = torch.nn.Linear(1, 1), []
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        with training(model, optimizer, MILESTONES[kind](optimizer)) as t:
            for x, _ in t.loader(Numbers(32), batch_size=4):
                found.append(optimizer.param_groups[0]["lr"])
                t.step(model(x).mean())
        return found

    by_hand = rates()
    orders = Orders(tmp_path, monkeypatch, 8)
    under = []
    for part in ((0, 3), (3, 4), (4, 8)):
        orders.process(part)
        under += rates()
    assert under == pytest.approx(by_hand)
    assert len(set(by_hand)) >= 3


def test_ticking_a_schedule_twice_is_an_error():
    script = Script(epochs=2)
    with (
        pytest.raises(RuntimeError, match="ticked twice"),
        training(script.model, script.optimizer, script.scheduler) as t,
    ):
        for _ in t.epochs(2):
            for x, _ in t.loader(script.data, batch_size=4):
                t.step(script.model(x).mean())
            script.scheduler.step()


def test_t_step_can_tick_by_epoch():
    script = Script(epochs=3, schedule="epoch")
    with training(script.model, script.optimizer, script.scheduler, schedule="epoch") as t:
        for _ in t.epochs(3):
            for x, _ in t.loader(script.data, batch_size=4):
                t.step(script.model(x).mean())
    assert script.scheduler.last_epoch == 3


def test_a_plateau_is_kept_and_left_to_the_script(order):
    def script() -> Script:
        made = Script()
        made.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(made.optimizer, patience=0)
        return made

    first = order(1, STEPS=2, SLICES="0:2")
    one = script()
    one.scheduler.step(1.0)
    one.scheduler.step(2.0)  # worse: the rate is cut
    one.run()
    order(2, STEPS=1, SLICES="9:10", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=9)
    two = script()
    two.run()
    assert two.scheduler.best == 1.0
    assert two.optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


def test_a_schedule_that_ends_holds_its_last_rate(order):
    first = order(1, STEPS=1, SLICES="0:1")

    def script() -> Script:
        made = Script()
        made.scheduler = torch.optim.lr_scheduler.OneCycleLR(made.optimizer, 1.0, total_steps=10)
        return made

    script().run()
    order(2, STEPS=5, SLICES="50:55", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=50)
    late = script()
    late.run()
    assert late.optimizer.param_groups[0]["lr"] == pytest.approx(1.0 / 25 / 1e4)


class Counting:
    """A schedule as timm's: told its epoch and the number of updates, and stateless otherwise."""

    def __init__(self, optimizer: torch.optim.Optimizer, in_epochs: bool) -> None:
        self.optimizer, self.in_epochs = optimizer, in_epochs

    def state_dict(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state: dict) -> None:
        self.__dict__.update(state)

    def step(self, epoch: int, metric: float | None = None) -> None:
        if self.in_epochs:
            self.optimizer.param_groups[0]["lr"] = 1e-3 / (1 + epoch)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        if not self.in_epochs:
            self.optimizer.param_groups[0]["lr"] = 1e-3 / (1 + num_updates)


@pytest.mark.parametrize("counts", ["epochs", "the job's updates", "its own updates"])
def test_a_schedule_that_is_told_its_place_is_put_at_the_jobs(order, capsys, counts):
    def train() -> None:
        script = Script()
        schedule = Counting(script.optimizer, in_epochs=counts == "epochs")
        t = training(script.model, script.optimizer, schedule)
        for epoch in t.epochs(20):
            for index, (x, _) in enumerate(t.loader(script.data, batch_size=4)):
                script.model(x / 20).square().mean().backward()
                script.optimizer.step()
                own = epoch * 5 + index + 1  # right by hand, but an order may begin anywhere
                schedule.step_update(own if counts == "its own updates" else t.position + 1)
            schedule.step(epoch + 1)

    say_once.cache_clear()
    first = order(1, STEPS=7, SLICES="0:7")
    train()
    assert MISCOUNTED not in capsys.readouterr().out
    where = {"CKPT_IN": first["HADAR_CKPT_OUT"], "GLOBAL_STEP": 52}
    placed = order(2, STEPS=2, SLICES="52:54", **where)
    train()
    at = [11, 11] if counts == "epochs" else [53, 54 if counts == "the job's updates" else 52]
    assert result_of(placed)["lr"] == pytest.approx([1e-3 / place for place in at])
    assert (MISCOUNTED in capsys.readouterr().out) == (counts == "its own updates")


def test_a_schedule_that_nobody_can_place_is_refused_with_the_fix():
    script = Script()

    class Rate:
        def step(self) -> None:
            script.optimizer.param_groups[0]["lr"] *= 0.9

        def state_dict(self) -> dict:
            return {}

    with pytest.raises(TypeError, match=r"Rate has neither last_epoch.*LambdaLR.*t\.position"):
        training(script.model, script.optimizer, Rate())


# -- loops of another kind --------------------------------------------------------------------


def test_two_loops_over_a_loader_that_take_turns_are_refused(order):
    script = Script()
    order(1, STEPS=4, SLICES="0:4")
    with (
        pytest.raises(RuntimeError, match=r"two loops over t\.loader.*StackDataset"),
        training(script.model, script.optimizer) as t,
    ):
        for (x, _), _ in zip(  # noqa: B905 - as people write it
            t.loader(script.data, batch_size=4), t.loader(Numbers(20), batch_size=4)
        ):
            t.step(script.model(x).mean())


def test_one_loop_after_another_is_as_usual(order):
    script = Script()
    placed = order(1, STEPS=8, SLICES="0:8", TOTAL_STEPS=10)
    t = training(script.model, script.optimizer)
    loops = []  # which keeps those that are over, or left
    for _ in t.epochs(2):
        loops.append(iter(t.loader(script.data, batch_size=4)))
        for x, _ in loops[-1]:
            t.step(script.model(x).mean())
    assert result_of(placed)["steps"] == 8


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_loop_that_asks_ahead_of_its_updates_is_told(order, capsys, is_ahead):
    say_once.cache_clear()
    order(1, STEPS=4, SLICES="0:4")
    script = Script()
    lost = pytest.raises(Refused, match=r"outside of the loop.*Prefetcher") if is_ahead else None
    with lost or nullcontext(), training(script.model, script.optimizer) as t:
        batches = iter(t.loader(script.data, batch_size=4))
        now = next(batches)
        while now is not None:
            ahead = next(batches, None) if is_ahead else None
            script.optimizer.zero_grad()
            script.model(now[0] / 20).square().mean().backward()
            script.optimizer.step()
            now = ahead if is_ahead else next(batches, None)
    assert (RUNS_AHEAD in capsys.readouterr().out) == is_ahead


# -- updates ----------------------------------------------------------------------------------


def test_a_step_is_an_update_of_accumulated_batches_within_an_epoch(order):
    updates = []
    placed = order(1, STEPS=5, SLICES="0:5")
    script = Script(accumulate=2)  # five mini-batches an epoch: two, two and one
    script.optimizer.register_step_post_hook(lambda *_: updates.append(len(script.batches)))
    script.run()
    assert updates == [2, 4, 5, 7, 9]
    assert script.scheduler.last_epoch == 5
    assert (result_of(placed)["steps"], result_of(placed)["samples"]) == (5, 36)


def test_accumulated_gradients_are_the_mean_of_the_step(order):
    weights = []
    for number, (batch, accumulate) in enumerate([(8, 1), (4, 2)]):
        order(number, STEPS=3, SLICES="0:3", TOTAL_STEPS=3)
        script = Script(samples=20)
        script.optimizer = torch.optim.SGD(script.model.parameters(), 0.1)
        with training(script.model, script.optimizer, accumulate=accumulate) as t:
            for x, _ in t.loader(script.data, batch, shuffle=False):
                t.step(script.model(x / 20).square().mean())
        weights.append(script.model.weight.item())
    assert weights[0] == pytest.approx(weights[1], rel=1e-6)


def test_copies_of_a_job_that_accumulates_begin_in_the_middle_of_an_epoch(order):
    order(1, STEPS=3, SLICES="0:3")
    whole, late = Script(accumulate=2), Script(accumulate=2)
    whole.run()
    order(2, STEPS=2, SLICES="1:3")
    late.run()
    assert late.batches == whole.batches[2:]


class Overflowing(torch.nn.Module):
    """The square of what it is given; its gradient overflows in half precision when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.overflow = torch.nn.Parameter(torch.ones(1)), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * (float("inf") if self.overflow else 1.0)


def test_a_grad_scaler_skips_what_overflows_and_is_restored(order):
    first = order(1, STEPS=4, SLICES="0:4", LR_SCALE=3.0)
    script = Script(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    script.model = Overflowing()
    script.optimizer = torch.optim.SGD(script.model.parameters(), 1e-3)
    script.scheduler = torch.optim.lr_scheduler.LambdaLR(script.optimizer, lambda k: 1.0)

    def overflow_once() -> None:
        script.model.overflow = len(script.batches) == 1

    script.on_step = overflow_once
    script.run()
    result = result_of(first)
    assert result["steps"] == 4
    assert script.scheduler.last_epoch == 3  # the skipped update ticked nothing
    assert torch.isfinite(script.model.weight).all()
    order(2, STEPS=1, SLICES="4:5", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    again = Script(scaler=scaler)
    again.model = Overflowing()
    again.optimizer, again.scheduler = torch.optim.SGD(again.model.parameters(), 1e-3), None
    again.run()
    assert scaler.get_scale() == 512.0


def test_a_scaler_that_is_off_here_may_be_on_elsewhere(order):
    def script(enabled: bool) -> Script:
        return Script(scaler=torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled))

    first = order(1, STEPS=1, SLICES="0:1")
    script(False).run()
    second = order(2, STEPS=1, SLICES="1:2", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=1)
    on = script(True)
    on.run()
    assert on.options["scaler"].get_scale() == 8.0
    order(3, STEPS=1, SLICES="2:3", CKPT_IN=second["HADAR_CKPT_OUT"], GLOBAL_STEP=2)
    script(False).run()


def test_the_accelerator_is_done_before_the_training_time_is_read(order, monkeypatch):
    placed = order(STEPS=1, SLICES="0:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: time.sleep(0.3))
    Script().run()
    assert result_of(placed)["seconds"]["train"] >= 0.3


def test_the_scale_of_the_rate_is_around_the_scripts_own_updates_too(order):
    moves = []
    for scale in (1.0, 2.5):
        order(int(scale), STEPS=1, SLICES="0:1", LR_SCALE=scale)
        script = Plain()
        script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1)
        script.scheduler = torch.optim.lr_scheduler.LambdaLR(script.optimizer, lambda k: 1.0)
        before = script.model.weight.item()
        script.run()
        moves.append(script.model.weight.item() - before)
        assert script.optimizer.param_groups[0]["lr"] == 0.1
    assert moves[1] == pytest.approx(2.5 * moves[0], rel=1e-5)


# -- stopping early ---------------------------------------------------------------------------


def stopped_after(order: dict[str, str]) -> int:
    result = result_of(order)
    assert (result["stopped"], result["waiting"]) == ("script", False)
    return result["steps"]


@pytest.mark.parametrize("how", ["break", "stop"])
def test_a_script_ends_its_job_with_what_it_has(order, tmp_path, how):
    placed = order(STEPS=10, SLICES="0:10", NEXT=tmp_path / "next")
    script = Script()
    with training(script.model, script.optimizer) as t:
        for x, _ in t.loader(script.data, batch_size=4):
            t.step(script.model(x).mean())
            if how == "break":
                break
            t.stop()
    assert stopped_after(placed) == 1


@pytest.mark.parametrize("how", ["break", "stop"])
def test_early_stopping_between_epochs(order, tmp_path, how):
    placed = order(STEPS=15, SLICES="0:15", NEXT=tmp_path / "next")
    script, seen = Plain(), []
    t = training(script.model, script.optimizer)
    for epoch in t.epochs(3):
        for x, _ in t.loader(script.loader):
            script.optimizer.zero_grad()
            script.model(x / 20).square().mean().backward()
            script.optimizer.step()
        seen.append(epoch)
        if how == "break" and epoch == 1:
            break
        if epoch == 1:
            t.stop()
    t.finish()  # as the end of the process does
    assert seen == [0, 1]
    assert stopped_after(placed) == 10


def test_a_process_that_ends_after_a_break_hands_in_but_not_one_that_failed(order):
    program = """
import sys, torch
from hadar_cli import training
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
t = training(model, optimizer)
for epoch in t.epochs(3):
    for x in t.loader(torch.ones(8, 1), batch_size=4):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        {then}
    break
"""
    broken = order(1, STEPS=10, SLICES="0:10")
    subprocess.run([sys.executable, "-c", program.format(then="break")], check=True)
    assert stopped_after(broken) == 1
    failed = order(2, STEPS=10, SLICES="0:10")
    ended = subprocess.run(
        [sys.executable, "-c", program.format(then="1 / 0")], capture_output=True, text=True
    )
    assert "ZeroDivisionError" in ended.stderr
    assert not os.path.exists(failed["HADAR_RESULT"])


def test_the_rest_of_an_epoch_cannot_be_left_out(order):
    order(STEPS=15, SLICES="0:15")
    script = Script()
    t = training(script.model, script.optimizer)
    with pytest.raises(RuntimeError, match="left 2 steps into an epoch of 5"):
        for _ in t.epochs(3):
            for i, (x, _) in enumerate(t.loader(script.data, batch_size=4)):
                t.step(script.model(x).mean())
                if i == 1:
                    break


def test_by_hand_a_break_goes_on_to_the_next_epoch_and_stop_ends_all():
    script = Script()
    t = training(script.model, script.optimizer)
    for epoch in t.epochs(4):
        for i, (x, index) in enumerate(t.loader(script.data, 4, shuffle=False)):
            t.step(script.model(x).mean())
            script.batches.append(index.tolist())
            if i == 1:
                break
        if epoch == 2:
            t.stop()
    assert script.batches == [[0, 1, 2, 3], [4, 5, 6, 7]] * 3


def test_a_script_that_means_another_length_than_its_mix_is_told(order, capsys):
    order(STEPS=5, SLICES="0:5", TOTAL_STEPS=30)
    Plain().run()
    told = "the mix has 30 steps for this job, the script's own words 15"
    assert capsys.readouterr().out.count(told) == 1


# -- random numbers ---------------------------------------------------------------------------


def test_alone_random_numbers_go_on_from_order_to_order_and_process_to_process(order):
    def draws(steps: int) -> list[list[float]]:
        drawn = []
        script = Script(evaluate=lambda: {"noise": torch.rand(()).item()})
        torch.manual_seed(3)
        script.on_step = lambda: drawn.append([torch.rand(()).item(), random.random()])
        random.seed(4)
        script.run()
        assert len(drawn) == steps
        return drawn

    order(1, STEPS=6, SLICES="0:6", EVALUATE=1)
    whole = draws(6)
    first = order(2, STEPS=2, SLICES="0:2", EVALUATE=1)
    parts = draws(2)
    order(3, STEPS=4, SLICES="2:6", CKPT_IN=first["HADAR_CKPT_OUT"], GLOBAL_STEP=2, EVALUATE=1)
    assert parts + draws(4) == whole


def test_copies_at_the_same_time_draw_each_their_own(order):
    seen = []
    for seed in (1, 2):
        order(seed, STEPS=1, SLICES="0:1", NUM_COPIES=2, SEED=seed)
        script = Script()
        script.on_step = lambda: seen.append(torch.rand(()).item())
        script.run()
    assert seen[0] != seen[1]


# -- what a checkpoint holds ------------------------------------------------------------------


def saved(tmp_path, models, optimizers=(), **extras):
    path = tmp_path / "saved"
    checkpoint.save(path, checkpoint.Parts(models, optimizers, (), extras))
    return path


def test_a_compiled_model_is_saved_under_its_own_names(tmp_path):
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    compiled = torch.compile(inner)  # compiles nothing before it is called
    path = saved(tmp_path, [compiled])
    assert set(load_file(path)) == {f"model/0/{name}" for name in inner.state_dict()}
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    checkpoint.load(path, checkpoint.Parts([plain], []))
    assert torch.equal(plain[0].weight, inner[0].weight)
    other = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    checkpoint.load(path, checkpoint.Parts([other], []))
    assert torch.equal(other.state_dict()["_orig_mod.0.weight"], inner[0].weight)


def test_several_models_optimizers_and_other_state_come_back(tmp_path):
    class Counter:
        def __init__(self) -> None:
            self.state = {"seen": {3: 0.5}, "mean": torch.zeros(2), "name": "a"}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state) -> None:
            self.state = state

    def parts():
        models = [torch.nn.Linear(2, 1), torch.nn.Linear(1, 2)]
        optimizers = [torch.optim.Adam(m.parameters()) for m in models]
        return models, optimizers, Counter()

    models, optimizers, counter = parts()
    for model, optimizer in zip(models, optimizers, strict=True):
        model(torch.ones(1, model.in_features)).sum().backward()
        optimizer.step()
    counter.state = {"seen": {3: 0.25, 4: 1.0}, "mean": torch.ones(2), "name": "b"}
    path = saved(tmp_path, models, optimizers, counter=counter)

    other_models, other_optimizers, other = parts()
    checkpoint.load(path, checkpoint.Parts(other_models, other_optimizers, (), {"counter": other}))
    assert torch.equal(other_models[1].weight, models[1].weight)
    state = [o.state_dict()["state"][0]["exp_avg"] for o in (optimizers[1], other_optimizers[1])]
    assert torch.equal(*state)
    assert other.state["seen"] == {3: 0.25, 4: 1.0}
    assert torch.equal(other.state["mean"], torch.ones(2))


def test_a_buffer_that_is_a_view_is_saved_by_itself(tmp_path):
    model = torch.nn.Linear(2, 2)
    whole = torch.arange(6.0)
    model.register_buffer("head", whole[:4])
    model.register_buffer("tail", whole[2:])
    assert load_file(saved(tmp_path, [model]))["model/0/tail"].tolist() == [2.0, 3.0, 4.0, 5.0]


def test_an_optimizer_that_no_merge_can_take_is_refused_by_name(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(TypeError, match="LBFGS keeps"):
        saved(tmp_path, [model], [optimizer])


# -- data -------------------------------------------------------------------------------------


def test_workers_of_the_loader_stay_from_order_to_order(order, tmp_path):
    following = tmp_path / "next"
    order(1, STEPS=3, SLICES="0:3", NEXT=following)
    following.write_text(json.dumps(order.place(2, STEPS=2, SLICES="3:5")))

    class Where(Numbers):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.tensor([float(index)]), os.getpid()

    model = torch.nn.Linear(1, 1)
    pids = []
    with training(model, torch.optim.SGD(model.parameters(), 0.1)) as t:
        for x, pid in t.loader(Where(20), batch_size=4, num_workers=1):
            pids.append(pid[0].item())
            t.step(model(x).mean())
    assert len(pids) == 5
    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()


def test_a_loaders_words_are_kept():
    loader = DataLoader(
        Numbers(10), batch_size=4, drop_last=True, collate_fn=lambda batch: [i for _, i in batch]
    )
    model = torch.nn.Linear(1, 1)
    with training(model, torch.optim.SGD(model.parameters(), 0.1)) as t:
        mine = t.loader(loader)
        assert list(mine) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert (len(mine), mine.batch_size, mine.dataset) == (2, 4, loader.dataset)


def test_a_data_set_needs_a_batch_size_and_a_loader_none():
    model = torch.nn.Linear(1, 1)
    with training(model, torch.optim.SGD(model.parameters(), 0.1)) as t:
        with pytest.raises(TypeError, match="batch_size"):
            t.loader(Numbers(4))
        with pytest.raises(TypeError, match="brings its own"):
            t.loader(DataLoader(Numbers(4)), batch_size=2)


def test_what_one_iterates_without_a_loader_draws_no_random_number(order):
    def drawn() -> float:
        torch.manual_seed(3)
        model = torch.nn.Linear(1, 1)
        with training(model, torch.optim.SGD(model.parameters(), 0.1)) as t:
            for step in t.loader(range(0, 20, 4), batch_size=None, shuffle=False):
                t.step(model(torch.tensor([float(step)])).mean())
        return float(torch.rand(()))

    torch.manual_seed(3)
    torch.nn.Linear(1, 1)
    expected = float(torch.rand(()))
    assert drawn() == expected
    order()
    assert drawn() == expected


def test_a_stream_is_read_to_its_end_by_hand_and_by_steps_under_orders(order, monkeypatch):
    class Stream(IterableDataset):
        def __iter__(self):
            return (torch.tensor([float(i)]) for i in range(6))

    def run() -> list[list[float]]:
        model, seen = torch.nn.Linear(1, 1), []
        with training(model, torch.optim.SGD(model.parameters(), 0.1), epochs=2) as t:
            for x in t.loader(Stream(), batch_size=2):
                seen.append(x.flatten().tolist())
                t.step(model(x).mean())
        return seen

    assert run() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] * 2
    order(STEPS=2, SLICES="1:2,5:6")
    assert run() == [[2.0, 3.0], [4.0, 5.0]]


def test_an_attempt_never_claims_steps_that_it_was_not_given(tmp_path):
    order = Order(2, ((4, 6),), 60.0, result=tmp_path / "result.json", issued_at=1.0)
    attempt = Attempt(order, pace=None)
    attempt.validate()
    attempt.steps = 3
    with pytest.raises(AssertionError, match="steps that it was not given"):
        attempt.leave_result("steps", False, None, None)
    assert not order.result.exists() and not attempt.is_handed_in
