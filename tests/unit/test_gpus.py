"""What nvidia-smi, rocm-smi and their like say, read by what they print."""

from __future__ import annotations

import getpass
import json
import os
import time
from pathlib import Path

import pytest

from hadar_cli.core.gpu_table import find_gpu
from hadar_cli.core.model import Node
from hadar_cli.core.politeness import GpuUse
from hadar_cli.node.gpus import cards, reading
from hadar_cli.node.gpus import cards as cards_module
from hadar_cli.node.gpus.cards import CardLock
from hadar_cli.node.gpus.reading import read_gpus
from hadar_cli.node.gpus.watch import GpuWatch
from hadar_cli.visits.discovery import identify

ME = os.getpid()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def install(name: str, body: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o700)

    return install


def nvidia(tool, used: str, apps: str, listing: str = "exit 1") -> None:
    tool(
        "nvidia-smi",
        f"""case "$1" in
*query-gpu*) echo "0, GPU-a, NVIDIA A100-SXM4-40GB, 40960, {used}, 4, 00000000:01:00.0";;
*query-compute-apps*) {apps};;
-L) {listing};;
esac""",
    )


def test_what_others_hold_is_what_is_used_less_what_is_ours(tool):
    nvidia(tool, "9000", f'echo "GPU-a, {ME}, 8000"')
    [gpu] = read_gpus({ME})["gpus"]
    assert (gpu["others_mb"], gpu["others"], gpu["uuid"]) == (1000, [], "GPU-a")
    [gpu] = read_gpus(())["gpus"]
    assert (gpu["others_mb"], gpu["others"]) == (9000, [getpass.getuser()])


@pytest.mark.parametrize(("used", "size"), [("[N/A]", "8000"), ("9000", "[N/A]")])
def test_memory_that_the_driver_does_not_tell_is_unknown_and_not_free(tool, used, size):
    nvidia(tool, used, f'echo "GPU-a, {ME}, {size}"')
    [gpu] = read_gpus({ME})["gpus"]
    assert gpu["others_mb"] is None


def test_each_part_of_a_divided_card_is_a_gpu_of_its_own(tool):
    listing = """echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)"
echo "  MIG 3g.20gb     Device  0: (UUID: MIG-1)"
echo "  MIG 2g.10gb     Device  1: (UUID: MIG-2)\""""
    nvidia(tool, "5000", f'echo "MIG-2, {ME}, 4000"', listing)
    first, second = read_gpus(())["gpus"]
    assert (first["uuid"], first["memory_mb"], first["others_mb"]) == ("MIG-1", 20480, 0)
    assert (second["uuid"], second["others_mb"]) == ("MIG-2", 4000)
    reports = [GpuUse(**gpu) for gpu in (first, second)]
    parts = identify(Node("lab", "lab"), reports).gpus
    assert [part.uuid for part in parts] == ["MIG-1", "MIG-2"]
    assert [part.vram_gb for part in parts] == [20, 10]
    whole = find_gpu("A100")
    assert whole and parts[0].tflops == pytest.approx(whole.tflops * 3 / 7)


def test_a_tool_that_fails_is_quoted(tool):
    tool("nvidia-smi", 'echo "NVIDIA-SMI has failed: no driver"; exit 9')
    told = read_gpus(())
    assert told["gpus"] == []
    assert told["gpu_problem"] == "nvidia-smi: NVIDIA-SMI has failed: no driver"


def test_amd_cards_are_told_by_rocm_smi(tool, tmp_path, monkeypatch):
    cards = {
        "card0": {
            "Unique ID": "0xabc",
            "Card Series": "AMD Instinct MI210",
            "VRAM Total Memory (B)": str(64 << 30),
            "VRAM Total Used Memory (B)": str(10 << 30),
        },
        "card1": {
            "Unique ID": "0xdef",
            "Card Series": "AMD Instinct MI210",
            "VRAM Total Memory (B)": str(64 << 30),
            "VRAM Total Used Memory (B)": "0",
        },
    }
    pids = {"system": {f"PID{ME}": f"python, 1, {8 << 30}, 0, unknown"}}
    gpus = {"system": {f"PID{ME}": "0"}}
    for name, content in (("cards", cards), ("pids", pids), ("pidgpus", gpus)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    tool(
        "rocm-smi",
        f"""case "$1" in
--showproductname) cat {tmp_path}/cards.json;;
--showpids) cat {tmp_path}/pids.json;;
--showpidgpus) cat {tmp_path}/pidgpus.json;;
esac""",
    )
    first, second = read_gpus({ME})["gpus"]
    assert (first["others_mb"], first["memory_mb"], second["others_mb"]) == (2048, 65536, 0)
    found = identify(Node("lab", "lab"), [GpuUse(**gpu) for gpu in (first, second)])
    assert [gpu.model for gpu in found.gpus] == ["MI210", "MI210"]
    [first, _] = read_gpus(())["gpus"]
    assert (first["others_mb"], first["others"]) == (10240, [getpass.getuser()])
    # HIP takes no unique ids, only numbers; what a batch system shows is never widened.
    assert cards_module.visible(7, "0xdef", {}) == {"HIP_VISIBLE_DEVICES": "1"}
    shows_it = {"HIP_VISIBLE_DEVICES": "0,1"}
    assert cards_module.visible(0, "0xdef", shows_it) == {"HIP_VISIBLE_DEVICES": "1"}
    for uuid, env in (("0x123", {}), ("0xdef", {"HIP_VISIBLE_DEVICES": "0"})):
        with pytest.raises(ValueError, match=uuid):
            cards_module.visible(0, uuid, env)
    assert cards_module.identity("1") == "0xdef"  # and its lock is the card's, however it is shown


@pytest.mark.parametrize(
    ("said", "model"),
    [("Apple M2 Max", "M2 Max"), ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"), ("3090", "RTX 3090")],
)
def test_cards_of_other_makers_are_known(said, model):
    gpu = find_gpu(said)
    assert gpu and gpu.model == model


@pytest.mark.parametrize(
    "apps",
    [
        'echo "[Not Supported]"',  # vGPUs, and old drivers of desktop cards
        'echo "GPU-a, [N/A], [N/A]"',  # under WSL
        'echo "GPU-a, 999999999, [Insufficient Permissions]"',
        "true",  # in a container
    ],
)
def test_a_driver_that_tells_of_no_process_is_read_all_the_same(tool, apps):
    nvidia(tool, "300", apps)
    told = read_gpus({ME})
    [gpu] = told["gpus"]
    assert told["gpu_problem"] is None
    assert (gpu["others_mb"], gpu["sees_processes"]) == (300, False)


def test_a_card_in_a_container_of_a_divided_one_is_known_by_its_part(tool):
    """As in a pod: the card's memory is not ours to see, the part's is by its name."""
    listing = """echo "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-a)"
echo "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\""""
    nvidia(tool, "[Insufficient Permissions]", "true", listing)
    [gpu] = read_gpus(())["gpus"]
    assert (gpu["uuid"], gpu["memory_mb"], gpu["others_mb"]) == ("MIG-1", 10240, 0)


@pytest.mark.parametrize("apps", ["true", 'echo "GPU-a, 999999999, 20000"'])
def test_in_a_container_our_own_memory_is_not_taken_for_a_colleague_s(
    tool, apps, tmp_path, monkeypatch
):
    """No process is seen there, or one by its number outside; memory shows all the same."""
    monkeypatch.setattr(cards, "LOCKS", tmp_path)
    nvidia(tool, "500", "true")
    watch = GpuWatch(tmp_path / "run", lambda: {ME}, every_s=1000.0)
    while watch.news() is None:  # its own look is over: the tool can be written anew
        time.sleep(0.01)
    assert others_seen(watch, "500", tool, "true") == (500, [])
    lock = CardLock("GPU-a")
    assert lock.take({"run": "r", "at": str(tmp_path / "run")})
    assert others_seen(watch, "20500", tool, apps) == (500, [])
    lock.give_back()
    assert others_seen(watch, "20500", tool, apps)[0] == 20500  # it is somebody else's


def others_seen(watch: GpuWatch, used: str, tool, apps: str) -> tuple[float | None, list[str]]:
    nvidia(tool, used, apps)
    [gpu] = watch.look()["gpus"]
    return gpu["others_mb"], gpu["others"]


def test_memory_of_a_process_that_has_just_ended_is_nobody_s(tool, tmp_path, monkeypatch):
    """Between two questions to the driver a worker may leave: used, and nobody is named for it."""
    monkeypatch.setattr(cards, "LOCKS", tmp_path)
    nvidia(tool, "500", "true")
    watch = GpuWatch(tmp_path / "run", lambda: {ME}, every_s=1000.0, settles_s=0.0)
    while watch.news() is None:
        time.sleep(0.01)
    once = f"$([ -e {tmp_path}/asked ] && echo 500 || (touch {tmp_path}/asked; echo 8692))"
    assert others_seen(watch, once, tool, "true") == (500, [])
    assert others_seen(watch, "8692", tool, "true") == (8692, [])  # still there: it is used


def test_the_gpu_of_an_apple_chip_is_known_by_sysctl(monkeypatch):
    told = {"machdep.cpu.brand_string": "Apple M2 Pro\n", "hw.memsize": f"{32 << 30}\n"}
    monkeypatch.setattr(reading.shutil, "which", lambda name: None)
    monkeypatch.setattr(reading.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(reading.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(reading, "_ask", lambda *words: told[words[-1]])
    [gpu] = reading.read_gpus(())["gpus"]
    assert (gpu["model"], gpu["memory_mb"], gpu["index"]) == ("Apple M2 Pro", 32768.0, 0)
