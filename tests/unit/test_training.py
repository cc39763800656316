"""The training context: by hand, under one order, and from order to order."""

import json
import os
import signal
import time

import pytest
import torch
from safetensors import safe_open
from torch.utils.data import Dataset

from hadar_cli import training
from hadar_cli.node.order import parse_slices, take
from hadar_cli.node.pacing import Pace

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
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 1.0 / (1 + step)
        )
        self.data, self.options = Numbers(samples), options
        self.batches: list[list[int]] = []
        self.on_step = lambda: None

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


def test_evaluation_is_of_the_weights_it_was_given(order):
    placed = order(EVALUATE=1)
    script = Script()
    before = script.model.weight.item()
    script.options["evaluate"] = lambda: {"weight": script.model.weight.item()}
    script.run()
    assert result_of(placed)["evaluation"] == {"weight": before}
    assert script.model.weight.item() != before


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


def test_the_deadline_ends_the_order_with_what_is_done(order):
    placed = order(STEPS=100_000, SLICES="0:100000", SECONDS_LEFT=0.5)
    script = Script()
    script.on_step = lambda: time.sleep(0.02)
    script.run()
    result = result_of(placed)
    assert result["stopped"] == "deadline"
    assert 1 < result["steps"] < 100
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
        self.now = self.cpu = 0.0

    def work(self, cpu_s: float, wall_s: float) -> None:
        self.cpu += cpu_s
        self.now += wall_s

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pace(self, speed: float) -> Pace:
        return Pace(speed, lambda: self.now, lambda: self.cpu, self.sleep)


def test_an_emulated_step_takes_its_processor_time_over_the_speed():
    clocks = Clocks()
    pace = clocks.pace(0.25)
    for _ in range(40):
        clocks.work(cpu_s=0.01, wall_s=0.013)  # contended, yet within the pace
        pace.step_done()
    assert clocks.now == pytest.approx(40 * 0.01 / 0.25)
    assert pace.missed == 0


def test_paces_that_cannot_be_kept_are_reported():
    clocks = Clocks()
    pace = clocks.pace(0.5)
    for _ in range(4):
        clocks.work(cpu_s=0.1, wall_s=1.0)
        pace.step_done()
    assert pace.missed == 4
    assert clocks.now == pytest.approx(4.0)


def test_slices_as_text():
    assert parse_slices("120:180,300:320") == ((120, 180), (300, 320))
    assert take(((0, 3), (10, 20)), 5) == ((0, 3), (10, 12))
    assert parse_slices("") == ()
