"""Simulations against sums done by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from hadar_cli.cli.policy_options import split_policies
from hadar_cli.core.events import CopyFinished, CopyLost
from hadar_cli.core.model import Device, Job, Mix, PolicyChoice
from hadar_cli.engine.ports import CopyOrder
from hadar_cli.errors import HadarError, InputError
from hadar_cli.report.terminal.policies import show, spread_over
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.fitting import fit
from hadar_cli.simulation.scenario import (
    PolicyResult,
    Scenario,
    Work,
    lower_bound_s,
    simulate,
    wrong_lengths,
)
from hadar_cli.simulation.speeds import (
    ModelledSpeeds,
    Speeds,
    TableSpeeds,
    parse_cluster,
    require_known_gpus,
)
from hadar_cli.simulation.traces import SPREAD, Throughputs
from tests.support.worlds import make_mix, make_nodes, make_world

TABLE = Throughputs(
    {
        ("a", 1, "v100"): 10.0,
        ("a", 1, "k80"): 2.0,
        ("a", 2, "v100"): 20.0,
        ("a", 2, "v100" + SPREAD): 12.0,
        ("a", 2, "k80"): 4.0,
    }
)


def job(number: int, steps: int, gpus: int = 1, arrives_s: float = 0.0) -> Job:
    return Job(number, f"j{number}", steps, 16, workload="a", gpus=gpus, arrives_s=arrives_s)


def scenario(*jobs: Job, cluster: str = "v100:1", per_node: int = 1) -> Scenario:
    devices = parse_cluster(cluster, per_node)
    return Scenario(
        Mix("m", jobs, slot_s=100.0),
        devices,
        Costs(start_s=10.0, sync_s=5.0),
        lambda consolidated: TableSpeeds(TABLE, jobs, devices, loses=not consolidated),
    )


def result_of(one: Scenario, policy: str = "hadar") -> PolicyResult:
    return simulate(one, PolicyChoice(policy), policy, lambda done: None)


# -- clusters and speeds ---------------------------------------------------------------------


def test_a_cluster_is_written_as_kinds_and_counts() -> None:
    devices = parse_cluster("v100:5, odd:1", gpus_per_node=4)
    assert [d.name for d in devices[3:]] == ["v100-0:3", "v100-1:0", "odd-0:0"]
    assert [d.node for d in devices[3:]] == ["v100-0", "v100-1", "odd-0"]
    assert [d.kind for d in devices[3:]] == ["v100", "v100", "odd"]


@pytest.mark.parametrize("text", ["", "v100", "v100:", "v100:x", "v100:0", ":3", "v100:1,v100:2"])
def test_other_clusters_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_cluster(text, 4)


def test_kinds_that_nobody_knows_need_a_table() -> None:
    require_known_gpus(parse_cluster("v100:1", 4))
    with pytest.raises(InputError, match="'odd'"):
        require_known_gpus(parse_cluster("odd:1", 4))


def test_a_gang_is_as_fast_as_its_slowest_member_and_slower_when_spread() -> None:
    devices = parse_cluster("v100:4,k80:2", 2)
    jobs = (job(0, 10, gpus=2),)
    speeds = TableSpeeds(TABLE, jobs, devices, loses=True)
    assert speeds.gang(0, ("v100-0:0", "v100-0:1")) == 20.0
    assert speeds.gang(0, ("v100-0:0", "v100-1:0")) == 12.0
    assert speeds.gang(0, ("v100-0:0", "k80-0:0")) == 4.0
    never = TableSpeeds(TABLE, jobs, devices, loses=False)
    assert never.gang(0, ("v100-0:0", "v100-1:0")) == 20.0


# -- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["hadar", "gavel", "gavel-makespan", "tiresias", "yarn-cs"])
def test_a_job_alone_takes_its_start_and_its_steps(policy: str) -> None:
    result = result_of(scenario(job(0, 5000)), policy)
    assert result.ttd_s == pytest.approx(10 + 500)  # runs on from slot to slot, and syncs never
    assert result.mean_jct_s == result.median_jct_s == result.ttd_s
    assert result.cru == pytest.approx(500 / 510)
    assert (result.restarts, result.unfinished, result.rounds) == (0, 0, 6)
    assert result.lower_bound_s == pytest.approx(500)
    assert result.changed_rounds == pytest.approx(1 / 6)


def test_forked_copies_pay_for_every_sync() -> None:
    one = scenario(job(0, 900))
    free = replace(one, costs=Costs(start_s=10.0, sync_s=0.0))
    slow, fast = result_of(one, "hadare"), result_of(free, "hadare")
    assert slow.ttd_s is not None and fast.ttd_s is not None
    assert slow.ttd_s >= fast.ttd_s + 5


def test_time_without_jobs_counts_for_cru_but_not_for_gru() -> None:
    result = result_of(scenario(job(0, 900), job(1, 900, arrives_s=900)))
    assert result.ttd_s == pytest.approx(900 + 100)  # the second starts warm-less: 10 + 90
    assert result.cru == pytest.approx(180 / 1000)
    assert result.gru == pytest.approx(180 / 200)
    assert result.mean_jct_s == pytest.approx(100)


def test_fairness_is_the_time_taken_over_that_with_an_equal_share() -> None:
    """Two jobs of 100 s on one device: alone, each takes 100 s; in an equal share 200 s."""
    result = result_of(scenario(job(0, 1000), job(1, 1000)), "yarn-cs")
    assert result.worst_rho == pytest.approx(220 / 200)  # the second ends after two starts
    assert result.beyond_fair == 0.5


@pytest.mark.parametrize("policy", ["gavel", "gavel-makespan"])
def test_gavel_pays_for_spread_gangs_only_if_it_is_told_to(policy: str) -> None:
    one, is_packed = scenario(job(0, 100)), []

    def speeds(consolidated: bool) -> Speeds:
        is_packed.append(consolidated)
        return one.speeds(consolidated)

    for fields in ({}, {"pays_spread": True}):
        simulate(
            replace(one, speeds=speeds), PolicyChoice(policy, fields), policy, lambda done: None
        )
        assert is_packed[0] == (not fields)  # later questions are for the bound
        is_packed.clear()


def test_bounds_know_what_may_be_forked() -> None:
    one = scenario(job(0, 1200), cluster="v100:1,k80:1")
    assert lower_bound_s(one, forks=True) == pytest.approx(100)
    assert lower_bound_s(one, forks=False) == pytest.approx(120)
    late = scenario(job(0, 10), job(1, 1000, arrives_s=500))
    assert lower_bound_s(late, forks=False) == pytest.approx(600)


def test_a_gang_wider_than_every_kind_is_mixed_rather_than_never_run():
    one = scenario(job(0, 100, gpus=2), job(1, 100), cluster="v100:1,k80:1")
    result = result_of(one, "gavel")
    assert result.unfinished == 0
    assert result.ttd_s is not None


@pytest.mark.parametrize("policy", ["hadar", "gavel-makespan", "tiresias"])
@pytest.mark.parametrize("noise", [0.5, None])
def test_every_step_is_done_whatever_lengths_are_told(policy: str, noise: float | None) -> None:
    jobs = [job(n, steps=300 + 700 * n, arrives_s=40.0 * n) for n in range(6)]
    one = scenario(*jobs, cluster="v100:1,k80:2")
    told = {} if noise is None else wrong_lengths(jobs, noise)
    result = result_of(replace(one, told=told), policy)
    assert result.unfinished == 0 and result.problem is None
    assert len(result.finished_s) == 6 and result.ttd_s >= result.lower_bound_s


def test_wrong_lengths_lie_within_the_noise_and_are_the_same_each_time() -> None:
    jobs = [job(n, steps=1000) for n in range(200)]
    told = wrong_lengths(jobs, 0.5, seed=3)
    assert told == wrong_lengths(jobs, 0.5, seed=3) != wrong_lengths(jobs, 0.5, seed=4)
    assert 500 <= min(told.values()) < 600 < 1400 < max(told.values()) <= 1500


def test_moving_a_job_is_a_restart() -> None:
    """The short job comes first on the only device, and the long one must go on after it."""
    result = result_of(scenario(job(0, 5000), job(1, 5000)), "gavel")
    assert result.restarts > 0
    assert result.changed_rounds > 0.5


@pytest.mark.parametrize(("policy", "restarts"), [("yarn-cs", 0), ("tiresias", 1)])
def test_only_a_policy_that_preempts_moves_a_job_to_make_room(policy: str, restarts: int) -> None:
    """Two short gangs of three leave a long job on each node when a gang of four arrives."""
    short = [job(0, 300, gpus=3), job(1, 300, gpus=3)]
    long = [job(2, 20_000), job(3, 20_000)]
    one = scenario(*short, *long, job(4, 300, 4, arrives_s=250.0), cluster="v100:8", per_node=4)
    assert result_of(one, policy).restarts == restarts


# -- like a real run -------------------------------------------------------------------------


def test_costs_and_speeds_are_fitted_from_a_journal() -> None:
    mix = make_mix([900, 500, 700])
    world = make_world(mix, make_nodes({"x": 1.0, "y": 0.3}), costs=Costs(1.5, 0.25))
    world.loop.run()
    devices = tuple(d for node in world.nodes for d in node.devices)
    fitted = fit(mix, devices, world.journal.events)
    truth = fitted.rates(mix.jobs, devices)
    assert fitted.costs.start_s == pytest.approx(1.5)
    assert fitted.costs.sync_s == pytest.approx(0.25)
    assert truth.rate(0, "x") == pytest.approx(20.0)
    speeds = ModelledSpeeds(mix.jobs, devices, truth)
    again = Scenario(mix, devices, fitted.costs, lambda _: speeds, prolongs=False)
    result = result_of(again, "hadare")
    assert result.ttd_s == pytest.approx(fitted.ttd_s, rel=0.02)


# -- what is shown ---------------------------------------------------------------------------


def test_policies_are_told_apart_from_their_fields() -> None:
    assert split_policies("hadar:reserve=1,objective=jct, gavel") == [
        "hadar:reserve=1,objective=jct",
        "gavel",
    ]
    assert split_policies("a,b:x=1,c:y=2") == ["a", "b:x=1", "c:y=2"]


def test_work_is_spread_over_the_cells_it_touches() -> None:
    work = [Work(0.0, 10.0, 2), Work(5.0, 25.0, 1), Work(31.0, 32.0, 3), Work(39.0, 40.0, 1)]
    assert spread_over(work, 4, 40.0) == pytest.approx([25.0, 10.0, 5.0, 4.0])


def test_the_comparison_marks_the_best_without_colour() -> None:
    one = scenario(job(0, 5000), job(1, 3000), cluster="v100:1,k80:1")
    results = [result_of(one, policy) for policy in ("hadare", "yarn-cs")]
    out = io.StringIO()
    show(results, len(one.devices), Console(file=out, width=80, color_system=None))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    hadare, yarn = (next(x for x in lines if x.startswith(p)) for p in ("hadare", "yarn-cs"))
    assert "*" in hadare and hadare.split("*")[0].count(" s") == 1
    assert "*" not in yarn.split(" s ")[0]
    plots = [line for line in lines if "▕" in line]
    assert len(plots) == 4
    assert plots[0].rstrip("▏ ").endswith("█")


def test_devices_are_named_once() -> None:
    devices = parse_cluster("v100:9,k80:3", 4)
    assert len({d.name for d in devices}) == len(devices)
    assert isinstance(devices[0], Device)


# -- the last round --------------------------------------------------------------------------


def test_the_last_round_takes_little_more_than_its_slot_rather_than_leave_crumbs():
    def rounds_of(steps: int) -> int:
        quick = replace(scenario(job(0, steps)), costs=Costs(start_s=2.0, sync_s=5.0))
        return result_of(quick, "hadare").rounds

    assert rounds_of(1100) == 1  # 110 s of work in slots of 100
    assert rounds_of(2000) == 2


def test_jobs_that_are_to_come_do_not_lengthen_a_round():
    result = result_of(scenario(job(0, 1100), job(1, 100, arrives_s=90.0)), "hadare")
    assert result.rounds > 1


def test_a_side_task_brings_no_weights_and_costs_no_sync():
    world = make_world(make_mix([1000]), costs=Costs(start_s=2.0, sync_s=5.0))
    world.loop.run()
    took = {
        world.state.started[event.attempt].purpose: event.save_s
        for event in world.journal.events
        if isinstance(event, CopyFinished)
    }
    assert took["train"] == 5.0
    assert took["prepare"] == 0.0


def test_a_run_does_not_wait_for_a_process_that_nobody_needs_any_more():
    world = make_world(make_mix([1000]), costs=Costs(start_s=2.0, sync_s=5.0))
    start, lost = world.executor.start, []

    def start_but_one(order: CopyOrder) -> None:
        if not lost and not order.steps and not order.evaluate:
            lost.append(order.attempt)  # its node never answers
        else:
            start(order)

    world.executor.start = start_but_one
    world.loop.run()
    ended = {e.attempt for e in world.journal.events if isinstance(e, CopyFinished | CopyLost)}
    assert lost and lost[0] not in ended
    assert world.state.finished


def test_a_policy_that_gives_a_device_what_it_cannot_train_is_told_so() -> None:
    world = make_world(make_mix([500]), rate=lambda job, devices: 0.0)
    with pytest.raises(HadarError, match="which cannot train it") as told:
        world.loop.run()
    assert told.value.fix == "a policy leaves pairs alone whose rate is 0"
