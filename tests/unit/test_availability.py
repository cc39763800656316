"""When hadar leaves a shared machine alone."""

from dataclasses import replace

import pytest

from hadar_cli.core.availability import GpuUse, is_within, why_unavailable
from hadar_cli.core.model import Gpu, Node
from hadar_cli.core.reasons import Absence

RTX = Gpu("RTX 3090", 71, 24)


def node(**fields):
    return Node("curie", "curie", gpus=(RTX, RTX), **fields)


def use(index, share, *users):
    return GpuUse(index, "RTX 3090", 24_000, share * 24_000, users)


@pytest.mark.parametrize(
    ("hours", "clock", "inside"),
    [
        ("09:00-17:00", (9, 0), True),
        ("09:00-17:00", (8, 59), False),
        ("09:00-17:00", (16, 59), True),
        ("09:00-17:00", (17, 0), False),
        ("19:00-07:00", (23, 30), True),
        ("19:00-07:00", (0, 0), True),
        ("19:00-07:00", (6, 59), True),
        ("19:00-07:00", (7, 0), False),
        ("19:00-07:00", (12, 0), False),
        ("00:00-00:00", (3, 33), True),
    ],
)
def test_hours_may_span_midnight(hours, clock, inside):
    assert is_within(hours, 60 * clock[0] + clock[1]) is inside


def test_outside_its_hours_no_device_of_a_node_is_used():
    night = node(hours="19:00-07:00")
    why = why_unavailable(night, night.devices[0], [], 12 * 60 + 5)
    assert why.why == "outside its hours, 19:00-07:00 (there it is 12:05)"
    assert why_unavailable(night, night.devices[0], [use(0, 0.0)], 23 * 60) is None


def test_a_gpu_that_others_use_is_left_to_them_and_its_sibling_is_not():
    shared = node()
    gpus = [use(0, 0.5, "ada", "bob"), use(1, 0.04, "gdm")]
    first, second = (why_unavailable(shared, device, gpus, None) for device in shared.devices)
    assert first.why == "ada and bob hold 50% of its memory, more than 10%"
    assert second is None


def test_the_inventory_sets_how_much_is_too_much():
    assert why_unavailable(node(max_gpu_mem=0.6), node().devices[0], [use(0, 0.5)], None) is None
    assert why_unavailable(node(max_gpu_mem=0.4), node().devices[0], [use(0, 0.5)], None)


def test_stand_ins_are_not_judged():
    emulated = node(emulated_speed=0.5)
    assert why_unavailable(emulated, emulated.devices[0], [use(0, 1.0)], None) is None


def test_a_gpu_of_which_nothing_is_known_is_left_alone_unless_told_otherwise():
    unknown = GpuUse(0, "RTX 3090", 24_000, None)
    for reports in ([], [unknown]):
        why = why_unavailable(node(), node().devices[0], reports, None)
        assert why.why == "who uses it cannot be told there; max_gpu_mem = 1 uses it all the same"
        assert why_unavailable(node(max_gpu_mem=1.0), node().devices[0], reports, None) is None


def test_why_nothing_is_known_of_a_gpu_is_said():
    only = node().devices[0]
    failing = why_unavailable(node(), only, [], None, "nvidia-smi: Driver/library version mismatch")
    assert (
        "told there (nvidia-smi: Driver/library version mismatch); max_gpu_mem = 1" in failing.why
    )
    gone = why_unavailable(node(), only, [use(1, 0.0)], None)
    assert "(it is not among the GPUs that its tools list: 1: RTX 3090)" in gone.why
    assert gone.reason is failing.reason is Absence.UNTOLD


def test_a_card_is_found_by_the_number_or_the_name_that_the_inventory_gives_it():
    third = Node("curie", "curie", gpus=(replace(RTX, index=2), replace(RTX, uuid="GPU-b")))
    gpus = [use(0, 0.9, "ada"), replace(use(1, 0.0), uuid="GPU-b"), use(2, 0.5, "bob")]
    by_index, by_name = (why_unavailable(third, device, gpus, None) for device in third.devices)
    assert by_index.why == "bob holds 50% of its memory, more than 10%"
    assert by_name is None
