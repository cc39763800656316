"""What nvidia-smi, rocm-smi and their like say, read by what they print."""

from __future__ import annotations

import getpass
import json
import os
import time
from pathlib import Path

import pytest

from hadar_cli.core.availability import GpuUse
from hadar_cli.core.gpu_table import find_gpu
from hadar_cli.core.model import Node
from hadar_cli.node.gpus import amd as amd_module
from hadar_cli.node.gpus import asking, cards, reading
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


WHOLE_REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><gpu id="00000000:01:00.0"><uuid>GPU-a</uuid><mig_devices>
<mig_device><index>0</index><gpu_instance_id>3</gpu_instance_id>
<compute_instance_id>0</compute_instance_id>
<fb_memory_usage><total>19968 MiB</total><used>13 MiB</used></fb_memory_usage></mig_device>
<mig_device><index>1</index><gpu_instance_id>5</gpu_instance_id>
<compute_instance_id>0</compute_instance_id>
<fb_memory_usage><total>9984 MiB</total><used>4100 MiB</used></fb_memory_usage></mig_device>
</mig_devices><processes><process_info><gpu_instance_id>5</gpu_instance_id>
<compute_instance_id>0</compute_instance_id><pid>PID</pid><type>C</type>
<used_memory>4000 MiB</used_memory></process_info></processes></gpu></nvidia_smi_log>"""


def test_who_is_on_which_part_of_a_card_is_told_by_the_whole_report(tool, tmp_path):
    """Lists of processes name the card alone: read by them, every part seemed free."""
    listing = """echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)"
echo "  MIG 3g.20gb     Device  0: (UUID: MIG-1)"
echo "  MIG 1g.10gb+me  Device  1: (UUID: MIG-2)\""""
    nvidia(tool, "[N/A]", f'echo "GPU-a, {ME}, 4000"', f"{listing};;\n-q) exit 1")
    first, second = read_gpus(())["gpus"]
    assert (first["others_mb"], second["others_mb"]) == (None, None)  # nobody can tell
    (tmp_path / "whole.xml").write_text(WHOLE_REPORT.replace("PID", str(ME)))
    nvidia(tool, "[N/A]", f'echo "GPU-a, {ME}, 4000"', f"{listing};;\n-q) cat {tmp_path}/whole.xml")
    first, second = read_gpus(())["gpus"]
    assert (first["others_mb"], first["others"]) == (13, [])
    assert (second["others_mb"], second["others"]) == (4100, [getpass.getuser()])
    assert second["memory_mb"] == 10240
    assert read_gpus({ME})["gpus"][1]["others_mb"] == 100


@pytest.mark.parametrize(
    ("row", "uuid"),
    [
        ("0, GPU-b, NVIDIA GB10, [N/A], [N/A], 1, 0000000F:01:00.0", "GPU-b"),
        ("0, [N/A], Orin (nvgpu), [N/A], [N/A], [N/A], [N/A]", None),
    ],
)
def test_a_card_that_shares_the_machine_s_memory_is_a_card_all_the_same(tool, row, uuid):
    tool("nvidia-smi", f'case "$1" in *query-gpu*) echo "{row}";; -L) exit 1;; esac')
    told = read_gpus(())
    [gpu] = told["gpus"]
    assert (told["gpu_problem"], gpu["uuid"], gpu["memory_mb"]) == (None, uuid, 0)
    assert gpu["others_mb"] is None


def test_a_card_that_fell_off_the_bus_does_not_take_the_others_with_it(tool):
    good = "1, GPU-b, Tesla T4, 15360, 3, 3, 00000000:02:00.0"
    lost = "0, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [N/A], 00000000:01:00.0"
    tool("nvidia-smi", f'case "$1" in *query-gpu*) echo "{lost}"; echo "{good}";; esac')
    [gpu] = read_gpus(())["gpus"]
    assert (gpu["index"], gpu["model"]) == (1, "Tesla T4")


def test_a_tool_that_hangs_is_not_asked_again_while_it_does(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "TOOL_S", 0.2)
    tool("nvidia-smi", f"echo >> {tmp_path}/asked; exec sleep 60")
    assert read_gpus(())["gpu_problem"] == "nvidia-smi: no answer within 0.2 s"
    [hung] = asking._hung.values()
    hung.wait()
    hung.poll = lambda: None  # type: ignore[method-assign] # as behind a driver that hangs
    assert read_gpus(())["gpu_problem"] == "nvidia-smi: no answer within 0.2 s"
    assert (tmp_path / "asked").read_text() == "\n"
    asking._hung.clear()


def test_a_tool_that_fails_is_quoted(tool):
    tool("nvidia-smi", 'echo "NVIDIA-SMI has failed: no driver"; exit 9')
    told = read_gpus(())
    assert told["gpus"] == []
    assert told["gpu_problem"] == "nvidia-smi: NVIDIA-SMI has failed: no driver"


def amd(tool, tmp_path: Path, cards: dict[str, dict[str, str]], pids: str, on: str) -> None:
    """As rocm-smi prints it from ROCm 4 to 7: warnings among the JSON, nothing where there is
    nothing to tell, and no JSON at all of which process is on which card."""
    (tmp_path / "cards.json").write_text(json.dumps(cards))
    (tmp_path / "pids.json").write_text(pids)
    (tmp_path / "on").write_text(on)
    tool(
        "rocm-smi",
        f"""case "$*" in
*showproductname*) printf '\\nWARNING: AMD GPU device(s) is/are in a low-power state.\\n\\n'
    cat {tmp_path}/cards.json;;
"--showpids --json") cat {tmp_path}/pids.json;;
--showpidgpus) cat {tmp_path}/on;;
esac""",
    )


def amd_card(unique_id: str, used_gb: int, series: str = "AMD Instinct MI210") -> dict[str, str]:
    return {
        "Unique ID": unique_id,
        "Card Series": series,
        "Card Model": "0x740f",
        "VRAM Total Memory (B)": str(64 << 30),
        "VRAM Total Used Memory (B)": str(used_gb << 30),
    }


def on_cards(pid: int, *cards: int) -> str:
    numbers = "".join(f"{card} " for card in cards)
    title = "=" * 20
    return f"{title}\nPID {pid} is using {len(cards)} DRM device(s):\n{numbers}\n{title}\n"


def test_amd_cards_are_told_by_rocm_smi(tool, tmp_path):
    cards = {"card0": amd_card("0xabc", 10), "card1": amd_card("0xdef", 0)}
    pids = {"system": {f"PID{ME}": f"python, 1, {8 << 30}, 0, unknown"}}
    amd(tool, tmp_path, cards, json.dumps(pids), on_cards(ME, 0))
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


def test_a_process_counts_on_its_own_amd_cards_only(tool, tmp_path):
    cards = {"card0": amd_card("0xabc", 0), "card1": amd_card("0xdef", 20)}
    pids = {"system": {f"PID{ME}": f"tmux:, server, 1, {20 << 30}, 0, unknown"}}
    amd(tool, tmp_path, cards, json.dumps(pids), on_cards(ME, 1))
    first, second = read_gpus(())["gpus"]
    assert (first["others"], second["others"]) == ([], [getpass.getuser()])
    first, second = read_gpus({ME})["gpus"]
    assert (first["others_mb"], second["others_mb"]) == (0, 0)


def test_amd_cards_without_a_name_of_their_own_go_by_their_number(tool, tmp_path):
    """Integrated ones say N/A, and the partitions of an MI300X all say the same."""
    cards = {
        "card0": amd_card("0xabc", 0, "AMD Instinct MI300X"),
        "card1": amd_card("0xabc", 0, "Arcturus GL-XL [AMD Instinct MI100]"),
        "card2": amd_card("N/A", 0, "N/A"),
    }
    amd(tool, tmp_path, cards, "", "")
    found = read_gpus(())["gpus"]
    assert [gpu["uuid"] for gpu in found] == [None, None, None]
    assert [gpu["model"] for gpu in found] == [
        "AMD Instinct MI300X",
        "AMD Instinct MI100",
        "0x740f",
    ]
    assert cards_module.identity("1") == "gpu-1"


def test_our_own_worker_is_no_colleague_where_rocm_says_that_it_holds_nothing(
    tool, tmp_path, monkeypatch
):
    """ROCm 5.7 and 6 tell 0 bytes of every process."""
    monkeypatch.setattr(cards, "LOCKS", tmp_path)
    amd(tool, tmp_path, {"card0": amd_card("0xabc", 1)}, "", "")
    watch = GpuWatch(tmp_path / "run", lambda: {ME}, every_s=1000.0)
    while watch.news() is None:
        time.sleep(0.01)
    assert watch.look()["gpus"][0]["others_mb"] == 1024
    assert CardLock("0xabc").take({"run": "r", "at": str(tmp_path / "run")})
    pids = {"system": {f"PID{ME}": "python, 1, 0, 0, unknown"}}
    amd(tool, tmp_path, {"card0": amd_card("0xabc", 9)}, json.dumps(pids), on_cards(ME, 0))
    assert watch.look()["gpus"][0]["others_mb"] == 1024


def amd_smi(tool, tmp_path: Path, **answers: object) -> None:
    """As amd-smi prints it: by ``static``, ``metric``, ``process`` and ``list -e``; an answer of
    None is a question that the version does not know."""
    cases = []
    for what, answer in answers.items():
        (tmp_path / what).write_text(answer if isinstance(answer, str) else json.dumps(answer))
        does = "exit 255" if answer is None else f"cat {tmp_path}/{what}"
        cases.append(f'"{what} "*) {does};;')
    tool("amd-smi", f'case "$*" in\n{chr(10).join(cases)}\nesac')
    amd_module._cards.cache_clear()


def row_of(gpu: int, used: object, serial: str = "0xABC") -> tuple[dict, dict]:
    """A card's rows of ``static --asic`` and of ``metric --mem-usage``."""
    total, unit = {"value": 65536, "unit": "MB"}, "MB"
    told = {"value": used, "unit": unit} if isinstance(used, int) else used
    memory = {"total_vram": total, "used_vram": told, "total_gtt": "N/A"}
    asic = {"market_name": "AMD Instinct MI210", "vendor_id": "0x1002", "asic_serial": serial}
    return {"gpu": gpu, "asic": asic}, {"gpu": gpu, "mem_usage": memory}


def processes(gpu: int, **held: object) -> dict:
    """By pid, with a letter before it: bytes as they are told."""
    told = [{"process_info": {"name": "N/A", "pid": int(p[1:]), **one}} for p, one in held.items()]
    return {
        "gpu": gpu,
        "process_list": told or [{"process_info": "No running processes detected"}],
    }


def in_bytes(size: int) -> dict:
    return {"value": size, "unit": "B"}


def test_newer_machines_have_amd_smi_alone_which_counts_cards_in_its_own_order(tool, tmp_path):
    (first, first_used), (second, second_used) = row_of(0, 10240), row_of(1, 20, "0xDEF")
    own = {"memory_usage": {"vram_mem": in_bytes(8 << 30), "gtt_mem": in_bytes(1 << 30)}}
    here = {**own, "mem_usage": in_bytes(9 << 30)}
    amd_smi(
        tool,
        tmp_path,
        static="Permission needed for: /dev/dri/renderD*: [2 denied]\n"
        + json.dumps({"gpu_data": [first, second]}),
        metric={"gpu_data": [first_used, second_used]},
        process=[processes(0, **{f"p{ME}": here}), processes(1)],
        list=[{"gpu": 0, "hip_id": 1, "hip_uuid": "GPU-abc"}, {"gpu": 1, "hip_id": 0}],
    )
    busy, idle = read_gpus({ME})["gpus"]
    assert (busy["index"], busy["uuid"], busy["memory_mb"]) == (1, "0xabc", 65536)
    assert (busy["others_mb"], busy["others"], idle["others_mb"]) == (2048, [], 20)
    busy, idle = read_gpus(())["gpus"]
    assert (busy["others_mb"], busy["others"]) == (10240, [getpass.getuser()])
    assert cards_module.visible(7, "0xabc", {}) == {"HIP_VISIBLE_DEVICES": "1"}
    assert cards_module.identity("0") == "0xdef"
    found = identify(Node("lab", "lab"), [GpuUse(**gpu) for gpu in (busy, idle)])
    assert [gpu.model for gpu in found.gpus] == ["MI210", "MI210"]


def test_what_amd_smi_does_not_tell_is_unknown_and_not_free(tool, tmp_path):
    """Before ROCm 6.4: no numbers of HIP, 0 bytes of every process; N/A where a query failed."""
    (static, used), (other, unknown) = row_of(0, 9000, "N/A"), row_of(1, "N/A", "0x0")
    size = {"mem_usage": in_bytes(0)}
    amd_smi(
        tool,
        tmp_path,
        static=[static, other],
        metric=[used, unknown],
        process=[processes(0, **{f"p{ME}": size}), processes(1)],
        list=None,
    )
    first, second = read_gpus({ME})["gpus"]
    assert [(gpu["index"], gpu["uuid"]) for gpu in (first, second)] == [(0, None), (1, None)]
    assert (first["others_mb"], second["others_mb"]) == (None, None)
    assert read_gpus(())["gpus"][0]["others_mb"] == 9000
    amd_smi(tool, tmp_path, static="", metric=[used], process="", list=None)
    told = read_gpus(())
    assert (told["gpus"], told["gpu_problem"]) == ([], "amd-smi: ValueError: static prints nothing")


def test_a_process_that_only_opened_a_card_holds_nothing_of_it(tool, tmp_path):
    """Before ROCm 10 a process is listed on every card, with 0 where it computes nothing."""
    rows = [row_of(0, 9000), row_of(1, 30, "0xdef")]
    amd_smi(
        tool,
        tmp_path,
        static=[static for static, _ in rows],
        metric=[used for _, used in rows],
        process=[
            processes(0, **{f"p{ME}": {"mem_usage": in_bytes(9000 << 20)}}),
            processes(1, **{f"p{ME}": {"mem_usage": in_bytes(0)}}),
        ],
        list=None,
    )
    assert [gpu["others_mb"] for gpu in read_gpus({ME})["gpus"]] == [0, 30]


@pytest.mark.parametrize("nvidia_on_the_bus", [True, False])
def test_another_maker_s_card_does_not_stand_in_for_one_whose_driver_fails(
    tool, tmp_path, monkeypatch, nvidia_on_the_bus
):
    """A kernel update parts driver and library; the processor's own GPU has the same number."""
    monkeypatch.setattr(reading, "_PCI", tmp_path / "bus")
    device = tmp_path / "bus" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200\n")
    (device / "vendor").write_text("0x10de\n" if nvidia_on_the_bus else "0x1002\n")
    amd(tool, tmp_path, {"card0": amd_card("0xabc", 0)}, "", "")
    said = "Failed to initialize NVML: Driver/library version mismatch"
    tool("nvidia-smi", f'echo "{said}"; exit 18')
    told = read_gpus(())
    if nvidia_on_the_bus:
        assert (told["gpus"], told["gpu_problem"]) == ([], f"nvidia-smi: {said}")
    else:
        assert ([gpu["uuid"] for gpu in told["gpus"]], told["gpu_problem"]) == (["0xabc"], None)


def test_a_driver_without_a_tool_is_no_machine_without_gpus(tool, tmp_path, monkeypatch):
    """As on a Jetson, or where no card is shown to a container: not to be taken for a CPU."""
    assert read_gpus(()) == {"gpus": [], "gpu_problem": None}
    tool("nvidia-smi", 'echo "No devices were found"')
    assert read_gpus(()) == {"gpus": [], "gpu_problem": None}
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(reading, "_DRIVERS", {str(driver): "a driver, and no tool"})
    assert read_gpus(()) == {"gpus": [], "gpu_problem": "a driver, and no tool"}


def test_the_tool_of_wsl_is_found_where_no_path_names_it(tmp_path, monkeypatch):
    places = {tool.name: tool.places for tool in reading._tools()}
    assert "/usr/lib/wsl/lib/nvidia-smi" in places["nvidia-smi"]
    there = tmp_path / "nvidia-smi"
    there.touch()
    assert reading._Tool("no-such-tool", "", (str(there),), reading._nvidia).find() == str(there)


@pytest.mark.parametrize("state", ["ERR!", "[Unknown Error]", "[GPU requires reset]"])
def test_a_card_in_an_error_state_is_unknown_and_not_free(tool, state):
    nvidia(tool, state, "true")
    told = read_gpus(())
    [gpu] = told["gpus"]
    assert (told["gpu_problem"], gpu["others_mb"]) == (None, None)


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
    monkeypatch.setattr(reading, "ask", lambda *words: told[words[-1]])
    [gpu] = reading.read_gpus(())["gpus"]
    assert (gpu["model"], gpu["memory_mb"], gpu["index"]) == ("Apple M2 Pro", 32768.0, 0)
