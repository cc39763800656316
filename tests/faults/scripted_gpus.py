"""GPUs that a node has by the word of its tools: a stand-in for nvidia-smi or rocm-smi.

    home/cards/<uuid>/total     megabytes of the card, or of the MIG instance
                     /<pid>     megabytes that a process holds of it, as long as that lives
                     /met       left by a job that found another one on the card
    home/cards/table.json       what the tools print beside this
    home/cards/bin/             the tool, on the PATH of every login by ``.bashrc``

Jobs note what they hold (real_job.py); ``colleague`` is somebody else's process.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.real_site import PYTHON

# The words and columns of nvidia-smi 535 and rocm-smi 5.7, as their users post them: processes on a
# part of a card go by the card's name in lists, and JSON tells nobody which card a process is on.
_TOOL = r"""#!{python}
import json, os, sys

cards = {cards!r}
table = json.load(open(cards + "/table.json"))

def held(uuid):
    folder = os.path.join(cards, uuid)
    found = dict()
    for name in os.listdir(folder):
        if name.isdigit() and os.path.exists("/proc/" + name):
            try:
                found[int(name)] = float(open(os.path.join(folder, name)).read() or 0)
            except OSError:
                pass
    return found

def nvidia(words):
    if words[:1] == ["-L"]:
        for index, card in enumerate(table):
            print(f"GPU {{index}}: {{card['name']}} (UUID: {{card['uuid']}})")
            for number, part in enumerate(card["parts"]):
                print(f"  MIG {{part['profile']}}     Device  {{number}}: (UUID: {{part['uuid']}})")
    for word in words:
        if word.startswith("--query-gpu="):
            for index, card in enumerate(table):
                used = sum(held(card["uuid"]).values())
                # Of a card in MIG mode the driver tells no use.
                used = "[N/A]" if card["parts"] else f"{{used:.0f}}"
                cells = [index, card["uuid"], card["name"], f"{{card['mb']:.0f}}", used, 4]
                print(", ".join(map(str, (*cells, f"00000000:{{index + 1:02X}}:00.0"))))
        if word.startswith("--query-compute-apps="):
            for card in table:
                for one in card["parts"] or [card]:
                    for pid, mb in held(one["uuid"]).items():
                        print(f"{{card['uuid']}}, {{pid}}, {{mb:.0f}}")
    if words == ["-q", "-x"]:
        print('<?xml version="1.0" ?><nvidia_smi_log>')
        for card in table:
            print(f"<gpu><mig_devices>")
            for number, part in enumerate(card["parts"]):
                used = sum(held(part["uuid"]).values())
                print(f"<mig_device><index>{{number}}</index>{{place(number)}}<fb_memory_usage>")
                print(f"<used>{{used:.0f}} MiB</used></fb_memory_usage></mig_device>")
            print(f"</mig_devices><uuid>{{card['uuid']}}</uuid><processes>")
            for number, part in enumerate(card["parts"]):
                for pid, mb in held(part["uuid"]).items():
                    print(f"<process_info>{{place(number)}}<pid>{{pid}}</pid>")
                    print(f"<used_memory>{{mb:.0f}} MiB</used_memory></process_info>")
            print("</processes></gpu>")
        print("</nvidia_smi_log>")

def place(number):
    ids = f"<gpu_instance_id>{{number + 1}}</gpu_instance_id>"
    return ids + "<compute_instance_id>0</compute_instance_id>"

def amd(words):
    if "--showpids" in words:
        pids = dict()
        for card in table:
            for pid, mb in held(card["uuid"]).items():
                pids[f"PID{{pid}}"] = f"python3, 1, {{mb * 2**20:.0f}}, 0, unknown"
        if pids:
            print(json.dumps({{"system": pids}}))
    elif "--showpidgpus" in words:
        pids = {{pid for card in table for pid in held(card["uuid"])}}
        for pid in pids if "--json" not in words else ():
            on = [i for i, card in enumerate(table) if pid in held(card["uuid"])]
            print(f"PID {{pid}} is using {{len(on)}} DRM device(s):")
            print("".join(f"{{i}} " for i in on))
    else:
        told = dict()
        for index, card in enumerate(table):
            told[f"card{{index}}"] = {{
                "Unique ID": card["uuid"],
                "Card series": card["name"],
                "VRAM Total Memory (B)": str(int(card["mb"] * 2**20)),
                "VRAM Total Used Memory (B)": str(int(sum(held(card["uuid"]).values()) * 2**20)),
            }}
        print(json.dumps(told))

(nvidia if sys.argv[0].endswith("nvidia-smi") else amd)(sys.argv[1:])
"""


@dataclass
class ScriptedGpus:
    """The cards of one node; their folder lies in its home."""

    home: Path
    _table: list[dict[str, object]] = field(default_factory=list)
    _colleagues: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def cards(self) -> Path:
        return self.home / "cards"

    def install(self, tool: str = "nvidia-smi") -> None:
        (self.cards / "bin").mkdir(parents=True)
        path = self.cards / "bin" / tool
        path.write_text(_TOOL.format(python=PYTHON, cards=str(self.cards)))
        path.chmod(0o700)
        (self.home / ".bashrc").write_text(f'export PATH="{self.cards / "bin"}:$PATH"\n')

    def add(self, name: str, uuid: str, mb: float, parts: dict[str, str] | None = None) -> None:
        """A card, or one in MIG mode with ``parts``: profile by UUID."""
        listed = [{"uuid": one, "profile": profile} for one, profile in (parts or {}).items()]
        self._table.append({"uuid": uuid, "name": name, "mb": mb, "parts": listed})
        sizes = {one: 1024.0 * int(p.split(".")[1][:-2]) for one, p in (parts or {}).items()}
        for one, size in {uuid: mb, **sizes}.items():
            (self.cards / one).mkdir()
            (self.cards / one / "total").write_text(str(size))
        (self.cards / str(len(self._table) - 1)).symlink_to(uuid)  # jobs may be shown its number
        (self.cards / "table.json").write_text(json.dumps(self._table))

    def colleague(self, uuid: str, mb: float) -> None:
        """Somebody comes and takes so much of a card."""
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._colleagues.append(process)
        (self.cards / uuid / str(process.pid)).write_text(str(mb))

    def part(self) -> None:
        """All colleagues leave."""
        while self._colleagues:
            process = self._colleagues.pop()
            process.kill()
            process.wait()

    def holders(self, uuid: str) -> list[int]:
        """Living processes on the card that are no colleagues."""
        known = {process.pid for process in self._colleagues}
        pids = [int(path.name) for path in (self.cards / uuid).glob("[0-9]*")]
        return [pid for pid in pids if pid not in known and Path(f"/proc/{pid}").exists()]

    def were_shared(self) -> bool:
        """Whether a job met another one on any card."""
        return any(self.cards.glob("*/met"))
