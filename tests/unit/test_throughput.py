"""Estimates of speed against published measurements, and what is learnt from a run's own."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_cli.core.estimates.formula import estimate_steps_per_s, pmi
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.gpu_table import CPU, KNOWN_GPUS, find_gpu, nearest_gpu
from hadar_cli.core.model import DATASET_SIZES, MODEL_SIZES, Device, Gpu, Job, Launch
from hadar_cli.workloads import lookup

# Steps per second from Gavel's published throughput table: V100, P100, K80.
MEASURED = {
    ("modest", "S", 64): (24.1, 22.3, 7.05),  # ResNet-18
    ("modest", "L", 20): (64.7, 58.2, 17.1),  # LM
    ("high", "L", 64): (8.62, 5.09, 1.75),  # Transformer
    ("small", "XL", 2048): (7.47, 16.6, 10.4),  # Recommendation
    ("extra-high", "XL", 64): (4.39, 2.62, 0.619),  # ResNet-50
}

# Milliseconds a step of the tiny presets on one core, and the default inventory's paces.
TINY_MS = {"IC": 25, "LM": 7, "LT": 18, "RS": 7, "MM": 10}
PACES = {"RTX 3090": 0.55, "TITAN RTX": 0.44, "RTX A2000": 0.25, "T4": 0.23, "T400": 0.066}


def estimate(gpu: Gpu | None, sizes: tuple[str, str, int], **options: object) -> float:
    model_size, dataset_size, batch_size = sizes
    return estimate_steps_per_s(
        gpu,
        batch_size=batch_size,
        model_size=model_size,
        dataset_size=dataset_size,
        **options,  # type: ignore[arg-type]
    )


def factor(a: float, b: float) -> float:
    return max(a / b, b / a)


def make_job(id: int, batch_size: int = 32, **fields: object) -> Job:
    return Job(id, f"job-{id}", 1000, batch_size, **fields)  # type: ignore[arg-type]


def make_device(name: str, gpu: str) -> Device:
    return Device(name, name, 0, KNOWN_GPUS[gpu])


@pytest.mark.parametrize(
    ("spelling", "model"),
    [
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("rtx3090", "RTX 3090"),
        ("3090", "RTX 3090"),
        ("Tesla T4", "T4"),
        ("A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("v100 32g", "V100 32GB"),
        ("NVIDIA RTX A2000", "RTX A2000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A10G", "A10G"),
        ("cpu", "CPU"),
    ],
)
def test_gpus_are_found_by_any_usual_spelling(spelling: str, model: str) -> None:
    gpu = find_gpu(spelling)
    assert gpu is not None
    assert gpu.model == model


def test_a_named_memory_size_wins_and_strangers_are_not_taken_for_known_gpus() -> None:
    assert find_gpu("RTX 3080 12 GB") == Gpu("RTX 3080", 119, 12.0, 4)
    for stranger in ("RTX 3909", "RTX 3060 Laptop", "T4000", "titan", "80GB", ""):
        assert find_gpu(stranger) is None
    assert nearest_gpu("RTX 3909") == "RTX 3090"
    assert nearest_gpu("abacus") is None


def test_every_known_gpu_is_found_by_its_own_name() -> None:
    assert all(find_gpu(model) == gpu for model, gpu in KNOWN_GPUS.items())


def test_estimates_are_near_gavels_measurements() -> None:
    errors = [
        factor(estimate(KNOWN_GPUS[model], sizes), rate)
        for sizes, rates in MEASURED.items()
        for model, rate in zip(("V100", "P100", "K80"), rates, strict=True)
    ]
    assert median(errors) < 1.4
    assert max(errors) < 4.5


def test_tiny_presets_on_emulated_devices_are_of_the_right_order() -> None:
    errors = []
    for short, milliseconds in TINY_MS.items():
        workload = lookup(short)
        sizes = workload.model_size["tiny"], workload.dataset_size, workload.batch_size["tiny"]
        on_core = estimate(None, sizes, preset="tiny")
        errors.append(factor(on_core, 1000 / milliseconds))
        for model, pace in PACES.items():
            emulated = estimate(KNOWN_GPUS[model], sizes, preset="tiny", emulated_speed=pace)
            errors.append(factor(emulated, pace * 1000 / milliseconds))
    assert median(errors) < 1.5
    assert max(errors) < 2.7


def test_a_paced_cpu_is_as_much_slower_as_its_pace() -> None:
    sizes = ("modest", "M", 32)
    assert estimate(None, sizes, emulated_speed=0.5) == pytest.approx(estimate(None, sizes) / 2)


def test_estimates_follow_the_papers_formula() -> None:
    gpu = KNOWN_GPUS["T4"]
    assert pmi(gpu) == pytest.approx(65 / 4)
    batches = [estimate(gpu, ("modest", "M", batch)) for batch in (16, 64, 256)]
    assert all(small > large > small / 4 for small, large in pairwise(batches))
    models = [estimate(gpu, (size, "M", 32)) for size in MODEL_SIZES]
    datasets = [estimate(gpu, ("modest", size, 32)) for size in DATASET_SIZES]
    for falling in (models, datasets):
        assert falling == sorted(falling, reverse=True)
        assert len(set(falling)) == len(falling)
    rising = [estimate(Gpu("g", 65, 16, pcie), ("modest", "M", 32)) for pcie in (3, 4, 5)]
    rising += [estimate(KNOWN_GPUS["RTX 4090"], ("modest", "M", 32))]
    assert rising == sorted(rising)
    assert estimate(CPU, ("modest", "M", 32)) < 0.3 * rising[0]


def test_a_measured_rate_replaces_the_estimate_and_is_shared_by_the_class() -> None:
    jobs = [make_job(0), make_job(1), make_job(2, batch_size=64)]
    rates = RateModel(jobs, [make_device("a", "T4"), make_device("b", "V100")])
    assert rates.measured(0, "a") is None
    assert rates.rate(0, "a") == rates.estimated(0, "a")
    rates.observe(0, "a", batches=300, seconds=10)
    assert rates.rate(0, "a") == rates.rate(1, "a") == rates.measured(1, "a") == 30
    assert rates.measured(2, "a") is None
    assert rates.estimated(0, "a") != 30


def test_scripts_with_other_arguments_do_not_share_measurements() -> None:
    first = make_job(0, launch=Launch(script="train.py", args=("--depth", "2")))
    second = make_job(1, launch=Launch(script="train.py", args=("--depth", "9")))
    rates = RateModel([first, second], [make_device("a", "T4")])
    rates.observe(0, "a", 100, 10)
    assert rates.measured(1, "a") is None


def test_one_noisy_round_does_not_swing_a_rate() -> None:
    rates = RateModel([make_job(0)], [make_device("a", "T4")])
    for _ in range(5):
        rates.observe(0, "a", batches=100, seconds=10)
    rates.observe(0, "a", batches=1, seconds=1)
    assert rates.rate(0, "a") == pytest.approx(10, rel=0.1)
    for _ in range(8):
        rates.observe(0, "a", batches=50, seconds=10)
    assert rates.rate(0, "a") == pytest.approx(5, rel=0.02)


def test_one_measurement_corrects_the_jobs_other_devices_but_hardly_other_jobs() -> None:
    devices = [make_device("a", "T4"), make_device("b", "V100")]
    rates = RateModel([make_job(0), make_job(1, batch_size=64)], devices)
    rates.observe(0, "a", batches=4 * rates.estimated(0, "a"), seconds=1)
    assert rates.rate(0, "b") / rates.estimated(0, "b") == pytest.approx(4, rel=0.25)
    assert 1 < rates.rate(1, "a") / rates.estimated(1, "a") < 1.5


def test_a_measurement_holds_for_the_same_kind_of_device_elsewhere() -> None:
    devices = [make_device("a", "T4"), make_device("b", "T4"), make_device("c", "V100")]
    jobs = [make_job(0), make_job(1, batch_size=64)]
    rates = RateModel(jobs, devices)
    rates.observe(0, "c", rates.estimated(0, "c"), 1)
    rates.observe(1, "c", rates.estimated(1, "c"), 1)
    rates.observe(1, "a", rates.estimated(1, "a"), 1)
    rates.observe(0, "a", 3 * rates.estimated(0, "a"), 1)  # this pair is special
    assert rates.rate(0, "b") == pytest.approx(rates.rate(0, "a"), rel=0.1)
    assert rates.rate(1, "b") == pytest.approx(rates.rate(1, "a"), rel=0.1)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_log_additive_worlds_are_recovered_from_a_spanning_set(data: st.DataObject) -> None:
    class_effects = data.draw(st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=8))
    models = ["T4", "V100", "K80", "RTX 3090", "T400"]
    device_effects = [data.draw(st.floats(-0.6, 0.6)) for _ in models]
    jobs = [make_job(i, batch_size=8 + i) for i in range(len(class_effects))]
    rates = RateModel(jobs, [make_device(model, model) for model in models])

    def truth(job: int, column: int) -> float:
        miss = class_effects[job] + device_effects[column]
        return rates.estimated(job, models[column]) * math.exp(miss)

    anchor = data.draw(st.integers(0, len(models) - 1))
    spanning = {(0, column) for column in range(len(models))} | {(job.id, anchor) for job in jobs}
    for job, column in sorted(spanning):
        rates.observe(job, models[column], 100 * truth(job, column), 100)
    for job in range(len(jobs)):
        for column, model in enumerate(models):
            assert rates.rate(job, model) == pytest.approx(truth(job, column), rel=0.06)


@settings(max_examples=60, deadline=None)
@given(
    observations=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["a", "b", "c"]),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=30,
    )
)
def test_rates_stay_positive_and_finite_whatever_is_observed(
    observations: list[tuple[int, str, float, float]],
) -> None:
    devices = [make_device("a", "T4"), make_device("b", "T4"), Device("c", "c", 0, None, 0.5)]
    rates = RateModel([make_job(i, batch_size=1 + i) for i in range(4)], devices)
    for observation in observations:
        rates.observe(*observation)
    matrix = rates.matrix(range(4))
    assert np.isfinite(matrix).all()
    assert (matrix > 0).all()


def test_a_faster_measurement_raises_the_other_rates_of_its_job_and_device() -> None:
    def observed(rate: float) -> np.ndarray:
        devices = [make_device("a", "T4"), make_device("b", "V100"), make_device("c", "V100")]
        rates = RateModel([make_job(0), make_job(1, batch_size=64)], devices)
        rates.observe(1, "b", 100, 10)
        rates.observe(0, "a", rate, 1)
        return rates.matrix([0, 1])

    slow, fast = observed(2), observed(20)
    assert (fast[0] > slow[0]).all()
    assert (fast[:, 0] > slow[:, 0]).all()
