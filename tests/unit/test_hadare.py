"""HadarE's plans: whole shares, warm devices first, solo jobs alone, no more than is left."""

import numpy as np
import pytest

from hadar_cli import policies
from hadar_cli.core.model import Job, PolicyChoice
from hadar_cli.core.policies.hadare import HadarE
from hadar_cli.core.policies.port import ClusterView, JobView
from hadar_cli.errors import InputError

SPEEDS = {"fast": 10.0, "middle": 5.0, "slow": 1.0}


class Speeds:
    def matrix(self, jobs: list[int], devices: list[str]) -> np.ndarray:
        return np.array([[SPEEDS[device] for device in devices] for _ in jobs])


def view(jobs: dict[int, int], current: dict[str, int] | None = None, **fields) -> ClusterView:
    views = tuple(
        JobView(Job(j, f"job-{j}", 10_000, 16), left, left, **fields.pop(f"job_{j}", {}))
        for j, left in jobs.items()
    )
    defaults = {"now_s": 0.0, "slot_s": 1000.0, "seconds": 1000.0, "devices": tuple(SPEEDS)}
    return ClusterView(
        jobs=lambda: views, rates=Speeds(), current=current or {}, **{**defaults, **fields}
    )


def steps_by_device(stints, job):
    return {s.device: s.steps for s in stints if s.job == job}


def test_one_job_is_split_so_that_all_copies_end_together():
    shares = steps_by_device(HadarE(stickiness=0.0).plan(view({0: 1600})), 0)
    assert shares == {"fast": 1000, "middle": 500, "slow": 100}


def test_all_remaining_steps_are_handed_out_exactly():
    stints = HadarE().plan(view({0: 997, 1: 313, 2: 71}))
    for job, left in {0: 997, 1: 313, 2: 71}.items():
        assert sum(s.steps for s in stints if s.job == job) == left


def test_no_device_is_idle_while_there_is_work():
    stints = HadarE().plan(view({0: 500, 1: 500}))
    assert {s.device for s in stints} == set(SPEEDS)


def test_a_warm_job_comes_first_on_its_device():
    stints = HadarE().plan(view({0: 800, 1: 800, 2: 800}, current={"fast": 2}))
    assert next(s for s in stints if s.device == "fast").job == 2


def test_a_solo_job_gets_one_copy_and_no_more_than_its_solo_steps():
    stints = HadarE().plan(view({0: 1000}, job_0={"solo_steps": 20}))
    assert [(s.job, s.steps) for s in stints] == [(0, 20)]
    busy = view({0: 1000}, job_0={"solo_steps": 20, "copies_active": 1})
    assert HadarE().plan(busy) == []


def test_a_job_that_may_have_few_copies_gets_the_fastest_devices():
    stints = HadarE().plan(view({0: 1000}, job_0={"copies_that_pay": 2}))
    assert {s.device for s in stints} == {"fast", "middle"}


def test_no_copy_goes_where_it_costs_more_than_it_brings():
    stints = HadarE().plan(view({0: 1000, 1: 1000}, job_0={"too_dear": frozenset({"fast"})}))
    assert "fast" not in {s.device for s in stints if s.job == 0}
    assert "fast" in {s.device for s in stints if s.job == 1}
    everywhere = frozenset(SPEEDS)
    assert HadarE().plan(view({0: 1000}, job_0={"too_dear": everywhere})), "one must do it"


def test_who_is_at_work_takes_no_room_from_one_that_joins():
    several = view(
        {0: 1000},
        devices=("middle", "slow"),
        busy_s={"fast": 1.0},
        current={"fast": 0},
        job_0={"copies_that_pay": 2, "copies_active": 1},
    )
    stints = HadarE().plan(several)
    assert {s.device for s in stints} == {"middle"}
    assert stints[0].steps == pytest.approx(1000 / 3, rel=0.05), "the fast one does the rest"


def test_quotas_fit_the_slot_with_headroom():
    shares = steps_by_device(HadarE(headroom=1.5).plan(view({0: 100_000}, seconds=10.0)), 0)
    assert shares == {"fast": 150, "middle": 75, "slow": 15}


def test_a_share_too_short_to_start_for_is_left_to_the_others():
    stints = HadarE().plan(view({0: 16}, current={"fast": 0}, start_cost_s=5.0))
    assert [(s.device, s.steps) for s in stints] == [("fast", 16)]


def test_a_device_that_comes_free_leaves_the_busy_ones_their_share():
    busy = view({0: 1600}, devices=("slow",), busy_s={"fast": 20.0, "middle": 20.0})
    (stint,) = HadarE(stickiness=0.0).plan(busy)
    ends_s = (1600 - stint.steps) / 15.0 + 20.0
    assert stint.steps == pytest.approx(ends_s, rel=0.01), "all end together"


def test_a_device_without_a_share_takes_a_job_that_nobody_has_begun():
    soon = view(
        {0: 1000}, devices=("slow",), busy_s={"fast": 1.0, "middle": 1.0}, job_0={"solo_steps": 30}
    )
    (stint,) = HadarE().plan(soon)
    assert stint.device == "slow"
    assert stint.steps <= 1000 / 15.0 + 1.0, "no more than it can do while the others work"


def test_unknown_policies_and_fields_are_the_users_to_mend():
    with pytest.raises(InputError, match="did you mean 'hadare'"):
        policies.create(PolicyChoice("hadaree"))
    with pytest.raises(InputError, match="did you mean 'stickiness'"):
        policies.create(PolicyChoice("hadare", {"stickyness": 0.1}))
    with pytest.raises(InputError, match="is not a float"):
        policies.create(PolicyChoice("hadare", {"stickiness": "much"}))
    assert policies.create(PolicyChoice("hadare", {"stickiness": 0})) == HadarE(stickiness=0)
