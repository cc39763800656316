"""An ordinary script of torch.distributed as a gang: by the variables that torch looks for."""

import subprocess
import sys
from pathlib import Path

from hadar_cli.node.contract import Membership
from hadar_cli.node.network import interface_of, torch_variables
from hadar_cli.runs.store import find_run, read_journal
from tests.support.strays import all_gone

SCRIPT = Path(__file__).parents[1] / "support" / "ddp_script.py"
NODES = "\n".join(
    f'[[node]]\nname = "{name}"\nhost = "local"\nemulate = {{ speed = 0.5 }}' for name in "ab"
)
MIX = f"""
slot_s: 60
policy: hadar
jobs:
  - {{name: ddp, script: "{SCRIPT}", steps: 20, batch_size: 16, gpus: 2}}
"""


def test_a_script_that_shares_by_itself_runs_as_a_gang(tmp_path):
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "mix.yaml").write_text(MIX)
    code = "from hadar_cli.cli.main import main; main()"
    words = [sys.executable, "-c", code, "run", "mix.yaml", "--no-live", "--name", "r"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    store = find_run(tmp_path / "runs", "r")
    assert not [e for e in read_journal(store.journal_path) if type(e).__name__ == "CopyLost"]
    logs = sorted(path.read_text() for path in (tmp_path / "runs").rglob("workers/*/log"))
    assert [log.splitlines()[-1] for log in logs] == [
        "rank 0 of 2 through lo",
        "rank 1 of 2 through lo",
    ]
    assert all_gone(tmp_path / "runs" / "r", 20.0)


def test_members_who_meet_at_a_file_agree_on_a_port(tmp_path):
    place = f"file://{tmp_path}/gangs/one"
    first, second = (torch_variables(Membership("g", rank, 2, place)) for rank in (0, 1))
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert first["WORLD_SIZE"] == "2" and first["LOCAL_RANK"] == second["LOCAL_RANK"] == "0"
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != "0"


def test_an_address_has_an_interface_or_none():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""
