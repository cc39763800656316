"""The catalog, and the tiny preset of each workload."""

from __future__ import annotations

import importlib
import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from hadar_cli.workloads import CATALOG, Workload, lookup, options

every_workload = pytest.mark.parametrize("workload", CATALOG.values(), ids=lambda w: w.short)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def script(workload: Workload) -> Any:
    return importlib.import_module(workload.module)


def batches(workload: Workload, dataset: Any) -> DataLoader[Any]:
    collate = getattr(script(workload), "pad", None)
    return DataLoader(dataset, batch_size=workload.batch_size["tiny"], collate_fn=collate)


def fingerprint(sample: Any) -> bytes:
    parts = sample if isinstance(sample, tuple) else (sample,)
    return b"|".join(part.numpy().tobytes() for part in parts)


def test_the_catalog_lists_the_papers_five_jobs() -> None:
    assert {w.short: w.dataset_size for w in CATALOG.values()} == {
        "IC": "S",
        "LM": "L",
        "LT": "L",
        "RS": "XL",
        "MM": "M",
    }
    assert lookup("LT") is lookup("translation") is CATALOG["translation"]
    with pytest.raises(KeyError):
        lookup("translate")
    with pytest.raises(FrozenInstanceError):
        CATALOG["weather"].short = "WX"


def test_the_catalog_imports_neither_torch_nor_the_rest_of_hadar() -> None:
    code = "import sys, hadar_cli.workloads; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    names = loaded.split()
    assert "hadar_cli.workloads" in names
    assert not {"torch", "numpy"} & set(names)
    assert {n for n in names if n.startswith("hadar_cli.")} == {"hadar_cli.workloads"}


@every_workload
def test_tiny_data_is_what_the_catalog_says_and_always_the_same(workload: Workload) -> None:
    load = script(workload).load
    (train, held_out), (again, held_out_again) = load("tiny"), load("tiny")
    assert len(train) == workload.train_samples["tiny"]
    for one, other in ((train, again), (held_out, held_out_again)):
        for i in (0, len(one) // 2, len(one) - 1):
            assert fingerprint(one[i]) == fingerprint(other[i])


@every_workload
def test_no_held_out_sample_is_trained_on(workload: Workload) -> None:
    train, held_out = script(workload).load("tiny")
    seen = {fingerprint(train[i]) for i in range(len(train))}
    unseen = {fingerprint(held_out[i]) for i in range(len(held_out))}
    assert len(seen) == len(train)
    assert not seen & unseen


def test_no_held_out_hour_of_weather_is_trained_on() -> None:
    train, held_out = script(CATALOG["weather"]).load("tiny")
    window = 30
    trained = {start + i for start in train.starts for i in range(window)}
    assert not trained & {start + i for start in held_out.starts for i in range(window)}


@every_workload
def test_a_few_steps_reduce_the_loss(workload: Workload) -> None:
    module = script(workload)
    train, _ = module.load("tiny")
    probe = list(islice(batches(workload, train), 2))
    options.seed()
    model = module.build_model("tiny", train)
    optimizer, scheduler = module.build_optimizer(model, "tiny", steps=100)

    def loss_on_probe() -> float:
        with torch.no_grad():
            return sum(module.batch_loss(model, batch).item() for batch in probe) / len(probe)

    before = loss_on_probe()
    for batch in probe * 8:
        optimizer.zero_grad()
        module.batch_loss(model, batch).backward()
        optimizer.step()
        scheduler.step()
    assert loss_on_probe() < 0.98 * before


@every_workload
def test_the_same_seed_gives_the_same_weights(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script(workload)
    train, _ = module.load("tiny")

    def weights(seed: str) -> torch.Tensor:
        monkeypatch.setenv("HADAR_JOB_SEED", seed)
        options.seed()
        parameters = module.build_model("tiny", train).parameters()
        return torch.cat([parameter.detach().flatten() for parameter in parameters])

    assert torch.equal(weights("7"), weights("7"))
    assert not torch.equal(weights("7"), weights("8"))


@every_workload
def test_evaluation_is_the_catalogs_measure_of_an_untrained_model(workload: Workload) -> None:
    module = script(workload)
    train, held_out = module.load("tiny")
    options.seed()
    model = module.build_model("tiny", train).eval()
    with torch.no_grad():
        quality = module.evaluate(model, held_out)
    assert list(quality) == [workload.metric]
    low, high = {"IC": (0, 0.3), "LT": (0, 0.1), "LM": (300, 500)}.get(workload.short, (0.5, 2))
    assert low <= quality[workload.metric] <= high


@every_workload
def test_the_script_obeys_an_order(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = {
        "HADAR_CKPT_OUT": tmp_path / "out",
        "HADAR_RESULT": tmp_path / "result.json",
        "HADAR_STEPS": 3,
        "HADAR_SLICES": "5:8",
        "HADAR_SECONDS_LEFT": 600,
        "HADAR_TOTAL_STEPS": 100,
        "HADAR_EVALUATE": 1,
    }
    for name, value in order.items():
        monkeypatch.setenv(name, str(value))
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        script(workload).main(["--preset", "tiny"])
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] == 3
    assert result["samples"] == 3 * workload.batch_size["tiny"]
    assert list(result["evaluation"]) == [workload.metric]
    assert math.isfinite(result["metrics"]["loss"])
    assert (tmp_path / "out").exists()


def test_by_hand_the_loop_runs_its_epochs_and_prints_the_quality(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script(CATALOG["weather"])
    train, held_out = module.load("tiny")
    few = Subset(train, range(64))
    few.observed = train.observed
    monkeypatch.setattr(module, "load", lambda preset, data_dir: (few, held_out))
    module.main(["--batch-size", "16", "--epochs", "2"])
    measure, _, value = capsys.readouterr().out.strip().partition("=")
    assert measure == "mse"
    assert 0 < float(value) < 2


def rates_of_the_schedule(warmup: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = options.cosine(optimizer, steps=100, warmup=warmup, floor=0.1)
    rates = []
    for _ in range(120):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_the_schedule_falls_to_its_floor_and_stays() -> None:
    rates = rates_of_the_schedule(warmup=0.0)
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[100] == rates[119] == pytest.approx(0.1)


def test_the_schedule_rises_first_when_asked_to() -> None:
    plain, warmed = rates_of_the_schedule(warmup=0.0), rates_of_the_schedule(warmup=0.1)
    assert warmed[0] == pytest.approx(0.1)
    assert warmed[:10] == sorted(warmed[:10])
    assert warmed[10:] == plain[10:]


def test_the_schedule_is_as_long_as_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    args = options.parse(CATALOG["weather"], ["--batch-size", "30", "--epochs", "3"])
    assert options.total_steps(args, samples=100) == 12
    monkeypatch.setenv("HADAR_TOTAL_STEPS", "77")
    assert options.total_steps(args, samples=100) == 77
