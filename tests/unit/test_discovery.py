"""From what nvidia-smi and the kernel say to the GPUs of a node, and the file that keeps them."""

import json
from dataclasses import replace

import pytest

from hadar_cli.cli.options import cached_profile, read_inventory
from hadar_cli.core.availability import GpuUse
from hadar_cli.core.gpu_table import KNOWN_GPUS
from hadar_cli.core.model import Gpu, Node
from hadar_cli.errors import InputError
from hadar_cli.node.gpus.reading import _generation
from hadar_cli.visits.discovery import Discovery, identify
from hadar_cli.visits.inspection import Problem
from hadar_cli.visits.profile_cache import cache_path, fill, load, store

NODE = Node("lab", "lab.example.org")
T4 = KNOWN_GPUS["T4"]


def reported(model: str, memory_mb: float, pcie: int | None = None, index: int = 0) -> GpuUse:
    return GpuUse(index, model, memory_mb, 0.0, pcie=pcie)


# -- what a machine reports ----------------------------------------------------------------------


def test_memory_kept_by_the_driver_is_no_other_edition():
    [t4] = identify(NODE, [reported("Tesla T4", 15360, 3)]).gpus
    assert t4 == T4
    [rtx] = identify(NODE, [reported("RTX 3080", 12288, 3)]).gpus
    assert rtx == replace(KNOWN_GPUS["RTX 3080"], vram_gb=12, pcie=3)


def test_what_is_not_reported_comes_from_the_table():
    assert identify(NODE, [reported("RTX A2000", 0.0)]).gpus == (KNOWN_GPUS["RTX A2000"],)
    assert identify(NODE, [reported("RTX A2000", 6138, 9)]).gpus == (KNOWN_GPUS["RTX A2000"],)


def test_devices_are_in_the_order_of_their_numbers():
    gpus = [reported("T4", 15360, 3, index=1), reported("T400", 4096, 3, index=0)]
    assert [gpu.model for gpu in identify(NODE, gpus).gpus] == ["T400", "T4"]


def test_an_unknown_model_gets_the_line_to_add():
    found = identify(NODE, [reported("T4", 15360, 3), reported("Novum 9", 20480, 5, index=1)])
    assert found.gpus == ()
    assert found.problem.what == "Novum 9: not in the table of known GPUs"
    line = '[{ model = "T4" }, { model = "Novum 9", tflops = ?, vram_gb = 20, pcie = 5 }]'
    assert found.problem.fix.endswith(f"gpus = {line}")
    shares_memory = identify(NODE, [reported("GB10", 0, None)])  # 0 GB would be refused there
    assert shares_memory.problem
    assert shares_memory.problem.fix.endswith('[{ model = "GB10", tflops = ?, vram_gb = ? }]')


@pytest.mark.parametrize(
    ("card", "port", "generation"),
    [("16.0 GT/s PCIe", "8.0 GT/s PCIe", 3), ("16.0 GT/s PCIe", None, 4), ("Unknown", None, None)],
)
def test_sysfs_knows_the_slower_end_of_the_link(tmp_path, card, port, generation):
    real = tmp_path / "pci0000:00" / "0000:00:01.0" / "0000:01:00.0"
    real.mkdir(parents=True)
    (real / "max_link_speed").write_text(f"{card}\n")
    if port:
        (real.parent / "max_link_speed").write_text(f"{port}\n")
    devices = tmp_path / "devices"
    devices.mkdir()
    (devices / "0000:01:00.0").symlink_to(real)
    assert _generation("00000000:01:00.0", devices) == generation
    assert _generation("[N/A]", devices) is None


# -- the file ------------------------------------------------------------------------------------


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text('[[node]]\nname = "lab"\nhost = "lab.example.org"\n')
    return path


def test_every_command_reads_what_was_found(inventory):
    assert load(inventory) == {}
    store(inventory, {}, [Discovery(NODE, (T4, T4))])
    assert [device.name for device in read_inventory(inventory)[0].devices] == ["lab:0", "lab:1"]
    assert read_inventory(inventory)[0].gpus == (T4, T4)


def test_a_node_that_does_not_answer_keeps_what_is_known(inventory):
    cached = store(inventory, {}, [Discovery(NODE, (T4,))])
    store(inventory, cached, [Discovery(NODE, problem=Problem("off", "on"))])
    store(inventory, load(inventory), [Discovery(Node("other", "local"))])
    assert fill([NODE], load(inventory))[0].gpus == (T4,)
    assert set(load(inventory)) == {"lab", "other"}


@pytest.mark.parametrize(
    "node",
    [
        replace(NODE, gpus=(Gpu("Mine", 1, 1),)),
        replace(NODE, emulated_speed=0.5),
        replace(NODE, host="elsewhere"),
        replace(NODE, port=2222),
    ],
)
def test_only_the_same_machine_without_gpus_of_its_own_is_filled(inventory, node):
    cached = store(inventory, {}, [Discovery(NODE, (T4,))])
    assert fill([node], cached) == (node,)


GOOD = {"model": "T4", "tflops": 65, "vram_gb": 16, "pcie": 3}


@pytest.mark.parametrize(
    "gpu",
    [
        {**GOOD, "tflops": 0},
        {**GOOD, "vram_gb": -1},
        {**GOOD, "pcie": 7},
        {**GOOD, "pcie": "3"},
        {**GOOD, "model": "\x1b[2J"},
        {**GOOD, "more": 1},
        {"model": "T4"},
        "T4",
    ],
)
def test_a_damaged_file_is_left_aside_with_a_warning(inventory, capsys, gpu):
    machine = {"host": "lab.example.org", "port": None, "gpus": [gpu]}
    cache_path(inventory).write_text(json.dumps({"lab": machine}))
    with pytest.raises(InputError):
        load(inventory)
    assert read_inventory(inventory)[0].gpus == ()
    assert "warning" in capsys.readouterr().err


def test_half_a_file_is_damaged_too(inventory, capsys):
    store(inventory, {}, [Discovery(NODE, (T4,))])
    content = cache_path(inventory).read_bytes()
    cache_path(inventory).write_bytes(content[: len(content) // 2])
    assert cached_profile(inventory) == {}
    assert "hadar profile nodes writes it anew" in capsys.readouterr().err


def test_memory_that_is_no_number_is_none_at_all():
    assert identify(NODE, [reported("Tesla T4", float("inf"))]).gpus == (T4,)
    problem = identify(NODE, [reported("Unknown 9", float("inf"))]).problem
    assert problem is not None and "vram_gb = ?" in problem.fix
